//! Timers under `recoup up`, with services and workers that are gone: every command is a process of its own that has ended.

use serde_json::Value;

use crate::children::eventually;
use crate::sandbox::Sandbox;
use crate::up::Up;

/// Policies whose timers run out within a second or two.
fn sandbox() -> Sandbox {
    let mut sandbox = Sandbox::new();
    let policies = r#"
[kind."claimed"]
policy = "claimed"
cap = 2
first_delay = "10ms"
start_within = "700ms"
lease = "700ms"

[kind."external"]
start_within = "700ms"
"#;
    let file = sandbox.write("policies.toml", policies);
    sandbox
        .environment
        .push(("RECOUP_CONFIG", file.display().to_string()));
    sandbox
        .line("account grant --account a --grant g --amount 1000")
        .ended(0);
    sandbox
}

fn charge(sandbox: &Sandbox, job: &str, kind: &str) {
    sandbox
        .line(&format!(
            "job charge --job {job} --account a --kind {kind} --cost 40"
        ))
        .ended(0);
}

fn show(sandbox: &Sandbox, job: &str) -> Value {
    sandbox.line(&format!("job show {job}")).ended(0).document()
}

fn comes_to(sandbox: &Sandbox, job: &str, state: &str) -> Value {
    eventually(&format!("{job} is {state}"), || {
        Some(show(sandbox, job)).filter(|job| job["state"] == state)
    })
}

/// A process that is gone right after its charge, after its start, after its failure: each job ends refunded, and a late success
/// takes the refund back, once.
#[test]
fn what_a_killed_process_left_ends_by_its_timer_and_is_reclaimed_late() {
    let sandbox = sandbox();
    charge(&sandbox, "charged", "claimed");
    charge(&sandbox, "forgotten", "external");
    charge(&sandbox, "started", "claimed");
    sandbox.line("job start --job started --worker w").ended(0);
    charge(&sandbox, "failed", "claimed");
    sandbox.line("job start --job failed --worker w").ended(0);
    sandbox.line("job fail --job failed --attempt 1").ended(0);
    let up = Up::start(&sandbox);
    for (job, state) in [
        ("charged", "dead_lettered"),
        ("forgotten", "failed"),
        ("started", "dead_lettered"),
        ("failed", "dead_lettered"),
    ] {
        let job = comes_to(&sandbox, job, state);
        assert_eq!((&job["net"], &job["held"]), (&0.into(), &0.into()), "{job}");
    }
    sandbox
        .line("account show a")
        .ended(0)
        .says("balance", 1000);
    for job in ["charged", "forgotten", "started", "failed"] {
        let succeed = format!("job succeed --job {job} --attempt 1");
        sandbox.line(&succeed).ended(0).says("outcome", "applied");
        sandbox
            .line(&succeed)
            .ended(0)
            .says("outcome", "already_applied");
        let job = show(&sandbox, job);
        assert_eq!(
            (&job["money"], &job["net"]),
            (&"reclaimed".into(), &(-40).into())
        );
    }
    sandbox.line("account show a").ended(0).says("balance", 840);
    up.end("TERM");
    sandbox.audited();
}

/// A worker that crashes on one poisonous job again and again: each start counts, and the others go on.
#[test]
fn fault_17_a_poisonous_job_reaches_its_cap_while_the_others_go_on() {
    let sandbox = sandbox();
    charge(&sandbox, "poison", "claimed");
    let up = Up::start(&sandbox);
    let mut starts = 0;
    eventually("the poisonous job is a dead letter", || {
        let claimed = sandbox
            .line("job claim --kind claimed --worker w --lease 100ms --limit 9")
            .ended(0)
            .document();
        let claimed = claimed["claimed"].as_array().expect("a list").clone();
        for job in claimed {
            if job["job"] == "poison" {
                // The worker dies here.
                starts += 1;
                charge(&sandbox, &format!("good-{starts}"), "claimed");
            } else {
                let (job, attempt) = (&job["job"], &job["attempt"]);
                let succeed = format!("job succeed --job {} --attempt {attempt}", job.as_str()?);
                sandbox.line(&succeed).ended(0);
            }
        }
        Some(show(&sandbox, "poison")).filter(|job| job["state"] == "dead_lettered")
    });
    assert_eq!(starts, 2, "the cap");
    let good = comes_to(&sandbox, "good-1", "delivered");
    assert_eq!(good["attempts"], 1);
    up.end("TERM");
    sandbox.audited();
}
