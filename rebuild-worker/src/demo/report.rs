//! Reads everything back: from account figures, from job streams, from projections, from the audit. Nothing of the plan enters, but
//! the reckoning that the ledger is compared with.
//!
//! Bounds: jobs and entries are read in pages of [`PAGE`]; of jobs only counts and one candidate are kept.

mod figures;
mod words;

use std::collections::BTreeMap;

use anyhow::Context;
use recoup::account::AccountState;
use recoup::sql::Database;
use recoup::{AccountId, Day, EventStore, JobId, Ledger, Scale, Zone};
use recoup_projections::audit::{Audit, audit};
use recoup_projections::{EntryRow, JobFilter, JobRow, Projections};

use self::words::{entry_of, life_event};
use super::drive::{Driven, Refused};
use super::expect::JobCounts;
use super::facts::{
    Answers, AuditFacts, Check, Contradiction, Contradictions, JobGroup, Life, Statement, UsageRow,
};
use super::paper::grouped;

pub(super) use self::figures::{balances, compare};

/// How many rows are read at once.
const PAGE: u32 = 1_000;

/// How many contradictions are shown; all are counted.
const SHOWN: usize = 4;

/// Where everything is read from.
pub(super) struct Reader {
    pub(super) database: Database,
    pub(super) ledger: Ledger,
    pub(super) projections: Projections,
}

/// What one pass over all jobs gives.
#[derive(Default)]
pub(super) struct JobsRead {
    pub(super) groups: Vec<JobGroup>,
    per_account: BTreeMap<AccountId, u64>,
    counts: JobCounts,
    /// The job whose life is told: refunded and then delivered, best on another day.
    told: Option<(Told, JobRow)>,
}

/// How much a life is worth telling; the larger the more.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    crosses_month: bool,
    crosses_day: bool,
    is_simple: bool,
    cost: i64,
}

impl JobsRead {
    pub(super) fn told(&self) -> Option<&JobRow> {
        self.told.as_ref().map(|(_, job)| job)
    }
}

impl Reader {
    fn zone(&self) -> Zone {
        self.database.identity().zone
    }

    fn scale(&self) -> Scale {
        self.database.identity().scale
    }

    /// Every account with anything in it, by id.
    pub(super) async fn accounts(&self) -> anyhow::Result<Vec<(AccountId, AccountState)>> {
        let mut accounts = Vec::new();
        loop {
            let after = accounts
                .last()
                .map(|(id, _): &(AccountId, AccountState)| id.clone());
            let page = self
                .database
                .accounts(after.as_ref(), PAGE as usize)
                .await?;
            if page.is_empty() {
                return Ok(accounts);
            }
            accounts.extend(page);
        }
    }

