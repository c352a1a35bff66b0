//! The options that every verb understands, and the ledger that they lead to.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::kurrentdb;
use recoup::store::postgres::{self, PostgresStore};
use recoup::store::sqlite::{Options, SqliteStore};
use recoup::store::{Identity, OpenError, StoreError};
use recoup::{Clock, EventStore, Ledger, Policies, Reason, Scale, SystemClock, Zone};

use super::answer::usage;
use super::{config, values};
use crate::demo;

/// What the options of every verb stand under in a verb's help.
const HEADING: &str = "Options of every verb";

/// Options that may stand before or after the verb.
#[derive(Debug, clap::Args)]
pub(super) struct Global {
    /// Where the ledger is: sqlite:PATH, postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME, or a KurrentDB connection string such as
    /// kurrentdb+discover://HOST:PORT, with ?prefix=NAME for what its streams begin with; then --db says where the rest is.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_STORE", value_name = "URL",
        hide_env_values = true, default_value = "sqlite:recoup-data/recoup.db")]
    store: String,
    /// Where account figures and projections of a log in KurrentDB are kept: sqlite:PATH or postgres://…; refused with an SQL store.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_DB", value_name = "URL", hide_env_values = true)]
    db: Option<String>,
    /// Print exactly one JSON document.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_JSON", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) json: bool,
    /// Policies by kind, as TOML.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time zone of the ledger's days, such as Asia/Seoul: chosen when it is created, checked afterwards. Default UTC.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_ZONE", value_name = "NAME", value_parser = Zone::parse)]
    zone: Option<Zone>,
    /// How many decimals people are shown, 0 to 9: chosen when the ledger is created, checked afterwards. Default 0.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_SCALE", value_name = "DECIMALS", value_parser = values::scale)]
    scale: Option<Scale>,
    /// How long to wait for another process's transaction, in milliseconds.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_BUSY_TIMEOUT_MS", value_name = "MS", default_value_t = 5_000,
        value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    busy_timeout_ms: u64,
    /// The most pages of 4 KiB that the ledger's file may have.
    #[arg(long, global = true, help_heading = HEADING, env = "RECOUP_MAX_PAGES", value_name = "PAGES", hide = true)]
    max_pages: Option<u32>,
}

/// Where a ledger is or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A file.
    File(PathBuf),
    /// A schema on a PostgreSQL server, by its URL, which may hold a password.
    Server(String),
    /// A log in KurrentDB, by its URL, which may hold a password, and the file or schema that has the rest.
    Log(String, Box<Place>),
}

/// How a database is opened.
struct Opening {
    zone: Option<Zone>,
    scale: Option<Scale>,
    clock: Option<Arc<dyn Clock>>,
    busy_timeout: Duration,
    max_pages: Option<u32>,
    is_beside_a_log: bool,
    /// Of a log: by how much clocks may differ, if not by what they usually may.
    clock_skew: Option<Duration>,
}

/// An open ledger.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) database: Database,
    pub(super) ledger: Ledger,
    pub(super) zone: Zone,
    pub(super) scale: Scale,
}

impl Global {
    /// Opens the ledger, or creates it.
    pub(super) async fn open(&self) -> anyhow::Result<Session> {
        self.open_with((self.zone, self.scale), None).await
    }

    /// Opens the ledger, or creates it, on a clock of the caller's.
    pub(super) async fn open_on(&self, clock: Arc<dyn Clock>) -> anyhow::Result<Session> {
        self.open_with((self.zone, self.scale), Some(clock)).await
    }

    /// Opens the ledger, which must be of this zone and scale, or creates it so.
    pub(super) async fn open_as(&self, zone: Zone, scale: Scale) -> anyhow::Result<Session> {
        for (is_other, what) in [
            (self.zone.is_some_and(|asked| asked != zone), "zone"),
            (self.scale.is_some_and(|asked| asked != scale), "scale"),
        ] {
            if is_other {
                return Err(usage(format!("--{what} is not the {what} of the file")));
            }
        }
        self.open_with((Some(zone), Some(scale)), None).await
    }

