//! Exit codes and codes of rejections, one document whatever happens.

use serde_json::{Value, json};

use crate::has_keys;
use crate::sandbox::Sandbox;

/// Jobs in many states, of an account with 97 left.
fn busy() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    sandbox
        .line("account limit --account b --floor none --monthly-cap 50")
        .ended(0);
    sandbox
        .line("job charge --job ended --account a --kind k --cost 1")
        .ended(0);
    sandbox.line("job cancel --job ended").ended(0);
    sandbox
        .line("job charge --job done --account a --kind k --cost 1")
        .ended(0);
    sandbox.line("job succeed --job done --attempt 1").ended(0);
    sandbox
        .line("job charge --job runs --account a --kind k --cost 1 --policy claimed")
        .ended(0);
    sandbox.line("job start --job runs").ended(0);
    sandbox
        .line(
            "job charge --job waits --account a --kind k --cost 1 --policy claimed --command-id c1",
        )
        .ended(0);
    sandbox
}

#[test]
fn rules_that_say_no_are_exit_code_3_with_a_code() {
    let sandbox = busy();
    // (the command, its code)
    let refused = [
        ("job start --job nobody", "no_such_job"),
        (
            "job charge --job x --account a --kind k --cost 1000",
            "insufficient_credit",
        ),
        (
            "job charge --job x --account b --kind k --cost 51",
            "cap_exceeded",
        ),
        ("job start --job runs", "attempt_running"),
        ("job extend --job runs --attempt 2", "lease_lost"),
        ("job fail --job waits --attempt 1", "not_started"),
        ("job start --job ended", "job_ended"),
        ("job cancel --job done", "already_delivered"),
        ("job redrive --job runs", "not_dead_lettered"),
        ("job fail --job done --attempt 7", "unknown_attempt"),
        ("job fail --job done --attempt 0", "unknown_attempt"),
        (
            "job cancel --job waits --command-id c1",
            "command_id_reused",
        ),
        (
            "job charge --job waits --account a --kind k --cost 2",
            "differs",
        ),
        ("account grant --account a --grant g --amount 99", "differs"),
    ];
    let head =
        |sandbox: &Sandbox| sandbox.line("account show a").document()["as_of_position"].clone();
    let before = head(&sandbox);
    for (command, code) in refused {
        let told = sandbox.line(command).ended(3).says("outcome", "rejected");
        has_keys(&told, "code message command_id scale");
        assert_eq!(told["code"], code, "{command}");
        let plain = sandbox
            .plain(&command.split(' ').collect::<Vec<_>>())
            .ended(3);
        assert!(
            plain.stdout.contains("rejected") && plain.stderr.is_empty(),
            "{plain:?}"
        );
    }
    assert_eq!(head(&sandbox), before, "a rejection stores nothing");
    let told = sandbox
        .line("job charge --job x --account a --kind k --cost 1000")
        .document();
    assert_eq!(
        (&told["available"], &told["needed"], &told["floor"]),
        (&json!(97), &json!(1000), &json!(0))
    );
}

#[test]
fn a_repeat_under_its_command_id_is_already_applied() {
    let sandbox = Sandbox::new();
    let grant = "account grant --account a --grant g --amount 40 --command-id c-g";
    let charge = "job charge --job j --account a --kind k --cost 40 --command-id c-c";
    for (command, outcome) in [
        (grant, "applied"),
        (charge, "applied"),
        (grant, "already_applied"),
        (charge, "already_applied"),
    ] {
        sandbox.line(command).ended(0).says("outcome", outcome);
    }
    // The charge left nothing: the repeat is not judged by what is there now.
    sandbox.line("account show a").ended(0).says("available", 0);
    sandbox
        .line("account limit --account a --floor 0")
        .ended(0)
        .says("outcome", "already_applied");
    sandbox
        .line("account adjust --account a --adjustment x --amount -5 --reason fee --job j")
        .ended(0);
    sandbox.line("account show a").ended(0).says("balance", -5);
    sandbox
        .line("account adjust --account a --adjustment x --amount -5 --reason fee --job j")
        .ended(0)
        .says("outcome", "already_applied");
}