    /// Counts the jobs projection, and looks for the life to tell.
    pub(super) async fn jobs(&self) -> anyhow::Result<JobsRead> {
        let mut read = JobsRead::default();
        let mut groups: BTreeMap<(String, String), (u64, i64)> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self
                .projections
                .jobs(JobFilter::default(), after, PAGE)
                .await?;
            for row in page.rows {
                let group = groups
                    .entry((row.state.to_string(), row.money.to_string()))
                    .or_default();
                group.0 += 1;
                group.1 += row.cost;
                self.count(&mut read, row);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let group = |((state, money), (jobs, cost))| JobGroup {
            state,
            money,
            jobs,
            cost,
        };
        read.groups = groups.into_iter().map(group).collect();
        read.groups
            .sort_by_key(|group| std::cmp::Reverse(group.jobs));
        Ok(read)
    }

    fn count(&self, read: &mut JobsRead, row: JobRow) {
        let is_delivered = row.state == "delivered";
        let is_reclaimed = row.money == "reclaimed";
        read.counts.delivered += u64::from(is_delivered);
        read.counts.not_delivered += u64::from(!is_delivered);
        read.counts.charges += 1;
        read.counts.refunds += u64::from(row.money != "charged");
        read.counts.reclaims += u64::from(is_reclaimed);
        *read.per_account.entry(row.account.clone()).or_default() += 1;
        if is_delivered && is_reclaimed {
            let (from, to) = (
                self.zone().day_of(row.charged_at),
                self.zone().day_of(row.updated_at),
            );
            let told = Told {
                crosses_month: from.month() != to.month(),
                crosses_day: from != to,
                is_simple: row.attempt == 1,
                cost: row.cost,
            };
            if read.told.as_ref().is_none_or(|(best, _)| *best < told) {
                read.told = Some((told, row));
            }
        }
    }

    /// Daily usage of all accounts together, a row a day and kind.
    pub(super) async fn usage(
        &self,
        accounts: &[(AccountId, AccountState)],
    ) -> anyhow::Result<Vec<UsageRow>> {
        let mut days: BTreeMap<(Day, String), UsageRow> = BTreeMap::new();
        for (account, _) in accounts {
            for row in self.projections.usage(account, None, None).await? {
                let sum = days.entry((row.day, row.kind.to_string())).or_default();
                sum.day = row.day.to_string();
                sum.kind = row.kind.to_string();
                sum.jobs += row.jobs;
                sum.charged += row.charged;
                sum.refunded += row.refunded;
                sum.reclaimed += row.reclaimed;
                sum.net = sum.charged - sum.refunded + sum.reclaimed;
            }
        }
        Ok(days.into_values().collect())
    }

    /// The told job's charge, refund and reclaim among their neighbours, and the account's first entry.
    pub(super) async fn statement(&self, told: &JobRow) -> anyhow::Result<Statement> {
        let mut entries: Vec<EntryRow> = Vec::new();
        let mut after = None;
        loop {
            let page = self.projections.entries(&told.account, after, PAGE).await?;
            entries.extend(page.rows);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let is_told = |index: usize| {
            entries
                .get(index)
                .is_some_and(|entry| entry.job.as_ref() == Some(&told.job))
        };
        let is_shown = |index: usize| {
            index == 0 || is_told(index) || is_told(index + 1) || index > 0 && is_told(index - 1)
        };
        let shown = entries
            .iter()
            .enumerate()
            .filter(|(index, _)| is_shown(*index));
        Ok(Statement {
            account: told.account.to_string(),
            entries_total: entries.len(),
            entries: shown
                .map(|(index, entry)| entry_of(index + 1, entry))
                .collect(),
        })
    }

    /// Every event of the told job, from its stream.
    pub(super) async fn life(&self, job: &JobId) -> anyhow::Result<Life> {
        let (state, history) = self.ledger.show(job).await?;
        let recorded = state
            .recorded()
            .context("a job of the projection is in the ledger")?;
        let price: Vec<String> = recorded
            .terms
            .price
            .lines
            .iter()
            .map(|line| {
                let unit = line.unit.as_str().replace('_', " ");
                let (quantity, per) = (line.quantity.unsigned_abs(), line.per.unsigned_abs());
                let unit_price = self.scale().show(line.unit_price);
                format!(
                    "{} {unit} × {unit_price} per {}",
                    grouped(quantity),
                    grouped(per)
                )
            })
            .collect();
        Ok(Life {
            job: job.to_string(),
            account: recorded.terms.account.to_string(),
            kind: recorded.terms.kind.to_string(),
            cost: recorded.terms.cost.get(),
            price: price.join(" + "),
            rounding: recorded.terms.price.rounding,
            state: recorded.work.name().to_owned(),
            money: recorded.money.name().to_owned(),
            net: recorded.net(),
            events: history.iter().map(life_event).collect(),
        })
    }

    pub(super) async fn contradictions(&self) -> anyhow::Result<Contradictions> {
        let (mut count, mut shown, mut after) = (0, Vec::new(), None);
        loop {
            let page = self.projections.contradictions(after, PAGE).await?;
            count += page.rows.len();
            for row in page
                .rows
                .into_iter()
                .take(SHOWN.saturating_sub(shown.len()))
            {
                shown.push(Contradiction {
                    job: row.job.to_string(),
                    account: row.account.to_string(),
                    signal: row.signal.to_string(),
                    attempt: row.attempt,
                    detail: row.reason.or(row.result).unwrap_or_default(),
                    posted_at: row.posted_at.to_string(),
                });
            }
            after = page.next;
            if after.is_none() {
                return Ok(Contradictions { count, shown });
            }
        }
    }

    pub(super) async fn audit(&self) -> anyhow::Result<AuditFacts> {
        let audit: Audit = audit(&self.database).await?;
        let checks = audit.checks.iter().map(|check| Check {
            name: check.name.to_string(),
            checked: check.checked,
            violations: check.violations,
        });
        Ok(AuditFacts {
            checks: checks.collect(),
            violations: audit.violations,
            findings: audit.findings.iter().map(ToString::to_string).collect(),
            position: audit.position.get(),
            events: audit.events,
        })
    }

    /// The rejections of limits, with their numbers as people read them.
    pub(super) fn refused(&self, driven: &Driven) -> Vec<String> {
        driven
            .refused
            .values()
            .map(|refused| self.refusal(refused))
            .collect()
    }

    fn refusal(&self, refused: &Refused) -> String {
        use recoup::Rejection::{CapExceeded, InsufficientCredit};
        let show = |amount: i64| self.scale().show(amount);
        let why = match &refused.rejection {
            InsufficientCredit {
                available, needed, ..
            } => {
                format!(
                    "insufficient credit: {} available, {} needed",
                    show(*available),
                    show(*needed)
                )
            }
            CapExceeded {
                month,
                cap,
                used,
                needed,
            } => {
                format!(
                    "cap exceeded: {} of {} used in {month}, {} needed",
                    show(*used),
                    show(*cap),
                    show(*needed)
                )
            }
            other => other.to_string(),
        };
        format!("{} of {}: {why}", refused.job, refused.account)
    }
}

/// The tally, in the order of a job's life.
pub(super) fn answers(driven: &Driven) -> Vec<Answers> {
    driven
        .tallies
        .iter()
        .map(|(verb, tally)| Answers {
            verb: *verb,
            tally: tally.clone(),
        })
        .collect()
}
