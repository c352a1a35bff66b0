//! Rebuild: daily usage and, for all days, account figures are folded again from the log and compared with what is shown; what
//! differs is repaired while everything keeps running.
//!
//! Phases of a run ([`run`]):
//!
//! 1. *fold*: the window's part of the log goes, page by page, into a shadow ([`shadow`]): a temporary database of its own, so that
//!    memory does not grow with the number of keys and the ledger's database is not written to.
//! 2. *compare*: in one snapshot of the ledger, the checkpoint is read, the shadow is brought to exactly there, and the union of the keys
//!    of both sides is walked in one order ([`compare`]). Nothing is locked, and a projector that lags makes no false difference.
//! 3. *repair* ([`repair`]): for [`repair::KEYS`] differing keys at a time, in the writer's transaction, which is the lock that every
//!    applier in every process takes: the checkpoint is read again, the shadow follows it, rows are written or removed, and each
//!    repaired key is stored with before and after. The lock is held as long as the differences are many, not the window.
//!
//! What holds: rows that are right are not touched; a run that is cancelled or killed leaves every row as it was or as it should be, and the next
//! run needs no clean-up; two runs at once come to the same rows. Leases and schedules save work and carry no correctness. One
//! projection's rebuild touches no other and emits no event.
//!
//! Days are whole days of the ledger's zone ([`window`]). Every run is recorded in `rebuild_runs`, every difference in
//! `rebuild_differences` ([`runs`]); [`schedule`] starts one every hour.

pub(crate) mod compare;
pub(crate) mod figures;
pub(crate) mod pages;
pub(crate) mod repair;
pub(crate) mod run;
pub(crate) mod runs;
pub mod schedule;
pub(crate) mod shadow;
pub(crate) mod window;

use recoup::store::StoreError;
use recoup::{AccountId, Position};
use recoup_projections::ProjectionError;

pub use run::{Control, Progress, rebuild};
pub use runs::{Difference, Run, differences, latest};
pub use window::{Window, WindowError};

/// Whether what differs is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is reported.
    Verify,
    /// It is reported and repaired.
    Repair,
}

impl Mode {
    /// As it is stored and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::Repair => "repair",
        }
    }
}

/// Who asked for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The schedule.
    Hourly,
    /// A person.
    Operator,
}

impl Origin {
    /// As it is stored and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Operator => "operator",
        }
    }
}

/// What to rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which days.
    pub window: Window,
    /// Of this account only.
    pub account: Option<AccountId>,
    /// Whether to repair.
    pub mode: Mode,
    /// Who asks.
    pub origin: Origin,
}

/// What can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// A row of daily usage.
    DailyUsage,
    /// An account's figures, which guard its charges; compared when all days are.
    AccountState,
    /// An account's balance beside the sum of its entries; reported, and not repaired by a run of some days.
    Balance,
}

impl Relation {
    /// As it is stored and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DailyUsage => "daily_usage",
            Self::AccountState => "account_state",
            Self::Balance => "balance",
        }
    }
}

/// Why a run did not come to its end. Rows are as they were, or as they should be.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The projections cannot be read or compared.
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    /// The store did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The temporary database of the fold did not.
    #[error("the temporary database of the rebuild: {0}")]
    Shadow(#[source] rusqlite::Error),
    /// Nor did its tables of account figures, which are read as the ledger's are.
    #[error("the temporary database of the rebuild: {0}")]
    ShadowFigures(#[source] StoreError),
    /// The projection was set back meanwhile: what was folded is ahead of it.
    #[error(
        "{} was set back from {folded} to {stands} while it was rebuilt: run it again", relation.name()
    )]
    SetBack {
        /// What was set back.
        relation: Relation,
        /// Where the fold stands.
        folded: Position,
        /// Where the rows stand.
        stands: Position,
    },
    /// The sums of a key leave 64 bits.
    #[error("the log's sums of {account} on {day} leave 64 bits")]
    Overflow {
        /// Whose.
        account: String,
        /// When.
        day: String,
    },
    /// The log grows faster than it can be folded. What was repaired stays repaired.
    #[error("the log grows faster than it is folded: run it again when there is less to do")]
    TooBusy,
    /// Somebody asked it to stop.
    #[error("cancelled")]
    Cancelled,
}
