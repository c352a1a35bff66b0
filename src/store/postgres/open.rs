//! Opening a ledger on a server: where it is, its schema, its tables, its identity.
//!
//! A ledger has a schema of its own, named in the URL (`?schema=…`, default [`DEFAULT_SCHEMA`]); a schema that holds another program's tables is
//! refused. Opening a ledger that is there only reads. Creating one, and bringing its tables up to date, is one transaction under the lock of all
//! writing transactions: of many processes that create one ledger at once one does, and the others find it.

use std::str::FromStr;
use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection as _, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use super::error::{answered_within, store_error};
use super::pool::Pool;
use super::{CONNECTED_WITHIN, Options, SETTINGS};
use crate::clock::{Clock, Zone};
use crate::credits::Scale;
use crate::sql::Transaction;
use crate::store::parameters::parameters;
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
    /// Whether it does without TLS although the URL does not say so.
    is_plain: bool,
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

/// What may stand behind the `?`: the schema, and what the driver knows.
const PARAMETERS: [&str; 19] = [
    "schema",
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

impl Place {
    /// Takes a URL apart. An error says what is wrong without repeating it: it may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = DEFAULT_SCHEMA;
        let mut rest = Vec::new();
        for (name, value) in parameters(query, &PARAMETERS)? {
            match name {
                "schema" => schema = value,
                name => rest.push(format!("{name}={value}")),
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
        // The environment may ask for it, too: PGSSLMODE.
        let is_asked = rest.iter().any(|pair| pair.starts_with("ssl"))
            || !matches!(options.get_ssl_mode(), PgSslMode::Prefer);
        let is_plain = is_near(options.get_host()) && !is_asked;
        let options = if is_plain {
            options.ssl_mode(PgSslMode::Disable)
        } else {
            options
        };
        let options = options
            .application_name("recoup")
            .statement_cache_capacity(256)
            .options([("search_path", schema)])
            .options(SETTINGS)
            .disable_statement_logging();
        Ok(Self {
            options,
            schema: schema.to_owned(),
            is_plain,
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
    ///
    /// TLS needs a provider of cryptography. Where two are compiled in, as with KurrentDB's client, the process has to say which; the driver asks for that when it checks a
    /// certificate without its name, and would panic. Whoever has said it before is left alone.
    pub(super) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        answered_within(CONNECTED_WITHIN, async {
            let mut connection = PgConnection::connect_with(&self.options).await?;
            refuse_standby(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    /// The first connection: finds out whether a server on this machine insists on TLS.
    pub(super) async fn connect_first(&mut self) -> Result<PgConnection, sqlx::Error> {
        let refused = match self.connect().await {
            Err(error) if self.is_plain && is_not_let_in(&error) => error,
            connected => return connected,
        };
        let options = self.options.clone().ssl_mode(PgSslMode::Require);
        let with_tls = Self {
            options,
            ..self.clone()
        };
        // If that was not it, the server's first word is the better one.
        let connection = with_tls.connect().await.map_err(|_| refused)?;
        *self = with_tls;
        Ok(connection)
    }
}

/// An error on a server that only follows another one: what is read there may be old, and an answer that decides nothing anew would be told from it.
pub(super) async fn refuse_standby(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let row = connection
        .fetch_one("SELECT pg_is_in_recovery() AS is_standby")
        .await?;
    if row.try_get("is_standby")? {
        let why = "the server is a standby: it follows a primary, which is the one to be asked";
        return Err(sqlx::Error::Protocol(why.to_owned()));
    }
    Ok(())
}

/// Whether a host is this machine by its name. There the driver does without TLS unless it is asked for: what it would protect never leaves the machine, and it makes
/// every request wait that is more than one record, and every handshake twice, for 40 ms: the driver leaves Nagle's algorithm on, and the server's half of the
/// connection has nothing to say that its acknowledgement could go with.
fn is_near(host: &str) -> bool {
    matches!(host, "localhost" | "::1" | "[::1]") || host.starts_with("127.")
}

/// Whether the server has no entry for us, as one that lets nobody in without TLS.
fn is_not_let_in(error: &sqlx::Error) -> bool {
    let answer = error.as_database_error();
    answer.is_some_and(|answer| answer.code().as_deref() == Some("28000"))
}

/// Opens the ledger, or creates it.
pub(super) async fn open(
    pool: &Pool,
    place: &Place,
    options: &Options,
    clock: &Arc<dyn Clock>,
) -> Result<Identity, OpenError> {
    let opened = try_open(pool, place, options, clock).await;
    opened.map_err(|error| match error {
        // The server's words for it, and where.
        OpenError::Store(StoreError::ReadOnly { cause }) => OpenError::Io {
            why: format!("{}: {cause}", place.name()),
        },
        error => error,
    })
}

async fn try_open(
    pool: &Pool,
    place: &Place,
    options: &Options,
    clock: &Arc<dyn Clock>,
) -> Result<Identity, OpenError> {
    let (asked, role) = ((options.zone, options.scale), options.is_beside_a_log);
    let here = place.clone();
    let look = move |tx: &Transaction<'_>| {
        let is_current = tx.is_migrated("ledger", MIGRATIONS)?;
        is_current
            .then(|| check(tx, &here, (asked, role)))
            .transpose()
    };
    if let Some(identity) = pool.glance(look).await? {
        return Ok(identity);
    }
    let (here, clock) = (place.clone(), Arc::clone(clock));
    pool.write(move |tx| {
        create_or_migrate(tx, &here, asked, &*clock)?;
        check(tx, &here, (asked, role))
    })
    .await
}

/// Whether the schema holds a ledger.
pub(super) async fn has_ledger(
    connection: &mut PgConnection,
    place: &Place,
) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(format!("{}.ledger", place.schema))
        .fetch_one(connection)
        .await;
    found.map_err(|error| store_error(&error))
}

fn create_or_migrate(
    tx: &Transaction<'_>,
    place: &Place,
    asked: (Option<Zone>, Option<Scale>),
    clock: &dyn Clock,
) -> Result<(), OpenError> {
    let schema = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ?1";
    let schema = tx.row(schema, crate::values![place.schema.as_str()], |_| Ok(()))?;
    if schema.is_none() {
        tx.execute_batch(&format!("CREATE SCHEMA {}", place.schema))?;
    }
    let is_new = tx.newest_migration("ledger")? == 0;
    let foreign = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = current_schema() LIMIT 1";
    if is_new && tx.row(foreign, &[], |_| Ok(()))?.is_some() {
        return Err(OpenError::Foreign {
            path: place.name(),
            why: "the schema holds another program's tables".to_owned(),
        });
    }
    tx.migrate("ledger", MIGRATIONS)?;
    if is_new {
        tx.create_identity(asked, clock.now())?;
    }
    Ok(())
}

/// The identity of a ledger that is whole: one without the index that lets one of two appends at one revision in is refused.
fn check(
    tx: &Transaction<'_>,
    place: &Place,
    (asked, is_beside_a_log): ((Option<Zone>, Option<Scale>), bool),
) -> Result<Identity, OpenError> {
    tx.check_role(&place.name(), is_beside_a_log)?;
    match tx.guard_faults()?.into_iter().next() {
        None => tx.read_identity(&place.name(), asked),
        Some(why) => Err(OpenError::Damaged {
            path: place.name(),
            why,
        }),
    }
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
    fn tls_is_left_out_on_this_machine_unless_it_is_asked_for() {
        let places = [
            ("postgres://u@localhost/d", true),
            ("postgres://u@127.0.0.1:5433/d?schema=s", true),
            ("postgres://u@localhost/d?sslmode=prefer", false),
            ("postgres://u@localhost/d?sslrootcert=c.pem", false),
            ("postgres://u@localhost.example/d", false),
            ("postgres://u@db.example/d", false),
        ];
        for (url, expected) in places {
            let place = Place::parse(url).unwrap();
            assert_eq!(place.is_plain, expected, "{url}");
            let is_off = matches!(place.options.get_ssl_mode(), PgSslMode::Disable);
            assert_eq!(is_off, expected, "{url}");
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
