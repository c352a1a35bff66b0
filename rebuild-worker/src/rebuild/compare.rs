//! Comparing what is shown with the shadow: a walk over the union of the keys of both, in one order, in one snapshot.
//!
//! Daily usage is compared at its checkpoint, account figures where they stand, balances with entries at the checkpoint of the
//! entries: each pair on one time base. The ledger's side is read in pages ([`super::pages`]), and keys that differ are kept in the shadow, with both
//! images, so that memory holds a page of rows. An image is the row as JSON.

use std::cmp::Ordering;

use recoup::sql::{Transaction, Value};
use recoup::store::StoreError;
use recoup::{AccountId, Position, Zone, values};
use recoup_projections::{
    LogReader, Projection, ProjectionError, UsageSums, has_skips, read_checked,
};
use rusqlite::{Connection, params};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::figures::{self, Figures};
use super::pages::{PAGE_ROWS, Pages};
use super::shadow::{PAGE_EVENTS, Shadow, UsageKey, sums_of};
use super::{RebuildError, Relation};

/// How far entries may lag behind the head for balances to be compared with them: what is between is read in the snapshot.
const MAX_PENDING_EVENTS: i64 = 200_000;

/// What a comparison came to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Compared {
    /// The checkpoint of daily usage.
    pub(crate) position: i64,
    pub(crate) rows_checked: u64,
    pub(crate) rows_different: u64,
    /// Charged as shown ÷ charged as it should be, of the row in which that is farthest from 1.
    pub(crate) worst_ratio: Option<f64>,
}

impl Compared {
    /// Counts a key. A long walk looks now and then whether it is still wanted.
    fn checked(&mut self, stop: &CancellationToken) -> Result<(), RebuildError> {
        self.rows_checked += 1;
        if self.rows_checked.is_multiple_of(1_024) && stop.is_cancelled() {
            return Err(RebuildError::Cancelled);
        }
        Ok(())
    }

    fn saw_ratio(&mut self, shown: Option<UsageSums>, truth: Option<UsageSums>) {
        let charged = |sums: Option<UsageSums>| sums.map_or(0, |sums| sums.charged);
        let (shown, truth) = (charged(shown), charged(truth));
        if truth <= 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = shown as f64 / truth as f64;
        let is_farther = |worst: f64| (ratio - 1.0).abs() > (worst - 1.0).abs();
        if self.worst_ratio.is_none_or(is_farther) {
            self.worst_ratio = Some(ratio);
        }
    }
}

/// Which rows of daily usage are compared: their days as text, both included.
fn day_bounds(shadow: &Shadow) -> (String, String) {
    match shadow.extent().days {
        Some((from, to)) => (from.to_string(), to.to_string()),
        // Every text, also what is no day.
        None => (String::new(), char::MAX.to_string()),
    }
}

/// Compares everything that the shadow is about. The caller holds the snapshot.
pub(crate) fn compare(
    ledger: &Transaction<'_>,
    shadow: &mut Shadow,
    (reader, zone): (&LogReader, Zone),
    stop: &CancellationToken,
) -> Result<Compared, RebuildError> {
    let (checkpoint, figures) = shadow.places(ledger, zone)?;
    shadow.follow(ledger, checkpoint)?;
    let mut compared = Compared {
        position: checkpoint.get(),
        ..Compared::default()
    };
    usage(ledger, shadow, (&mut compared, stop))?;
    if shadow.extent().days.is_none() {
        shadow.follow_accounts(ledger, figures)?;
        accounts(ledger, shadow, (&mut compared, stop))?;
    }
    match balances(ledger, shadow, (reader, zone), (&mut compared, stop)) {
        Ok(()) => Ok(compared),
        // What stands in the way of entries is their trouble, and said elsewhere: usage is compared all the same.
        Err(
            RebuildError::Projection(ProjectionError::Store(error)) | RebuildError::Store(error),
        ) if matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::Damaged { .. }
        ) =>
        {
            tracing::warn!(%error, "balances are not compared with entries");
            Ok(compared)
        }
        Err(error) => Err(error),
    }
}

/// The next row of one side.
type Next<K, V> = Option<(K, V)>;

