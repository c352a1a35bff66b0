//! What the server alone does with the rows of a log: the limit that appends are measured against.
//!
//! One connection, and one round trip for each group: a statement of its own, which is its own transaction, with as many rows as commit together. No locks, no checks,
//! no figures, and the same durability.

use std::time::{Duration, Instant};

use sqlx::{Executor as _, Row as _};

use super::error::store_error;
use super::open::Place;
use crate::store::OpenError;

/// As the log's own insert, without what guards it.
const INSERT: &str = "INSERT INTO raw_appends
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bytea[])";

/// Rows of the log, a column each.
#[derive(Default)]
struct Rows {
    positions: Vec<i64>,
    streams: Vec<String>,
    revisions: Vec<i64>,
    events: Vec<i64>,
    posted_at: Vec<i64>,
    metadata: Vec<String>,
    bodies: Vec<Vec<u8>>,
}

/// Inserts the rows of the log at `url` into an empty table of the same form beside it, `group` rows a commit. Gives how many events that were, and how long it took.
pub async fn insert_again(url: &str, group: usize) -> Result<(u64, Duration), OpenError> {
    let mut place = Place::parse(url).map_err(|why| OpenError::Io { why })?;
    let mut connection = super::connect(&mut place).await?;
    let failed = |error: sqlx::Error| -> OpenError { store_error(&error).into() };
    let table =
        "DROP TABLE IF EXISTS raw_appends; CREATE TABLE raw_appends (LIKE appends INCLUDING ALL)";
    connection.execute(table).await.map_err(failed)?;
    let sql = "SELECT position, stream, revision, events, posted_at, metadata, body
        FROM appends ORDER BY position";
    let rows = connection.fetch_all(sql).await.map_err(failed)?;
    let mut groups = Vec::new();
    let mut events = 0;
    for part in rows.chunks(group.max(1)) {
        let mut columns = Rows::default();
        for row in part {
            let mut read = || -> Result<i64, sqlx::Error> {
                columns.positions.push(row.try_get(0)?);
                columns.streams.push(row.try_get(1)?);
                columns.revisions.push(row.try_get(2)?);
                columns.events.push(row.try_get(3)?);
                columns.posted_at.push(row.try_get(4)?);
                columns.metadata.push(row.try_get(5)?);
                columns.bodies.push(row.try_get(6)?);
                row.try_get(3)
            };
            events += read().map_err(failed)?.unsigned_abs();
        }
        groups.push(columns);
    }
    let begin = Instant::now();
    for rows in &groups {
        let query = sqlx::query(INSERT)
            .bind(&rows.positions)
            .bind(&rows.streams)
            .bind(&rows.revisions)
            .bind(&rows.events)
            .bind(&rows.posted_at)
            .bind(&rows.metadata)
            .bind(&rows.bodies);
        connection.execute(query).await.map_err(failed)?;
    }
    let elapsed = begin.elapsed();
    connection
        .execute("DROP TABLE raw_appends")
        .await
        .map_err(failed)?;
    Ok((events, elapsed))
}
