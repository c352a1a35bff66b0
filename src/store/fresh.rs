//! Fresh ledgers for tests, in whichever database the tests are run over.
//!
//! `RECOUP_TEST_BACKEND` names it: `sqlite`, which needs nothing and is the default, or `postgres`, on the server that
//! `RECOUP_TEST_POSTGRES_URL` leads to (`scripts/postgres run` makes one and sets it). A backend that is asked for and not there fails every test that needs it.
//!
//! `kurrentdb` is a log on a stand-in that the test has registered ([`keep_logs_on`]), with a file beside it.
//!
//! A [`Fresh`] is one empty ledger: a file in a temporary folder, or a schema of its own. Any number of stores may be opened on it, each as another process would have
//! it. It is removed when it is dropped. One in a folder of the caller's ([`Fresh::at`]) is left to that.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::OpenError;
use crate::clock::{Clock, SystemClock, Zone};
use crate::credits::Scale;
use crate::sql::Database;

/// One empty ledger.
#[derive(Debug)]
pub struct Fresh(Place);

#[derive(Debug)]
enum Place {
    Folder(tempfile::TempDir),
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Schema {
        server: String,
        name: String,
    },
    #[cfg(feature = "kurrentdb")]
    Log {
        server: Arc<dyn LogServer>,
        folder: tempfile::TempDir,
        /// The tables that it is the other copy of.
        twin_of: Option<PathBuf>,
    },
}

/// Makes a file beside a log the one that the log names.
#[cfg(feature = "kurrentdb")]
fn take_identity(original: &std::path::Path, copy: &std::path::Path) {
    let opened = rusqlite::Connection::open(copy).expect("it can be opened");
    let sql = format!(
        "ATTACH '{}' AS original; UPDATE main.ledger SET id = (SELECT id FROM original.ledger)",
        original.display()
    );
    opened.execute_batch(&sql).expect("it can be renamed");
}

/// A server that logs are kept on, one for each ledger; ends when it is dropped.
#[cfg(feature = "kurrentdb")]
pub trait LogServer: Send + Sync + std::fmt::Debug {
    /// The connection string of a client.
    fn connection(&self) -> String;

    /// From now on events are stamped by this clock.
    fn stamp_by(&self, clock: Arc<dyn Clock>);
}

#[cfg(feature = "kurrentdb")]
static LOG_SERVERS: std::sync::OnceLock<fn() -> Arc<dyn LogServer>> = std::sync::OnceLock::new();

/// Says what starts the server of a log, for tests over KurrentDB.
#[cfg(feature = "kurrentdb")]
pub fn keep_logs_on(start: fn() -> Arc<dyn LogServer>) {
    // Every world of a test binary says the same.
    let _ = LOG_SERVERS.set(start);
}

/// How to open a store on it.
#[derive(Debug, Clone)]
pub struct Opening {
    /// As in the stores' own options.
    pub zone: Option<Zone>,
    /// As in the stores' own options.
    pub scale: Option<Scale>,
    /// The store's clock.
    pub clock: Arc<dyn Clock>,
    /// As in the stores' own options.
    pub busy_timeout: Duration,
    /// As in the stores' own options.
    pub is_beside_a_log: bool,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            zone: None,
            scale: None,
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
            is_beside_a_log: false,
        }
    }
}

impl Default for Fresh {
    fn default() -> Self {
        Self::new()
    }
}

/// Which backend the tests are run over.
#[must_use]
pub fn backend() -> String {
    std::env::var("RECOUP_TEST_BACKEND").unwrap_or_else(|_| "sqlite".to_owned())
}

/// Whether the log is in the database, with positions from 1 on, where a test can reach it; says so if not.
#[must_use]
pub fn is_log_in_tables() -> bool {
    let is_in_tables = backend() != "kurrentdb";
    if !is_in_tables {
        eprintln!("skipped: for a log in tables, with positions that are counted");
    }
    is_in_tables
}

