//! Reads of the projections' tables, for pages, lists and the command line.
//!
//! Every list is a keyset page: rows after a position in the order of an index, one more than asked for to know whether there are
//! more. A page costs the same wherever it is. A test holds each statement against the query planner. Bound: a page has at most
//! [`MAX_PAGE_ROWS`] rows. The pool only reads, on connections of its own: a long list delays no writer, and no scan of the log.

use std::time::Duration;

use recoup::store::StoreError;
use recoup::store::sqlite::SqliteStore;
use recoup::{AccountId, Day, JobId, Kind, Position, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqlitePoolOptions, SqliteRow};
use sqlx::{Row, SqlitePool};

use crate::contradictions::{ContradictionRow, parse_signal};
use crate::daily_usage::UsageRow;
use crate::entries::{EntryRow, EntryType};
use crate::error::{ProjectionError, damaged};
use crate::jobs::{JobRow, State, parse_money};

/// The most rows of one page; a larger limit is taken for this one.
pub const MAX_PAGE_ROWS: u32 = 1_000;

/// How many queries run at once; more wait.
const CONNECTIONS: u32 = 4;

/// How long a query waits for a connection, or for a recovery of the file.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// A pool that only reads the ledger's file.
pub(crate) async fn open(store: &SqliteStore) -> Result<SqlitePool, sqlx::Error> {
    // Not opened read-only: a reader must be able to make the WAL's index after a crash. It cannot write all the same.
    let options = SqliteConnectOptions::new()
        .filename(store.path())
        .busy_timeout(PATIENCE)
        .pragma("query_only", "ON");
    SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(PATIENCE)
        .connect_with(options)
        .await
}

pub(crate) type Query = sqlx::query::Query<'static, sqlx::Sqlite, SqliteArguments>;

/// A statement of a list: its first parameter is the place that it goes on from, its second how many rows to read.
pub(crate) fn list(sql: &'static str, order: Order, after: Option<Position>, limit: u32) -> Query {
    let start = match order {
        Order::OldestFirst => 0,
        Order::NewestFirst => i64::MAX,
    };
    let after = after.map_or(start, Position::get);
    sqlx::query(sql).bind(after).bind(i64::from(limit) + 1)
}

pub(crate) async fn page<T>(
    pool: &SqlitePool,
    query: Query,
    limit: u32,
    row_of: impl Fn(&SqliteRow) -> Result<T, ProjectionError>,
    place_of: impl Fn(&T) -> Position,
) -> Result<Page<T>, ProjectionError> {
    let found = query.fetch_all(pool).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let rows: Vec<T> = found
        .iter()
        .take(limit)
        .map(row_of)
        .collect::<Result<_, _>>()?;
    let is_more = found.len() > rows.len();
    let next = rows.last().filter(|_| is_more).map(place_of);
    Ok(Page { rows, next })
}

pub(crate) fn bounded(limit: u32) -> u32 {
    limit.clamp(1, MAX_PAGE_ROWS)
}

pub(crate) async fn entries(
    pool: &SqlitePool,
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
    let query = list(sql, order, after, limit).bind(account.as_str().to_owned());
    page(pool, query, limit, entry_of, |row| row.position).await
}

pub(crate) async fn usage(
    pool: &SqlitePool,
    account: &AccountId,
    from: Option<Day>,
    to: Option<Day>,
) -> Result<Vec<UsageRow>, ProjectionError> {
    let text =
        |day: Option<Day>, open: &str| day.map_or_else(|| open.to_owned(), |day| day.to_string());
    let found = sqlx::query(USAGE)
        .bind(account.as_str().to_owned())
        .bind(text(from, FIRST_DAY))
        .bind(text(to, LAST_DAY))
        .fetch_all(pool)
        .await?;
    found.iter().map(usage_of).collect()
}

