//! TLS to a PostgreSQL server: whom it is taken for is said in the URL.

use std::process::{Command, Stdio};

use crate::sandbox::Sandbox;

/// Another URL of the same ledger: with TLS that is checked by `certificate`, and by the server's name if that is `mode`.
fn checked(url: &str, mode: &str, certificate: &str) -> String {
    let (base, query) = url.split_once('?').expect("it names a schema");
    let rest = query.split('&').filter(|part| !part.starts_with("ssl"));
    let rest: Vec<&str> = rest.collect();
    let rest = rest.join("&");
    format!("{base}?{rest}&sslmode={mode}&sslrootcert={certificate}")
}

#[test]
fn a_server_is_taken_for_itself_by_its_certificate_only() {
    let Ok(certificate) = std::env::var("RECOUP_TEST_POSTGRES_CERT") else {
        eprintln!(
            "skipped: RECOUP_TEST_POSTGRES_CERT names no certificate; scripts/postgres run does"
        );
        return;
    };
    let sandbox = Sandbox::new();
    let url = sandbox.ledger.url();
    let run = |url: &str, line: &str| sandbox.line(&format!("--store {url} {line}"));

    // More in one request than TLS takes into one record.
    let grant = |n: u32| {
        format!("{{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"g{n}\",\"amount\":1}}\n")
    };
    sandbox.write("grants.jsonl", (0..2_000).map(grant).collect::<String>());
    let full = checked(&url, "verify-full", &certificate);
    run(&full, "import grants.jsonl")
        .ended(0)
        .says("applied", 2_000);
    run(&full, "audit").ended(0).says("events", 2_000);

    // One that somebody else has made for the same name.
    let (other, key) = (sandbox.path("other.pem"), sandbox.path("other.key"));
    let made = Command::new("openssl")
        .args(["req", "-new", "-x509", "-days", "2", "-nodes"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(&other)
        .arg("-keyout")
        .arg(&key)
        .stderr(Stdio::null())
        .status();
    assert!(made.is_ok_and(|made| made.success()), "openssl req");
    let other = other.display().to_string();
    for mode in ["verify-full", "verify-ca"] {
        let refused = run(&checked(&url, mode, &other), "account show a").ended(1);
        let said = refused.document()["error"].to_string();
        assert!(said.contains("invalid peer certificate"), "{mode}: {said}");
    }

    // The right one, and a name that is not in it.
    let by_number = url.replace("@localhost:", "@127.0.0.1:");
    let refused = run(&checked(&by_number, "verify-full", &certificate), "audit").ended(1);
    let said = refused.document()["error"].to_string();
    assert!(said.contains("not valid for name"), "{said}");
    run(&checked(&by_number, "verify-ca", &certificate), "audit").ended(0);
}