/// The ledger that a URL leads to, as the command line opens it.
///
/// # Panics
///
/// If it is neither a file's nor one of a server that is built in.
pub async fn open(url: &str) -> Result<Database, OpenError> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        let options = super::sqlite::Options::at(file);
        return Ok(super::sqlite::SqliteStore::open(options).await?.into());
    }
    #[cfg(feature = "postgres")]
    if url.starts_with("postgres:") {
        let options = super::postgres::Options::at(url);
        return Ok(super::postgres::PostgresStore::open(options).await?.into());
    }
    panic!("a URL that leads to no store of a test's");
}

impl Fresh {
    /// An empty ledger's place.
    ///
    /// # Panics
    ///
    /// If the backend that was asked for is not there.
    #[must_use]
    pub fn new() -> Self {
        match backend().as_str() {
            "sqlite" => Self(Place::Folder(
                tempfile::tempdir().expect("a temporary folder"),
            )),
            #[cfg(feature = "postgres")]
            "postgres" => {
                let server = std::env::var("RECOUP_TEST_POSTGRES_URL")
                    .expect("RECOUP_TEST_POSTGRES_URL leads to a server: see scripts/postgres");
                Self::on_server(&server)
            }
            #[cfg(feature = "kurrentdb")]
            "kurrentdb" => Self::beside_a_log(),
            other => panic!("RECOUP_TEST_BACKEND={other} is not built in"),
        }
    }

    /// A ledger's file, which somebody else removes.
    #[must_use]
    pub const fn at(file: PathBuf) -> Self {
        Self(Place::File(file))
    }

    /// An empty ledger's place on a log server of its own, with a file beside it.
    ///
    /// # Panics
    ///
    /// If no server of logs is registered.
    #[cfg(feature = "kurrentdb")]
    #[must_use]
    pub fn beside_a_log() -> Self {
        let start = LOG_SERVERS.get().expect("a server of logs is registered");
        Self(Place::Log {
            server: start(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            twin_of: None,
        })
    }

    /// An empty ledger's place on the server at `url`.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn on_server(url: &str) -> Self {
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let server = url.to_owned();
        Self(Place::Schema { server, name })
    }

    /// Another place for what `other` will have as well: of the same log where that is not in the database, else empty until it is copied there
    /// ([`Self::copy_to`]).
    #[must_use]
    pub fn twin(&self) -> Self {
        #[cfg(feature = "kurrentdb")]
        if let Place::Log { server, .. } = &self.0 {
            return Self(Place::Log {
                server: Arc::clone(server),
                folder: tempfile::tempdir().expect("a temporary folder"),
                twin_of: self.tables_file(),
            });
        }
        Self::new()
    }

