//! A ledger on a PostgreSQL server, used by any number of processes; a schema is a ledger.
//!
//! Three sorts of transactions:
//!
//! - *Appends*: one task of a process, on a connection of its own, commits everything that waits together (`group`). A lock of the
//!   server's orders the appends of all processes: taken before the log's end is read, released by the commit. So positions are in the order of commits, have no holes, and no
//!   reader can pass a lower one. Readers take no lock.
//! - *Writes* of projections, repairs and migrations ([`Database::write`](crate::sql::Database::write)): one at a time in all processes, under a second lock, so they do not delay appends.
//! - *Snapshots* ([`Database::snapshot`](crate::sql::Database::snapshot) and `glance`): read-only, of one moment.
//!
//! Instants come from the server's clock (`time`). That something was appended is told to other processes by NOTIFY (`hints`): a hint, which may be lost.
//!
//! Bounds: a lock is waited for as long as [`Options::busy_timeout`]; a statement, and an idle holder of a lock, are ended by the server after [`ENDED_AFTER`], of
//! appends sooner ([`APPEND_ENDED_AFTER`], [`IDLE_APPEND_ENDED_AFTER`]); every
//! answer is waited for a little longer, and then the connection is given up. What decides is read on the primary: a standby is read-only, and says so at the first append.
//!
//! A connection through a pooler has to be its own for as long as it is open (PgBouncer: session pooling): statements are prepared and settings are the session's.

mod error;
mod group;
mod hints;
mod open;
mod pool;
mod raw;
mod session;
#[cfg(test)]
mod tests;
mod time;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use self::hints::{Hints, Known};
use self::open::Place;
use self::pool::Bounds;
use self::time::DatabaseClock;
use self::writer::{Context, Writer};
use super::backfill::IsBackfill;
use super::clock::StoreClock;
use super::{
    Append, Appended, EventStore, Identity, OpenError, Position, RecordedEvent, Revision,
    StoreError,
};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Clock, Timestamp, Zone};
use crate::codec::StreamName;
use crate::credits::Scale;
use crate::ids::AccountId;

pub use open::DEFAULT_SCHEMA;
pub(crate) use pool::Pool;
pub use raw::insert_again;
pub(crate) use session::{Session, integer, is_null, plain};

/// After how long the server ends a statement of a transaction that writes, and a transaction that holds a lock and does nothing.
pub const ENDED_AFTER: Duration = Duration::from_secs(30);

/// After how long the server ends a statement of a transaction of appends: every charge of the ledger waits for one.
pub const APPEND_ENDED_AFTER: Duration = Duration::from_secs(10);

/// After how long the server ends a transaction of appends that does nothing: its process was stopped, or its network is gone.
pub const IDLE_APPEND_ENDED_AFTER: Duration = Duration::from_secs(5);

/// How long the server may take to let us in.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// How many connections a process has for reading and for projections, unless it is told otherwise.
const CONNECTIONS: u32 = 8;

/// What every session is set to. Durability is not left to the server's defaults: an answer means that it is on the disk. No statement here is worth being
/// compiled, which takes tens of milliseconds and is decided by a plan's estimated cost.
const SETTINGS: [(&str, &str); 3] = [
    ("synchronous_commit", "on"),
    ("timezone", "UTC"),
    ("jit", "off"),
];

/// How to open a ledger on a server.
#[derive(Clone)]
pub struct Options {
    /// The server and its database, and the schema: `postgres://user:password@host:port/database?schema=recoup`, with the parameters of libpq such as `sslmode`.
    pub url: String,
    /// The zone to create the ledger with; if it exists, the zone it must have.
    pub zone: Option<Zone>,
    /// The scale to create the ledger with; if it exists, the scale it must have.
    pub scale: Option<Scale>,
    /// The store's clock; none is the server's own.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a transaction waits for another process's.
    pub busy_timeout: Duration,
    /// How many connections to have for reading and for projections at the most, beside the one that appends and the one that listens.
    pub connections: u32,
    /// Whether the log is in KurrentDB, and the schema has what is beside it. Refused otherwise if it is.
    pub is_beside_a_log: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the URL, which may hold a password.
        f.debug_struct("Options")
            .field("zone", &self.zone)
            .field("scale", &self.scale)
            .field("clock", &self.clock)
            .field("busy_timeout", &self.busy_timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The ledger at `url`, the server's clock, 5 s of patience, 8 connections.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            zone: None,
            scale: None,
            clock: None,
            busy_timeout: Duration::from_secs(5),
            connections: CONNECTIONS,
            is_beside_a_log: false,
        }
    }
}

/// A ledger on a PostgreSQL server. Clones share its connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    identity: Identity,
    context: Arc<Context>,
    writer: Writer,
    pool: Pool,
    known: Known,
    _hints: Hints,
}

