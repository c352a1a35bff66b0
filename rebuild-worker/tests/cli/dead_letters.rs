//! Claims and dead letters as scripts see them.

use serde_json::json;

use crate::has_keys;
use crate::sandbox::Sandbox;

/// A ledger whose jobs of the kind `render` have one attempt, and two such jobs.
fn two_jobs() -> Sandbox {
    let sandbox = Sandbox::new();
    let config = "[kind.render]\npolicy = \"claimed\"\ncap = 1\n";
    let config = sandbox.write("policies.toml", config);
    let sandbox = sandbox.with("RECOUP_CONFIG", config.to_string_lossy());
    sandbox
        .line("account grant --account acme --grant g --amount 100")
        .ended(0);
    for job in ["j1", "j2"] {
        sandbox
            .line(&format!(
                "job charge --job {job} --account acme --kind render --cost 40"
            ))
            .ended(0);
    }
    sandbox
}

/// The same, with both jobs dead letters.
fn two_letters() -> Sandbox {
    let sandbox = two_jobs();
    sandbox.line("job claim --worker w --limit 2").ended(0);
    for job in ["j1", "j2"] {
        sandbox
            .line(&format!("job fail --job {job} --attempt 1 --reason oom"))
            .ended(0)
            .says("state", "dead_lettered");
    }
    sandbox
}

#[test]
fn a_claim_gives_jobs_and_nothing_is_no_failure() {
    let sandbox = two_jobs();
    let none = sandbox.line("job claim --kind chat --worker w").ended(0);
    none.says("claimed", json!([]));
    let claimed = sandbox
        .line("job claim --kind render --kind chat --worker w --lease 90s")
        .ended(0)
        .document();
    let row = &claimed["claimed"][0];
    has_keys(row, "job account kind attempt lease_until revision");
    assert_eq!(
        (&row["job"], &row["kind"], &row["attempt"], &row["revision"]),
        (&json!("j1"), &json!("render"), &json!(1), &json!(1))
    );
    let show = sandbox.line("job show j1").ended(0).document();
    assert_eq!(show["events"][1]["details"]["lease_ms"], 90_000);
    let text = sandbox.plain(&["job", "claim", "--worker", "w", "--limit", "9"]);
    assert!(text.ended(0).stdout.contains("j2"));
    let text = sandbox.plain(&["job", "claim", "--worker", "w"]).ended(0);
    assert_eq!(text.stdout, "nothing is due\n");
    sandbox.line("job claim --kind render").ended(2);
    sandbox.line("job claim --worker w --lease 0s").ended(2);
    sandbox.audited();
}

#[test]
fn a_start_may_ask_for_a_lease_of_its_own() {
    let sandbox = two_jobs();
    sandbox
        .line("job start --job j1 --worker w --lease 2min")
        .ended(0);
    let line = r#"{"op":"start","job":"j2","worker":"w","lease_ms":5000}"#;
    sandbox.import(line).ended(0).says("applied", 1);
    for (job, lease_ms) in [("j1", 120_000), ("j2", 5_000)] {
        let show = sandbox.line(&format!("job show {job}")).document();
        assert_eq!(show["events"][1]["details"]["lease_ms"], lease_ms, "{job}");
    }
    let line = r#"{"op":"start","job":"j2","lease_ms":0}"#;
    let refused = sandbox.import(line).ended(1).document();
    assert!(refused.to_string().contains("lease_ms"), "{refused}");
    sandbox.line("job start --job j1 --lease 400d").ended(2);
}

