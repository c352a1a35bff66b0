//! A job's life: from a charge to one of its ends, and at most once back.
//!
//! [`decide`] answers a command from the folded stream: with events to append, with "already applied", "noted" or a
//! [`Rejection`]. [`evolve`] folds one recorded event into the stream's [`Job`]. Both are pure: no clock but the `now` that
//! is handed in, no I/O. The append with an expected revision, done elsewhere, makes the answer true.
//!
//! Invariants, whatever the order and number of signals: a job's net is 0 or −cost; at most one refund and one reclaim
//! ever happen; an ended job that was not delivered has net 0; a delivered one −cost; a refund is held exactly while the
//! job may still run; attempt numbers never go back; no live state is without a timer.
//!
//! Bound: from [`SOFT_LIMIT_EVENTS`] events on a stream takes only events that end the job. Order of checks in every
//! command: command id, state, content; limits come last, in the append's transaction.
#![warn(clippy::arithmetic_side_effects, clippy::wildcard_enum_match_arm)]

mod command;
mod decide;
mod event;
mod evolve;
mod failure;
pub mod invariants;
mod rejection;
mod repeat;
mod state;

pub use command::{Charge, FailureClass, JobCommand, PolicyChoice, Timer};
pub use decide::{Decision, Now, decide};
pub use event::{
    AttemptFailed, AttemptStarted, Cancelled, Charged, Contradicted, DeadLetterCause, DeadLettered,
    Delivered, Discarded, Failed, JobEvent, LeaseExtended, Reclaimed, Redriven, Refunded,
    RetryScheduled, Signal, Voided,
};
pub use evolve::{IllegalHistory, evolve};
pub use rejection::Rejection;
pub use state::{Attempt, Job, JobState, Money, Recorded, Terms, Work};

/// From this many events on, a stream takes only events that end the job.
pub const SOFT_LIMIT_EVENTS: u64 = 900;
