//! A writer that is stopped inside a transaction: the others answer in bounded time, and go on after.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use recoup::store::fresh::backend;

use crate::children::eventually;
use crate::driver::{hold, spoil};
use crate::sandbox::Sandbox;

const PATIENCE: &str = "--busy-timeout-ms 300";

/// Far more than the patience, and far less than for ever.
const BOUND: Duration = Duration::from_secs(10);

#[test]
fn a_stopped_writer_lets_the_others_answer_and_go_on_after() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    sandbox.line("account entries a").ended(0);
    sandbox.write(
        "one.jsonl",
        r#"{"op":"grant","account":"a","grant":"h","amount":100}"#,
    );
    let charge =
        format!("{PATIENCE} job charge --job j --account a --kind k --cost 40 --command-id c");

    let mut holder = hold(&sandbox.ledger.url());
    holder.signal("STOP");
    let begin = Instant::now();
    sandbox.line(&charge).ended(1).says("code", "unavailable");
    let report = sandbox
        .line(&format!("{PATIENCE} import one.jsonl"))
        .ended(1)
        .document();
    assert_eq!(
        (&report["error"]["line"], &report["error"]["code"]),
        (&1.into(), &"unavailable".into())
    );
    // Reading waits for nobody.
    sandbox
        .line(&format!("{PATIENCE} account show a"))
        .ended(0)
        .says("balance", 100);
    sandbox.line(&format!("{PATIENCE} job show j")).ended(3);
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());

    holder.signal("CONT");
    let mut stdin = holder.0.stdin.take().expect("it is piped");
    stdin.write_all(b"go on\n").expect("it reads");
    assert!(holder.ended().success());
    sandbox.line(&charge).ended(0).says("outcome", "applied");
    sandbox.line("import one.jsonl").ended(0).says("applied", 1);
    sandbox.line("account show a").ended(0).says("balance", 160);
    sandbox.audited();
}

#[test]
fn a_stopped_writer_that_is_killed_leaves_the_ledger_to_the_others() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    let holder = hold(&sandbox.ledger.url());
    holder.signal("STOP");
    sandbox
        .line(&format!(
            "{PATIENCE} account grant --account a --grant h --amount 1"
        ))
        .ended(1);
    drop(holder);
    sandbox
        .line("account grant --account a --grant h --amount 1")
        .ended(0)
        .says("outcome", "applied");
    sandbox.audited();
}

/// Interleaving: a process is stopped in a transaction that has written and holds every lock. The server ends its session, and the others go on. Then it wakes, and commits.
#[test]
fn a_stopped_writer_whose_session_is_ended_finds_out_and_harms_nothing() {
    if backend() != "postgres" {
        eprintln!("skipped: no server ends the session of whoever holds a file");
        return;
    }
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    let charge =
        format!("{PATIENCE} job charge --job j --account a --kind k --cost 40 --command-id c");

    let mut holder = spoil(&sandbox.ledger.url());
    holder.signal("STOP");
    sandbox.line(&charge).ended(1).says("code", "unavailable");
    let charged = eventually("the server ends the session", || {
        let charged = sandbox.line(&charge);
        (charged.code == Some(0)).then_some(charged)
    });
    charged.says("outcome", "applied");
    // What comes after it is there, too.
    sandbox.line("project --once").ended(0);

    holder.signal("CONT");
    let mut stdin = holder.0.stdin.take().expect("it is piped");
    stdin.write_all(b"go on\n").expect("it reads");
    assert!(holder.ended().success());
    let (mut stdout, mut said) = (holder.0.stdout.take().expect("it is piped"), String::new());
    stdout.read_to_string(&mut said).expect("UTF-8");
    assert!(said.contains("told: Err("), "{said}");
    sandbox.line("account show a").ended(0).says("balance", 60);
    sandbox.audited();
}
