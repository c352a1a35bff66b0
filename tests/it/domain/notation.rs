//! How a cell of the table is written.
//!
//! | cell | means |
//! | --- | --- |
//! | `=` | already applied: appends nothing |
//! | `✗LeaseLost` | the rejection with the code `lease_lost`: stores nothing |
//! | `◆ Contradicted{failed n}` | noted, and this event appended |
//! | `Delivered{n} Reclaimed{−c, held −c}` | these events, in this order, in one append |
//! | `admitted: …` | subject to floor and cap |
//!
//! Within braces: the attempt relative to the highest one so far, n; the amount, in costs; the change of held, in costs. What is
//! nought is left out.

use recoup::Attempt;
use recoup::account::Posting;
use recoup::job::{Decision, JobEvent};

use super::life::{Answer, COST};

/// Writes an answer down, as seen from a state whose highest attempt is `highest`.
pub(crate) fn write(answer: &Answer, highest: u32) -> String {
    match answer {
        Ok(Decision::AlreadyApplied) => "=".to_owned(),
        Ok(Decision::Noted { event: None }) => "◆".to_owned(),
        Ok(Decision::Noted { event: Some(noted) }) => format!("◆ {}", event(noted, highest)),
        Ok(Decision::Append { events, admission }) => {
            let events: Vec<_> = events.iter().map(|one| event(one, highest)).collect();
            let subject = if admission.is_some() {
                "admitted: "
            } else {
                ""
            };
            format!("{subject}{}", events.join(" "))
        }
        Err(rejection) => format!("✗{}", camel_case(rejection.code())),
    }
}

fn camel_case(code: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    code.split('_').map(capital).collect()
}

fn event(event: &JobEvent, highest: u32) -> String {
    let n = |attempt: &Attempt| relative(attempt.get(), highest);
    let mut inside: Vec<String> = match event {
        JobEvent::AttemptStarted(event) => vec![n(&event.attempt)],
        JobEvent::LeaseExtended(event) => vec![n(&event.attempt)],
        JobEvent::AttemptFailed(event) => vec![match event.timer {
            None => n(&event.attempt),
            Some(_) => format!("{} timeout", n(&event.attempt)),
        }],
        JobEvent::Delivered(event) => vec![n(&event.attempt)],
        JobEvent::Redriven(event) => vec![format!("base {}", n(&event.base))],
        JobEvent::Contradicted(event) => {
            vec![format!("{} {}", event.signal.name(), n(&event.attempt))]
        }
        JobEvent::DeadLettered(event) => vec![format!("{:?}", event.cause)],
        JobEvent::Charged(_)
        | JobEvent::Refunded(_)
        | JobEvent::RetryScheduled(_)
        | JobEvent::Failed(_)
        | JobEvent::Reclaimed(_)
        | JobEvent::Cancelled(_)
        | JobEvent::Discarded(_)
        | JobEvent::Voided(_) => Vec::new(),
    };
    if let Some(Posting { amount, held, .. }) = event.posting() {
        inside.extend(in_costs(*amount));
        inside.extend(in_costs(*held).map(|held| format!("held {held}")));
    }
    let name = camel_case(event.name());
    if inside.is_empty() {
        name
    } else {
        format!("{name}{{{}}}", inside.join(", "))
    }
}

fn relative(attempt: u32, highest: u32) -> String {
    match i64::from(attempt) - i64::from(highest) {
        0 => "n".to_owned(),
        above @ 1.. => format!("n+{above}"),
        below => format!("n−{}", -below),
    }
}

/// An amount as a multiple of the cost: `−c`, `+c`, or `+2c` where a rule is broken.
pub(crate) fn in_costs(amount: i64) -> Option<String> {
    let sign = if amount < 0 { "−" } else { "+" };
    match amount.abs() {
        0 => None,
        COST => Some(format!("{sign}c")),
        other => Some(format!("{sign}{}/{COST}c", other)),
    }
}
