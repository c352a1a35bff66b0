//! The folded stream of a job: where the work and the money stand.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::command::Timer;
use super::event::{JobEvent, Signal};
use crate::account::Posting;
use crate::clock::{BudgetMonth, Timestamp};
use crate::credits::Cost;
use crate::ids::{AccountId, CommandId, JobId, JobResult, Kind, WorkerId};
use crate::price::PriceSnapshot;
use crate::retry::{Mode, Policy};
use crate::store::Revision;

/// The number of an attempt, from 1. In a stream's state 0 says that none has begun.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// No attempt has begun.
    pub const NONE: Self = Self(0);
    /// The first attempt.
    pub const FIRST: Self = Self(1);

    /// Takes any number: whether such an attempt can be is for the stream to say.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The attempt after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How many attempts there are from `base` (not counted) to this one (counted).
    #[must_use]
    pub const fn since(self, base: Self) -> u32 {
        self.0.saturating_sub(base.0)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the work stands. Every live state knows the event that armed its timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Waits to be started, for the first time or after a redrive.
    Queued {
        /// The event that set the timer.
        armed_at: Revision,
        /// When it ends unless it is started.
        start_by: Timestamp,
    },
    /// The highest attempt runs.
    Running {
        /// Who runs it.
        worker: Option<WorkerId>,
        /// The event that set the timer.
        armed_at: Revision,
        /// When the lease was given or renewed.
        leased_at: Timestamp,
        /// How long it was given for, in milliseconds: a renewal is for as long again.
        lease_ms: u64,
        /// When it fails unless it gives a sign of life.
        lease_until: Timestamp,
    },
    /// The highest attempt failed; the next will be due.
    RetryScheduled {
        /// The event that set the timer.
        armed_at: Revision,
        /// From when it may be started.
        due_at: Timestamp,
        /// When it ends unless it is started.
        give_up_at: Timestamp,
    },
    /// Ended without a result.
    Failed,
    /// Ran out of attempts or time; waits for a person.
    DeadLettered,
    /// Gave its result.
    Delivered {
        /// The attempt that did.
        attempt: Attempt,
        /// What it gave.
        result: Option<JobResult>,
    },
    /// Called off.
    Cancelled,
    /// Given up for good.
    Discarded,
}

impl Work {
    /// The state's stable name, `snake_case`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Running { .. } => "running",
            Self::RetryScheduled { .. } => "retry_scheduled",
            Self::Failed => "failed",
            Self::DeadLettered => "dead_lettered",
            Self::Delivered { .. } => "delivered",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
        }
    }

    /// Whether an attempt runs or will be started without anyone asking for it.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.timer().is_some()
    }

    /// The timer that ends this state, with the event that set it and when it runs out. Every live state has one.
    #[must_use]
    pub const fn timer(&self) -> Option<(Timer, Revision, Timestamp)> {
        match self {
            Self::Queued { armed_at, start_by } => Some((Timer::StartBy, *armed_at, *start_by)),
            Self::Running {
                armed_at,
                lease_until,
                ..
            } => Some((Timer::LeaseUntil, *armed_at, *lease_until)),
            Self::RetryScheduled {
                armed_at,
                give_up_at,
                ..
            } => Some((Timer::GiveUpAt, *armed_at, *give_up_at)),
            Self::Failed
            | Self::DeadLettered
            | Self::Delivered { .. }
            | Self::Cancelled
            | Self::Discarded => None,
        }
    }
}

/// Where the money stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Money {
    /// Net −cost, never refunded.
    Charged,
    /// Net 0.
    Refunded,
    /// Net −cost again.
    Reclaimed,
}

impl Money {
    /// The state's stable name, `snake_case`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Refunded => "refunded",
            Self::Reclaimed => "reclaimed",
        }
    }
}

/// What was agreed at the charge; nothing changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Who pays.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// How much, in the smallest unit.
    pub cost: Cost,
    /// How the cost came about.
    pub price: PriceSnapshot,
    /// How attempts are run.
    pub policy: Policy,
    /// When, by the store's clock.
    pub charged_at: Timestamp,
    /// The month that the job counts in.
    pub budget_month: BudgetMonth,
}

impl Terms {
    /// A posting of this job.
    #[must_use]
    pub fn posting(&self, amount: i64, held: i64) -> Posting {
        Posting {
            account: self.account.clone(),
            kind: Some(self.kind.clone()),
            amount,
            held,
            charged_at: Some(self.charged_at),
            budget_month: Some(self.budget_month),
        }
    }
}

/// A job that was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// What was agreed.
    pub terms: Terms,
    /// Where the work stands.
    pub work: Work,
    /// Where the money stands.
    pub money: Money,
    /// The highest attempt so far.
    pub attempt: Attempt,
    /// The highest attempt at the charge or the last redrive.
    pub base: Attempt,
    /// When the retry window began: the charge or the last redrive.
    pub window_from: Timestamp,
    /// The sum of the stream's changes of held.
    pub held: i64,
    /// Contradictions on record, each once.
    pub contradictions: Vec<(Signal, Attempt)>,
}

impl Recorded {
    /// The sum of the job's entries: 0 or −cost.
    #[must_use]
    pub const fn net(&self) -> i64 {
        match self.money {
            Money::Charged | Money::Reclaimed => self.terms.cost.debit(),
            Money::Refunded => 0,
        }
    }

    /// What must be held in this state: the cost while it is refunded and the job may still run.
    #[must_use]
    pub fn hold(&self) -> i64 {
        match self.money {
            Money::Refunded if self.work.is_live() => self.terms.cost.get(),
            Money::Refunded | Money::Charged | Money::Reclaimed => 0,
        }
    }

    /// Whether the service runs attempts by itself.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.terms.policy.mode == Mode::External
    }
}

/// What a stream holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum JobState {
    /// Nothing: no such job.
    #[default]
    None,
    /// Only events that rule a lost charge out: no such job, yet.
    Voided,
    /// A job.
    Recorded(Box<Recorded>),
}

/// A stream, folded: the job's state, the revision it is at, and the commands that it has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The job's id; part of the hash that spreads retries.
    pub id: JobId,
    /// The last event's revision; none for an empty stream.
    pub revision: Option<Revision>,
    /// What the stream holds.
    pub state: JobState,
    /// The first event of each command, in order: what a repeat is compared with.
    pub commands: Vec<(CommandId, JobEvent)>,
}

impl Job {
    /// An empty stream.
    #[must_use]
    pub const fn empty(id: JobId) -> Self {
        Self {
            id,
            revision: None,
            state: JobState::None,
            commands: Vec::new(),
        }
    }

    /// The job, where there is one.
    #[must_use]
    pub fn recorded(&self) -> Option<&Recorded> {
        match &self.state {
            JobState::Recorded(recorded) => Some(recorded),
            JobState::None | JobState::Voided => None,
        }
    }

    /// How many events the stream has.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.revision
            .map_or(0, |revision| revision.get().saturating_add(1))
    }
}
