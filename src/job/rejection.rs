//! Business answers that say no. A rejection stores nothing.

use crate::account::Refusal;
use crate::clock::{BudgetMonth, Timestamp};

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No such job was ever charged.
    #[error("no such job")]
    NoSuchJob,
    /// Less is available than the job costs.
    #[error("insufficient credit: {available} available, {needed} needed, floor {floor}")]
    InsufficientCredit {
        /// Balance − held − reserved, in the smallest unit.
        available: i64,
        /// The job's cost.
        needed: i64,
        /// The lowest balance that a charge may lead to.
        floor: i64,
    },
    /// The budget month's cap would be passed.
    #[error("cap exceeded: {used} of {cap} used in {month}, {needed} needed")]
    CapExceeded {
        /// The budget month.
        month: BudgetMonth,
        /// Its cap, in the smallest unit.
        cap: i64,
        /// Spent + held + reserved in it.
        used: i64,
        /// The job's cost.
        needed: i64,
    },
    /// The balance would be larger than 10^18 in size.
    #[error("balance out of range: {balance} with {amount} more is larger than 10^18 in size")]
    BalanceOutOfRange {
        /// What it is.
        balance: i64,
        /// What was to be added.
        amount: i64,
    },
    /// An attempt is running.
    #[error("attempt {attempt} is running")]
    AttemptRunning {
        /// Which one.
        attempt: u32,
    },
    /// The attempt holds no lease: another one runs, or none does.
    #[error("attempt {attempt} holds no lease")]
    LeaseLost {
        /// Which one asked.
        attempt: u32,
    },
    /// A worker reported on an attempt that it never started.
    #[error("attempt {attempt} was not started")]
    NotStarted {
        /// Which one.
        attempt: u32,
    },
    /// The next attempt, or the timer, is not due yet.
    #[error("not due before {due_at}")]
    NotDue {
        /// When it is.
        due_at: Timestamp,
    },
    /// The job has ended.
    #[error("the job has ended: {state}")]
    JobEnded {
        /// In which state.
        state: &'static str,
    },
    /// The job has been delivered.
    #[error("the job was delivered by attempt {attempt}")]
    AlreadyDelivered {
        /// By which attempt.
        attempt: u32,
    },
    /// Only a dead letter (or a failed job whose attempts are the ledger's) can be redriven or discarded.
    #[error("the job is no dead letter: {state}")]
    NotDeadLettered {
        /// What it is instead.
        state: &'static str,
    },
    /// The attempt's number is outside what can be.
    #[error("unknown attempt {attempt}: the highest so far is {highest}")]
    UnknownAttempt {
        /// The number that was given.
        attempt: u32,
        /// The highest attempt so far.
        highest: u32,
    },
    /// The command id was used for something else in the same stream.
    #[error("the command id was used for another command: {field} differs")]
    CommandIdReused {
        /// The first field that differs.
        field: &'static str,
    },
    /// The same thing was asked for before, with other content.
    #[error("it exists with other content: {field} differs")]
    Differs {
        /// The first field that differs.
        field: &'static str,
    },
    /// The stream is too long for anything but an end.
    #[error("the job's stream has {events} events and takes only an end")]
    StreamFull {
        /// How many it has.
        events: u64,
    },
}

impl Rejection {
    /// The stable code, `snake_case`, that scripts may rely on.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchJob => "no_such_job",
            Self::InsufficientCredit { .. } => "insufficient_credit",
            Self::CapExceeded { .. } => "cap_exceeded",
            Self::BalanceOutOfRange { .. } => "balance_out_of_range",
            Self::AttemptRunning { .. } => "attempt_running",
            Self::LeaseLost { .. } => "lease_lost",
            Self::NotStarted { .. } => "not_started",
            Self::NotDue { .. } => "not_due",
            Self::JobEnded { .. } => "job_ended",
            Self::AlreadyDelivered { .. } => "already_delivered",
            Self::NotDeadLettered { .. } => "not_dead_lettered",
            Self::UnknownAttempt { .. } => "unknown_attempt",
            Self::CommandIdReused { .. } => "command_id_reused",
            Self::Differs { .. } => "differs",
            Self::StreamFull { .. } => "stream_full",
        }
    }

    /// Whether the same command can never get another answer. `false`: it may, once credit, time or another command has come.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self {
            Self::AlreadyDelivered { .. } | Self::CommandIdReused { .. } | Self::Differs { .. } => {
                true
            }
            Self::NoSuchJob
            | Self::InsufficientCredit { .. }
            | Self::CapExceeded { .. }
            | Self::BalanceOutOfRange { .. }
            | Self::AttemptRunning { .. }
            | Self::LeaseLost { .. }
            | Self::NotStarted { .. }
            | Self::NotDue { .. }
            | Self::JobEnded { .. }
            | Self::NotDeadLettered { .. }
            | Self::UnknownAttempt { .. }
            | Self::StreamFull { .. } => false,
        }
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InsufficientCredit {
                available,
                needed,
                floor,
            } => Self::InsufficientCredit {
                available,
                needed,
                floor,
            },
            Refusal::CapExceeded {
                month,
                cap,
                used,
                needed,
            } => Self::CapExceeded {
                month,
                cap,
                used,
                needed,
            },
            Refusal::BalanceOutOfRange { balance, amount } => {
                Self::BalanceOutOfRange { balance, amount }
            }
        }
    }
}
