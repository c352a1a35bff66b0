//! Command ids: a repeat is answered as stored; the same id with other content is refused, and says which field.

use recoup::job::Decision;
use recoup::{
    Attempt, FailureClass, JobCommand, Lease, Mode, PolicyChoice, PriceSnapshot, Rejection,
};

use super::life::{Answer, Life, extend, fail, start, succeed};
use crate::values::{account_id, charge, command_id, cost, kind, policy, reason, result, worker};

fn reused(field: &'static str) -> Answer {
    Err(Rejection::CommandIdReused { field })
}

fn with_reason(command: &JobCommand, text: &str) -> JobCommand {
    let given = Some(reason(text));
    match command.clone() {
        JobCommand::Fail { attempt, class, .. } => JobCommand::Fail {
            attempt,
            class,
            reason: given,
        },
        JobCommand::Cancel { .. } => JobCommand::Cancel { reason: given },
        JobCommand::Redrive { .. } => JobCommand::Redrive { reason: given },
        JobCommand::Discard { .. } => JobCommand::Discard { reason: given },
        other => panic!("{} has no reason", other.name()),
    }
}

/// A life that is about to be sent the command, the command, and the same command with one field changed.
type Case = (Life, JobCommand, Vec<(&'static str, JobCommand)>);

fn every_command() -> Vec<Case> {
    let failed = fail(1, FailureClass::Retryable);
    let delivered = JobCommand::Succeed {
        attempt: Attempt::FIRST,
        result: Some(result("s3://a")),
    };
    let other_result = JobCommand::Succeed {
        attempt: Attempt::FIRST,
        result: Some(result("s3://b")),
    };
    let cancel = JobCommand::Cancel { reason: None };
    let redrive = JobCommand::Redrive { reason: None };
    let discard = JobCommand::Discard { reason: None };
    let by = |name: &str| JobCommand::Start {
        worker: Some(worker(name)),
        lease: None,
    };
    let leased = |ms| JobCommand::Start {
        worker: Some(worker("w1")),
        lease: Some(Lease::from_ms(ms).expect("valid")),
    };
    let claimed = Life::claimed().charge();
    let running = claimed.clone().start();
    let dead = Life::with_cap(1).charge().start().fail(1);
    let third = running.clone().wait_ms(running.policy.lease_ms / 2);
    vec![
        (
            claimed.clone(),
            by("w1"),
            vec![("worker", by("w2")), ("worker", start())],
        ),
        (
            claimed.clone(),
            leased(90_000),
            vec![("lease_ms", leased(60_000))],
        ),
        (third, extend(1), vec![("attempt", extend(2))]),
        (
            running.clone(),
            failed.clone(),
            vec![
                ("attempt", fail(2, FailureClass::Retryable)),
                ("class", fail(1, FailureClass::Terminal)),
                ("reason", with_reason(&failed, "out of memory")),
            ],
        ),
        (
            running,
            delivered,
            vec![
                ("attempt", succeed(2)),
                ("result", succeed(1)),
                ("result", other_result),
            ],
        ),
        (
            claimed,
            cancel.clone(),
            vec![("reason", with_reason(&cancel, "not wanted"))],
        ),
        (
            dead.clone(),
            redrive.clone(),
            vec![("reason", with_reason(&redrive, "once more"))],
        ),
        (
            dead,
            discard.clone(),
            vec![("reason", with_reason(&discard, "give up"))],
        ),
    ]
}

#[test]
fn a_repeat_is_already_applied_and_other_content_is_refused() {
    for (mut life, command, changed) in every_command() {
        let id = command_id("the id");
        let applied = life.send_as(&id, &command);
        assert!(
            matches!(applied, Ok(Decision::Append { .. })),
            "{command:?}: {applied:?}"
        );
        let repeated = life.decide(&id, &command);
        assert_eq!(repeated, Ok(Decision::AlreadyApplied), "{command:?}");
        for (field, other) in changed {
            assert_eq!(
                life.decide(&id, &other),
                reused(field),
                "{command:?}, then {other:?}"
            );
        }
    }
}

#[test]
fn an_id_of_one_command_is_refused_for_every_other() {
    let all = every_command();
    for (mut life, command, _) in all.clone() {
        let id = command_id("the id");
        let _ = life.send_as(&id, &command).expect("it is applied");
        for (_, other, _) in &all {
            if other.name() != command.name() {
                assert_eq!(
                    life.decide(&id, other),
                    reused("command"),
                    "{command:?}, then {other:?}"
                );
            }
        }
        let charging = life.charging();
        assert_eq!(
            life.decide(&id, &charging),
            reused("command"),
            "{command:?}, then a charge"
        );
    }
}

#[test]
fn a_repeat_keeps_its_answer_whatever_happened_since() {
    // Each command of one long life is repeated at its end, when its state is long gone.
    let mut life = Life::with_cap(1);
    let timeout = |life: &Life| life.clone().at_deadline();
    let mut sent = Vec::new();
    let steps: [fn(&Life) -> JobCommand; 9] = [
        Life::charging,
        |_| start(),
        |_| extend(1),
        |_| fail(1, FailureClass::Retryable),
        |_| JobCommand::Redrive { reason: None },
        |_| start(),
        Life::expiry,
        |_| JobCommand::Discard { reason: None },
        |_| succeed(1),
    ];
    for (number, step) in steps.into_iter().enumerate() {
        let command = step(&life);
        match command {
            JobCommand::Extend { .. } => life = life.wait_ms(30_000),
            JobCommand::Expire { .. } => life = timeout(&life),
            _ => {}
        }
        let id = command_id(&format!("step {number}"));
        let answer = life.send_as(&id, &command).expect("every step is taken");
        sent.push((id, command, answer));
    }
    assert_eq!(life.state_name(), "discarded");
    for (id, command, answer) in sent {
        let expected = match answer {
            Decision::Noted { .. } => Decision::Noted { event: None },
            Decision::Append { .. } | Decision::AlreadyApplied => Decision::AlreadyApplied,
        };
        assert_eq!(life.decide(&id, &command), Ok(expected), "{command:?}");
    }
}

#[test]
fn what_was_noted_stays_noted() {
    let delivered = Life::claimed().charge().start().succeed(1);
    let cancelled = Life::claimed().charge().cancel();
    let late_failure = with_reason(&fail(1, FailureClass::Terminal), "too late");
    let late_success = JobCommand::Succeed {
        attempt: Attempt::FIRST,
        result: Some(result("s3://a")),
    };
    for (mut life, late, field, other) in [
        (
            delivered,
            late_failure,
            "class",
            fail(1, FailureClass::Retryable),
        ),
        (cancelled, late_success, "result", succeed(1)),
    ] {
        let id = command_id("the id");
        let first = life.send_as(&id, &late);
        assert!(
            matches!(first, Ok(Decision::Noted { event: Some(_) })),
            "{first:?}"
        );
        let noted = Ok(Decision::Noted { event: None });
        assert_eq!(life.decide(&id, &late), noted, "the same command");
        assert_eq!(life.send(&late), noted, "the same signal under another id");
        assert_eq!(
            life.send(&other),
            noted,
            "the same contradiction in other words"
        );
        assert_eq!(life.decide(&id, &other), reused(field));
        assert_eq!(life.count("contradicted"), 1);
    }
}

#[test]
fn a_contradiction_is_noted_once_per_signal_and_attempt() {
    let mut life = Life::with_cap(2)
        .charge()
        .start()
        .fail(1)
        .due()
        .start()
        .fail(2)
        .discard();
    for attempt in [1, 2, 3, 1, 2, 3] {
        let answer = life.send(&succeed(attempt));
        assert!(
            matches!(answer, Ok(Decision::Noted { .. })),
            "attempt {attempt}: {answer:?}"
        );
    }
    assert_eq!(life.count("contradicted"), 3);
    assert_eq!(
        (life.state_name(), life.net(), life.held()),
        ("discarded", 0, 0)
    );
}

#[test]
fn a_refusal_uses_up_no_command_id() {
    let mut life = Life::claimed().charge().start().fail(1);
    let id = command_id("the id");
    let early = life.send_as(&id, &start());
    assert!(matches!(early, Err(Rejection::NotDue { .. })), "{early:?}");
    let mut life = life.due();
    let answer = life.send_as(&id, &start());
    assert!(matches!(answer, Ok(Decision::Append { .. })), "{answer:?}");
}

#[test]
fn a_charge_with_other_content_names_the_first_field_that_differs() {
    let original = charge("acme", 40, policy(Mode::Claimed, 3));
    let price = |amount| PriceSnapshot::flat(cost(amount));
    let mut life = Life::claimed().charge();
    // Each change beside the ones before it: the first field in the order account, kind, cost, price, policy is named.
    let mut changed = original.clone();
    changed.choice = Some(PolicyChoice::Mode(Mode::External));
    let mut fields = vec![("policy", changed.clone())];
    changed.price = price(7);
    fields.push(("price", changed.clone()));
    changed.cost = cost(7);
    fields.push(("cost", changed.clone()));
    changed.kind = kind("audio");
    fields.push(("kind", changed.clone()));
    changed.account = account_id("other");
    fields.push(("account", changed.clone()));
    for (field, other) in fields {
        let command = JobCommand::Charge(Box::new(other));
        assert_eq!(life.send(&command), Err(Rejection::Differs { field }));
        // The id of the stored charge says that the caller made a mistake, and not that two callers did.
        assert_eq!(life.decide(&command_id("c1"), &command), reused(field));
    }
    // Other content is told before the state is.
    let mut ended = Life::claimed().charge().cancel();
    let mut other = original;
    other.cost = cost(7);
    let command = JobCommand::Charge(Box::new(other));
    assert_eq!(
        ended.send(&command),
        Err(Rejection::Differs { field: "cost" })
    );
}

#[test]
fn a_charge_that_names_no_policy_agrees_with_any() {
    let stored = policy(Mode::Claimed, 3);
    let other = policy(Mode::Claimed, 4);
    let mut life = Life::new(stored).charge();
    // (what the second charge asks for, what it resolves to, whether it is the same charge)
    for (choice, resolved, same) in [
        (None, policy(Mode::External, 9), true),
        (Some(PolicyChoice::Mode(Mode::Claimed)), other, true),
        (Some(PolicyChoice::Mode(Mode::External)), stored, false),
        (Some(PolicyChoice::Full(stored)), stored, true),
        (Some(PolicyChoice::Full(other)), other, false),
    ] {
        let mut again = charge("acme", 40, resolved);
        again.choice = choice;
        let answer = life.send(&JobCommand::Charge(Box::new(again)));
        let expected = if same {
            Ok(Decision::AlreadyApplied)
        } else {
            Err(Rejection::Differs { field: "policy" })
        };
        assert_eq!(answer, expected, "{choice:?}");
    }
}
