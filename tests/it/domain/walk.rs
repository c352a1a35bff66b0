//! Every reachable state of one job, breadth first: all commands, with every attempt, in every state, in step with the
//! [`model`](super::model).

use std::collections::{BTreeMap, VecDeque};

use recoup::job::{Decision, JobState, Money, Signal, Timer, Work};
use recoup::{FailureClass, JobCommand, Mode, Revision};

use super::life::{Answer, COST, Life, extend, fail, start, succeed};
use super::model::{At, Model, Says};
use crate::values::policy;

/// Two starts a round, so that a dead letter, a redrive and a second round are near.
const CAP: u32 = 2;

/// How high attempts are followed: through a second redrive.
const HIGHEST: u32 = 5;

/// A command, and whether the clock stands where the state's timer is over when it is sent.
type Step = (JobCommand, bool);

fn every_step(life: &Life) -> Vec<Step> {
    let own = life.job.recorded().and_then(|job| job.work.timer());
    let (timer, armed_at) = own.map_or((Timer::StartBy, Revision::FIRST), |(timer, at, _)| {
        (timer, at)
    });
    let expire = JobCommand::Expire { timer, armed_at };
    let mut steps = vec![
        (life.charging(), false),
        (start(), false),
        (start(), true),
        (JobCommand::Cancel { reason: None }, false),
        (JobCommand::Redrive { reason: None }, false),
        (JobCommand::Discard { reason: None }, false),
        (expire.clone(), false),
        (expire, true),
    ];
    for attempt in 0..=life.highest() + 2 {
        let classes = [
            FailureClass::Retryable,
            FailureClass::Terminal,
            FailureClass::Cancelled,
        ];
        let fails = classes.map(|class| (fail(attempt, class), false));
        steps.extend(fails);
        steps.push((succeed(attempt), false));
        steps.push((extend(attempt), false));
    }
    steps
}

/// Sets the clock for a step: past the state's timer, past a retry's delay, or past a third of a lease.
fn at_time_of(life: &Life, (command, is_due): &Step) -> Life {
    let work = life.job.recorded().map(|job| &job.work);
    match (command, work) {
        (JobCommand::Extend { .. }, Some(Work::Running { .. })) => life.clone().wait_ms(30_000),
        (JobCommand::Start { .. }, Some(Work::RetryScheduled { .. })) if *is_due => {
            life.clone().due()
        }
        (JobCommand::Expire { .. }, Some(work)) if *is_due && work.is_live() => {
            life.clone().at_deadline()
        }
        _ => life.clone(),
    }
}

/// The state as the model would write it.
fn as_model(life: &Life) -> Model {
    let JobState::Recorded(job) = &life.job.state else {
        let at = if life.log.is_empty() {
            At::None
        } else {
            At::Voided
        };
        return Model { at, ..Model::new() };
    };
    let (at, by) = match &job.work {
        Work::Queued { .. } => (At::Queued, 0),
        Work::Running { .. } => (At::Running, 0),
        Work::RetryScheduled { .. } => (At::RetryScheduled, 0),
        Work::Failed => (At::Failed, 0),
        Work::DeadLettered => (At::DeadLettered, 0),
        Work::Delivered { attempt, .. } => (At::Delivered, attempt.get()),
        Work::Cancelled => (At::Cancelled, 0),
        Work::Discarded => (At::Discarded, 0),
    };
    let noted = job
        .contradictions
        .iter()
        .map(|(signal, attempt)| (*signal == Signal::Failed, attempt.get()));
    Model {
        at,
        n: job.attempt.get(),
        base: job.base.get(),
        refunded: job.money != Money::Charged,
        reclaimed: job.money == Money::Reclaimed,
        by,
        noted: noted.collect(),
    }
}

/// Every state within reach, each with one shortest life that leads there.
fn reachable(
    mode: Mode,
    mut look: impl FnMut(&Life, &Step, &Answer, &Life),
) -> BTreeMap<Model, Life> {
    let first = Life::new(policy(mode, CAP));
    let mut seen = BTreeMap::from([(as_model(&first), first.clone())]);
    let mut queue = VecDeque::from([first.clone(), first.void()]);
    while let Some(life) = queue.pop_front() {
        for step in every_step(&life) {
            let mut next = at_time_of(&life, &step);
            let answer = next.send(&step.0);
            look(&life, &step, &answer, &next);
            let key = as_model(&next);
            if next.highest() <= HIGHEST && !seen.contains_key(&key) {
                seen.insert(key, next.clone());
                queue.push_back(next);
            }
        }
    }
    seen
}

fn check_money(life: &Life, next: &Life) {
    let said = as_model(next);
    let context = || format!("{:?} after {:?}", next.job.state, next.log);
    assert_eq!(next.net(), said.net() * COST, "net: {}", context());
    assert_eq!(next.held(), said.held() * COST, "held: {}", context());
    assert!(
        next.count("refunded") <= 1 && next.count("reclaimed") <= 1,
        "{}",
        context()
    );
    assert!(
        next.count("reclaimed") <= next.count("refunded"),
        "{}",
        context()
    );
    assert!(
        next.highest() >= life.highest(),
        "an attempt's number went back: {}",
        context()
    );
    let net = match said.at {
        At::Delivered => Some(-COST),
        At::Failed | At::DeadLettered | At::Cancelled | At::Discarded | At::RetryScheduled => {
            Some(0)
        }
        At::None | At::Voided | At::Queued | At::Running => None,
    };
    assert!(net.is_none_or(|net| net == next.net()), "{}", context());
}

