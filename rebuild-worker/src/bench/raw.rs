//! Raw limits: what the database alone does with the same rows, in the same folder or schema, in the same run.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Bench, Home};
use anyhow::Context;
use recoup::sql::{Database, Transaction};
use recoup::store::{Position, StoreError, postgres};
use rusqlite::{Connection, params};

/// A raw limit: so many events in so long.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) name: &'static str,
    pub(super) events: u64,
    pub(super) elapsed: Duration,
}

struct AppendRow {
    position: i64,
    stream: String,
    revision: i64,
    events: i64,
    posted_at: i64,
    metadata: String,
    body: Vec<u8>,
}

/// Inserts the log's rows into an empty table of the same form, `group` rows a commit, with the same durability. No checks, no figures.
pub(super) async fn insert_again(bench: &Bench, group: u32) -> anyhow::Result<Raw> {
    match &bench.home {
        Home::Folder(folder) => {
            let rows = bench.store.snapshot(read_rows).await?;
            let path = folder.path().join("raw.db");
            tokio::task::spawn_blocking(move || insert(&path, &rows, group as usize))
                .await
                .context("the raw insert died")?
        }
        Home::Schema(url) => {
            let (events, elapsed) = postgres::insert_again(url, group as usize).await?;
            Ok(Raw {
                name: "raw PostgreSQL group insert of the same rows, on one connection",
                events,
                elapsed,
            })
        }
    }
}

fn read_rows(tx: &Transaction<'_>) -> Result<Vec<AppendRow>, StoreError> {
    let sql = "SELECT position, stream, revision, events, posted_at, metadata, body
        FROM appends ORDER BY position";
    tx.rows(sql, &[], |row| {
        Ok(AppendRow {
            position: row.get(0)?,
            stream: row.get(1)?,
            revision: row.get(2)?,
            events: row.get(3)?,
            posted_at: row.get(4)?,
            metadata: row.get(5)?,
            body: row.get(6)?,
        })
    })
}

fn insert(path: &Path, rows: &[AppendRow], group: usize) -> anyhow::Result<Raw> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
        PRAGMA wal_autocheckpoint = 4000;
        CREATE TABLE appends (position INTEGER PRIMARY KEY, stream TEXT NOT NULL,
            revision INTEGER NOT NULL, events INTEGER NOT NULL, posted_at INTEGER NOT NULL,
            metadata TEXT NOT NULL, body BLOB NOT NULL) STRICT;
        CREATE UNIQUE INDEX appends_stream_revision ON appends (stream, revision);",
    )?;
    let begin = Instant::now();
    for part in rows.chunks(group.max(1)) {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut statement =
            connection.prepare_cached("INSERT INTO appends VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
        for row in part {
            statement.execute(params![
                row.position,
                row.stream,
                row.revision,
                row.events,
                row.posted_at,
                row.metadata,
                row.body
            ])?;
        }
        connection.execute_batch("COMMIT")?;
    }
    let elapsed = begin.elapsed();
    let events = rows.iter().map(|row| row.events.unsigned_abs()).sum();
    Ok(Raw {
        name: "raw SQLite group insert of the same rows",
        events,
        elapsed,
    })
}

/// Reads the whole log, page by page, and decodes nothing.
pub(super) async fn scan(store: &Database) -> anyhow::Result<Raw> {
    let begin = Instant::now();
    let events = store
        .snapshot(|tx| {
            let (mut after, mut events) = (Position::START, 0);
            loop {
                let page = tx.read_page(after, 2_000)?;
                let Some(last) = page.last() else {
                    return Ok::<_, StoreError>(events);
                };
                after = last.position;
                events += page.len() as u64;
            }
        })
        .await?;
    Ok(Raw {
        name: "bare scan of the log",
        events,
        elapsed: begin.elapsed(),
    })
}
