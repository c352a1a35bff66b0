//! Opening a ledger on a server: where it is, its schema, its tables, its identity.
//!
//! A ledger has a schema of its own, named in the URL (`?schema=…`, default [`DEFAULT_SCHEMA`]); a schema that holds another program's tables is
//! refused. Opening a ledger that is there only reads. Creating one, and bringing its tables up to date, is one transaction under the lock of all
//! writing transactions: of many processes that create one ledger at once one does, and the others find it.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Executor, PgConnection, Row as _};
use uuid::Uuid;

use super::error::store_error;
use super::pool::bounds;
use super::writer::Context;
use super::{CONNECTED_WITHIN, Options, SETTINGS};
use crate::clock::{Timestamp, Zone};
use crate::credits::Scale;
use crate::sql::{GUARD, guard_fault};
use crate::store::{Identity, Migration, OpenError, StoreError};

/// The schema of a ledger whose URL names none.
pub const DEFAULT_SCHEMA: &str = "recoup";

const MIGRATIONS: &[Migration] = &[
    Migration {
        number: 1,
        name: "log",
        sql: include_str!("migrations/0001_log.sql"),
    },
    Migration {
        number: 2,
        name: "backfill",
        sql: include_str!("migrations/0002_backfill.sql"),
    },
];

/// Where a ledger is: a server's database, and a schema in it. Shown without the password.
#[derive(Clone)]
pub(super) struct Place {
    options: PgConnectOptions,
    pub(super) schema: String,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// The numbers of a ledger's locks, which are of its database: hashes of the schema's name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locks {
    /// Orders appends: taken before the log's end is read, kept until the commit.
    pub(super) log: i64,
    /// Of all other writing transactions one runs at a time.
    pub(super) write: i64,
}

impl Locks {
    fn of(schema: &str) -> Self {
        let number = |what: &str| {
            let name = format!("recoup {what} {schema}");
            let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
            hash.as_u64_pair().0.cast_signed()
        };
        Self {
            log: number("log"),
            write: number("write"),
        }
    }
}

impl Place {
    /// Takes a URL apart. An error says what is wrong without repeating it: it may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = DEFAULT_SCHEMA;
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = name,
                Some(_) => rest.push(pair),
                None => return Err(format!("{pair:?} has no value")),
            }
        }
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            let first = bytes.next();
            first.is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
                && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
                && name.len() <= 63
                && !name.starts_with("pg_")
        };
        if !is_name(schema) {
            return Err(format!(
                "{schema:?} is no name of a schema: up to 63 of a-z, 0-9 and _, not beginning with a digit or pg_"
            ));
        }
        let options = PgConnectOptions::from_str(&format!("{base}?{}", rest.join("&")))
            .map_err(|error| error.to_string())?;
        if options.get_database().is_none() {
            return Err("it names no database".to_owned());
        }
        let options = options
            .application_name("recoup")
            .statement_cache_capacity(256)
            .options([("search_path", schema)])
            .options(SETTINGS)
            .disable_statement_logging();
        Ok(Self {
            options,
            schema: schema.to_owned(),
        })
    }

    pub(super) fn locks(&self) -> Locks {
        Locks::of(&self.schema)
    }

    pub(super) const fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// The place in words, without user and password.
    pub(super) fn name(&self) -> String {
        let database = self.options.get_database().unwrap_or_default();
        let host = self.options.get_host();
        let port = self.options.get_port();
        format!("{host}:{port}/{database}, schema {}", self.schema)
    }

    /// A new connection, within [`CONNECTED_WITHIN`].
    pub(super) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let patience = CONNECTED_WITHIN;
        let connecting = PgConnection::connect_with(&self.options);
        tokio::time::timeout(patience, connecting)
            .await
            .unwrap_or_else(|_| {
                let why = format!("no connection to the server within {patience:?}");
                Err(sqlx::Error::Io(std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    why,
                )))
            })
    }
}

/// Opens the ledger, or creates it. Gives its identity and what the server's clock says.
pub(super) async fn open(
    connection: &mut PgConnection,
    place: &Place,
    options: &Options,
) -> Result<(Identity, Timestamp), OpenError> {
    let opened = try_open(connection, place, options).await;
    opened.map_err(|error| match error {
        // The server's words for it, and where.
        OpenError::Store(StoreError::ReadOnly { cause }) => OpenError::Io {
            why: format!("{}: {cause}", place.name()),
        },
        error => error,
    })
}

async fn try_open(
    connection: &mut PgConnection,
    place: &Place,
    options: &Options,
) -> Result<(Identity, Timestamp), OpenError> {
    if !is_current(connection, "ledger", MIGRATIONS).await? {
        create_or_migrate(connection, place, options).await?;
    }
    check_guard(connection, place).await?;
    let identity = check(connection, place, options).await?;
    Ok((identity, now(connection).await?))
}