    /// As the command line has it.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.0 {
            Place::Folder(_) | Place::File(_) => {
                format!("sqlite:{}", self.file().expect("a file").display())
            }
            #[cfg(feature = "postgres")]
            Place::Schema { server, name } => {
                let mark = if server.contains('?') { '&' } else { '?' };
                format!("{server}{mark}schema={name}")
            }
            #[cfg(feature = "kurrentdb")]
            Place::Log { server, .. } => server.connection(),
        }
    }

    /// What the command line has to be told beside the URL: the database beside a log.
    #[must_use]
    pub fn db_url(&self) -> Option<String> {
        #[cfg(feature = "kurrentdb")]
        if let Place::Log { .. } = &self.0 {
            let file = self.tables_file().expect("a file");
            return Some(format!("sqlite:{}", file.display()));
        }
        None
    }

    /// The file that the tables are in, if they are in one: the ledger's, or the one beside its log.
    fn tables_file(&self) -> Option<PathBuf> {
        #[cfg(feature = "kurrentdb")]
        if let Place::Log { folder, .. } = &self.0 {
            return Some(folder.path().join("beside.db"));
        }
        self.file()
    }

    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        match &self.0 {
            Place::Folder(folder) => Some(folder.path().join("ledger.db")),
            Place::File(file) => Some(file.clone()),
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => None,
            #[cfg(feature = "kurrentdb")]
            Place::Log { .. } => None,
        }
    }

    /// A store on it, as another process would have it.
    ///
    /// # Panics
    ///
    /// If it cannot be opened.
    pub async fn open(&self, clock: Arc<dyn Clock>) -> Database {
        let opening = Opening {
            clock,
            ..Opening::default()
        };
        self.open_with(opening).await.expect("the ledger opens")
    }

    /// As [`Self::open`], with more to say.
    pub async fn open_with(&self, opening: Opening) -> Result<Database, OpenError> {
        let Opening {
            zone,
            scale,
            clock,
            busy_timeout,
            is_beside_a_log,
        } = opening;
        match &self.0 {
            Place::Folder(_) | Place::File(_) => {
                let options = super::sqlite::Options {
                    zone,
                    scale,
                    clock,
                    busy_timeout,
                    is_beside_a_log,
                    ..super::sqlite::Options::at(self.file().expect("a file"))
                };
                Ok(super::sqlite::SqliteStore::open(options).await?.into())
            }
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => {
                let options = super::postgres::Options {
                    zone,
                    scale,
                    clock: Some(clock),
                    busy_timeout,
                    is_beside_a_log,
                    ..super::postgres::Options::at(self.url())
                };
                Ok(super::postgres::PostgresStore::open(options).await?.into())
            }
            #[cfg(feature = "kurrentdb")]
            Place::Log {
                server, twin_of, ..
            } => {
                server.stamp_by(Arc::clone(&clock));
                let log = super::kurrentdb::Options {
                    zone,
                    scale,
                    clock: Arc::clone(&clock),
                    poll_every: Duration::from_millis(20),
                    // One clock moves both sides, and tests move it to the very deadline.
                    clock_skew: Duration::ZERO,
                    ..super::kurrentdb::Options::at(server.connection())
                };
                let file = self.tables_file().expect("a file");
                let recovery = super::kurrentdb::Recovery::default();
                let opened =
                    super::kurrentdb::KurrentStore::open(log, recovery, |identity| async move {
                        let options = super::sqlite::Options {
                            zone: Some(identity.zone),
                            scale: Some(identity.scale),
                            clock,
                            busy_timeout,
                            is_beside_a_log: true,
                            ..super::sqlite::Options::at(file)
                        };
                        let store = super::sqlite::SqliteStore::open(options.clone()).await?;
                        let Some(original) = twin_of else {
                            return Ok(store.into());
                        };
                        // The log would refuse another database than the one that it names.
                        drop(store);
                        take_identity(original, &options.path);
                        Ok(super::sqlite::SqliteStore::open(options).await?.into())
                    });
                Ok(opened.await?.into())
            }
        }
    }

    /// Carries out statements on it beside every store, as somebody with a client of the database's would. Gives how many rows they changed.
    ///
    /// # Panics
    ///
    /// If they cannot be carried out.
    pub fn execute(&self, sql: &str) -> u64 {
        match &self.0 {
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => self.ask(sql, false).expect(sql).1,
            _ => {
                let connection = self.connection();
                connection.execute_batch(sql).expect(sql);
                connection.total_changes()
            }
        }
    }

    /// The rows of a query, every value as a text; absent ones as `NULL`, bytes in hexadecimal.
    ///
    /// # Panics
    ///
    /// If they cannot be read.
    #[must_use]
    pub fn table(&self, sql: &str) -> Vec<Vec<String>> {
        use rusqlite::types::Value;
        match &self.0 {
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => self.ask(sql, true).expect(sql).0,
            _ => {
                let connection = self.connection();
                let mut statement = connection.prepare(sql).expect(sql);
                let columns = statement.column_count();
                let text = |row: &rusqlite::Row<'_>, column| {
                    Ok(match row.get(column)? {
                        Value::Null => "NULL".to_owned(),
                        Value::Integer(number) => number.to_string(),
                        Value::Real(number) => number.to_string(),
                        Value::Text(text) => text,
                        Value::Blob(bytes) => {
                            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
                        }
                    })
                };
                let rows = statement.query_map([], |row| {
                    (0..columns).map(|column| text(row, column)).collect()
                });
                let rows: rusqlite::Result<_> = rows.expect(sql).collect();
                rows.expect(sql)
            }
        }
    }

    /// The bytes of a query's one value.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn bytes(&self, sql: &str) -> Vec<u8> {
        let digits = &self.table(sql)[0][0];
        let pairs = (0..digits.len() / 2).map(|at| &digits[at * 2..at * 2 + 2]);
        let byte = |pair| u8::from_str_radix(pair, 16).expect("hexadecimal");
        pairs.map(byte).collect()
    }

    /// Bytes as they are written in a statement.
    #[must_use]
    pub fn literal(&self, bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match &self.0 {
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => format!("decode('{digits}', 'hex')"),
            _ => format!("X'{digits}'"),
        }
    }

    /// Makes the log, the figures and these `tables` of `other`, a ledger that was opened before, what they are here.
    pub fn copy_to(&self, other: &Self, tables: &[&str]) {
        // A twin has the same log, and folds its own figures.
        let log: &[&str] = if other.db_url().is_some() {
            &[]
        } else {
            &["appends", "account_state", "account_month"]
        };
        let copy = |space: &str| -> String {
            let copy = |table: &&str| {
                format!(
                    "DELETE FROM {space}.{table}; INSERT INTO {space}.{table} SELECT * FROM {table};"
                )
            };
            log.iter().chain(tables).map(copy).collect()
        };
        match &other.0 {
            #[cfg(feature = "postgres")]
            Place::Schema { name, .. } => {
                self.execute(&copy(name));
            }
            _ => {
                let file = other.tables_file().expect("a file");
                let attach = format!("ATTACH '{}' AS other;", file.display());
                self.execute(&[attach, copy("other")].concat());
            }
        }
    }

    fn connection(&self) -> rusqlite::Connection {
        let opened = rusqlite::Connection::open(self.tables_file().expect("a file"));
        let connection = opened.expect("it can be opened");
        let patience = Duration::from_secs(10);
        connection.busy_timeout(patience).expect("it can wait");
        connection
    }

    /// Asks on a thread of its own: the caller's runtime cannot be waited for here.
    #[cfg(feature = "postgres")]
    fn ask(&self, sql: &str, wants_rows: bool) -> Result<(Vec<Vec<String>>, u64), String> {
        let (url, sql) = (self.url(), sql.to_owned());
        let asked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let asked = super::postgres::meddle(&url, (&sql, wants_rows));
                tokio::pin!(asked);
                loop {
                    match tokio::time::timeout(HELD_UP, &mut asked).await {
                        Ok(answer) => return answer,
                        Err(_) => super::postgres::meddle(&url, (END_IDLE, false)).await?,
                    };
                }
            })
        });
        asked
            .join()
            .unwrap_or_else(|_| Err("it panicked".to_owned()))
    }
}

/// How long a test's own statement may wait for a lock before [`END_IDLE`].
#[cfg(feature = "postgres")]
const HELD_UP: Duration = Duration::from_secs(2);

/// Ends the sessions on the schema that are in a transaction and ask for nothing. A task of the caller's runtime may have been left in the middle of one: it cannot go on
/// while its thread waits for the answer to a statement, and that waits for the task's lock.
#[cfg(feature = "postgres")]
const END_IDLE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE state = 'idle in transaction' AND pid IN (SELECT l.pid FROM pg_locks l
        JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema())";

#[cfg(feature = "postgres")]
impl Drop for Fresh {
    fn drop(&mut self) {
        let Place::Schema { name, .. } = &self.0 else {
            return;
        };
        if let Err(error) = self.ask(&format!("DROP SCHEMA IF EXISTS {name} CASCADE"), false) {
            eprintln!("a test's schema was left behind: {error}");
        }
    }
}
