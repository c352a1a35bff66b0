//! The database beside or beneath the log, of whichever kind.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Transaction;
#[cfg(feature = "kurrentdb")]
use super::remote::Remote;
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::StreamName;
use crate::ids::AccountId;
use crate::store::backfill::IsBackfill;
#[cfg(feature = "kurrentdb")]
use crate::store::kurrentdb::KurrentStore;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::store::{
    Append, Appended, EventStore, Identity, Migration, OpenError, Position, RecordedEvent,
    Revision, StoreError,
};

/// The migrations of one component, for each kind of database: the same numbers and names.
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// For SQLite.
    pub sqlite: &'static [Migration],
    /// For PostgreSQL.
    pub postgres: &'static [Migration],
}

/// What is to be done in a transaction. Boxed, so that what runs it is compiled once for what it gives and not once for every caller.
pub(crate) type Work<T, E> = Box<dyn FnOnce(&Transaction<'_>) -> Result<T, E> + Send>;

/// The ledger's database: its log, its account figures, and the tables that are made from them. Clones share its connections.
///
/// It is an [`EventStore`] itself, so a [`Ledger`](crate::Ledger) can be made of it.
#[derive(Debug, Clone)]
pub enum Database {
    /// One file.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteStore),
    /// A schema on a server.
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
    /// Either of them beside a log in KurrentDB.
    #[cfg(feature = "kurrentdb")]
    Kurrent(KurrentStore),
}

#[cfg(feature = "kurrentdb")]
impl From<KurrentStore> for Database {
    fn from(store: KurrentStore) -> Self {
        Self::Kurrent(store)
    }
}

#[cfg(feature = "postgres")]
impl From<PostgresStore> for Database {
    fn from(store: PostgresStore) -> Self {
        Self::Postgres(store)
    }
}

#[cfg(feature = "sqlite")]
impl From<SqliteStore> for Database {
    fn from(store: SqliteStore) -> Self {
        Self::Sqlite(store)
    }
}

impl Database {
    /// The embedded store, if it is one: for what only a file has, such as a copy of it.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub const fn as_sqlite(&self) -> Option<&SqliteStore> {
        match self {
            Self::Sqlite(store) => Some(store),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
            #[cfg(feature = "kurrentdb")]
            Self::Kurrent(_) => None,
        }
    }

    /// Where it is, for people: without user and password.
    #[must_use]
    pub fn place_name(&self) -> String {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.path().display().to_string(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.name(),
            #[cfg(feature = "kurrentdb")]
            Self::Kurrent(store) => store.beside().place_name(),
        }
    }

    /// Brings account figures to the end of the log, where they are not written by the append's own transaction.
    #[cfg_attr(
        not(feature = "kurrentdb"),
        expect(clippy::unused_async, reason = "for a log in KurrentDB")
    )]
    pub async fn settle_figures(&self) -> Result<(), StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Self::Kurrent(store) = self {
            return store.settle_figures().await;
        }
        Ok(())
    }

    /// Runs `work` in a writing transaction, one at a time. An error rolls back.
    ///
    /// Inside, `work` must not begin or end a transaction, and must not block on anything but the database. It fails where one of its statements does: PostgreSQL
    /// carries out nothing behind that, so work that passes over the error is rolled back and answered with it.
    pub async fn write<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.write_boxed(Box::new(work)).await
    }

    async fn write_boxed<T, E>(&self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        #[cfg(feature = "kurrentdb")]
        if let Self::Kurrent(store) = self {
            // Others wait for this transaction: the end of the log is not asked for.
            let remote = Remote::new(store.log(), Some(store.log().known_head()));
            let work = move |tx: &Transaction<'_>| work(&tx.with_log(remote));
            return self.tables().write(Box::new(work)).await;
        }
        self.tables().write(work).await
    }

    /// Runs `work` in a writing transaction that keeps out whoever writes account figures, and nobody else where that is two things.
    #[cfg(feature = "kurrentdb")]
    pub(crate) async fn write_figures<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.tables().write_figures(Box::new(work)).await
    }

    /// Runs `work` in one read transaction: everything it reads is of one moment.
    pub async fn snapshot<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.snapshot_boxed(Box::new(work)).await
    }

    async fn snapshot_boxed<T, E>(&self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        #[cfg(feature = "kurrentdb")]
        if let Self::Kurrent(store) = self {
            let remote = Remote::new(store.log(), None);
            let work = move |tx: &Transaction<'_>| work(&tx.with_log(remote));
            return self.tables().snapshot(Box::new(work)).await;
        }
        self.tables().snapshot(work).await
    }

    /// As [`Self::snapshot`], for work that takes milliseconds: it waits for no scan.
    pub async fn glance<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.glance_boxed(Box::new(work)).await
    }

    async fn glance_boxed<T, E>(&self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        #[cfg(feature = "kurrentdb")]
        if let Self::Kurrent(store) = self {
            let remote = Remote::new(store.log(), None);
            let work = move |tx: &Transaction<'_>| work(&tx.with_log(remote));
            return self.tables().glance(Box::new(work)).await;
        }
        self.tables().glance(work).await
    }

    /// What the tables are in.
    fn tables(&self) -> Tables<'_> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Tables::Sqlite(store),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Tables::Postgres(store),
            #[cfg(feature = "kurrentdb")]
            Self::Kurrent(store) => store.beside().tables(),
        }
    }

    /// Brings the tables of `component` up to date, in one transaction.
    pub async fn migrate(
        &self,
        component: &'static str,
        migrations: Migrations,
    ) -> Result<(), OpenError> {
        let migrations = match self.tables() {
            #[cfg(feature = "sqlite")]
            Tables::Sqlite(_) => migrations.sqlite,
            #[cfg(feature = "postgres")]
            Tables::Postgres(_) => migrations.postgres,
        };
        // A look first: tables that are up to date need no write lock, which a stopped process may hold.
        let look = move |tx: &Transaction<'_>| tx.is_migrated(component, migrations);
        if self.snapshot(look).await? {
            return Ok(());
        }
        self.write(move |tx| tx.migrate(component, migrations))
            .await
    }

    /// Which file's backfill this process is at.
    pub(crate) fn is_backfill(&self) -> &IsBackfill {
        match self.tables() {
            #[cfg(feature = "sqlite")]
            Tables::Sqlite(store) => store.is_backfill(),
            #[cfg(feature = "postgres")]
            Tables::Postgres(store) => store.is_backfill(),
        }
    }

    fn events(&self) -> &dyn EventStore {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store,
            #[cfg(feature = "kurrentdb")]
            Self::Kurrent(store) => store,
        }
    }

    /// The log, as what a ledger is made of.
    #[must_use]
    pub fn as_store(&self) -> Arc<dyn EventStore> {
        Arc::new(self.clone())
    }
}