    /// Opens the ledger, and creates none: what reads a ledger out has nothing to do with one that is not there.
    pub(super) async fn open_existing(&self) -> anyhow::Result<Session> {
        let (name, exists) = self.place()?.look().await?;
        anyhow::ensure!(exists, "{name}: there is no ledger");
        self.open().await
    }

    /// Opens the ledger on the clock that is given, else on its own: the machine's, or the server's.
    async fn open_with(
        &self,
        (zone, scale): (Option<Zone>, Option<Scale>),
        clock: Option<Arc<dyn Clock>>,
    ) -> anyhow::Result<Session> {
        let place = self.place()?;
        let policies = match &self.config {
            Some(file) => config::read(file)?,
            None => Policies::default(),
        };
        let opening = self.opening((zone, scale), clock);
        let database = match place {
            Place::Log(url, beside) => open_log(&url, *beside, opening).await?,
            place => open_sql(place, opening).await?,
        };
        let (zone, scale) = (database.identity().zone, database.identity().scale);
        let ledger = Ledger::new(database.as_store(), policies);
        Ok(Session {
            database,
            ledger,
            zone,
            scale,
        })
    }

    /// Makes the database of `--db` the one that keeps the account figures beside the log of `--store`. False if it is already.
    pub(super) async fn move_figures(&self, reason: &Reason, by: &str) -> anyhow::Result<bool> {
        let Place::Log(url, beside) = self.place()? else {
            return Err(usage(
                "an SQL store keeps account figures in itself: only a log in KurrentDB has a database beside it",
            ));
        };
        let opening = self.opening((self.zone, self.scale), None);
        let (options, beside) = log_and_beside(&url, *beside, opening)?;
        let moved = kurrentdb::KurrentStore::move_figures(options, beside, reason, by);
        Ok(moved.await?)
    }

    fn opening(
        &self,
        (zone, scale): (Option<Zone>, Option<Scale>),
        clock: Option<Arc<dyn Clock>>,
    ) -> Opening {
        Opening {
            zone,
            scale,
            clock,
            busy_timeout: Duration::from_millis(self.busy_timeout_ms),
            max_pages: self.max_pages,
            is_beside_a_log: false,
            clock_skew: None,
        }
    }

    /// Where the ledger is or will be.
    pub(super) fn place(&self) -> anyhow::Result<Place> {
        let db = self.db.as_deref().filter(|url| !url.is_empty());
        match (place_of("--store", &self.store)?, db) {
            (Place::Log(url, _), Some(db)) => match place_of("--db", db)? {
                Place::Log(..) => Err(usage(
                    "--db (RECOUP_DB) is an SQL database beside the log: sqlite:PATH or postgres://…",
                )),
                beside => Ok(Place::Log(url, Box::new(beside))),
            },
            (Place::Log(..), None) => Err(usage(
                "a log in KurrentDB needs a database beside it, for account figures and projections: --db sqlite:PATH or --db postgres://…",
            )),
            (_, Some(_)) => Err(usage(
                "--db (RECOUP_DB) is for a log in KurrentDB; an SQL store keeps everything in itself",
            )),
            (place, None) => Ok(place),
        }
    }

    /// An error if the ledger's log is in KurrentDB: `why` says what cannot be done there.
    pub(super) fn refuse_log(&self, why: &str) -> anyhow::Result<()> {
        match self.place()? {
            Place::Log(..) => Err(usage(why)),
            Place::File(_) | Place::Server(_) => Ok(()),
        }
    }

    /// The server that `--store` names, if it names one, for a bench.
    pub(super) fn server(&self) -> anyhow::Result<Option<String>> {
        Ok(match self.place()? {
            Place::File(_) => None,
            Place::Server(url) => Some(url),
            Place::Log(..) => {
                return Err(usage(
                    "a bench makes ledgers and removes them, and streams of KurrentDB are there for good: it measures sqlite: and postgres:",
                ));
            }
        })
    }