/// Walks two sides, each in the order of its keys, and shows every key of either once, with what the sides have for it.
fn walk<K: Ord, V>(
    mut left: impl FnMut() -> Result<Next<K, V>, RebuildError>,
    mut right: impl FnMut() -> Result<Next<K, V>, RebuildError>,
    mut see: impl FnMut(K, Option<V>, Option<V>) -> Result<(), RebuildError>,
) -> Result<(), RebuildError> {
    let (mut one, mut other) = (left()?, right()?);
    loop {
        let order = match (&one, &other) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let mine = if order.is_le() { one.take() } else { None };
        let theirs = if order.is_ge() { other.take() } else { None };
        if order.is_le() {
            one = left()?;
        }
        if order.is_ge() {
            other = right()?;
        }
        match (mine, theirs) {
            (Some((key, value)), Some((_, same))) => see(key, Some(value), Some(same))?,
            (Some((key, value)), None) => see(key, Some(value), None)?,
            (None, Some((key, value))) => see(key, None, Some(value))?,
            (None, None) => {}
        }
    }
}

fn usage(
    ledger: &Transaction<'_>,
    shadow: &Shadow,
    (compared, stop): (&mut Compared, &CancellationToken),
) -> Result<(), RebuildError> {
    let (from, to) = day_bounds(shadow);
    let account = shadow.extent().account.as_ref().map(AccountId::as_str);
    let days = (&*from, &*to);
    let mut shown = Pages::of(|after| page_of_usage(ledger, days, account, after));
    let folded = format!("SELECT {USAGE_COLUMNS} FROM usage ORDER BY day, account, kind");
    let mut folded = shadow
        .connection()
        .prepare(&folded)
        .map_err(RebuildError::Shadow)?;
    let mut folded = folded.query([]).map_err(RebuildError::Shadow)?;
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(UsageKey, UsageSums)> {
        Ok(((row.get(0)?, row.get(1)?, row.get(2)?), sums_of(row, 3)?))
    };
    let differing = Differing::of(shadow);
    walk(
        || Ok(shown.next()?),
        || {
            let row = folded.next().map_err(RebuildError::Shadow)?;
            row.map(read).transpose().map_err(RebuildError::Shadow)
        },
        |(day, account, kind), shown, truth| {
            compared.checked(stop)?;
            compared.saw_ratio(shown, truth);
            if shown == truth {
                return Ok(());
            }
            compared.rows_different += 1;
            let key = [&account, &day, &kind].map(String::as_str);
            differing.add(
                Relation::DailyUsage,
                key,
                (shown.map(image), truth.map(image)),
            )
        },
    )
}

const USAGE_COLUMNS: &str = "day, account, kind, charged, refunded, reclaimed, jobs, last_position";

/// Rows of the days from `from` to `to`, of one account or of all, behind `after`.
fn page_of_usage(
    ledger: &Transaction<'_>,
    days: (&str, &str),
    account: Option<&str>,
    after: Option<&UsageKey>,
) -> Result<Vec<(UsageKey, UsageSums)>, StoreError> {
    let (sql, values) = usage_query(days, account, after);
    ledger.rows(&sql, &values, |row| {
        let sums = UsageSums {
            charged: row.get(3)?,
            refunded: row.get(4)?,
            reclaimed: row.get(5)?,
            jobs: row.get(6)?,
            last_position: Position::new(row.get(7)?),
        };
        Ok(((row.get(0)?, row.get(1)?, row.get(2)?), sums))
    })
}

/// In the order of the index by day, or for one account of the primary key.
fn usage_query<'v>(
    (from, to): (&'v str, &'v str),
    account: Option<&'v str>,
    after: Option<&'v UsageKey>,
) -> (String, Vec<Value<'v>>) {
    let (wanted, texts) = match (account, after) {
        (None, None) => ("day >= ?2", vec![to, from]),
        (None, Some((day, account, kind))) => (
            "(day, account, kind) > (?2, ?3, ?4)",
            vec![to, day, account, kind],
        ),
        (Some(account), None) => ("day >= ?2 AND account = ?3", vec![to, from, account]),
        (Some(account), Some((day, _, kind))) => (
            "(day, kind) > (?2, ?3) AND account = ?4",
            vec![to, day, kind, account],
        ),
    };
    let sql = format!(
        "SELECT {USAGE_COLUMNS} FROM daily_usage WHERE day <= ?1 AND {wanted}
        ORDER BY day, account, kind LIMIT {PAGE_ROWS}"
    );
    (sql, texts.into_iter().map(Value::from).collect())
}

/// A row of daily usage as JSON.
pub(crate) fn image(sums: UsageSums) -> String {
    json!({
        "charged": sums.charged,
        "refunded": sums.refunded,
        "reclaimed": sums.reclaimed,
        "jobs": sums.jobs,
        "last_position": sums.last_position.get(),
    })
    .to_string()
}

