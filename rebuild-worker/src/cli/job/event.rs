//! What an event says, as named facts: the same for the document and for people.

use recoup::account::Posting;
use recoup::job::{FailureClass, JobEvent};
use serde_json::Value;

/// One fact of an event.
pub(super) enum Fact {
    /// Credits, in the smallest unit.
    Amount(i64),
    /// A duration.
    Milliseconds(u64),
    /// A number of something else.
    Number(u64),
    /// A text.
    Text(String),
    /// Something of parts.
    Document(Value),
}

impl Fact {
    /// As it stands in a document.
    pub(super) fn value(self) -> Value {
        match self {
            Self::Amount(amount) => amount.into(),
            Self::Milliseconds(number) | Self::Number(number) => number.into(),
            Self::Text(text) => text.into(),
            Self::Document(value) => value,
        }
    }
}

type Facts = Vec<(&'static str, Fact)>;

fn text(name: &'static str, text: impl ToString) -> Option<(&'static str, Fact)> {
    Some((name, Fact::Text(text.to_string())))
}

fn maybe(name: &'static str, value: Option<impl ToString>) -> Option<(&'static str, Fact)> {
    value.and_then(|value| text(name, value))
}

fn number(name: &'static str, number: u32) -> Option<(&'static str, Fact)> {
    Some((name, Fact::Number(number.into())))
}

fn milliseconds(name: &'static str, ms: u64) -> Option<(&'static str, Fact)> {
    Some((name, Fact::Milliseconds(ms)))
}

fn moved(posting: &Posting) -> Facts {
    let mut facts = Vec::new();
    if posting.amount != 0 {
        facts.push(("amount", Fact::Amount(posting.amount)));
    }
    if posting.held != 0 {
        facts.push(("held", Fact::Amount(posting.held)));
    }
    facts.extend(maybe("budget_month", posting.budget_month));
    facts
}

/// Everything that `event` says.
pub(super) fn facts(event: &JobEvent) -> Facts {
    let mut facts = event.posting().map_or_else(Vec::new, moved);
    let own = match event {
        JobEvent::Charged(charged) => vec![
            text("price_list", &charged.price.list),
            document("price", &charged.price),
            document("policy", &charged.policy),
        ],
        JobEvent::AttemptStarted(started) => vec![
            number("attempt", started.attempt.get()),
            maybe("worker", started.worker.as_ref()),
            milliseconds("lease_ms", started.lease_ms),
        ],
        JobEvent::LeaseExtended(extended) => {
            vec![
                number("attempt", extended.attempt.get()),
                milliseconds("lease_ms", extended.lease_ms),
            ]
        }
        JobEvent::AttemptFailed(failed) => vec![
            number("attempt", failed.attempt.get()),
            text("class", class(failed.class)),
            maybe("reason", failed.reason.as_ref()),
            maybe("timer", failed.timer.map(recoup::job::Timer::name)),
        ],
        JobEvent::RetryScheduled(retry) => vec![
            number("attempt", retry.attempt.get()),
            milliseconds("delay_ms", retry.delay_ms),
            milliseconds("start_within_ms", retry.start_within_ms),
        ],
        JobEvent::DeadLettered(dead) => vec![text("cause", dead.cause.name())],
        JobEvent::Delivered(delivered) => vec![
            number("attempt", delivered.attempt.get()),
            maybe("result", delivered.result.as_ref()),
        ],
        JobEvent::Redriven(redriven) => vec![
            number("base", redriven.base.get()),
            milliseconds("start_within_ms", redriven.start_within_ms),
            maybe("reason", redriven.reason.as_ref()),
        ],
        JobEvent::Cancelled(cancelled) => vec![maybe("reason", cancelled.reason.as_ref())],
        JobEvent::Discarded(discarded) => vec![maybe("reason", discarded.reason.as_ref())],
        JobEvent::Contradicted(contradicted) => vec![
            text("signal", contradicted.signal.name()),
            number("attempt", contradicted.attempt.get()),
            maybe("class", contradicted.class.map(class)),
            maybe("reason", contradicted.reason.as_ref()),
            maybe("result", contradicted.result.as_ref()),
        ],
        JobEvent::Voided(voided) => vec![text("command", &voided.command)],
        JobEvent::Refunded(_) | JobEvent::Reclaimed(_) | JobEvent::Failed(_) => Vec::new(),
    };
    facts.extend(own.into_iter().flatten());
    facts
}

fn document(name: &'static str, value: &impl serde::Serialize) -> Option<(&'static str, Fact)> {
    serde_json::to_value(value)
        .ok()
        .map(|value| (name, Fact::Document(value)))
}

const fn class(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Retryable => "retryable",
        FailureClass::Terminal => "terminal",
        FailureClass::Cancelled => "cancelled",
    }
}
