//! Lists of dead letters, in the order in which they became ones.
//!
//! Keyset pages by position. `before` is an instant and needs no index: time never runs back in the log, so what is before it comes
//! first.

use recoup::sql::{Database, Row};
use recoup::store::StoreError;
use recoup::{AccountId, JobId, Kind, Position, Timestamp, values};

use super::{DeadLetterRow, parse_cause};
use crate::error::ProjectionError;
use crate::queries::{List, Order, Page, bounded, known, parsed};

/// Which dead letters: all of them, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// Only this account's.
    pub account: Option<AccountId>,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only those that became one before this instant.
    pub before: Option<Timestamp>,
}

macro_rules! letters {
    ($filter:literal) => {
        concat!(
            "SELECT position, job, account, kind, cost, cause, attempts, reason, dead_lettered_at ",
            "FROM dead_letters WHERE position > ?1 AND dead_lettered_at < ?3",
            $filter,
            " ORDER BY position LIMIT ?2"
        )
    };
}

const ALL: &str = letters!("");
const OF_ACCOUNT: &str = letters!(" AND account = ?4");
const OF_KIND: &str = letters!(" AND kind = ?4");
// The account's index, as an account has fewer dead letters than a kind: an expression keeps the other one out.
const OF_BOTH: &str = letters!(" AND account = ?4 AND kind || '' = ?5");

/// The lists, and how each is carried out.
#[cfg(test)]
pub(crate) const LISTS: [(&str, &str); 4] = [
    (
        ALL,
        "SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid>?)",
    ),
    (
        OF_ACCOUNT,
        "SEARCH dead_letters USING INDEX dead_letters_account (account=? AND rowid>?)",
    ),
    (
        OF_KIND,
        "SEARCH dead_letters USING INDEX dead_letters_kind (kind=? AND rowid>?)",
    ),
    (
        OF_BOTH,
        "SEARCH dead_letters USING INDEX dead_letters_account (account=? AND rowid>?)",
    ),
];

pub(crate) async fn dead_letters(
    database: &Database,
    filter: &DeadLetterFilter,
    after: Option<Position>,
    limit: u32,
) -> Result<Page<DeadLetterRow>, ProjectionError> {
    let limit = bounded(limit);
    let before = filter.before.map_or(i64::MAX, Timestamp::as_micros);
    let list = |sql| List::new(sql, Order::OldestFirst, after, limit).with(before);
    let list = match (&filter.account, &filter.kind) {
        (None, None) => list(ALL),
        (Some(account), None) => list(OF_ACCOUNT).with(account.to_string()),
        (None, Some(kind)) => list(OF_KIND).with(kind.to_string()),
        (Some(account), Some(kind)) => list(OF_BOTH)
            .with(account.to_string())
            .with(kind.to_string()),
    };
    list.page(database, row_of, |row| row.position).await
}

/// How many there are: a count over the smallest index, for a gauge.
pub(crate) async fn count(database: &Database) -> Result<u64, ProjectionError> {
    let count = database
        .glance(|tx| {
            let sql = "SELECT count(*) FROM dead_letters";
            tx.row(sql, values![], |row| row.get::<i64>(0))
        })
        .await?;
    Ok(u64::try_from(count.unwrap_or(0)).unwrap_or(0))
}

fn row_of(row: &Row<'_>) -> Result<DeadLetterRow, StoreError> {
    let (job, account, kind): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let cause: String = row.get(5)?;
    Ok(DeadLetterRow {
        position: Position::new(row.get(0)?),
        job: parsed("dead_letters", JobId::new(&job))?,
        account: parsed("dead_letters", AccountId::new(&account))?,
        kind: parsed("dead_letters", Kind::new(&kind))?,
        cost: row.get(4)?,
        cause: known("dead_letters", &cause, parse_cause(&cause))?.name(),
        attempts: row.get(6)?,
        reason: row.get(7)?,
        dead_lettered_at: Timestamp::from_micros(row.get(8)?),
    })
}