fn accounts(
    ledger: &Transaction<'_>,
    shadow: &Shadow,
    (compared, stop): (&mut Compared, &CancellationToken),
) -> Result<(), RebuildError> {
    let differing = Differing::of(shadow);
    let mut see = |account: String, shown: Option<Figures>, truth: Option<Figures>| {
        compared.checked(stop)?;
        if shown == truth {
            return Ok(());
        }
        compared.rows_different += 1;
        let images = [shown, truth].map(|figures| figures.as_ref().map(Figures::image));
        differing.add(Relation::AccountState, [&account, "", ""], images.into())
    };
    if let Some(account) = &shadow.extent().account {
        let shown = figures::read(ledger, account.as_str())?;
        let truth = shadow.figures(account.as_str())?;
        return match (&shown, &truth) {
            (None, None) => Ok(()),
            _ => see(account.to_string(), shown, truth),
        };
    }
    let folded = Transaction::on_sqlite(shadow.connection());
    let (mut shown, mut folded) = (figures::Walk::over(ledger), figures::Walk::over(&folded));
    walk(
        || Ok(shown.next()?),
        || folded.next().map_err(RebuildError::ShadowFigures),
        see,
    )
}

/// Writes down keys that differ.
struct Differing<'a> {
    shadow: &'a Connection,
}

impl<'a> Differing<'a> {
    fn of(shadow: &'a Shadow) -> Self {
        Self {
            shadow: shadow.connection(),
        }
    }

    fn add(
        &self,
        relation: Relation,
        [account, day, kind]: [&str; 3],
        (before, after): (Option<String>, Option<String>),
    ) -> Result<(), RebuildError> {
        let sql = "INSERT INTO differing (relation, account, day, kind, before, after)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let mut statement = self
            .shadow
            .prepare_cached(sql)
            .map_err(RebuildError::Shadow)?;
        statement
            .execute(params![relation.name(), account, day, kind, before, after])
            .map_err(RebuildError::Shadow)?;
        Ok(())
    }
}

