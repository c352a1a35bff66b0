//! The verbs over a log in KurrentDB, here a stand-in, with a file beside it.

use recoup::store::fresh::Fresh;

use crate::sandbox::Sandbox;

fn sandbox() -> Sandbox {
    recoup_kurrentdb_standin::keep_logs();
    let ledger = Fresh::beside_a_log();
    let beside = ledger.db_url().expect("there is one");
    let mut sandbox = Sandbox::new();
    sandbox.environment = vec![
        ("RECOUP_STORE", format!("{}&prefix=shop.", ledger.url())),
        ("RECOUP_DB", beside),
    ];
    sandbox.ledger = ledger;
    sandbox
}

/// A lifecycle with every verb that an operator has, each a process of its own.
#[test]
fn a_lifecycle_goes_through_every_verb() {
    let sandbox = sandbox();
    sandbox
        .line("init --scale 2")
        .ended(0)
        .says("created", true);
    sandbox.line("init").ended(0).says("created", false);
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    let charge = "job charge --job j --account a --kind video --cost 40";
    sandbox.line(charge).ended(0).says("outcome", "applied");
    sandbox
        .line(charge)
        .ended(0)
        .says("outcome", "already_applied");
    sandbox
        .line("job charge --job k --account a --kind video --cost 61")
        .ended(3)
        .says("code", "insufficient_credit");
    sandbox
        .line("job fail --job j --attempt 1 --class terminal")
        .ended(0);
    for _ in 0..3 {
        sandbox.line("job succeed --job j --attempt 1").ended(0);
    }
    let account = sandbox.line("account show a").ended(0).document();
    assert_eq!(account["balance"], 60, "{account}");
    assert_eq!(account["reserved"], 0, "{account}");
    let entries = sandbox.line("account entries a").ended(0).document();
    assert_eq!(
        entries["entries"].as_array().map(Vec::len),
        Some(4),
        "{entries}"
    );
    sandbox
        .line("account limit --account a --monthly-cap 45")
        .ended(0);
    sandbox
        .line("job charge --job l --account a --kind video --cost 6")
        .ended(3)
        .says("code", "cap_exceeded");
    sandbox.line("project --once").ended(0);
    sandbox.audited();
    sandbox.line("rebuild --verify").ended(0);
    sandbox.line("rebuild --all").ended(0);
    sandbox
        .ledger
        .execute("UPDATE daily_usage SET charged = charged + 1");
    sandbox.line("rebuild").ended(4);
    sandbox.line("rebuild").ended(0);
    sandbox.audited();
    sandbox.line("export log.jsonl").ended(0);
    sandbox
        .line("project skip-figures --reason why")
        .ended(3)
        .says("code", "not_halted");
    // What a file of commands says is carried out there as anywhere.
    sandbox.write(
        "more.jsonl",
        "{\"op\":\"grant\",\"account\":\"b\",\"grant\":\"g\",\"amount\":7}\n{\"op\":\"charge\",\"job\":\"m\",\"account\":\"b\",\"kind\":\"video\",\"cost\":7}\n",
    );
    sandbox.line("import more.jsonl").ended(0);
    let account = sandbox.line("account show b").ended(0).document();
    assert_eq!(account["balance"], 0, "{account}");
    sandbox.audited();
}

/// The log keeps its figures in one database, and a person moves them.
#[test]
fn figures_are_moved_by_a_person() {
    let mut sandbox = sandbox();
    sandbox
        .line("account grant --account a --grant g --amount 7")
        .ended(0);
    let beside = sandbox.environment[1].clone();
    let other = sandbox.path("other.db");
    sandbox.environment[1].1 = format!("sqlite:{}", other.display());
    let run = sandbox.line("account show a").ended(1);
    assert!(run.stderr.contains("another database"), "{}", run.stderr);
    sandbox.line("project move-figures").ended(2);
    sandbox
        .line("project move-figures --reason lost --by ops")
        .ended(0)
        .says("outcome", "applied");
    sandbox
        .line("project move-figures --reason lost --by ops")
        .ended(0)
        .says("outcome", "already_applied");
    let account = sandbox.line("account show a").ended(0).document();
    assert_eq!(account["balance"], 7, "{account}");
    sandbox.audited();
    sandbox.environment[1] = beside;
    sandbox.line("audit").ended(1);
}

/// What cannot be done there says so and does nothing; what is missing is named.
#[test]
fn what_a_log_elsewhere_cannot_do_is_said() {
    let sandbox = sandbox();
    sandbox.write("past.jsonl", "{\"op\":\"grant\",\"account\":\"b\",\"grant\":\"g\",\"amount\":7,\"at\":\"2026-01-01T00:00:00Z\"}\n");
    for line in [
        "demo --keep folder",
        "bench append",
        "import past.jsonl --backfill",
        "backup copy.db",
        "--db kurrentdb://localhost:2113 audit",
        "--store sqlite:x.db audit",
        "--store kurrentdb://localhost:2113?Prefixes=x audit",
        "--store kurrentdb://localhost:2113?prefix=x&prefix=y audit",
    ] {
        let run = sandbox.line(line).ended(2);
        assert!(!run.stderr.is_empty(), "{line}");
    }
    let mut alone = sandbox;
    alone.environment.truncate(1);
    let run = alone.line("audit").ended(2);
    assert!(run.stderr.contains("--db"), "{}", run.stderr);
}

/// A demo fills streams of its own, and begins with none.
#[test]
fn a_demo_goes_into_no_ledger_that_is_there() {
    let mut sandbox = sandbox();
    sandbox.line("init").ended(0);
    let run = sandbox.line("demo").ended(1);
    assert!(run.stderr.contains("there is a ledger"), "{}", run.stderr);
    sandbox.environment[0].1 = sandbox.ledger.url();
    let run = sandbox.line("demo").ended(2);
    assert!(run.stderr.contains("name a prefix"), "{}", run.stderr);
}

/// A server that is not there is told within the patience, without what the URL hides.
#[test]
fn a_server_that_is_not_there_is_named() {
    let mut sandbox = sandbox();
    sandbox.environment[0].1 = "kurrentdb://u:secret@127.0.0.1:1?tls=false".to_owned();
    let run = sandbox.line("account show a").ended(1);
    assert!(!run.stderr.contains("secret"), "{}", run.stderr);
    assert!(run.stderr.contains("unavailable"), "{}", run.stderr);
}