/// The kind of database that the tables are in, wherever the log is.
enum Tables<'d> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'d SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(&'d PostgresStore),
}

impl Tables<'_> {
    async fn write<T, E>(self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => {
                store
                    .write(move |connection| work(&Transaction::on_sqlite(connection)))
                    .await
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.pool().write(work).await,
        }
    }

    #[cfg(feature = "kurrentdb")]
    async fn write_figures<T, E>(self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => self.write(work).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.pool().write_log(work).await,
        }
    }

    async fn snapshot<T, E>(self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => {
                store
                    .snapshot(move |connection| work(&Transaction::on_sqlite(connection)))
                    .await
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.pool().snapshot(work).await,
        }
    }

    async fn glance<T, E>(self, work: Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => {
                store
                    .glance(move |connection| work(&Transaction::on_sqlite(connection)))
                    .await
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.pool().glance(work).await,
        }
    }
}

#[async_trait]
impl EventStore for Database {
    fn identity(&self) -> &Identity {
        self.events().identity()
    }

    fn now(&self) -> Timestamp {
        self.events().now()
    }

    fn clock_skew(&self) -> Duration {
        self.events().clock_skew()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.events().append(append).await
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        self.events().append_many(appends).await
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.events().read_stream(stream, from).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.events().read_streams(streams).await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.events().read_all(after, limit).await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.events().head().await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        self.events().account(account, month).await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        self.events().accounts(after, limit).await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.events().appended()
    }
}
