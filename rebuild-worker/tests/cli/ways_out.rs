//! Ways out of a halt on the command line; what lists say while there is one; answers that cannot be printed.

use std::fs::File;
use std::process::Stdio;

use crate::sandbox::Sandbox;

/// A ledger whose first event cannot be read by anything.
fn unreadable() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g1 --amount 100")
        .ended(0);
    let body = sandbox.ledger.literal(&[0xFF, 0xFF]);
    let sql = format!("UPDATE appends SET body = {body} WHERE position = 1");
    sandbox.ledger.execute(&sql);
    sandbox
        .line("account grant --account a --grant g2 --amount 5")
        .ended(0);
    sandbox
}

#[test]
fn an_empty_list_says_up_to_where_it_is_empty() {
    let sandbox = unreadable();
    for line in [
        "account entries a",
        "account usage a",
        "job list",
        "contradictions list",
    ] {
        let run = sandbox.line(line).ended(0);
        let document = run.document();
        assert_eq!(document["halted"]["position"], 1, "{line}: {document}");
        assert!(document["halted"]["reason"].is_string(), "{document}");
        assert_eq!(
            (&document["as_of_position"], &document["lag_events"]),
            (&0.into(), &2.into())
        );
        assert!(
            run.stderr.contains("cannot get past event 1"),
            "{}",
            run.stderr
        );
        let words: Vec<&str> = line.split(' ').collect();
        let text = sandbox.plain(&words).ended(0);
        let told = "up to position 0; 2 events in the log after it, not applied";
        assert!(text.stdout.contains(told), "{line}: {}", text.stdout);
        // Said once, by whoever was asked.
        assert_eq!(text.stderr.lines().count(), 1, "{}", text.stderr);
    }
    let healthy = Sandbox::new();
    let document = healthy.line("job list").ended(0).document();
    assert!(document["halted"].is_null(), "{document}");
    let text = healthy.plain(&["job", "list"]).ended(0);
    assert_eq!(
        (text.stdout.as_str(), text.stderr.as_str()),
        ("no jobs\n", "")
    );
}

#[test]
fn a_skip_without_a_position_takes_the_event_that_is_in_the_way_now() {
    let sandbox = unreadable();
    sandbox.line("project --once").ended(1);
    let skipped = sandbox
        .line("project skip --projection entries --reason lost --by ops")
        .ended(0)
        .document();
    assert_eq!(
        (&skipped["position"], &skipped["outcome"]),
        (&1.into(), &"applied".into())
    );
    let listed = sandbox.line("account entries a").ended(0).document();
    assert_eq!(
        listed["entries"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    sandbox
        .line("project skip entries --reason again")
        .ended(3)
        .says("code", "not_halted");
    // The others are where they were.
    let jobs = sandbox.line("job list").ended(0).document();
    assert_eq!(jobs["halted"]["position"], 1);
    // After a reset the event stands in the way again.
    let reset = sandbox.line("project reset entries").ended(0).document();
    assert_eq!(
        (&reset["rows_removed"], &reset["was_at"]),
        (&1.into(), &2.into())
    );
    let listed = sandbox.line("account entries a").ended(0).document();
    assert_eq!(listed["halted"]["position"], 1);
}

#[test]
fn a_way_out_needs_a_name_that_exists_and_a_reason() {
    let sandbox = Sandbox::new();
    for wrong in [
        "project skip --reason x",
        "project skip entries",
        "project skip entries --reason x --position 0",
        "project skip entries --projection jobs --reason x",
        "project skip nothing --reason x",
        "project reset",
        "project reset nothing",
        "project --once reset entries",
    ] {
        sandbox.line(wrong).ended(2);
    }
    sandbox
        .run(&["project", "skip", "entries", "--reason", " "])
        .ended(2);
}

#[test]
fn an_answer_that_cannot_be_printed_is_a_failure() {
    let sandbox = Sandbox::new();
    for args in [&["init"][..], &["--json", "job", "list"], &["--help"]] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let ended = sandbox
            .command(args)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .expect("the binary can be run");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("could not be printed"), "{said}");
    }
}
