//! Rebuilds that are killed in the middle of their work.

use std::process::Stdio;

use crate::children::{Random, Running, eventually};
use crate::sandbox::Sandbox;

/// More rows than one transaction repairs are wrong. Repairs are killed at random moments, at least once in the middle; then one is let
/// run to its end. Whatever was killed, each row was as it was or as it should be, and in the end all are right.
#[test]
fn a_rebuild_that_is_killed_again_and_again_can_be_run_to_its_end() {
    const ROWS: u64 = 3_000;
    let sandbox = Sandbox::new();
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let lines: Vec<String> = (0..ROWS)
        .map(|number| {
            format!(
                r#"{{"op":"charge","job":"j{number}","account":"a","cost":7,"kind":"k{number}"}}"#
            )
        })
        .collect();
    sandbox.write("jobs.jsonl", lines.join("\n"));
    sandbox.line("import jobs.jsonl").ended(0);
    sandbox.line("project --once").ended(0);
    let count = |what: &str| -> u64 {
        let sql = format!("SELECT count(*) FROM daily_usage WHERE {what}");
        let count = sandbox.ledger.table(&sql);
        count[0][0].parse().expect("a number")
    };
    let spoil = || {
        sandbox
            .ledger
            .execute("UPDATE daily_usage SET charged = 17");
    };
    let mut random = Random(43);
    let mut halves = 0;
    for _ in 0..8 {
        spoil();
        let mut command = sandbox.command(&["--json", "rebuild"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut rebuild = Running(command.spawn().expect("the binary can be run"));
        // Killed once so many rows are right.
        let enough = random.below(1_500);
        eventually("rows are repaired", || {
            let has_ended = rebuild.0.try_wait().expect("it can be asked").is_some();
            (has_ended || count("charged = 7") > enough).then_some(())
        });
        rebuild.signal("KILL");
        rebuild.ended();
        let (right, wrong) = (count("charged = 7"), count("charged = 17"));
        assert_eq!(right + wrong, ROWS, "no row is anything else");
        halves += u32::from(right > 0 && wrong > 0);
    }
    assert!(halves > 0, "none was killed in the middle");
    let last = sandbox.line("rebuild");
    assert!(
        last.code == Some(4) || last.code == Some(0),
        "{}",
        last.stderr
    );
    sandbox.line("rebuild").ended(0).says("rows_different", 0);
    sandbox.audited();
}
