//! Projections of the recoup log: the statement, daily usage, lists of jobs and contradictions, due work, dead letters; and the audit that proves them.
//!
//! Events are the truth; every table here is made from them and can be made again. [`Projections`] applies the log to its
//! tables and answers queries from them; [`audit::audit`] folds the whole log by other code and compares.
//!
//! What holds, whatever is killed and however many run at once:
//!
//! - A batch of rows and its [`Checkpoint`] are committed together, from a named place on: each page is applied once.
//! - A checkpoint names the event that it stands at and the definition that its rows were made by. Rows of another log, or of
//!   another definition, are neither added to nor repaired.
//! - Rows are changed strictly in position order. An event that cannot be read halts a projection there, with the reason
//!   stored; nothing is summed over a gap, and the other projections go on.
//! - A day is `posted_at` in the ledger's zone, computed once: a day that is over changes no more.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("ledger.db");
//! use std::sync::Arc;
//!
//! use recoup::store::sqlite::{Options, SqliteStore};
//! use recoup::{AccountId, CommandId, Cost, Grant, GrantId, Ledger, Policies};
//! use recoup_projections::{Projections, audit::audit};
//!
//! let store = SqliteStore::open(Options::at(path)).await?;
//! let ledger = Ledger::new(Arc::new(store.clone()), Policies::default());
//! let account = AccountId::new("acme")?;
//! let grant = Grant { account: account.clone(), grant: GrantId::new("welcome")?, amount: Cost::new(100)? };
//! assert!(ledger.grant(CommandId::random(), grant).await?.is_done());
//!
//! let projections = Projections::open(store.clone()).await?;
//! projections.catch_up().await?;
//! let statement = projections.entries(&account, None, 50).await?;
//! assert_eq!((statement.rows[0].amount, statement.rows[0].balance), (100, 100));
//! assert_eq!(audit(projections.database()).await?.violations, 0);
//! # Ok(()) }
//! ```

// The ledgers of the tests in tests/it are used by tests in here, too, and call this crate by its name.
#[cfg(test)]
extern crate self as recoup_projections;

mod apply;
#[cfg(test)]
mod at_once;
pub mod audit;
mod batch;
mod catalog;
mod checkpoint;
mod contradictions;
mod daily_usage;
mod dead_letters;
mod due;
mod entries;
mod error;
mod jobs;
mod keys;
mod moves;
#[cfg(test)]
mod plans;
mod projections;
mod queries;
mod runner;
mod standing;
mod streams;
mod ways_out;

pub use catalog::Projection;
pub use checkpoint::{Checkpoint, Halt, read_checked};
pub use contradictions::ContradictionRow;
pub use daily_usage::{UsageRow, UsageSums, load_usage, write_usage};
pub use dead_letters::{DeadLetterFilter, DeadLetterRow};
pub use entries::{EntryRow, EntryType};
pub use error::ProjectionError;
pub use jobs::{JobRow, State};
pub use moves::{LogReader, MAX_MOVES_EVENTS, Move, MovePage};
pub use projections::Projections;
pub use queries::{JobFilter, MAX_PAGE_ROWS, Order, Page};
pub use runner::{Progress, Seen};
pub use standing::{Figures, Stand, Standing};
pub use ways_out::{Decision, Reset, Skip, SkipOutcome, has_skips};
