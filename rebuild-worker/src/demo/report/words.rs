//! Rows and events in the words of the page. Pure.

use std::time::Duration;

use recoup::job::JobEvent;
use recoup::ledger::load::History;
use recoup::{Reason, Timestamp};
use recoup_projections::EntryRow;

use super::super::facts::{Entry, LifeEvent};

pub(super) fn entry_of(number: usize, row: &EntryRow) -> Entry {
    Entry {
        number,
        position: row.position.get(),
        entry_type: row.entry_type.to_string(),
        amount: row.amount,
        balance: row.balance,
        job: row.job.as_ref().map(ToString::to_string),
        reference: row.reference.clone(),
        posted_at: row.posted_at.to_string(),
        charged_at: row.charged_at.map(|at| at.to_string()),
    }
}

pub(super) fn life_event(history: &History) -> LifeEvent {
    let posting = history.event.as_ref().and_then(JobEvent::posting);
    LifeEvent {
        revision: history.revision.get(),
        position: history.position.get(),
        posted_at: history.posted_at.to_string(),
        event: history
            .event
            .as_ref()
            .map_or("retired", JobEvent::name)
            .to_owned(),
        detail: history
            .event
            .as_ref()
            .map(|event| detail(event, history.posted_at))
            .unwrap_or_default(),
        amount: posting.map(|posting| posting.amount),
        held: posting.map(|posting| posting.held),
    }
}

/// What an event says beside its amounts, in a few words.
fn detail(event: &JobEvent, posted_at: Timestamp) -> String {
    let text =
        |reason: &Option<Reason>| reason.as_ref().map(ToString::to_string).unwrap_or_default();
    match event {
        JobEvent::Charged(charged) => {
            format!("{}, {}", charged.policy.mode.name(), charged.price.list)
        }
        JobEvent::AttemptStarted(started) => {
            let worker = started
                .worker
                .as_ref()
                .map_or(String::new(), |worker| format!(" on {worker}"));
            format!("attempt {}{worker}", started.attempt)
        }
        JobEvent::LeaseExtended(extended) => format!("attempt {}", extended.attempt),
        JobEvent::AttemptFailed(failed) => match failed.timer {
            Some(timer) => format!("attempt {}: {}", failed.attempt, timer.name()),
            None => format!("attempt {}: {}", failed.attempt, text(&failed.reason)),
        },
        JobEvent::RetryScheduled(scheduled) => {
            let due_at = posted_at.after(Duration::from_millis(scheduled.delay_ms));
            format!("due {}", due_at.to_string().get(11..19).unwrap_or_default())
        }
        JobEvent::Delivered(delivered) => {
            let result = delivered
                .result
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            format!("attempt {}: {result}", delivered.attempt)
        }
        JobEvent::Redriven(redriven) => text(&redriven.reason),
        JobEvent::Cancelled(cancelled) => text(&cancelled.reason),
        JobEvent::Discarded(discarded) => text(&discarded.reason),
        JobEvent::Contradicted(contradicted) => {
            format!(
                "attempt {} {}",
                contradicted.attempt,
                contradicted.signal.name()
            )
        }
        JobEvent::Refunded(_)
        | JobEvent::Failed(_)
        | JobEvent::DeadLettered(_)
        | JobEvent::Reclaimed(_)
        | JobEvent::Voided(_) => String::new(),
    }
}