#[test]
fn dead_letters_are_listed_and_shown() {
    let sandbox = two_letters();
    let list = sandbox.line("dead-letters list").ended(0).document();
    assert_eq!(list["dead_letters"].as_array().map(Vec::len), Some(2));
    let row = &list["dead_letters"][0];
    has_keys(row, "job account kind cost cause attempts reason position");
    assert_eq!(
        (&row["job"], &row["cause"], &row["reason"], &row["cost"]),
        (
            &json!("j1"),
            &json!("cap_reached"),
            &json!("oom"),
            &json!(40)
        )
    );
    let page = sandbox.line("dead-letters list --limit 1").document();
    let rest = sandbox.line(&format!("dead-letters list --after {}", page["next"]));
    assert_eq!(rest.document()["dead_letters"][0]["job"], "j2");
    for nothing in [
        "--kind chat",
        "--account b",
        "--before 2020-01-01T00:00:00Z",
    ] {
        let list = sandbox.line(&format!("dead-letters list {nothing}"));
        list.ended(0).says("dead_letters", json!([]));
    }
    let show = sandbox.line("dead-letters show j1").ended(0).document();
    has_keys(&show, "state money net held entries events");
    assert_eq!(
        (&show["cause"], &show["reason"]),
        (&json!("cap_reached"), &json!("oom"))
    );
    sandbox
        .line("dead-letters show nobody")
        .ended(3)
        .says("code", "no_such_job");
    let text = sandbox.plain(&["dead-letters", "list"]).ended(0).stdout;
    assert!(
        text.contains("cap_reached") && text.contains("oom"),
        "{text}"
    );
}

#[test]
fn dead_letters_are_moved_once_and_a_run_given_again_says_so() {
    let sandbox = two_letters();
    let dry = sandbox
        .line("dead-letters redrive --all --dry-run --reason again")
        .ended(0)
        .document();
    assert_eq!(
        (&dry["selected"], &dry["applied"], &dry["dry_run"]),
        (&json!(2), &json!(2), &json!(true))
    );
    let oldest = sandbox.line("dead-letters redrive --all --limit 1 --reason again");
    let oldest = oldest.ended(0).document();
    has_keys(
        &oldest,
        "selected applied already_applied rejected rejections",
    );
    assert_eq!(
        (&oldest["selected"], &oldest["applied"]),
        (&json!(1), &json!(1))
    );
    let first = sandbox.line("dead-letters redrive j2 j1 --limit 1 --reason again");
    first.ended(0).says("already_applied", 1);
    let again = sandbox.line("dead-letters redrive j1 j2 --reason again");
    let again = again.ended(0).document();
    assert_eq!(
        (&again["applied"], &again["already_applied"]),
        (&json!(1), &json!(1))
    );
    let refused = sandbox.line("dead-letters discard j1 nobody --reason enough");
    let refused = refused.ended(3).document();
    assert_eq!(
        (&refused["selected"], &refused["rejected"]),
        (&json!(2), &json!(2))
    );
    let codes: Vec<_> = refused["rejections"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (row["job"].clone(), row["code"].clone()))
        .collect();
    assert_eq!(
        codes,
        [
            (json!("nobody"), json!("no_such_job")),
            (json!("j1"), json!("not_dead_lettered"))
        ]
    );
    // They fail again: each is a new dead letter, and may be given up.
    sandbox.line("job claim --worker w --limit 2").ended(0);
    for job in ["j1", "j2"] {
        let fail = format!("job fail --job {job} --attempt 2");
        sandbox.line(&fail).ended(0).says("state", "dead_lettered");
    }
    let discarded = sandbox
        .line("dead-letters discard --all --kind render --account acme --reason enough")
        .ended(0);
    discarded.says("applied", 2);
    let list = sandbox.line("dead-letters list").ended(0);
    list.says("dead_letters", json!([]));
    sandbox.audited();
}

#[test]
fn a_redrive_is_admitted_like_a_charge() {
    let sandbox = two_letters();
    // What was refunded is spent: there is room for one of the two.
    sandbox
        .line("job charge --job j3 --account acme --kind chat --cost 60")
        .ended(0);
    let moved = sandbox.line("dead-letters redrive --all --reason again");
    let moved = moved.ended(3).document();
    assert_eq!(
        (&moved["applied"], &moved["rejected"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(moved["rejections"][0]["code"], "insufficient_credit");
    sandbox.audited();
}

#[test]
fn dead_letters_are_moved_with_a_reason_and_a_selection() {
    let sandbox = two_letters();
    for line in [
        "dead-letters redrive --all",
        "dead-letters redrive --reason again",
        "dead-letters redrive j1 --all --reason again",
        "dead-letters redrive j1 --kind render --reason again",
    ] {
        sandbox.line(line).ended(2);
    }
    let args = ["dead-letters", "discard", "--all", "--reason", " "];
    sandbox.run(&args).ended(2);
}
