//! recoup: a credit ledger for metered jobs.
//!
//! A job is charged when it is taken on, refunded when it fails, and, when it turns out to have succeeded after all, the
//! refund is taken back, once. Every step is an event in the job's own stream, appended with an expected revision: that
//! append is the guard, the write and the audit trail in one.
//!
//! Services hold a [`Ledger`] and send it commands; each answer is an [`Outcome`].
//! [`job`], [`account`], [`retry`] and [`codec`] are pure; [`store`] is where bytes meet a database.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use recoup::{AccountId, Attempt, Charge, CommandId, Cost, FailureClass, Grant, GrantId, JobCommand, JobId, Kind, Ledger, PriceSnapshot};
//!
//! let ledger = Ledger::in_memory();
//! let account = AccountId::new("acme")?;
//! ledger.grant(CommandId::random(), Grant { account: account.clone(), grant: GrantId::new("welcome")?, amount: Cost::new(100)? }).await?;
//!
//! let (job, cost) = (JobId::new("video-1")?, Cost::new(40)?);
//! let charge = ledger.charge_of(account.clone(), Kind::new("video.render")?, cost, PriceSnapshot::flat(cost), None)?;
//! ledger.job(CommandId::random(), job.clone(), JobCommand::Charge(Box::new(charge))).await?;
//! ledger.job(CommandId::random(), job.clone(), JobCommand::Fail { attempt: Attempt::FIRST, class: FailureClass::Retryable, reason: None }).await?;
//! assert_eq!(ledger.account(&account).await?.balance, 100);
//!
//! // The job finished after all: the refund is taken back, once, however often it is said.
//! for _ in 0..3 {
//!     let outcome = ledger.job(CommandId::random(), job.clone(), JobCommand::Succeed { attempt: Attempt::FIRST, result: None }).await?;
//!     assert!(outcome.is_done(), "hand the result over");
//! }
//! assert_eq!(ledger.account(&account).await?.balance, 60);
//! # Ok(()) }
//! ```

pub mod account;
pub mod clock;
pub mod codec;
pub mod credits;
pub mod due;
pub mod ids;
pub mod job;
pub mod ledger;
pub mod price;
pub mod retry;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod sql;
pub mod store;

pub use account::{AccountState, Adjust, Floor, Grant, Limit, Limits};
pub use clock::{BudgetMonth, Clock, Day, ManualClock, SystemClock, Timestamp, Zone};
pub use credits::{Cost, Delta, Scale};
pub use due::{Claimed, DueSource, Expired};
pub use ids::{
    AccountId, AdjustmentId, CommandId, GrantId, JobId, JobResult, Kind, PriceListId, Reason, Unit,
    WorkerId,
};
pub use job::{Attempt, Charge, FailureClass, JobCommand, PolicyChoice, Rejection};
pub use ledger::{Command, Ledger, LedgerError, Outcome, Policies, Receipt};
pub use price::{PriceLine, PriceSnapshot, Rounding};
pub use retry::{Lease, Mode, Policy};
pub use store::{EventStore, Position, Revision};