fn failed(error: sqlx::Error) -> OpenError {
    store_error(&error).into()
}

/// The server's clock.
async fn now(connection: &mut PgConnection) -> Result<Timestamp, OpenError> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let micros: i64 = sqlx::query_scalar(sql)
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    Ok(Timestamp::from_micros(micros))
}

/// Whether the schema holds a ledger.
pub(super) async fn has_ledger(connection: &mut PgConnection) -> Result<bool, OpenError> {
    has_table(connection, "ledger").await
}

async fn has_table(connection: &mut PgConnection, name: &str) -> Result<bool, OpenError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_tables
        WHERE schemaname = current_schema() AND tablename = $1)";
    let found = sqlx::query_scalar(sql)
        .bind(name)
        .fetch_one(connection)
        .await;
    found.map_err(failed)
}

/// Whether no migration of `component` is missing; an error if the ledger is newer than this build. Only reads.
async fn is_current(
    connection: &mut PgConnection,
    component: &str,
    migrations: &[Migration],
) -> Result<bool, OpenError> {
    let known = migrations.last().map_or(0, |last| last.number);
    let found = newest(connection, component).await?;
    if found > known {
        return Err(OpenError::NewerSchema {
            component: component.to_owned(),
            found,
            known,
        });
    }
    Ok(found == known)
}

/// The newest migration that has run; 0 for none.
async fn newest(connection: &mut PgConnection, component: &str) -> Result<u32, OpenError> {
    if !has_table(connection, "migrations").await? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(number), 0) FROM migrations WHERE component = $1";
    let found: i64 = sqlx::query_scalar(sql)
        .bind(component)
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    u32::try_from(found).map_err(|_| {
        let why = format!("migrations has the number {found}");
        StoreError::Damaged { why }.into()
    })
}

/// Runs what is missing of `component`. The caller holds the lock of writing transactions.
async fn migrate(
    connection: &mut PgConnection,
    component: &str,
    migrations: &[Migration],
) -> Result<(), OpenError> {
    let table = "CREATE TABLE IF NOT EXISTS migrations (
        component TEXT COLLATE \"C\" NOT NULL, number BIGINT NOT NULL, name TEXT COLLATE \"C\" NOT NULL,
        PRIMARY KEY (component, number))";
    if is_current(connection, component, migrations).await? {
        return Ok(());
    }
    connection.execute(table).await.map_err(failed)?;
    let found = newest(connection, component).await?;
    for migration in migrations.iter().filter(|one| one.number > found) {
        let script = sqlx::raw_sql(migration.sql);
        connection.execute(script).await.map_err(failed)?;
        let sql = "INSERT INTO migrations (component, number, name) VALUES ($1, $2, $3)";
        sqlx::query(sql)
            .bind(component)
            .bind(i64::from(migration.number))
            .bind(migration.name)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// Begins a transaction under the lock of all writing ones.
async fn begin_writing(
    connection: &mut PgConnection,
    place: &Place,
    busy_timeout: Duration,
) -> Result<(), OpenError> {
    let begin = format!(
        "BEGIN; {}; SELECT pg_advisory_xact_lock({})",
        bounds(busy_timeout),
        place.locks().write
    );
    let script = sqlx::raw_sql(AssertSqlSafe(begin));
    connection.execute(script).await.map(|_| ()).map_err(failed)
}

/// Ends it: what was made is kept if it was made whole.
async fn end_writing(
    connection: &mut PgConnection,
    made: Result<(), OpenError>,
) -> Result<(), OpenError> {
    let end = if made.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.execute(end).await.map_err(failed);
    made.and(ended.map(|_| ()))
}

async fn create_or_migrate(
    connection: &mut PgConnection,
    place: &Place,
    options: &Options,
) -> Result<(), OpenError> {
    begin_writing(connection, place, options.busy_timeout).await?;
    let made = create_tables(connection, place, options).await;
    end_writing(connection, made).await
}

/// Brings the tables of a component up to date.
pub(super) async fn bring_up_to_date(
    connection: &mut PgConnection,
    context: &Context,
    (component, migrations): (&str, &[Migration]),
) -> Result<(), OpenError> {
    if is_current(connection, component, migrations).await? {
        return Ok(());
    }
    begin_writing(connection, &context.place, context.busy_timeout).await?;
    let made = migrate(connection, component, migrations).await;
    end_writing(connection, made).await
}

async fn create_tables(
    connection: &mut PgConnection,
    place: &Place,
    options: &Options,
) -> Result<(), OpenError> {
    let has_schema = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1)";
    let has_schema: bool = sqlx::query_scalar(has_schema)
        .bind(&place.schema)
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if !has_schema {
        let sql = AssertSqlSafe(format!("CREATE SCHEMA {}", place.schema));
        connection
            .execute(sqlx::raw_sql(sql))
            .await
            .map_err(failed)?;
    }
    let is_new = newest(connection, "ledger").await? == 0;
    if is_new {
        let sql = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema()";
        let tables: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if tables > 0 {
            return Err(OpenError::Foreign {
                path: place.name(),
                why: "the schema holds another program's tables".to_owned(),
            });
        }
    }
    migrate(connection, "ledger", MIGRATIONS).await?;
    if is_new {
        create(connection, options).await?;
    }
    Ok(())
}

