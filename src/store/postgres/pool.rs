//! The connections of a process but for the one that appends, and the transactions on them.
//!
//! Work runs on a thread that may block ([`Session`]); what it runs in is begun and ended here. A connection that failed, or whose answer did not come in time, or whose work panicked,
//! or whose caller went away while a transaction was begun, is closed and not given back ([`Lent`]): the next work would find itself in a transaction of somebody else's. A connection
//! that died while it lay idle shows at the first statement on it, before any work was done: then another one is taken.
//!
//! Bounds: connections, of which scans take at most half; a wait for one, or for another writing transaction, is as long as the patience.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgConnection, Postgres, Row as _};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::{is_lost, is_unknown_after_commit, store_error};
use super::open::{Locks, Place, refuse_standby};
use super::session::Session;
use super::time::{DatabaseClock, NOW};
use super::{APPEND_ENDED_AFTER, CONNECTED_WITHIN, ENDED_AFTER, IDLE_APPEND_ENDED_AFTER, Options};
use crate::clock::Timestamp;
use crate::sql::Transaction;
use crate::store::StoreError;

/// How much longer than the server may take an answer is waited for.
const SLACK: Duration = Duration::from_secs(5);

/// How long an answer to a statement of a read-only transaction may take: an audit sums whole tables.
const SCAN_ANSWER: Duration = Duration::from_secs(900);

/// What bounds a transaction that writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// How long a lock is waited for.
    lock: Duration,
    /// How long a statement may take.
    statement: Duration,
    /// How long it may do nothing.
    idle: Duration,
}

impl Bounds {
    pub(super) fn of_appends(busy_timeout: Duration) -> Self {
        Self {
            lock: busy_timeout,
            // Waiting for the lock is a part of a statement.
            statement: APPEND_ENDED_AFTER.max(busy_timeout * 2),
            idle: IDLE_APPEND_ENDED_AFTER.max(busy_timeout),
        }
    }

    pub(super) fn of_writes(busy_timeout: Duration) -> Self {
        let ended_after = ENDED_AFTER.max(busy_timeout);
        Self {
            lock: busy_timeout,
            statement: ended_after,
            idle: ended_after,
        }
    }

    /// As statements, which also keep the transaction to indexes.
    ///
    /// Its statements are planned once for each connection, not anew for the values of each execution, which takes as long as carrying them out; maybe while the tables are empty and
    /// reading them whole is cheapest. Every one of them goes by keys.
    pub(super) fn statements(&self) -> String {
        format!(
            "SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {};
            SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL enable_seqscan = off;
            SET LOCAL plan_cache_mode = force_generic_plan",
            self.lock.as_millis().max(1),
            self.statement.as_millis(),
            self.idle.as_millis()
        )
    }

    /// How long an answer within those bounds is waited for.
    pub(super) fn answer_within(&self) -> Duration {
        self.statement + SLACK
    }
}

/// Clones share the connections.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    connections: PgPool,
    /// Leaves connections for what takes milliseconds.
    scans: Arc<Semaphore>,
    /// Of this process's writing transactions one waits for the server's lock.
    turn: Arc<Mutex<()>>,
    locks: Locks,
    busy_timeout: Duration,
    clock: Arc<DatabaseClock>,
}

/// A connection of the pool's. One that is not given back in so many words is closed, and with it ends the transaction that it may be in.
pub(super) struct Lent(Option<PoolConnection<Postgres>>);

impl Lent {
    /// For whoever comes next. It is in no transaction.
    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("it is taken as it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("it is taken as it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // Without a word to the server, which might not answer.
            drop(connection.detach());
        }
    }
}

/// What a connection is given back with.
type Turn = (Option<OwnedMutexGuard<()>>, Option<OwnedSemaphorePermit>);

impl Pool {
    pub(super) fn new(place: &Place, options: &Options, clock: &Arc<DatabaseClock>) -> Self {
        let count = options.connections.max(2);
        let connections = PgPoolOptions::new()
            .max_connections(count)
            .acquire_timeout(options.busy_timeout.max(CONNECTED_WITHIN))
            // Idle ones are found dead at the first statement, which costs nothing while they live.
            .test_before_acquire(false)
            // A name may lead to another server than before.
            .after_connect(|connection, _| Box::pin(refuse_standby(connection)))
            .connect_lazy_with(place.options().clone());
        Self {
            connections,
            scans: Arc::new(Semaphore::new((count / 2) as usize)),
            turn: Arc::default(),
            locks: place.locks(),
            busy_timeout: options.busy_timeout,
            clock: Arc::clone(clock),
        }
    }

    /// How long an answer is waited for that comes in milliseconds.
    fn answer_within(&self) -> Duration {
        Bounds::of_appends(self.busy_timeout).answer_within()
    }

