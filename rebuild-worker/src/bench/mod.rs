//! `recoup bench`: figures of this machine, beside a raw limit of the same run.
//!
//! Absolute times of two runs cannot be compared: machines are noisy. So every run also measures a plain group insert of the
//! very rows that it wrote, into the same database, with the same durability and group size, and prints the ratio. The database is SQLite's, or that of
//! the server that is named: there everything is in schemas that are made for it and removed.
//!
//! A *lifecycle* is a charge, a failure (refund) and a late success (reclaim): three commands, six events, limits on.

mod load;
mod raw;
mod rebuild;
mod report;

pub use report::Report;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use recoup::sql::Database;
use recoup::store::postgres::{self, PostgresStore};
use recoup::store::sqlite::{Options, SqliteStore};
use recoup::{AccountId, EventStore, Ledger, Policies};
use recoup_projections::Projections;

use self::load::{Load, Shape};
use self::report::Row;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Lifecycles from 1, 64 and 256 callers and through the batch call; balance reads.
    Append(Size),
    /// The same load on one account.
    HotAccount(Size),
    /// Many callers send each signal; one of them is applied.
    Duplicates(Size),
    /// All projections from the start of a log.
    Project(Size),
    /// Verify and repair beside a bare scan; appends with and without repairs beside them.
    Rebuild(rebuild::RebuildSize),
}

/// How much, and where.
#[derive(Debug, clap::Args)]
pub struct Size {
    /// Lifecycles per measurement.
    #[arg(long, default_value_t = 20_000)]
    lifecycles: u32,
    /// Folder for the ledgers that are made and removed; its disk is what is measured.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[arg(skip)]
    server: Option<String>,
}

/// Measures, in a folder or on the server that `server` leads to.
pub async fn run(mut args: Args, server: Option<String>) -> anyhow::Result<Report> {
    let size = match &mut args {
        Args::Append(size)
        | Args::HotAccount(size)
        | Args::Duplicates(size)
        | Args::Project(size) => size,
        Args::Rebuild(size) => size.size(),
    };
    size.server = server;
    match args {
        Args::Append(size) => append(&size, Shape::Spread { accounts: 200 }).await,
        Args::HotAccount(size) => append(&size, Shape::Hot).await,
        Args::Duplicates(size) => duplicates(&size).await,
        Args::Project(size) => project(&size).await,
        Args::Rebuild(size) => rebuild::measure(&size).await,
    }
}

struct Bench {
    store: Database,
    ledger: Ledger,
    home: Home,
}

/// Where a ledger is measured, until it is dropped.
enum Home {
    Folder(tempfile::TempDir),
    Schema(String),
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Self::Schema(url) = self {
            let url = std::mem::take(url);
            // The process may be at its end: it is waited for.
            let removed = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.map(|runtime| runtime.block_on(postgres::remove(&url)))
            });
            if !matches!(removed.join(), Ok(Ok(Ok(())))) {
                tracing::warn!("a schema of the benchmark was left behind");
            }
        }
    }
}

impl Bench {
    async fn start(size: &Size) -> anyhow::Result<Self> {
        let (home, store) = match &size.server {
            None => {
                let folder = tempfile::Builder::new()
                    .prefix("recoup-bench-")
                    .tempdir_in(&size.dir)
                    .with_context(|| {
                        format!("{}: no folder for the benchmark", size.dir.display())
                    })?;
                let store = SqliteStore::open(Options::at(folder.path().join("bench.db"))).await?;
                (Home::Folder(folder), Database::from(store))
            }
            Some(url) => {
                let url = postgres::with_schema(
                    url,
                    &format!("bench_{}", uuid::Uuid::new_v4().simple()),
                )?;
                let store = PostgresStore::open(postgres::Options::at(url.as_str())).await?;
                (Home::Schema(url), store.into())
            }
        };
        let ledger = Ledger::new(store.as_store(), Policies::default());
        Ok(Self {
            store,
            ledger,
            home,
        })
    }
}

async fn append(size: &Size, shape: Shape) -> anyhow::Result<Report> {
    let mut report = Report::default();
    for callers in [1, 64, 256] {
        let lifecycles = if callers == 1 {
            (size.lifecycles / 10).max(1)
        } else {
            size.lifecycles
        };
        let bench = Bench::start(size).await?;
        let load = Load {
            shape,
            lifecycles,
            callers,
            first: 0,
        };
        load.fund(&bench.ledger).await?;
        let measured = load.run(&bench.ledger).await?;
        let raw = raw::insert_again(&bench, callers).await?;
        report.push(
            Row::of(
                if callers == 1 {
                    "1 caller".to_owned()
                } else {
                    format!("{callers} callers")
                },
                &measured,
            )
            .beside(&raw),
        );
    }
    let bench = Bench::start(size).await?;
    let load = Load {
        shape,
        lifecycles: size.lifecycles,
        callers: 1,
        first: 0,
    };
    load.fund(&bench.ledger).await?;
    let measured = load.run_batches(&bench.ledger).await?;
    let raw = raw::insert_again(&bench, load::BATCH).await?;
    report.push(Row::of(format!("batches of {}", load::BATCH), &measured).beside(&raw));
    let reads = load
        .read_balances(&bench.ledger, 64, size.lifecycles * 5)
        .await?;
    report.push(Row::of("balance reads, 64 callers".to_owned(), &reads));
    Ok(report)
}

async fn duplicates(size: &Size) -> anyhow::Result<Report> {
    let bench = Bench::start(size).await?;
    let load = Load {
        shape: Shape::Spread { accounts: 200 },
        lifecycles: (size.lifecycles / 16).max(1),
        callers: 64,
        first: 0,
    };
    load.fund(&bench.ledger).await?;
    let measured = load.run_duplicates(&bench.ledger, 16).await?;
    let mut report = Report::default();
    report.push(Row::of(
        "each signal 16 times, 64 callers".to_owned(),
        &measured,
    ));
    Ok(report)
}

async fn project(size: &Size) -> anyhow::Result<Report> {
    let bench = Bench::start(size).await?;
    let load = Load {
        shape: Shape::Spread { accounts: 200 },
        lifecycles: size.lifecycles,
        callers: 1,
        first: 0,
    };
    load.fund(&bench.ledger).await?;
    load.run_batches(&bench.ledger).await?;
    let events = bench.store.head().await?.get();
    let scan = raw::scan(&bench.store).await?;
    let projections = Projections::open(bench.store.clone()).await?;
    let begin = Instant::now();
    projections.catch_up().await?;
    let mut report = Report::default();
    report.push(Row::events("all projections".to_owned(), events, begin.elapsed()).beside(&scan));
    Ok(report)
}

fn account(number: u32) -> AccountId {
    AccountId::new(format!("account-{number}")).expect("a name of letters and digits is an id")
}