fn check_move(life: &Life, (command, _): &Step, answer: &Answer, next: &Life) {
    let (before, after) = (as_model(life), as_model(next));
    let moved = before.at != after.at;
    let context = || format!("{command:?} in {:?}", life.job.state);
    if matches!(answer, Ok(Decision::Noted { .. })) {
        let same = (before.net(), before.held()) == (after.net(), after.held());
        assert!(!moved && same, "noted, and moved something: {}", context());
    }
    if matches!(before.at, At::Delivered | At::Cancelled | At::Discarded) {
        assert!(!moved, "left an end: {}", context());
    }
    if let JobCommand::Fail { attempt, .. } = command
        && attempt.get() < before.n
    {
        assert!(
            !moved,
            "an older attempt's failure moved a newer one: {}",
            context()
        );
    }
}

fn check_model(life: &Life, (command, is_due): &Step, answer: &Answer, next: &Life, mode: Mode) {
    let before = as_model(life);
    // A step without a wait is never late: the walk moves the clock only where it says so.
    let said = before.step(command, mode, CAP, *is_due);
    let after = as_model(next);
    let agrees = match (&said, answer) {
        (Says::Applied(model), Ok(Decision::Append { .. })) => *model == after,
        (Says::Noted(model), Ok(Decision::Noted { .. })) => *model == after,
        (Says::Same, Ok(Decision::AlreadyApplied)) => before == after,
        (Says::No(code), Err(rejection)) => *code == rejection.code() && before == after,
        _ => false,
    };
    assert!(
        agrees,
        "{command:?} in {before:?}: the model says {said:?}, the code {answer:?}"
    );
}

#[test]
fn whatever_the_order_of_commands_a_job_keeps_its_invariants() {
    for mode in [Mode::External, Mode::Claimed] {
        let mut steps = 0_u32;
        let seen = reachable(mode, |life, step, answer, next| {
            steps += 1;
            check_money(life, next);
            check_move(life, step, answer, next);
            check_model(life, step, answer, next, mode);
        });
        let ends: std::collections::BTreeSet<_> = seen.keys().map(|model| model.at).collect();
        // An external job is never retried, dead-lettered or discarded.
        let expected = if mode == Mode::External { 7 } else { 10 };
        assert_eq!(ends.len(), expected, "{mode:?} reaches {ends:?}");
        assert!(
            seen.len() > 100 && steps > 1_000,
            "{mode:?}: {} states, {steps} steps",
            seen.len()
        );
    }
}

#[test]
fn every_live_state_ends_by_timers_alone_and_refunded() {
    for mode in [Mode::External, Mode::Claimed] {
        for (model, life) in reachable(mode, |_, _, _, _| {}) {
            if !model.is_live() {
                continue;
            }
            let mut left = life;
            for _ in 0..2 * CAP {
                if as_model(&left).is_live() {
                    left = left.run_out();
                }
            }
            let ended = as_model(&left);
            assert!(!ended.is_live(), "{model:?} is still {ended:?}");
            assert_eq!(
                (left.net(), left.held()),
                (0, 0),
                "{model:?} ended as {ended:?}"
            );
        }
    }
}

#[test]
fn a_repeat_of_the_last_command_changes_nothing_in_any_state() {
    for mode in [Mode::External, Mode::Claimed] {
        reachable(mode, |life, (command, _), answer, next| {
            let mut life = life.clone();
            life.now = next.now;
            let id = life.fresh_id();
            assert_eq!(
                &life.send_as(&id, command),
                answer,
                "the same state and time give the same answer"
            );
            let expected = match answer {
                Ok(Decision::Append { .. } | Decision::AlreadyApplied) => {
                    Ok(Decision::AlreadyApplied)
                }
                Ok(Decision::Noted { .. }) => Ok(Decision::Noted { event: None }),
                Err(rejection) => Err(rejection.clone()),
            };
            assert_eq!(
                life.decide(&id, command),
                expected,
                "{command:?} in {:?}",
                life.job.state
            );
        });
    }
}

#[test]
fn a_final_rejection_is_never_followed_by_another_answer() {
    let mut broken = BTreeMap::new();
    for mode in [Mode::External, Mode::Claimed] {
        reachable(mode, |life, (sent, _), _, next| {
            for step in every_step(life) {
                let Err(rejection) = at_time_of(life, &step).send(&step.0) else {
                    continue;
                };
                let now = at_time_of(next, &step).send(&step.0);
                let stays = now
                    .as_ref()
                    .is_err_and(|later| later.code() == rejection.code());
                if rejection.is_final() && !stays {
                    let (code, verb) = (rejection.code(), step.0.name());
                    broken.entry((code, verb)).or_insert_with(|| {
                        format!(
                            "{:?} in {:?}, then {sent:?}: {now:?}",
                            step.0, life.job.state
                        )
                    });
                }
            }
        });
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