    /// What a demo fills, if `--store` names a server: a schema or streams of its own, not the default ones, which may be wanted for better things.
    pub(super) async fn place_of_demo(
        &self,
        keeps_folder: bool,
    ) -> anyhow::Result<Option<demo::Place>> {
        let place = self.place()?;
        let (url, parameter, what) = match &place {
            Place::File(_) => return Ok(None),
            Place::Server(url) => (url, "schema=", "a schema"),
            Place::Log(url, _) => (url, "prefix=", "a prefix"),
        };
        if keeps_folder {
            return Err(usage(
                "--keep is for a file: a demo on a server is kept there",
            ));
        }
        if !url
            .split(['?', '&'])
            .any(|part| part.starts_with(parameter))
        {
            return Err(usage(format!(
                "a demo fills a ledger of its own: name {what} for it in --store, such as ?{parameter}demo"
            )));
        }
        let (name, exists) = place.look().await?;
        anyhow::ensure!(
            !exists,
            "{name}: there is a ledger, and a demo begins with a fresh one"
        );
        let store = place.url()?;
        Ok(match place {
            Place::File(_) => None,
            Place::Server(url) => Some(demo::Place::Server(url)),
            Place::Log(url, beside) => {
                let (zone, scale) = demo::identity()?;
                let opening = Opening {
                    clock_skew: Some(Duration::ZERO),
                    ..self.opening((Some(zone), Some(scale)), None)
                };
                Some(demo::Place::Log {
                    store,
                    db: beside.url()?,
                    opened: open_log(&url, *beside, opening).await?,
                })
            }
        })
    }

    /// The ledger's file, for what only a file has: `why` says what that is.
    pub(super) fn file(&self, why: &str) -> anyhow::Result<PathBuf> {
        match self.place()? {
            Place::File(path) => Ok(path),
            Place::Server(_) | Place::Log(..) => Err(usage(why)),
        }
    }
}

/// Opens a file or a schema.
async fn open_sql(place: Place, opening: Opening) -> Result<Database, OpenError> {
    let Opening {
        zone,
        scale,
        clock,
        busy_timeout,
        max_pages,
        is_beside_a_log,
        clock_skew: _,
    } = opening;
    match place {
        Place::File(path) => {
            let options = Options {
                zone,
                scale,
                clock: clock.unwrap_or_else(|| Arc::new(SystemClock)),
                busy_timeout,
                max_pages,
                is_beside_a_log,
                ..Options::at(path)
            };
            Ok(SqliteStore::open(options).await?.into())
        }
        Place::Server(url) => {
            let options = postgres::Options {
                zone,
                scale,
                clock,
                busy_timeout,
                is_beside_a_log,
                ..postgres::Options::at(url)
            };
            Ok(PostgresStore::open(options).await?.into())
        }
        Place::Log(..) => Err(OpenError::Io {
            why: "a log in KurrentDB is not beside another one".to_owned(),
        }),
    }
}

/// Opens a log in KurrentDB, with what is beside it.
async fn open_log(url: &str, beside: Place, opening: Opening) -> Result<Database, OpenError> {
    let (options, beside) = log_and_beside(url, beside, opening)?;
    let recovery = kurrentdb::Recovery::default();
    let opened = kurrentdb::KurrentStore::open(options, recovery, beside).await;
    Ok(opened.map_err(|error| at_the_log(url, error))?.into())
}

type OpeningDatabase = Pin<Box<dyn Future<Output = Result<Database, OpenError>> + Send>>;

/// How a log is opened, and what opens the file or schema beside it.
fn log_and_beside(
    url: &str,
    beside: Place,
    opening: Opening,
) -> Result<(kurrentdb::Options, impl FnOnce(Identity) -> OpeningDatabase), OpenError> {
    let parsed = kurrentdb::Options::parse(url)?;
    let options = kurrentdb::Options {
        zone: opening.zone,
        scale: opening.scale,
        clock_skew: opening.clock_skew.unwrap_or(parsed.clock_skew),
        ..parsed
    };
    let open = move |identity: Identity| {
        let opening = Opening {
            zone: Some(identity.zone),
            scale: Some(identity.scale),
            is_beside_a_log: true,
            ..opening
        };
        Box::pin(open_sql(beside, opening)) as OpeningDatabase
    };
    Ok((options, open))
}

/// Says where the log is that does not answer.
fn at_the_log(url: &str, error: OpenError) -> OpenError {
    match error {
        OpenError::Store(StoreError::Unavailable { cause }) => {
            let place = kurrentdb::Options::parse(url);
            let place = place.map_or_else(|_| "the log".to_owned(), |it| it.place_name());
            OpenError::Store(StoreError::Unavailable {
                cause: format!("{place}, or the database beside it: {cause}"),
            })
        }
        error => error,
    }
}