#[test]
fn a_contradiction_is_noted_with_exit_code_3_and_no_result() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 40")
        .ended(0);
    sandbox
        .line("job charge --job j --account a --kind k --cost 40")
        .ended(0);
    sandbox
        .line("job succeed --job j --attempt 1 --result r")
        .ended(0)
        .says("result", "r");
    let again = sandbox
        .line("job succeed --job j --attempt 1 --result other")
        .ended(0)
        .document();
    assert_eq!(
        (&again["outcome"], &again["result"]),
        (&json!("already_applied"), &json!("r"))
    );
    for _ in 0..2 {
        let noted = sandbox
            .line("job fail --job j --attempt 1")
            .ended(3)
            .says("outcome", "noted");
        assert_eq!(
            (&noted["code"], &noted["state"]),
            (&Value::Null, &json!("delivered"))
        );
    }
    sandbox.line("job show j").ended(0).says("net", -40);
}

#[test]
fn wrong_usage_is_exit_code_2_and_one_document() {
    let sandbox = Sandbox::new();
    sandbox.line("init").ended(0);
    let wrong = [
        "",
        "nonsense",
        "job",
        "job claim",
        "up --listen 7070",
        "job charge --job j",
        "job charge --job j --account a --kind k --cost ten",
        "job charge --job j --account a --kind k --cost -5",
        "job charge --job j --account a --kind k --cost 0",
        "job charge --job j --account a --kind k --cost 1000000000000001",
        "job charge --job j --account a --kind k --cost 99999999999999999999",
        "job charge --job j --account a --kind k --cost 5 --policy both",
        "job fail --job j --attempt -1",
        "job fail --job j --attempt 1 --class maybe",
        "account limit --account a",
        "account limit --account a --monthly-cap -1",
        "account limit --account a --floor 1000000000000000001",
        "account adjust --account a --adjustment x --amount 0 --reason r",
        "account entries a --limit 0",
        "account usage a --from 2026-02-30",
        "account usage a --from 2026-02-02 --to 2026-02-01",
        "job list --state gone",
        "import absent.jsonl --close",
        "audit --zone Mars/Olympus",
        "audit --zone Asia/Seoul",
        "audit --scale 2",
        "audit --scale 10",
        "--db postgres://localhost/x audit",
        "--store postgres://user:secret@localhost audit",
        "--store kurrentdb://localhost:2113 audit",
        "--store mysql://user:secret@localhost/x audit",
        "--store sqlite::memory: audit",
        "--busy-timeout-ms 0 audit",
    ];
    for line in wrong {
        let run = sandbox.line(line).ended(2);
        let document = run.document();
        has_keys(&document, "error code");
        assert!(!run.stderr.is_empty(), "{line}");
        assert!(
            !run.stderr.contains("secret") && !run.stdout.contains("secret"),
            "{line}: {run:?}"
        );
        assert!(
            sandbox
                .plain(&line.split_whitespace().collect::<Vec<_>>())
                .ended(2)
                .stdout
                .is_empty(),
            "{line}"
        );
    }
    let refused = sandbox.run(&[
        "account",
        "adjust",
        "--account",
        "a",
        "--adjustment",
        "x",
        "--amount",
        "1",
        "--reason",
        " ",
    ]);
    refused.ended(2);
}

#[test]
fn options_come_from_the_environment_too() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    let sandbox = sandbox
        .with("RECOUP_STORE", "sqlite:other/place.db")
        .with("RECOUP_JSON", "1");
    sandbox
        .plain(&["init", "--scale", "2"])
        .ended(0)
        .says("scale", 2);
    assert!(sandbox.path("other/place.db").exists());
    assert!(sandbox.plain(&["nonsense"]).ended(2).document()["error"].is_string());
    let sandbox = Sandbox::new()
        .with("RECOUP_DB", "postgres://localhost/x")
        .with("RECOUP_JSON", "0");
    assert!(sandbox.plain(&["init"]).ended(2).stdout.is_empty());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 40")
        .ended(0);
    let mut command = sandbox.command(&["--json", "account", "show", "a"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary can be run");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..])
    );
}
