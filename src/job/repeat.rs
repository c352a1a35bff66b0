//! A command id that the stream has seen: is this the same command?
//!
//! The stream keeps no copy of commands. The first event of a command holds all of its content, so a repeat is compared
//! with that event, field by field, and the first one that differs is named.

use super::command::{Charge, JobCommand, PolicyChoice};
use super::event::{Charged, JobEvent, Signal};

/// Whether a charge asks for what `stored` holds; the first field that differs otherwise.
pub(super) fn compare_charge(charge: &Charge, stored: &Charged) -> Result<(), &'static str> {
    let policy_differs = match charge.choice {
        None => false,
        Some(PolicyChoice::Mode(mode)) => stored.policy.mode != mode,
        Some(PolicyChoice::Full(policy)) => stored.policy != policy,
    };
    if charge.account != stored.posting.account {
        Err("account")
    } else if Some(&charge.kind) != stored.posting.kind.as_ref() {
        Err("kind")
    } else if charge.cost.debit() != stored.posting.amount {
        Err("cost")
    } else if charge.price != stored.price {
        Err("price")
    } else if policy_differs {
        Err("policy")
    } else {
        Ok(())
    }
}

/// Whether `command` is the one that caused `first`; the first field that differs otherwise.
pub(super) fn compare(command: &JobCommand, first: &JobEvent) -> Result<(), &'static str> {
    let same = |equal: bool, field| if equal { Ok(()) } else { Err(field) };
    match (command, first) {
        (JobCommand::Charge(charge), JobEvent::Charged(stored)) => compare_charge(charge, stored),
        (JobCommand::Start { worker, lease }, JobEvent::AttemptStarted(stored)) => {
            same(*worker == stored.worker, "worker")?;
            // Without a lease it asked for the policy's, and took what that was.
            let is_same = lease.is_none_or(|lease| lease.ms() == stored.lease_ms);
            same(is_same, "lease_ms")
        }
        (JobCommand::Extend { attempt }, JobEvent::LeaseExtended(stored)) => {
            same(*attempt == stored.attempt, "attempt")
        }
        (
            JobCommand::Fail {
                attempt,
                class,
                reason,
            },
            JobEvent::AttemptFailed(stored),
        ) if stored.timer.is_none() => {
            same(*attempt == stored.attempt, "attempt")?;
            same(*class == stored.class, "class")?;
            same(*reason == stored.reason, "reason")
        }
        (
            JobCommand::Fail {
                attempt,
                class,
                reason,
            },
            JobEvent::Contradicted(stored),
        ) if stored.signal == Signal::Failed => {
            same(*attempt == stored.attempt, "attempt")?;
            same(Some(*class) == stored.class, "class")?;
            same(*reason == stored.reason, "reason")
        }
        (JobCommand::Succeed { attempt, result }, JobEvent::Delivered(stored)) => {
            same(*attempt == stored.attempt, "attempt")?;
            same(*result == stored.result, "result")
        }
        (JobCommand::Succeed { attempt, result }, JobEvent::Contradicted(stored))
            if stored.signal == Signal::Succeeded =>
        {
            same(*attempt == stored.attempt, "attempt")?;
            same(*result == stored.result, "result")
        }
        (JobCommand::Cancel { reason }, JobEvent::Cancelled(stored)) => {
            same(*reason == stored.reason, "reason")
        }
        (JobCommand::Redrive { reason }, JobEvent::Redriven(stored)) => {
            same(*reason == stored.reason, "reason")
        }
        (JobCommand::Discard { reason }, JobEvent::Discarded(stored)) => {
            same(*reason == stored.reason, "reason")
        }
        // The ids of a loop's commands derive from the timer and its event: the same id is the same command.
        (
            JobCommand::Expire { .. },
            JobEvent::AttemptFailed(_)
            | JobEvent::Refunded(_)
            | JobEvent::DeadLettered(_)
            | JobEvent::Failed(_),
        ) => Ok(()),
        (
            JobCommand::Charge(_)
            | JobCommand::Start { .. }
            | JobCommand::Extend { .. }
            | JobCommand::Fail { .. }
            | JobCommand::Succeed { .. }
            | JobCommand::Cancel { .. }
            | JobCommand::Redrive { .. }
            | JobCommand::Discard { .. }
            | JobCommand::Expire { .. },
            _,
        ) => Err("command"),
    }
}
