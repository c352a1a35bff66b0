//! The facts of a demo, as they are shown and as `--json` gives them. Amounts are integers in the smallest unit beside one `scale`.

use std::collections::BTreeMap;

use recoup::{Rounding, Scale};
use serde::Serialize;

use super::drive::Tally;
use super::expect::{Figures, JobCounts};
use super::signals::Verb;

/// Everything that a demo shows.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) simulated: Simulated,
    pub(super) input: Input,
    pub(super) scale: Scale,
    /// What the tasks were answered; the one part that is not read back, since a ledger stores no rejections.
    pub(super) answers: Vec<Answers>,
    pub(super) refused: Vec<String>,
    pub(super) jobs: Vec<JobGroup>,
    pub(super) balances: Balances,
    pub(super) usage: Vec<UsageRow>,
    pub(super) statement: Option<Statement>,
    pub(super) life: Option<Life>,
    pub(super) contradictions: Contradictions,
    /// None where there was no job.
    pub(super) rebuilt: Option<Rebuilt>,
    pub(super) audit: AuditFacts,
    pub(super) comparison: Comparison,
    /// Jobs whose failure and success were sent at one instant: what may differ between two runs.
    pub(super) races: u64,
    /// What is left behind.
    #[serde(flatten)]
    pub(super) kept: Option<Kept>,
}

/// A ledger that is left behind, as the options that lead to it.
#[derive(Debug, Serialize)]
pub(super) struct Kept {
    /// For `--store`.
    #[serde(rename = "kept")]
    pub(super) store: String,
    /// For `--db`.
    #[serde(rename = "kept_db", skip_serializing_if = "Option::is_none")]
    pub(super) db: Option<String>,
}

/// The simulated time.
#[derive(Debug, Serialize)]
pub(super) struct Simulated {
    /// `injected`: nothing here happened at these instants; `server`: the log's own clock, by which it did.
    pub(super) clock: &'static str,
    /// How many seconds of the plan passed in one of that clock's.
    pub(super) haste: u32,
    pub(super) zone: &'static str,
    pub(super) first_day: String,
    pub(super) last_day: String,
    pub(super) seed: u64,
    pub(super) tasks: usize,
    /// How long the days took on this machine, in milliseconds.
    pub(super) took_ms: u64,
}

/// The input.
#[derive(Debug, Serialize)]
pub(super) struct Input {
    pub(super) source: String,
    /// Whether the file is the cited one; otherwise it has its columns.
    pub(super) is_cited: bool,
    pub(super) citation: &'static str,
    pub(super) requests: usize,
    pub(super) jobs: usize,
    /// Requests of no token, which are no jobs.
    pub(super) free_requests: usize,
    pub(super) span_s: f64,
    pub(super) simulated_span_s: f64,
    /// How many times longer the simulated arrivals take.
    pub(super) stretched: f64,
}

/// Answers to the commands of one verb.
#[derive(Debug, Serialize)]
pub(super) struct Answers {
    pub(super) verb: Verb,
    #[serde(flatten)]
    pub(super) tally: Tally,
}

/// Jobs in one state.
#[derive(Debug, Serialize)]
pub(super) struct JobGroup {
    pub(super) state: String,
    pub(super) money: String,
    pub(super) jobs: u64,
    pub(super) cost: i64,
}

/// One account's figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Balance {
    pub(super) account: String,
    pub(super) jobs: u64,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) available: i64,
    /// Spent, by budget month.
    pub(super) spent: BTreeMap<String, i64>,
    pub(super) monthly_cap: Option<i64>,
}

/// The accounts.
#[derive(Debug, Serialize)]
pub(super) struct Balances {
    pub(super) accounts: usize,
    /// Accounts below their floor.
    pub(super) below_floor: usize,
    pub(super) months: Vec<String>,
    pub(super) shown: Vec<Balance>,
    pub(super) total: Balance,
}

/// One day and kind of all accounts together.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct UsageRow {
    pub(super) day: String,
    pub(super) kind: String,
    pub(super) jobs: i64,
    pub(super) charged: i64,
    pub(super) refunded: i64,
    pub(super) reclaimed: i64,
    pub(super) net: i64,
}

