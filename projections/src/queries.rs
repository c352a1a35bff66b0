//! Reads of the projections' tables, for pages, lists and the command line.
//!
//! Every list is a keyset page: rows after a position in the order of an index, one more than asked for to know whether there are
//! more. A page costs the same wherever it is. A test holds each statement against the query planner. Bound: a page has at most
//! [`MAX_PAGE_ROWS`] rows. A list is a [`glance`](Database::glance): it delays no writer, and waits for no scan of the log.

use recoup::sql::{Database, Row, Value};
use recoup::store::StoreError;
use recoup::{AccountId, Day, JobId, Kind, Position, Timestamp, values};

use crate::contradictions::{ContradictionRow, parse_signal};
use crate::daily_usage::UsageRow;
use crate::entries::{EntryRow, EntryType};
use crate::error::{ProjectionError, damaged};
use crate::jobs::{JobRow, State, parse_money};

/// The most rows of one page; a larger limit is taken for this one.
pub const MAX_PAGE_ROWS: u32 = 1_000;

/// Some rows of a list, and where it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows, in the order of the list.
    pub rows: Vec<T>,
    /// What to ask for the next page with; none if there are no more rows.
    pub next: Option<Position>,
}

/// The direction of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As things happened.
    #[default]
    OldestFirst,
    /// The latest first.
    NewestFirst,
}

/// Which jobs to list: all of them, unless it says otherwise. In the order in which they were charged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFilter {
    /// Only this account's.
    pub account: Option<AccountId>,
    /// Only those in this state.
    pub state: Option<State>,
    /// In which direction.
    pub order: Order,
}

macro_rules! job_list {
    ($where:literal, $order:literal) => {
        concat!(
            "SELECT opened, job, account, kind, cost, state, money, attempt, held, charged_at, ",
            "updated_at, last_position FROM jobs WHERE opened ",
            $where,
            " ORDER BY opened ",
            $order,
            " LIMIT ?2"
        )
    };
}

macro_rules! entry_list {
    ($compare:literal, $order:literal) => {
        concat!(
            "SELECT position, account, type, amount, balance, job, kind, ref, reason, posted_at, ",
            "charged_at FROM entries WHERE position ",
            $compare,
            " ?1 AND account = ?3 ORDER BY position ",
            $order,
            " LIMIT ?2"
        )
    };
}

pub(crate) const ENTRIES: &str = entry_list!(">", "ASC");
pub(crate) const LATEST_ENTRIES: &str = entry_list!("<", "DESC");

pub(crate) const USAGE: &str =
    "SELECT day, kind, charged, refunded, reclaimed, jobs FROM daily_usage
    WHERE account = ?1 AND day BETWEEN ?2 AND ?3 ORDER BY day, kind";

pub(crate) const CONTRADICTIONS: &str =
    "SELECT position, job, account, signal, attempt, reason, result, posted_at
    FROM contradictions WHERE position > ?1 ORDER BY position LIMIT ?2";

/// By order, then by filter: each a statement of its own, so that each has its index.
pub(crate) const JOBS: [[&str; 4]; 2] = [
    [
        job_list!("> ?1", "ASC"),
        job_list!("> ?1 AND account = ?3", "ASC"),
        job_list!("> ?1 AND state = ?3", "ASC"),
        job_list!("> ?1 AND account = ?3 AND state = ?4", "ASC"),
    ],
    [
        job_list!("< ?1", "DESC"),
        job_list!("< ?1 AND account = ?3", "DESC"),
        job_list!("< ?1 AND state = ?3", "DESC"),
        job_list!("< ?1 AND account = ?3 AND state = ?4", "DESC"),
    ],
];

/// Days as text, before and after all of which a ledger can have.
const FIRST_DAY: &str = "0000-00-00";
const LAST_DAY: &str = "9999-99-99";

/// A statement of a list, and its values.
pub(crate) struct List {
    sql: &'static str,
    values: Vec<Value<'static>>,
    limit: u32,
}

impl List {
    /// The first value of `sql` is the place that the list goes on from, its second how many rows to read.
    pub(crate) fn new(
        sql: &'static str,
        order: Order,
        after: Option<Position>,
        limit: u32,
    ) -> Self {
        let start = match order {
            Order::OldestFirst => 0,
            Order::NewestFirst => i64::MAX,
        };
        let after = after.map_or(start, Position::get);
        Self {
            sql,
            values: vec![after.into(), (i64::from(limit) + 1).into()],
            limit,
        }
    }

    /// The same with one more value.
    pub(crate) fn with(mut self, value: impl Into<Value<'static>>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Reads its rows.
    pub(crate) async fn page<T: Send + 'static>(
        self,
        database: &Database,
        row_of: impl Fn(&Row<'_>) -> Result<T, StoreError> + Send + 'static,
        place_of: impl Fn(&T) -> Position,
    ) -> Result<Page<T>, ProjectionError> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let (rows, is_more) = database
            .glance(move |tx| {
                let mut found = 0;
                // Of the row that only says that there is one, nothing else is read.
                let read = tx.rows(self.sql, &self.values, |row| {
                    found += 1;
                    (found <= limit).then(|| row_of(row)).transpose()
                })?;
                let rows: Vec<T> = read.into_iter().flatten().collect();
                Ok::<_, StoreError>((rows, found > limit))
            })
            .await?;
        let next = rows.last().filter(|_| is_more).map(place_of);
        Ok(Page { rows, next })
    }
}

pub(crate) fn bounded(limit: u32) -> u32 {
    limit.clamp(1, MAX_PAGE_ROWS)
}

