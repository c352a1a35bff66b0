//! Processes that work on one ledger at the same time.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::children::{Running, eventually};
use crate::sandbox::{Run, Sandbox};

fn spawn(sandbox: &Sandbox, args: &[&str]) -> Child {
    let mut command = sandbox.command(&["--json"]);
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the binary can be run")
}

fn finished(child: Child) -> Run {
    Run::of(child.wait_with_output().expect("it ends"))
}

#[test]
fn processes_that_create_one_ledger_at_once_agree_on_it() {
    for _ in 0..5 {
        let sandbox = Sandbox::new();
        let children: Vec<Child> = (0..4)
            .map(|_| spawn(&sandbox, &["init", "--scale", "2"]))
            .collect();
        let ledgers: Vec<Value> = children
            .into_iter()
            .map(|child| finished(child).ended(0).document()["ledger"].clone())
            .collect();
        assert!(
            ledgers.iter().all(|ledger| *ledger == ledgers[0]),
            "{ledgers:?}"
        );
    }
}

#[test]
fn one_of_many_equal_signals_is_applied() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    sandbox
        .line("job charge --job j --account a --kind k --cost 40")
        .ended(0);
    for signal in [
        &["fail", "--job", "j", "--attempt", "1"][..],
        &["succeed", "--job", "j", "--attempt", "1"],
    ] {
        let args = [&["job"], signal].concat();
        let children: Vec<Child> = (0..6).map(|_| spawn(&sandbox, &args)).collect();
        let outcomes: Vec<Value> = children
            .into_iter()
            .map(|child| finished(child).ended(0).document()["outcome"].clone())
            .collect();
        let applied = outcomes
            .iter()
            .filter(|outcome| *outcome == "applied")
            .count();
        assert_eq!(applied, 1, "{outcomes:?}");
    }
    sandbox.line("account show a").ended(0).says("balance", 60);
    sandbox.audited();
}

#[test]
fn imports_of_one_file_at_once_apply_it_once() {
    let sandbox = Sandbox::new();
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let line = |n: u32| {
        format!(
            "{{\"op\":\"charge\",\"job\":\"j{n}\",\"account\":\"a\",\"cost\":1,\"kind\":\"k\"}}\n"
        )
    };
    sandbox.write("jobs.jsonl", (0..3_000).map(line).collect::<String>());
    let children: Vec<Child> = (0..3)
        .map(|_| spawn(&sandbox, &["import", "jobs.jsonl"]))
        .collect();
    let reports: Vec<Value> = children
        .into_iter()
        .map(|child| finished(child).ended(0).document())
        .collect();
    let sum = |key: &str| {
        reports
            .iter()
            .filter_map(|report| report[key].as_u64())
            .sum::<u64>()
    };
    assert_eq!(
        (sum("applied"), sum("already_applied")),
        (3_000, 6_000),
        "{reports:?}"
    );
    sandbox
        .line("account show a")
        .ended(0)
        .says("balance", -3_000);
    sandbox.audited();
}

#[test]
fn a_projector_follows_what_others_append_until_it_is_told_to_stop() {
    for signal in ["INT", "TERM"] {
        let sandbox = Sandbox::new();
        sandbox.line("project --once").ended(0);
        let mut projector = Running(spawn(&sandbox, &["project"]));
        for grant in ["g1", "g2"] {
            sandbox
                .line(&format!(
                    "account grant --account a --grant {grant} --amount 5"
                ))
                .ended(0);
        }
        eventually("the projector is at the head", || {
            let read = sandbox
                .ledger
                .table("SELECT min(position) FROM checkpoints");
            (read[0][0] == "2").then_some(())
        });
        projector.signal(signal);
        assert!(projector.ended().success(), "SIG{signal} is a good end");
        let mut stdout = projector.0.stdout.take().expect("it is piped");
        let told: Value = serde_json::from_reader(&mut stdout).expect("one document");
        assert_eq!((&told["position"], &told["head"]), (&2.into(), &2.into()));
    }
}