/// An entry of a statement.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Entry {
    /// Its place in the account's statement, from 1.
    pub(super) number: usize,
    pub(super) position: i64,
    #[serde(rename = "type")]
    pub(super) entry_type: String,
    pub(super) amount: i64,
    pub(super) balance: i64,
    pub(super) job: Option<String>,
    /// The grant or the adjustment.
    #[serde(rename = "ref")]
    pub(super) reference: Option<String>,
    pub(super) posted_at: String,
    pub(super) charged_at: Option<String>,
}

/// A part of one account's statement.
#[derive(Debug, Serialize)]
pub(super) struct Statement {
    pub(super) account: String,
    /// How many entries the account has.
    pub(super) entries_total: usize,
    /// In order; where the numbers jump, some are left out.
    pub(super) entries: Vec<Entry>,
}

/// One job's life.
#[derive(Debug, Serialize)]
pub(super) struct Life {
    pub(super) job: String,
    pub(super) account: String,
    pub(super) kind: String,
    pub(super) cost: i64,
    pub(super) price: String,
    pub(super) rounding: Rounding,
    pub(super) state: String,
    pub(super) money: String,
    pub(super) net: i64,
    pub(super) events: Vec<LifeEvent>,
}

/// An event of that life.
#[derive(Debug, Serialize)]
pub(super) struct LifeEvent {
    pub(super) revision: u64,
    pub(super) position: i64,
    pub(super) posted_at: String,
    pub(super) event: String,
    pub(super) detail: String,
    pub(super) amount: Option<i64>,
    pub(super) held: Option<i64>,
}

/// Signals that contradicted what had happened.
#[derive(Debug, Serialize)]
pub(super) struct Contradictions {
    pub(super) count: usize,
    pub(super) shown: Vec<Contradiction>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(super) struct Contradiction {
    pub(super) job: String,
    pub(super) account: String,
    pub(super) signal: String,
    pub(super) attempt: u32,
    pub(super) detail: String,
    pub(super) posted_at: String,
}

/// What the audit found.
#[derive(Debug, Serialize)]
pub(super) struct AuditFacts {
    pub(super) checks: Vec<Check>,
    pub(super) violations: u64,
    pub(super) findings: Vec<String>,
    pub(super) position: i64,
    pub(super) events: u64,
}

/// One check of the audit.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) checked: u64,
    pub(super) violations: u64,
}

/// The demo's own reckoning beside the ledger.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) accounts: usize,
    pub(super) differences: Vec<Difference>,
    pub(super) difference_count: usize,
    pub(super) expected: Counts,
    pub(super) found: Counts,
}

/// What is counted on both sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    #[serde(flatten)]
    pub(super) jobs: JobCounts,
    pub(super) balance: i64,
    pub(super) held: i64,
}

/// An account whose figures are not what was reckoned.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    pub(super) account: String,
    pub(super) expected: Figures,
    pub(super) found: Figures,
}

impl Facts {
    /// Whether the audit found nothing, and the ledger shows what was reckoned.
    pub(super) fn is_clean(&self) -> bool {
        let is_rebuilt = self.rebuilt.as_ref().is_none_or(|rebuilt| rebuilt.is_clean);
        self.audit.violations == 0 && self.comparison.is_equal() && is_rebuilt
    }
}

impl Comparison {
    pub(super) fn is_equal(&self) -> bool {
        self.difference_count == 0 && self.expected == self.found
    }
}

/// Daily usage, spoilt on purpose and rebuilt.
#[derive(Debug, Serialize)]
pub(super) struct Rebuilt {
    /// Charges that a faulty consumer counted once more.
    pub(super) applied_again: u64,
    /// Verify, repair, verify again.
    pub(super) runs: Vec<RebuiltRun>,
    /// The rows that were farthest off.
    pub(super) rows: Vec<RebuiltRow>,
    /// Whether the repair left nothing to find.
    pub(super) is_clean: bool,
}

/// One run of a rebuild.
#[derive(Debug, Serialize)]
pub(super) struct RebuiltRun {
    pub(super) mode: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) events_read: i64,
    pub(super) rows_checked: i64,
    pub(super) rows_different: i64,
    pub(super) worst_ratio: Option<f64>,
}

/// One row of daily usage that was wrong.
#[derive(Debug, Serialize)]
pub(super) struct RebuiltRow {
    pub(super) account: String,
    pub(super) day: String,
    pub(super) kind: String,
    pub(super) charged_shown: i64,
    pub(super) charged: i64,
}