pub(crate) async fn jobs(
    pool: &SqlitePool,
    filter: JobFilter,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<JobRow>, ProjectionError> {
    let limit = bounded(limit);
    let of_order = match filter.order {
        Order::OldestFirst => JOBS[0],
        Order::NewestFirst => JOBS[1],
    };
    let list = |sql| list(sql, filter.order, after, limit);
    let query = match (&filter.account, filter.state) {
        (None, None) => list(of_order[0]),
        (Some(account), None) => list(of_order[1]).bind(account.as_str().to_owned()),
        (None, Some(state)) => list(of_order[2]).bind(state.name()),
        (Some(account), Some(state)) => list(of_order[3])
            .bind(account.as_str().to_owned())
            .bind(state.name()),
    };
    page(pool, query, limit, job_of, |row| row.opened).await
}

pub(crate) async fn contradictions(
    pool: &SqlitePool,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<ContradictionRow>, ProjectionError> {
    let limit = bounded(limit);
    let query = list(CONTRADICTIONS, Order::OldestFirst, after, limit);
    page(pool, query, limit, contradiction_of, |row| row.position).await
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

fn entry_of(row: &SqliteRow) -> Result<EntryRow, ProjectionError> {
    let (account, entry_type): (String, String) = (row.try_get(1)?, row.try_get(2)?);
    let (job, kind): (Option<String>, Option<String>) = (row.try_get(5)?, row.try_get(6)?);
    let charged_at: Option<i64> = row.try_get(10)?;
    Ok(EntryRow {
        position: Position::new(row.try_get(0)?),
        account: parsed("entries", AccountId::new(&account))?,
        entry_type: known("entries", &entry_type, EntryType::parse(&entry_type))?,
        amount: row.try_get(3)?,
        balance: row.try_get(4)?,
        job: job
            .map(|job| parsed("entries", JobId::new(&job)))
            .transpose()?,
        kind: kind
            .map(|kind| parsed("entries", Kind::new(&kind)))
            .transpose()?,
        reference: row.try_get(7)?,
        reason: row.try_get(8)?,
        posted_at: Timestamp::from_micros(row.try_get(9)?),
        charged_at: charged_at.map(Timestamp::from_micros),
    })
}

fn usage_of(row: &SqliteRow) -> Result<UsageRow, ProjectionError> {
    let (day, kind): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(UsageRow {
        day: parsed("daily_usage", Day::parse(&day))?,
        kind: parsed("daily_usage", Kind::new(&kind))?,
        charged: row.try_get(2)?,
        refunded: row.try_get(3)?,
        reclaimed: row.try_get(4)?,
        jobs: row.try_get(5)?,
    })
}

fn job_of(row: &SqliteRow) -> Result<JobRow, ProjectionError> {
    let (job, account, kind): (String, String, String) =
        (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
    let (state, money): (String, String) = (row.try_get(5)?, row.try_get(6)?);
    Ok(JobRow {
        job: parsed("jobs", JobId::new(&job))?,
        account: parsed("jobs", AccountId::new(&account))?,
        kind: parsed("jobs", Kind::new(&kind))?,
        cost: row.try_get(4)?,
        state: known("jobs", &state, State::parse(&state))?.name(),
        money: known("jobs", &money, parse_money(&money))?.name(),
        attempt: row.try_get(7)?,
        held: row.try_get(8)?,
        charged_at: Timestamp::from_micros(row.try_get(9)?),
        updated_at: Timestamp::from_micros(row.try_get(10)?),
        opened: Position::new(row.try_get(0)?),
        last_position: Position::new(row.try_get(11)?),
    })
}

fn contradiction_of(row: &SqliteRow) -> Result<ContradictionRow, ProjectionError> {
    let (job, account, signal): (String, String, String) =
        (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
    Ok(ContradictionRow {
        position: Position::new(row.try_get(0)?),
        job: parsed("contradictions", JobId::new(&job))?,
        account: parsed("contradictions", AccountId::new(&account))?,
        signal: known("contradictions", &signal, parse_signal(&signal))?.name(),
        attempt: row.try_get(4)?,
        reason: row.try_get(5)?,
        result: row.try_get(6)?,
        posted_at: Timestamp::from_micros(row.try_get(7)?),
    })
}