impl PostgresStore {
    /// Opens the ledger; creates it, and its schema, if there is none.
    ///
    /// The task that appends lives on the runtime that this is called on, and ends with the last clone. Of several processes that create one ledger at
    /// once, one does, and the others open what it made.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let mut place = Place::parse(&options.url).map_err(|why| OpenError::Io { why })?;
        // The one that appends is made first: if there is no server, that says so at once.
        let connection = connect(&mut place).await?;
        let database_clock = Arc::new(DatabaseClock::default());
        let clock = match &options.clock {
            Some(clock) => Arc::clone(clock),
            None => Arc::clone(&database_clock) as Arc<dyn Clock>,
        };
        let pool = Pool::new(&place, &options, &database_clock);
        let identity = open::open(&pool, &place, &options, &clock).await?;
        let tail = pool.glance(|tx| tx.read_tail()).await?;
        let known = Known::up_to(tail.head);
        let locks = place.locks();
        let bounds = Bounds::of_appends(options.busy_timeout);
        let context = Arc::new(Context {
            zone: identity.zone,
            clock: StoreClock::new(clock, tail.posted_at),
            database_clock,
            is_backfill: IsBackfill::default(),
            begin: Context::begin_with(&bounds.statements(), locks.log),
            busy_timeout: options.busy_timeout,
            answer_within: bounds.answer_within(),
            place: place.clone(),
        });
        let writer = writer::start(connection, Arc::clone(&context), known.clone());
        let hints = Hints::start(&place, &pool, &known);
        Ok(Self {
            shared: Arc::new(Shared {
                identity,
                context,
                writer,
                pool,
                known,
                _hints: hints,
            }),
        })
    }

    /// Where the ledger is, without user and password.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.context.place.name()
    }

    /// Where transactions other than appends are run: see [`crate::sql::Database`].
    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn is_backfill(&self) -> &IsBackfill {
        &self.shared.context.is_backfill
    }
}

#[async_trait]
impl EventStore for PostgresStore {
    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    fn now(&self) -> Timestamp {
        self.shared.context.clock.now()
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
        self.shared
            .pool
            .read(move |tx| tx.read_stream(&stream, from))
            .await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.shared
            .pool
            .read(move |tx| tx.read_streams(&streams))
            .await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.shared
            .pool
            .read(move |tx| tx.read_page(after, limit))
            .await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.shared.pool.read(|tx| tx.read_head()).await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        let account = account.clone();
        self.shared
            .pool
            .read(move |tx| tx.read_account(&account, month))
            .await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let after = after.cloned();
        self.shared
            .pool
            .glance(move |tx| tx.read_accounts(after.as_ref(), limit))
            .await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.shared.known.subscribe()
    }
}

/// The place that a URL names in words, without user and password. An error says what is wrong with it, without repeating it.
pub fn name_of(url: &str) -> Result<String, OpenError> {
    let place = Place::parse(url).map_err(|why| OpenError::Io { why })?;
    Ok(place.name())
}

/// A URL that leads to the same place once the password is known, which it does not hold.
pub fn without_password(url: &str) -> Result<String, OpenError> {
    name_of(url)?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = user.split(':').next().unwrap_or_default();
    let at = if user.is_empty() { "" } else { "@" };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query = others_than("password=", query)
        .collect::<Vec<_>>()
        .join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{scheme}://{user}{at}{host}{path}{mark}{query}"))
}

/// A URL that leads to another schema of the same database.
pub fn with_schema(url: &str, schema: &str) -> Result<String, OpenError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let schema = format!("schema={schema}");
    let query: Vec<_> = others_than("schema=", query)
        .chain([schema.as_str()])
        .collect();
    let url = format!("{base}?{}", query.join("&"));
    name_of(&url)?;
    Ok(url)
}

/// The parameters of a URL's query but for those that begin with `name`.
fn others_than<'q>(name: &'static str, query: &'q str) -> impl Iterator<Item = &'q str> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.filter(move |part| !part.starts_with(name))
}

/// Removes the schema that `url` names, with everything in it: for ledgers that were made to be measured or tried.
pub async fn remove(url: &str) -> Result<(), OpenError> {
    use sqlx::Executor as _;
    let mut place = Place::parse(url).map_err(|why| OpenError::Io { why })?;
    let mut connection = connect(&mut place).await?;
    let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", place.schema);
    let script = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
    let removed = connection.execute(script).await;
    removed
        .map(|_| ())
        .map_err(|error| error::store_error(&error).into())
}

/// Whether there is a ledger; an error if the server cannot be asked.
pub async fn exists(url: &str) -> Result<bool, OpenError> {
    let mut place = Place::parse(url).map_err(|why| OpenError::Io { why })?;
    let mut connection = connect(&mut place).await?;
    Ok(open::has_ledger(&mut connection, &place).await?)
}

async fn connect(place: &mut Place) -> Result<sqlx::PgConnection, OpenError> {
    let connected = place.connect_first().await;
    connected.map_err(|error| OpenError::Io {
        why: format!("{}: {}", place.name(), error::store_error(&error)),
    })
}

/// Carries out statements on a connection of its own, beside every store: for tests. Gives the rows as texts, or how many were changed.
#[cfg(any(test, feature = "testing"))]
pub(crate) async fn meddle(
    url: &str,
    (sql, wants_rows): (&str, bool),
) -> Result<(Vec<Vec<String>>, u64), String> {
    use sqlx::{Executor as _, Row as _, ValueRef as _};
    let said = |error: sqlx::Error| error.to_string();
    let mut place = Place::parse(url)?;
    let mut connection = place.connect_first().await.map_err(said)?;
    let script = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
    if !wants_rows {
        let done = connection.execute(script).await.map_err(said)?;
        return Ok((Vec::new(), done.rows_affected()));
    }
    let text = |row: &sqlx::postgres::PgRow, column| {
        let value = row.try_get_raw(column).map_err(said)?;
        if value.is_null() {
            return Ok("NULL".to_owned());
        }
        let text = value.as_str().map_err(|error| error.to_string())?;
        Ok(text.trim_start_matches("\\x").to_owned())
    };
    let rows = connection.fetch_all(script).await.map_err(said)?;
    let rows = rows
        .iter()
        .map(|row| (0..row.len()).map(|column| text(row, column)).collect());
    Ok((rows.collect::<Result<_, String>>()?, 0))
}
