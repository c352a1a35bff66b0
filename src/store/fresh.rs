//! Fresh ledgers for tests, in whichever database the tests are run over.
//!
//! `RECOUP_TEST_BACKEND` names it: `sqlite`, which needs nothing and is the default, or `postgres`, on the server that
//! `RECOUP_TEST_POSTGRES_URL` leads to (`scripts/postgres run` makes one and sets it). A backend that is asked for and not there fails every test that needs it.
//!
//! A [`Fresh`] is one empty ledger: a file in a temporary folder, or a schema of its own. Any number of stores may be opened on it, each as another process would have
//! it. It is removed when it is dropped.

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
    File(tempfile::TempDir),
    #[cfg(feature = "postgres")]
    Schema {
        server: String,
        name: String,
    },
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
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            zone: None,
            scale: None,
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
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

impl Fresh {
    /// An empty ledger's place.
    ///
    /// # Panics
    ///
    /// If the backend that was asked for is not there.
    #[must_use]
    pub fn new() -> Self {
        match backend().as_str() {
            "sqlite" => Self(Place::File(
                tempfile::tempdir().expect("a temporary folder"),
            )),
            #[cfg(feature = "postgres")]
            "postgres" => {
                let server = std::env::var("RECOUP_TEST_POSTGRES_URL")
                    .expect("RECOUP_TEST_POSTGRES_URL leads to a server: see scripts/postgres");
                let name = format!("test_{}", uuid::Uuid::new_v4().simple());
                Self(Place::Schema { server, name })
            }
            other => panic!("RECOUP_TEST_BACKEND={other} is not built in"),
        }
    }

    /// As the command line has it.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.0 {
            Place::File(_) => format!("sqlite:{}", self.file().expect("a file").display()),
            #[cfg(feature = "postgres")]
            Place::Schema { server, name } => {
                let mark = if server.contains('?') { '&' } else { '?' };
                format!("{server}{mark}schema={name}")
            }
        }
    }

    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        match &self.0 {
            Place::File(folder) => Some(folder.path().join("ledger.db")),
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => None,
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
        } = opening;
        match &self.0 {
            Place::File(_) => {
                let options = super::sqlite::Options {
                    zone,
                    scale,
                    clock,
                    busy_timeout,
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
                    ..super::postgres::Options::at(self.url())
                };
                Ok(super::postgres::PostgresStore::open(options).await?.into())
            }
        }
    }

    /// Carries out statements on it beside every store, as somebody with a client of the database's would.
    ///
    /// # Panics
    ///
    /// If they cannot be carried out.
    pub async fn meddle(&self, sql: &str) {
        match &self.0 {
            Place::File(_) => {
                let file = rusqlite::Connection::open(self.file().expect("a file"));
                let connection = file.expect("it can be opened");
                connection
                    .busy_timeout(Duration::from_secs(10))
                    .expect("it can wait");
                connection.execute_batch(sql).expect(sql);
            }
            #[cfg(feature = "postgres")]
            Place::Schema { .. } => {
                super::postgres::meddle(&self.url(), sql).await.expect(sql);
            }
        }
    }
}

#[cfg(feature = "postgres")]
impl Drop for Fresh {
    fn drop(&mut self) {
        let Place::Schema { name, .. } = &self.0 else {
            return;
        };
        let (url, sql) = (self.url(), format!("DROP SCHEMA IF EXISTS {name} CASCADE"));
        // On a thread of its own: a test's runtime may be this one's, and cannot be waited for here.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let removed = runtime.block_on(super::postgres::meddle(&url, &sql));
            removed.map_err(|error| error.to_string())
        });
        if let Ok(Err(error)) = removed.join() {
            eprintln!("a test's schema was left behind: {error}");
        }
    }
}