    /// Runs `work` in a writing transaction.
    pub(crate) async fn write<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let waited = tokio::time::timeout(self.busy_timeout, Arc::clone(&self.turn).lock_owned());
        let Ok(turn) = waited.await else {
            let cause = "another writing transaction of this process goes on".to_owned();
            return Err(StoreError::Unavailable { cause }.into());
        };
        let under = (self.locks.write, Bounds::of_writes(self.busy_timeout));
        self.write_under(under, (Some(turn), None), work).await
    }

    /// Runs `work` in a transaction that writes what appends write: under their lock and within their bounds, and not under the lock of projections.
    #[cfg(feature = "kurrentdb")]
    pub(crate) async fn write_log<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let under = (self.locks.log, Bounds::of_appends(self.busy_timeout));
        self.write_under(under, (None, None), work).await
    }

    async fn write_under<T, E>(
        &self,
        (lock, bounds): (i64, Bounds),
        turn: Turn,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {}; SELECT pg_advisory_xact_lock({lock}); {NOW}",
            bounds.statements(),
        );
        let connection = self.begin(begin).await?;
        let patience = bounds.answer_within();
        let ended = self.in_transaction(connection, patience, turn, End::Commit, work);
        ended.await
    }

    /// Runs `work` on one moment's state; leaves connections for others.
    pub(crate) async fn snapshot<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        // Never closed, so it gives a permit in the end: a scan waits for scans, however long they take.
        let permit = Arc::clone(&self.scans).acquire_owned().await.ok();
        let connection = self.begin_reading().await?;
        let ended = self.in_transaction(connection, SCAN_ANSWER, (None, permit), End::None, work);
        ended.await
    }

    /// Runs `work` on one moment's state.
    pub(crate) async fn glance<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let connection = self.begin_reading().await?;
        let patience = self.answer_within();
        let ended = self.in_transaction(connection, patience, (None, None), End::None, work);
        ended.await
    }

    /// Runs `work` without a transaction: each of its statements is of its own moment.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&Transaction<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let work = Arc::new(work);
        let mut tries = 0;
        let patience = self.answer_within();
        let until = Instant::now() + patience;
        loop {
            tries += 1;
            let connection = self.acquire().await?;
            let again = Arc::clone(&work);
            let (result, was_lost) = self
                .on_thread(connection, patience, (None, None), move |tx| again(tx))
                .await?;
            // It reads only: another connection may answer.
            if !was_lost || tries > 2 || Instant::now() >= until {
                return result;
            }
        }
    }

    /// A statement of its own.
    pub(super) async fn tell(&self, sql: &'static str, text: &str, number: &str) {
        let query = sqlx::query(sql).bind(text).bind(number);
        if let Err(error) = query.execute(&self.connections).await {
            tracing::debug!(%error, "other processes were not told of an append");
        }
    }

    async fn acquire(&self) -> Result<Lent, StoreError> {
        let acquired = self.connections.acquire().await;
        let lent = acquired.map(|connection| Lent(Some(connection)));
        lent.map_err(|error| store_error(&error))
    }

    async fn begin_reading(&self) -> Result<Lent, StoreError> {
        self.begin(format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {NOW}"
        ))
        .await
    }

    /// Begins a transaction, and reads the server's clock.
    async fn begin(&self, script: String) -> Result<Lent, StoreError> {
        loop {
            let mut connection = self.acquire().await?;
            let asked = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(script.clone())));
            let answer = tokio::time::timeout(self.answer_within(), asked).await;
            let error = match answer {
                Ok(Ok(rows)) => {
                    let now = rows.last().map(|row| row.try_get::<i64, _>("now"));
                    if let Some(Ok(now)) = now {
                        self.clock.set(Timestamp::from_micros(now));
                    }
                    return Ok(connection);
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    let cause = "the server has not answered".to_owned();
                    return Err(StoreError::Unavailable { cause });
                }
            };
            let failed = store_error(&error);
            let was_idle = self.connections.num_idle() > 0;
            drop(connection);
            // Whatever lay idle as long may have died, too; each is tried once.
            if !is_lost(&error) || !was_idle {
                return Err(failed);
            }
        }
    }

    /// Runs `work` in the transaction that `connection` is in, and ends it.
    async fn in_transaction<T, E>(
        &self,
        connection: Lent,
        patience: Duration,
        turn: Turn,
        end: End,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let work = move |tx: &Transaction<'_>| {
            let result = work(tx);
            let is_commit = end == End::Commit && result.is_ok();
            match (tx.end_postgres(is_commit), result) {
                (Ok(()), result) => result,
                (Err(_), Err(error)) => Err(error),
                (Err(error), Ok(_)) if end == End::Commit => Err(error.into()),
                // Nothing was to be kept.
                (Err(_), Ok(value)) => Ok(value),
            }
        };
        let (result, _) = self.on_thread(connection, patience, turn, work).await?;
        result
    }

    /// Runs `work` on a thread that may block. Gives what it came to, and whether the connection was lost over it.
    async fn on_thread<T, E>(
        &self,
        connection: Lent,
        patience: Duration,
        turn: Turn,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<(Result<T, E>, bool), StoreError>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let (runtime, log_lock) = (Handle::current(), self.locks.log);
        let done = tokio::task::spawn_blocking(move || {
            let session = Session::new(runtime, connection, (patience, log_lock));
            let result = work(&Transaction::on_postgres(&session));
            let was_lost = session.give_back();
            drop(turn);
            (result, was_lost)
        });
        done.await.map_err(|died| StoreError::Unconfirmed {
            cause: format!("the work died: {died}"),
        })
    }
}

/// What a transaction ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// What was written is kept, if the work went well.
    Commit,
    /// There is nothing to keep.
    None,
}

/// What an error of COMMIT means to whoever wrote.
pub(super) fn commit_error(error: &sqlx::Error) -> StoreError {
    if is_unknown_after_commit(error) {
        let cause = error.to_string();
        StoreError::Unconfirmed { cause }
    } else {
        store_error(error)
    }
}