pub(crate) async fn entries(
    database: &Database,
    account: &AccountId,
    order: Order,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<EntryRow>, ProjectionError> {
    let limit = bounded(limit);
    let sql = match order {
        Order::OldestFirst => ENTRIES,
        Order::NewestFirst => LATEST_ENTRIES,
    };
    List::new(sql, order, after, limit)
        .with(account.to_string())
        .page(database, entry_of, |row| row.position)
        .await
}

pub(crate) async fn usage(
    database: &Database,
    account: &AccountId,
    from: Option<Day>,
    to: Option<Day>,
) -> Result<Vec<UsageRow>, ProjectionError> {
    let text =
        |day: Option<Day>, open: &str| day.map_or_else(|| open.to_owned(), |day| day.to_string());
    let account = account.clone();
    let (from, to) = (text(from, FIRST_DAY), text(to, LAST_DAY));
    let found = database.glance(move |tx| {
        let values = values![account.as_str(), from, to];
        tx.rows(USAGE, values, usage_of)
    });
    Ok(found.await?)
}

pub(crate) async fn jobs(
    database: &Database,
    filter: JobFilter,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<JobRow>, ProjectionError> {
    let limit = bounded(limit);
    let of_order = match filter.order {
        Order::OldestFirst => JOBS[0],
        Order::NewestFirst => JOBS[1],
    };
    let list = |sql| List::new(sql, filter.order, after, limit);
    let list = match (&filter.account, filter.state) {
        (None, None) => list(of_order[0]),
        (Some(account), None) => list(of_order[1]).with(account.to_string()),
        (None, Some(state)) => list(of_order[2]).with(state.name()),
        (Some(account), Some(state)) => list(of_order[3])
            .with(account.to_string())
            .with(state.name()),
    };
    list.page(database, job_of, |row| row.opened).await
}

pub(crate) async fn contradictions(
    database: &Database,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<ContradictionRow>, ProjectionError> {
    let limit = bounded(limit);
    List::new(CONTRADICTIONS, Order::OldestFirst, after, limit)
        .page(database, contradiction_of, |row| row.position)
        .await
}

/// A stored text as one of ours, or which table holds something else.
pub(crate) fn parsed<T, E: std::fmt::Display>(
    table: &str,
    value: Result<T, E>,
) -> Result<T, StoreError> {
    value.map_err(|error| damaged(table, error))
}

pub(crate) fn known<T>(table: &str, text: &str, found: Option<T>) -> Result<T, StoreError> {
    found.ok_or_else(|| damaged(table, format_args!("{text:?} is none of its words")))
}

fn entry_of(row: &Row<'_>) -> Result<EntryRow, StoreError> {
    let (account, entry_type): (String, String) = (row.get(1)?, row.get(2)?);
    let (job, kind): (Option<String>, Option<String>) = (row.get(5)?, row.get(6)?);
    let charged_at: Option<i64> = row.get(10)?;
    Ok(EntryRow {
        position: Position::new(row.get(0)?),
        account: parsed("entries", AccountId::new(&account))?,
        entry_type: known("entries", &entry_type, EntryType::parse(&entry_type))?,
        amount: row.get(3)?,
        balance: row.get(4)?,
        job: job
            .map(|job| parsed("entries", JobId::new(&job)))
            .transpose()?,
        kind: kind
            .map(|kind| parsed("entries", Kind::new(&kind)))
            .transpose()?,
        reference: row.get(7)?,
        reason: row.get(8)?,
        posted_at: Timestamp::from_micros(row.get(9)?),
        charged_at: charged_at.map(Timestamp::from_micros),
    })
}

fn usage_of(row: &Row<'_>) -> Result<UsageRow, StoreError> {
    let (day, kind): (String, String) = (row.get(0)?, row.get(1)?);
    Ok(UsageRow {
        day: parsed("daily_usage", Day::parse(&day))?,
        kind: parsed("daily_usage", Kind::new(&kind))?,
        charged: row.get(2)?,
        refunded: row.get(3)?,
        reclaimed: row.get(4)?,
        jobs: row.get(5)?,
    })
}

fn job_of(row: &Row<'_>) -> Result<JobRow, StoreError> {
    let (job, account, kind): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let (state, money): (String, String) = (row.get(5)?, row.get(6)?);
    Ok(JobRow {
        job: parsed("jobs", JobId::new(&job))?,
        account: parsed("jobs", AccountId::new(&account))?,
        kind: parsed("jobs", Kind::new(&kind))?,
        cost: row.get(4)?,
        state: known("jobs", &state, State::parse(&state))?.name(),
        money: known("jobs", &money, parse_money(&money))?.name(),
        attempt: row.get(7)?,
        held: row.get(8)?,
        charged_at: Timestamp::from_micros(row.get(9)?),
        updated_at: Timestamp::from_micros(row.get(10)?),
        opened: Position::new(row.get(0)?),
        last_position: Position::new(row.get(11)?),
    })
}

fn contradiction_of(row: &Row<'_>) -> Result<ContradictionRow, StoreError> {
    let (job, account, signal): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    Ok(ContradictionRow {
        position: Position::new(row.get(0)?),
        job: parsed("contradictions", JobId::new(&job))?,
        account: parsed("contradictions", AccountId::new(&account))?,
        signal: known("contradictions", &signal, parse_signal(&signal))?.name(),
        attempt: row.get(4)?,
        reason: row.get(5)?,
        result: row.get(6)?,
        posted_at: Timestamp::from_micros(row.get(7)?),
    })
}
