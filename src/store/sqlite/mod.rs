//! The embedded store: one SQLite file, opened by any number of processes.
//!
//! One thread per process writes (`writer`), a few read (`lanes`). The writer takes everything that waits into one
//! transaction (group commit), so many callers share one `fdatasync`; `BEGIN IMMEDIATE` takes the file's write lock before
//! anything is read that decides, so revision, limits and positions are checked against what is committed, in every process.
//! WAL mode: readers never wait for a writer. `synchronous = FULL`: an answer means that it is on the disk.
//!
//! rusqlite, not sqlx: sqlx sends every row of SQLite's across a thread, which makes reading the log ten times
//! slower (see ARCHITECTURE.md).
//!
//! Bounds: a write waits [`Options::busy_timeout`] for another process's transaction, then everything that waits is told
//! `Unavailable`; at most [`QUEUE`](super::QUEUE) requests wait; one transaction takes at most [`MAX_GROUP`](super::MAX_GROUP) appends.

mod backup;
mod error;
mod group;
mod lanes;
mod open;
mod patience;
mod place;
mod schema;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::watch;

use self::lanes::Lanes;
use self::writer::Writer;
use super::backfill::IsBackfill;
use super::{
    Append, Appended, EventStore, Identity, OpenError, Position, RecordedEvent, Revision,
    StoreError,
};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Clock, SystemClock, Timestamp, Zone};
use crate::codec::StreamName;
use crate::credits::Scale;
use crate::ids::AccountId;
use crate::sql::Transaction;

pub use backup::{BackupError, Copied};
pub(crate) use error::is_of_trigger;
pub use error::store_error;
pub use open::schema_faults as ledger_schema_faults;
pub use schema::schema_faults;

/// The tables of account figures, for a database that folds them apart.
pub const ACCOUNT_TABLES: &str = "
    CREATE TABLE account_state (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, held INTEGER NOT NULL,
        reserved INTEGER NOT NULL, floor INTEGER, monthly_cap INTEGER, last_position INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE account_month (account TEXT NOT NULL, month TEXT NOT NULL, spent INTEGER NOT NULL, held INTEGER NOT NULL,
        reserved INTEGER NOT NULL, PRIMARY KEY (account, month)) STRICT, WITHOUT ROWID;";

/// How to open a ledger's file.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the file is, or will be.
    pub path: PathBuf,
    /// The zone to create the ledger with; if it exists, the zone it must have.
    pub zone: Option<Zone>,
    /// The scale to create the ledger with; if it exists, the scale it must have.
    pub scale: Option<Scale>,
    /// The store's clock.
    pub clock: Arc<dyn Clock>,
    /// How long a write waits for another process's transaction.
    pub busy_timeout: Duration,
    /// The most pages of 4 KiB that the file may have; none leaves it to the disk.
    pub max_pages: Option<u32>,
    /// Whether the log is in KurrentDB, and the file has what is beside it. Refused otherwise if it is.
    pub is_beside_a_log: bool,
}

impl Options {
    /// The file `path`, the machine's clock, 5 s of patience.
    #[must_use]
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            zone: None,
            scale: None,
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
            max_pages: None,
            is_beside_a_log: false,
        }
    }
}

/// A ledger in a SQLite file. Clones share its threads.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    identity: Identity,
    writer: Writer,
    lanes: Lanes,
}

impl SqliteStore {
    /// Opens the ledger; creates it if there is no file.
    ///
    /// Of several processes that create one file at once, one does, and the others open what it made.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let opened = tokio::task::spawn_blocking(move || {
            let (connection, identity) = open::open(&options)?;
            let writer = Writer::start(connection, &options, identity.zone)?;
            let lanes = Lanes::start(&options)?;
            Ok(Self {
                shared: Arc::new(Shared {
                    options,
                    identity,
                    writer,
                    lanes,
                }),
            })
        });
        opened.await.unwrap_or_else(|died| {
            Err(OpenError::Io {
                why: died.to_string(),
            })
        })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    /// Runs `work` in a write transaction of its own, between the writer's groups. An error rolls back.
    ///
    /// Inside, `work` must not begin or end a transaction, and must not block on anything but the database.
    pub async fn write<T, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.shared.writer.exclusive(work).await
    }

    /// Runs `work` in one read transaction: everything it reads is of one moment.
    pub async fn snapshot<T, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.shared
            .lanes
            .scan(move |connection| lanes::in_snapshot(connection, work))
            .await?
    }

    /// As [`Self::snapshot`], for work that takes milliseconds: it shares its threads with short reads and waits for no scan.
    pub async fn glance<T, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.shared
            .lanes
            .read(move |connection| lanes::in_snapshot(connection, work))
            .await?
    }

    pub(crate) fn is_backfill(&self) -> &IsBackfill {
        self.shared.writer.is_backfill()
    }

    /// Reads in as many moments as `work` has statements.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let work = move |connection: &Connection| work(&Transaction::on_sqlite(connection));
        self.shared.lanes.read(work).await?
    }
}

#[async_trait]
impl EventStore for SqliteStore {
    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    fn now(&self) -> Timestamp {
        self.shared.writer.now()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.shared.writer.append(append).await
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        self.shared.writer.append_many(appends).await
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let stream = stream.clone();
        self.read(move |tx| tx.read_stream(&stream, from)).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.read(move |tx| tx.read_streams(&streams)).await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.shared
            .lanes
            .scan(move |connection| Transaction::on_sqlite(connection).read_page(after, limit))
            .await?
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.read(|tx| tx.read_head()).await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        let account = account.clone();
        self.read(move |tx| tx.read_account(&account, month)).await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let after = after.cloned();
        self.glance(move |connection| {
            Transaction::on_sqlite(connection).read_accounts(after.as_ref(), limit)
        })
        .await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.shared.writer.appended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fold apart has the columns of the ledger's own tables.
    #[test]
    fn tables_for_a_fold_apart_are_those_of_the_ledger() {
        let columns = |sql: &str| {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(sql).unwrap();
            let of = |table: &str| {
                let sql =
                    format!("SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')");
                let mut statement = connection.prepare(&sql).unwrap();
                let rows = statement.query_map([], |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, String>(1)?,
                        row.get::<_, bool>(2)?,
                        row.get::<_, i64>(3)?,
                    ))
                });
                rows.unwrap().map(Result::unwrap).collect::<Vec<_>>()
            };
            (of("account_state"), of("account_month"))
        };
        assert_eq!(
            columns(ACCOUNT_TABLES),
            columns(include_str!("migrations/0001_log.sql"))
        );
    }
}
