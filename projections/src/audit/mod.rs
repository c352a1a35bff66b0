//! The audit: proof, in one snapshot, that the log is legal and that every table says what the log says.
//!
//! One walk over the whole log, in position order, folds every job's stream ([`jobs`]), every account's figures ([`accounts`])
//! and every day's usage ([`usage`]), and holds the rows that have a position of their own against their events as they go by
//! ([`alongside`]). Account figures are compared at the head, where the append's own transaction keeps them; each
//! projection at its own checkpoint. The fold of a job and the fold of an account are the ledger's; what the projections should
//! hold is computed here again, from the events, by none of the projections' code.
//!
//! Before that the database itself is looked at ([`file`]): a guard that lacks an entry would let a job be charged twice.
//!
//! What cannot be read is a finding, and nothing is summed over it: the fold of that stream and its account stops there,
//! and so does the comparison of a projection that claims to have passed it.
//!
//! Out of reach: facts that stand in one event and nowhere else, such as a reason, a price list's name or a policy's numbers, and
//! the scale of the ledger: nothing in the file contradicts another value. No checksum covers them.
//!
//! Bounds: a page of the log and a page of a table in memory, beside them a few hundred bytes for each job, each account and its
//! months, and each row of daily usage: nothing that grows with the number of events. The snapshot keeps a file's WAL from being
//! folded back until the audit is done. No lock is taken; writers go on.

mod accounts;
mod alongside;
mod file;
mod job_rows;
mod jobs;
mod live_rows;
mod marks;
mod report;
mod rows;
mod streams;
mod usage;
mod walk;

use recoup::EventStore;
use recoup::sql::Database;

use crate::error::ProjectionError;

/// What the audit reads tables with, and how that is carried out.
#[cfg(test)]
pub(crate) const PLANS: [(&str, &str); 6] = [
    (
        <rows::EntryRecord as alongside::LogRow>::SQL,
        "SEARCH entries USING INTEGER PRIMARY KEY (rowid>?)",
    ),
    (
        <rows::ContradictionRecord as alongside::LogRow>::SQL,
        "SEARCH contradictions USING INTEGER PRIMARY KEY (rowid>?)",
    ),
    (
        job_rows::ROWS_AFTER,
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>?)",
    ),
    (
        usage::ROWS_AFTER,
        "SEARCH daily_usage USING PRIMARY KEY ((account,day,kind)>(?,?,?))",
    ),
    (
        <live_rows::DueRecord as live_rows::LiveRow>::ROWS_AFTER,
        "SEARCH due USING PRIMARY KEY (job>?)",
    ),
    (
        <live_rows::DeadLetterRecord as live_rows::LiveRow>::ROWS_AFTER,
        "SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid>?)",
    ),
];

pub use report::{Audit, Check, Finding, MAX_FINDINGS};

/// Audits the ledger as it is at this moment. Violations are 0, and not 0 is an incident.
///
/// An error means that the audit could not be made, not that it found something.
pub async fn audit(database: &Database) -> Result<Audit, ProjectionError> {
    let zone = database.identity().zone;
    database.snapshot(move |tx| walk::audit(tx, zone)).await
}