async fn create(connection: &mut PgConnection, options: &Options) -> Result<(), OpenError> {
    let now = match &options.clock {
        Some(clock) => clock.now(),
        None => now(connection).await?,
    };
    let sql = "INSERT INTO ledger (one, id, zone, scale, created_at) VALUES (1, $1, $2, $3, $4)";
    sqlx::query(sql)
        .bind(Uuid::new_v4().to_string())
        .bind(options.zone.unwrap_or(Zone::UTC).name())
        .bind(i64::from(options.scale.map_or(0, Scale::get)))
        .bind(now.as_micros())
        .execute(connection)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Refuses a ledger without the index that lets one of two appends at one revision in.
async fn check_guard(connection: &mut PgConnection, place: &Place) -> Result<(), OpenError> {
    let found: Option<String> = sqlx::query_scalar(GUARD)
        .fetch_optional(connection)
        .await
        .map_err(failed)?;
    match guard_fault(found.as_deref()) {
        None => Ok(()),
        Some(why) => Err(OpenError::Damaged {
            path: place.name(),
            why: why.to_owned(),
        }),
    }
}

async fn check(
    connection: &mut PgConnection,
    place: &Place,
    options: &Options,
) -> Result<Identity, OpenError> {
    let row = sqlx::query("SELECT id, zone, scale FROM ledger")
        .fetch_optional(connection)
        .await
        .map_err(failed)?;
    let damaged = |why: String| OpenError::Damaged {
        path: place.name(),
        why,
    };
    let row = row.ok_or_else(|| damaged("it does not say what it was created with".to_owned()))?;
    let text = |index: usize| row.try_get::<String, _>(index).map_err(failed);
    let (id, zone) = (text(0)?, text(1)?);
    let scale: i64 = row.try_get(2).map_err(failed)?;
    let scale = u8::try_from(scale).map_err(|error| damaged(format!("scale: {error}")))?;
    let identity = Identity {
        ledger: Uuid::from_str(&id).map_err(|error| damaged(format!("ledger id: {error}")))?,
        zone: Zone::parse(&zone).map_err(|error| damaged(error.to_string()))?,
        scale: Scale::new(scale).map_err(|error| damaged(error.to_string()))?,
    };
    identity.check_asked(options.zone, options.scale)?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_by_its_url() {
        let place = Place::parse("postgres://u:secret@h:5433/d?schema=s1&sslmode=require").unwrap();
        assert_eq!(place.name(), "h:5433/d, schema s1");
        assert!(!format!("{place:?}").contains("secret"));
        let place = Place::parse("postgresql://u@h/d").unwrap();
        assert_eq!(place.name(), "h:5432/d, schema recoup");
        let long = format!("postgres://h/d?schema={}", "s".repeat(64));
        let refused = [
            ("postgres://h/d?schema=", "is no name of a schema"),
            ("postgres://h/d?schema=A", "is no name of a schema"),
            ("postgres://h/d?schema=a;b", "is no name of a schema"),
            ("postgres://h/d?schema=pg_x", "is no name of a schema"),
            (long.as_str(), "is no name of a schema"),
            ("postgres://h/d?schema", "has no value"),
            ("postgres://h", "names no database"),
            ("postgres://h:port/d", "port"),
            ("postgres://h/d?sslmode=often", "often"),
        ];
        for (url, why) in refused {
            let error = Place::parse(url).expect_err(url);
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn ledgers_of_one_database_have_locks_of_their_own() {
        let (one, other) = (Locks::of("a"), Locks::of("b"));
        let numbers = [one.log, one.write, other.log, other.write];
        for (index, number) in numbers.iter().enumerate() {
            assert!(!numbers[..index].contains(number), "{numbers:?}");
        }
        assert_eq!(Locks::of("a").log, one.log, "the same in every process");
    }
}