impl Place {
    /// The URL that leads there, without a password.
    fn url(&self) -> Result<String, OpenError> {
        match self {
            Self::File(path) => Ok(format!("sqlite:{}", path.display())),
            Self::Server(url) => postgres::without_password(url),
            Self::Log(url, _) => Ok(kurrentdb::without_password(url)?),
        }
    }

    /// The place in words, without a password; and whether there is a ledger.
    pub(super) async fn look(&self) -> Result<(String, bool), OpenError> {
        match self {
            Self::File(path) => Ok((path.display().to_string(), path.exists())),
            Self::Server(url) => Ok((postgres::name_of(url)?, postgres::exists(url).await?)),
            Self::Log(url, _) => {
                let options = kurrentdb::Options::parse(url)?;
                Ok((options.place_name(), kurrentdb::exists(&options).await?))
            }
        }
    }
}

/// What a store is written like.
const WRITTEN: &str = "it is written sqlite:PATH, postgres://USER:PASSWORD@HOST:PORT/DATABASE or kurrentdb://HOST:PORT";

/// The place that `option` names. What is beside a log is not known yet.
fn place_of(option: &str, url: &str) -> anyhow::Result<Place> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "sqlite" => {}
        "postgres" | "postgresql" => {
            // Told before anything else is done, and without repeating what may hold a password.
            if let Err(error) = postgres::name_of(url) {
                return Err(usage(format!("{option} {scheme}: {error}")));
            }
            return Ok(Place::Server(url.to_owned()));
        }
        "kurrentdb" | "kurrentdb+discover" | "esdb" | "esdb+discover" | "kdb" | "kdb+discover"
        | "kurrent" | "kurrent+discover" => {
            if let Err(error) = kurrentdb::Options::parse(url) {
                return Err(usage(format!("{option} {scheme}: {error}")));
            }
            let nowhere = Place::File(PathBuf::new());
            return Ok(Place::Log(url.to_owned(), Box::new(nowhere)));
        }
        _ if url.is_empty() => {
            return Err(usage(format!("{option} is empty: {WRITTEN}")));
        }
        // Not the whole of it: a URL may hold a password.
        "" => {
            return Err(usage(format!("{option} {url:?} is no store: {WRITTEN}")));
        }
        _ => {
            return Err(usage(format!("{option} {scheme}: is no store: {WRITTEN}")));
        }
    }
    let path = url.trim_start_matches("sqlite:");
    // The form with slashes that other programs use: sqlite:///absolute, sqlite://relative.
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.starts_with(':') {
        return Err(usage(format!(
            "{option} {url:?} names no file: a ledger is kept in one"
        )));
    }
    if path.contains(['?', '\0']) {
        return Err(usage(format!(
            "{option} {url:?}: nothing may follow the path"
        )));
    }
    Ok(Place::File(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_its_url() {
        let paths = [
            ("sqlite:a/b.db", "a/b.db"),
            ("sqlite:/a/b.db", "/a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite://b.db", "b.db"),
            ("sqlite:ü b:c.db", "ü b:c.db"),
        ];
        for (url, path) in paths {
            assert_eq!(
                place_of("--store", url).expect(url),
                Place::File(path.into())
            );
        }
        let server = "postgresql://u@h/d?schema=s";
        assert_eq!(
            place_of("--store", server).expect(server),
            Place::Server(server.into())
        );
        let refused = [
            ("postgres://u:secret@h", "names no database"),
            ("postgres://h/d?schema=A-B", "no name of a schema"),
            ("kurrentdb://h:2113?prefix=a-b", "stream prefix"),
            ("esdb://u:secret@h:port", "cannot be read"),
            ("", "is empty"),
            ("recoup.db", "it is written sqlite:PATH"),
            ("mysql://h", "it is written sqlite:PATH"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "names no file"),
            ("sqlite:a.db?mode=ro", "nothing may follow"),
        ];
        for (url, why) in refused {
            let error = place_of("--store", url).expect_err(url).to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
