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
//! `Unavailable`; at most [`QUEUE`] requests wait; one transaction takes at most [`MAX_GROUP`] appends.

mod backfill;
mod backup;
mod error;
mod figures;
mod group;
mod import;
mod lanes;
mod migrate;
mod open;
mod patience;
mod place;
mod rows;
mod time;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::watch;

use self::lanes::Lanes;
use self::writer::Writer;
use super::{
    Append, Appended, EventStore, Identity, Position, RecordedEvent, Revision, StoreError,
};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Clock, SystemClock, Timestamp, Zone};
use crate::codec::StreamName;
use crate::credits::Scale;
use crate::ids::AccountId;

pub use backfill::{Backfill, BackfillError, Begun, Closing};
pub use backup::{BackupError, Copied};
pub use error::{OpenError, store_error};
pub use figures::{ACCOUNT_TABLES, fold_accounts};
pub(crate) use figures::{read_account, read_accounts};
pub use import::{ImportError, LogImport};
pub use migrate::{Migration, schema_faults};
pub use open::schema_faults as ledger_schema_faults;
pub(crate) use rows::{read_head, read_page};

/// How many requests may wait for the writer.
pub const QUEUE: usize = 8_192;

/// How many appends one transaction takes at the most.
pub const MAX_GROUP: usize = 2_048;

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

    /// Brings the tables of `component` up to date, in one transaction.
    pub async fn migrate(
        &self,
        component: &'static str,
        migrations: &'static [Migration],
    ) -> Result<(), OpenError> {
        // A look first: tables that are up to date need no write lock, which a stopped process may hold.
        let look =
            move |connection: &Connection| migrate::is_current(connection, component, migrations);
        if self.snapshot(look).await? {
            return Ok(());
        }
        self.write(move |connection| migrate::run(connection, component, migrations))
            .await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
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
        self.read(move |connection| rows::read_stream(connection, &stream, from))
            .await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.read(move |connection| {
            let whole = |stream| rows::read_stream(connection, stream, Revision::FIRST);
            streams.iter().map(whole).collect()
        })
        .await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.shared
            .lanes
            .scan(move |connection| read_page(connection, after, limit))
            .await?
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.read(read_head).await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        let account = account.clone();
        self.read(move |connection| read_account(connection, &account, month))
            .await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let after = after.cloned();
        self.read(move |connection| read_accounts(connection, after.as_ref(), limit))
            .await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.shared.writer.appended()
    }
}
