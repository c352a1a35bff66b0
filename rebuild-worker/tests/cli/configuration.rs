//! The configuration file, as a run meets it.

use serde_json::json;

use crate::sandbox::Sandbox;

const POLICIES: &str = "[kind.\"video.render\"]\npolicy = \"claimed\"\ncap = 1\nlease = \"2min\"\n";

#[test]
fn a_kinds_policy_is_copied_into_its_jobs() {
    let sandbox = Sandbox::new();
    sandbox.write("recoup.toml", POLICIES);
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let charge = |job: &str, more: &str| {
        format!("job charge --job {job} --account a --kind video.render --cost 5 {more}")
    };
    sandbox
        .line(&charge("with", "--config recoup.toml"))
        .ended(0);
    sandbox.line(&charge("without", "")).ended(0);
    sandbox
        .line(&charge("against", "--config recoup.toml --policy external"))
        .ended(0);
    let policy = |job: &str| {
        let shown = sandbox.line(&format!("job show {job}")).ended(0).document();
        shown["events"][0]["details"]["policy"].clone()
    };
    let mode = |job: &str| policy(job)["mode"].clone();
    assert_eq!(
        [mode("with"), mode("without"), mode("against")],
        [json!("claimed"), json!("external"), json!("external")]
    );
    assert_eq!(
        (&policy("with")["cap"], &policy("with")["lease_ms"]),
        (&json!(1), &json!(120_000))
    );
    // One start is all it gets.
    sandbox.line("job start --job with").ended(0);
    sandbox
        .line("job fail --job with --attempt 1")
        .ended(0)
        .says("state", "dead_lettered");
}

#[test]
fn an_import_uses_it_too() {
    let sandbox = Sandbox::new();
    let config = sandbox.write("recoup.toml", POLICIES);
    let sandbox = sandbox.with("RECOUP_CONFIG", config.display().to_string());
    let lines = [
        r#"{"op":"limit","account":"a","floor":null}"#,
        r#"{"op":"charge","job":"j","account":"a","cost":4,"kind":"video.render"}"#,
        r#"{"op":"fail","job":"j","attempt":1}"#,
    ];
    let report = sandbox.import(lines.join("\n")).ended(3).document();
    assert_eq!(report["rejections"][0]["code"], "not_started");
}

#[test]
fn a_fault_names_file_line_and_key() {
    let sandbox = Sandbox::new();
    let faulty = [
        ("[kind.x]\nlease = \"60\"\n", "line 2: kind.\"x\".lease"),
        ("[kind.x]\n\nleese = \"60s\"\n", "line 3: kind.\"x\".leese"),
        ("[kinds]\n", "line 1: kinds"),
        ("[kind.x\n", "line 1"),
    ];
    for (text, expected) in faulty {
        sandbox.write("recoup.toml", text);
        let told = sandbox
            .line("audit --config recoup.toml")
            .ended(2)
            .document();
        let error = told["error"].as_str().expect("a text");
        assert!(
            error.contains("recoup.toml") && error.contains(expected),
            "{error}"
        );
    }
    sandbox.write("recoup.toml", b"\xff");
    sandbox.line("audit --config recoup.toml").ended(1);
    let told = sandbox
        .line("audit --config absent.toml")
        .ended(1)
        .document();
    assert!(
        told["error"]
            .as_str()
            .is_some_and(|error| error.contains("absent.toml")),
        "{told}"
    );
    assert!(!sandbox.has_ledger(), "nothing was created on the way");
}