/// For every account that the window touched: its balance, less what the entries have not got yet, is the sum of its entries, and what the
/// last entry says.
fn balances(
    ledger: &Transaction<'_>,
    shadow: &Shadow,
    (reader, zone): (&LogReader, Zone),
    (compared, stop): (&mut Compared, &CancellationToken),
) -> Result<(), RebuildError> {
    let entries = match read_checked(ledger, Projection::Entries, zone) {
        Ok(checkpoint) => checkpoint.position,
        Err(
            error @ (ProjectionError::OtherDefinition { .. } | ProjectionError::OtherLog { .. }),
        ) => {
            tracing::warn!(%error, "balances are not compared with entries");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let figures = ledger.read_figures_position()?;
    let (from, to) = (entries.min(figures), entries.max(figures));
    if ledger.most_events_between(from, to) > MAX_PENDING_EVENTS {
        tracing::info!(%entries, %figures, "entries are too far behind for balances to be compared with them");
        return Ok(());
    }
    if has_skips(ledger, Projection::Entries)? {
        // A person decided that the statement lacks something: the audit names it, and it is no new drift in every hour.
        tracing::info!("entries lack what was skipped: balances are not compared with them");
        return Ok(());
    }
    pending(ledger, shadow, reader, (entries, figures))?;
    let sql = "SELECT t.account, coalesce(p.amount, 0) FROM touched t
        LEFT JOIN pending p ON p.account = t.account ORDER BY t.account";
    let mut touched = shadow
        .connection()
        .prepare(sql)
        .map_err(RebuildError::Shadow)?;
    let mut touched = touched.query([]).map_err(RebuildError::Shadow)?;
    let differing = Differing::of(shadow);
    while let Some(row) = touched.next().map_err(RebuildError::Shadow)? {
        let read = || Ok((row.get(0)?, row.get(1)?));
        let (account, pending): (String, i64) = read().map_err(RebuildError::Shadow)?;
        let books = Books::read(ledger, &account)?;
        compared.checked(stop)?;
        let expected = books.balance.saturating_sub(pending);
        if books.sum != i128::from(expected) || books.last != expected {
            compared.rows_different += 1;
            let before = json!({ "sum_of_entries": i64::try_from(books.sum).map_or_else(|_| json!(books.sum.to_string()), |sum| json!(sum)), "last_entry": books.last });
            let after = json!({ "balance_there": expected, "balance": books.balance });
            let images = (Some(before.to_string()), Some(after.to_string()));
            differing.add(Relation::Balance, [&account, "", ""], images)?;
        }
    }
    Ok(())
}

/// What the figures have and the entries have not got yet, by touched account; less than nothing where entries are ahead of figures, which a log in another
/// database allows.
fn pending(
    ledger: &Transaction<'_>,
    shadow: &Shadow,
    reader: &LogReader,
    (entries, figures): (Position, Position),
) -> Result<(), RebuildError> {
    let shadow = shadow.connection();
    let table = "CREATE TABLE IF NOT EXISTS pending (account TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT, WITHOUT ROWID;
        DELETE FROM pending;";
    shadow.execute_batch(table).map_err(RebuildError::Shadow)?;
    let add = "INSERT INTO pending (account, amount)
        SELECT account, ?2 FROM touched WHERE account = ?1
        ON CONFLICT (account) DO UPDATE SET amount = amount + excluded.amount";
    let mut add = shadow.prepare(add).map_err(RebuildError::Shadow)?;
    let (mut after, until) = (entries.min(figures), entries.max(figures));
    while after < until {
        let page = reader.read(ledger, after, until, PAGE_EVENTS)?;
        for moved in page.moves {
            let amount = if entries < figures {
                moved.amount
            } else {
                moved.amount.saturating_neg()
            };
            add.execute(params![moved.account.as_str(), amount])
                .map_err(RebuildError::Shadow)?;
        }
        let Some(last) = page.last else { break };
        after = last;
    }
    Ok(())
}

/// What an account's tables say.
struct Books {
    balance: i64,
    sum: i128,
    last: i64,
}

impl Books {
    fn read(ledger: &Transaction<'_>, account: &str) -> Result<Self, StoreError> {
        // One query for all three: there is one of these for every account.
        let sql = "SELECT (SELECT balance FROM account_state WHERE account = ?1),
            (SELECT CAST(sum(amount / 4294967296) AS BIGINT) FROM entries WHERE account = ?1),
            (SELECT CAST(sum(amount % 4294967296) AS BIGINT) FROM entries WHERE account = ?1),
            (SELECT balance FROM entries WHERE account = ?1 ORDER BY position DESC LIMIT 1)";
        let books = ledger.row(sql, values![account], |row| {
            let number = |column| Ok(row.get::<Option<i64>>(column)?.unwrap_or_default());
            Ok(Self {
                balance: number(0)?,
                // In two halves, so that rows with amounts that cannot be are summed and found, too.
                sum: (i128::from(number(1)?) << 32) + i128::from(number(2)?),
                last: number(3)?,
            })
        })?;
        Ok(books.expect("a query without FROM gives one row"))
    }
}

#[cfg(test)]
mod tests {
    use recoup::store::sqlite::{Options, SqliteStore};
    use recoup_projections::Projections;

    use super::*;

    /// Every page begins where an index leads to, and needs no sorting.
    #[tokio::test]
    async fn pages_of_usage_go_by_an_index() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let store = SqliteStore::open(Options::at(folder.path().join("ledger.db")))
            .await
            .expect("it opens");
        let projections = Projections::open(store).await.expect("they open");
        let by_day = "SEARCH daily_usage USING INDEX daily_usage_day";
        let by_account = "SEARCH daily_usage USING PRIMARY KEY";
        let key = || ["2026-11-29", "acme", "video"].map(str::to_owned).into();
        let cases = [
            (None, None, format!("{by_day} (day>? AND day<?)")),
            (
                None,
                Some(key()),
                format!("{by_day} ((day,account,kind)>(?,?,?) AND day<?)"),
            ),
            (
                Some("acme"),
                None,
                format!("{by_account} (account=? AND day>? AND day<?)"),
            ),
            (
                Some("acme"),
                Some(key()),
                format!("{by_account} (account=? AND (day,kind)>(?,?) AND day<?)"),
            ),
        ];
        for (account, after, expected) in cases {
            let plan = projections.database().snapshot(move |tx| {
                let days = ("2026-11-29", "2026-11-30");
                let (sql, values) = usage_query(days, account, after.as_ref());
                let sql = format!("EXPLAIN QUERY PLAN {sql}");
                tx.rows(&sql, &values, |row| row.get::<String>(3))
            });
            assert_eq!(plan.await.expect("planned"), [expected]);
        }
    }
}
