//! `recoup demo`: three simulated days of a credit ledger, on real or generated input, with everything going wrong that can.
//!
//! A fresh ledger on an injected clock; over a log in KurrentDB, which stamps events by its own, the days are lived through in haste (see
//! `pace`), and all of them are today. `trace` gives the requests, `plan` and `faults` decide what befalls each, `drive`
//! sends the `signals` from several tasks at once; then `spoil` puts a historical fault into daily usage and rebuilds it. `report` reads
//! everything back, `show` prints it. Beside the ledger the demo keeps
//! a reckoning of its own (`expect`), from acknowledged answers alone, and compares.
//!
//! What is real: the requests of a trace, their token counts and the order and rhythm of their arrival. Made up, and said so on
//! the page: time, accounts, prices, grants, caps, and every fault. The same input gives the same balances in every run; what
//! depends on which of two racing tasks came first does not, and the page says which figures those are.
//!
//! Nothing outside the ledger's folder is written, and a kept folder must be empty to begin with.

mod drive;
mod expect;
mod facts;
mod faults;
mod pace;
mod paper;
mod plan;
mod random;
mod report;
mod show;
mod signals;
mod spoil;
mod trace;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use recoup::sql::Database;
use recoup::store::postgres::{self, PostgresStore};
use recoup::store::sqlite::{self, SqliteStore};
use recoup::{EventStore, Ledger, ManualClock, Policies, Scale, Timestamp, Zone};
use recoup_projections::Projections;

use self::drive::{Drive, Driven, WORKERS};
use self::facts::{Facts, Input, Kept, Rebuilt, Simulated};
use self::pace::{HASTE, Pace, hurried};
use self::paper::Paper;
use self::plan::{END_S, Plan, WorkKind};
use self::report::Reader;
use self::trace::{CITATION, GENERATED_ROWS, Source, Trace};

/// Which faults, copies and orders are drawn.
const SEED: u64 = 2023;

/// When the first simulated day begins: three days of which the last begins a month, so that refunds and reclaims fall into another
/// one than their charge.
const BEGIN: &str = "2023-11-29T00:00:00Z";

/// The last of them.
const LAST: &str = "2023-12-01T00:00:00Z";

/// The zone and the decimals of a demo's ledger.
const ZONE: Zone = Zone::UTC;
const DECIMALS: u8 = 2;

/// The ledger's file in its folder.
const FILE: &str = "recoup.db";

/// What a demo is to do.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The trace to use; without it one is generated.
    pub trace: Option<PathBuf>,
    /// The folder to keep the ledger in: absent or empty. Without it the ledger is made in a temporary one, and removed.
    pub keep: Option<PathBuf>,
    /// Where else to make the ledger, and to leave it.
    pub place: Option<Place>,
    /// Whether to print one JSON document instead of the page.
    pub json: bool,
}

/// A place for a demo's ledger that is no file of its own.
#[derive(Debug, Clone)]
pub enum Place {
    /// A schema on a PostgreSQL server, by its URL: one that holds no ledger.
    Server(String),
    /// A fresh log in KurrentDB, with the database beside it.
    Log {
        /// The ledger, opened as [`identity`] has it and with no difference allowed for between clocks, which would be hours of the plan.
        opened: Database,
        /// What leads there again, without a password: for `--store`,
        store: String,
        /// and for `--db`.
        db: String,
    },
}

/// The zone and the scale of a demo's ledger.
pub fn identity() -> anyhow::Result<(Zone, Scale)> {
    Ok((ZONE, Scale::new(DECIMALS)?))
}

/// What a demo proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "violations are an exit code of their own"]
pub enum Verdict {
    /// The audit found nothing, and the ledger shows what the demo reckoned.
    Clean,
    /// The audit found violations, or the ledger shows something else than the demo reckoned.
    Violations,
}

impl Verdict {
    /// Whether nothing was found.
    #[must_use]
    pub const fn is_clean(self) -> bool {
        matches!(self, Self::Clean)
    }
}

/// Runs the demo and prints what it shows to stdout.
pub async fn run(options: Options) -> anyhow::Result<Verdict> {
    let trace = match &options.trace {
        Some(path) => Trace::read(path)?,
        None => Trace::generate(GENERATED_ROWS, SEED),
    };
    let home = match options.place {
        Some(place) => Home::Placed(place),
        None => Home::open(options.keep)?,
    };
    let facts = live(&trace, &home).await?;
    let mut stdout = std::io::stdout().lock();
    if options.json {
        serde_json::to_writer(&mut stdout, &facts)?;
        writeln!(stdout)?;
    } else {
        let mut paper = Paper::for_stdout();
        show::page(&mut paper, &facts, &program());
        stdout.write_all(paper.text.as_bytes())?;
    }
    stdout.flush()?;
    Ok(if facts.is_clean() {
        Verdict::Clean
    } else {
        Verdict::Violations
    })
}

/// What the user typed to come here, for the commands that are proposed; the bare name where that would be long.
fn program() -> String {
    let typed = std::env::args()
        .next()
        .filter(|typed| typed.chars().count() <= 40);
    typed.unwrap_or_else(|| "recoup".to_owned())
}

/// Where the ledger is.
enum Home {
    /// In a folder that is removed when it is dropped.
    Temporary(tempfile::TempDir),
    /// In a folder that stays.
    Kept(PathBuf),
    /// On a server, where it stays.
    Placed(Place),
}

impl Home {
    fn open(keep: Option<PathBuf>) -> anyhow::Result<Self> {
        match keep {
            None => {
                let temporary = tempfile::Builder::new().prefix("recoup-demo-").tempdir();
                let temporary = temporary.context("no temporary folder can be made")?;
                Ok(Self::Temporary(temporary))
            }
            Some(path) => {
                make_empty(&path)?;
                Ok(Self::Kept(path))
            }
        }
    }

    /// What is left behind, as the command line has it; a server's without the password that was given.
    fn kept(&self) -> anyhow::Result<Option<Kept>> {
        let sql = |store| Kept { store, db: None };
        Ok(match self {
            Self::Temporary(_) => None,
            Self::Kept(folder) => Some(sql(format!("sqlite:{}", folder.join(FILE).display()))),
            Self::Placed(Place::Server(url)) => Some(sql(postgres::without_password(url)?)),
            Self::Placed(Place::Log { store, db, .. }) => Some(Kept {
                store: store.clone(),
                db: Some(db.clone()),
            }),
        })
    }

    /// A fresh ledger, and how the plan's seconds pass in it.
    async fn ledger(&self) -> anyhow::Result<(Database, Pace)> {
        let begin = Timestamp::parse(BEGIN)?;
        let clock = ManualClock::starting_at(begin);
        let (zone, scale) = identity()?;
        let (zone, scale) = (Some(zone), Some(scale));
        let folder = match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(folder) => folder,
            Self::Placed(Place::Server(url)) => {
                let options = postgres::Options {
                    zone,
                    scale,
                    clock: Some(Arc::new(clock.clone())),
                    ..postgres::Options::at(url)
                };
                let opened = PostgresStore::open(options).await?;
                return Ok((opened.into(), Pace::Injected { clock, begin }));
            }
            Self::Placed(Place::Log { opened, .. }) => {
                return Ok((opened.clone(), Pace::hasty(HASTE)));
            }
        };
        let options = sqlite::Options {
            zone,
            scale,
            clock: Arc::new(clock.clone()),
            ..sqlite::Options::at(folder.join(FILE))
        };
        let opened = SqliteStore::open(options).await?;
        Ok((opened.into(), Pace::Injected { clock, begin }))
    }
}

/// Makes the folder, or finds it empty: a demo never writes into what is there.
fn make_empty(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match fs::read_dir(path) {
        Ok(mut content) => match content.next() {
            None => Ok(()),
            Some(_) => bail!(
                "{shown} is not empty: a demo begins with a fresh ledger, give it an empty or a new folder"
            ),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(path).with_context(|| format!("{shown} cannot be made"))
        }
        Err(error) => {
            Err(error).with_context(|| format!("{shown} cannot be used as the ledger's folder"))
        }
    }
}

/// Lives through the days in a fresh ledger, and reads back what there is to show.
async fn live(trace: &Trace, home: &Home) -> anyhow::Result<Facts> {
    let (database, pace) = home.ledger().await?;
    live_in(trace, (database, pace), home.kept()?).await
}

async fn live_in(
    trace: &Trace,
    (database, pace): (Database, Pace),
    kept: Option<Kept>,
) -> anyhow::Result<Facts> {
    let begun = Instant::now();
    let plan = Plan::of(trace, SEED)?;
    let haste = pace.haste();
    let first = ZONE.day_of(pace.now());
    let policies = [WorkKind::Completion, WorkKind::Batch]
        .into_iter()
        .fold(Policies::default(), |policies, kind| {
            policies.with(kind.kind(), hurried(kind.policy(), haste))
        });
    let ledger = Ledger::new(database.as_store(), policies);
    let projections = Projections::open(database.clone()).await?;
    let drive = Drive::new(ledger.clone(), projections.clone(), pace, (&plan, SEED));
    let driven = drive.run(END_S).await?;
    let is_injected = haste == 1;
    let last = if is_injected {
        ZONE.day_of(Timestamp::parse(LAST)?)
    } else {
        ZONE.day_of(database.now())
    };
    let rebuilt = if plan.jobs.is_empty() {
        None
    } else {
        Some(spoil::and_repair(&projections, last).await?)
    };
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let simulated = Simulated {
        clock: if is_injected { "injected" } else { "server" },
        haste,
        zone: ZONE.name(),
        first_day: first.to_string(),
        last_day: last.to_string(),
        seed: SEED,
        tasks: WORKERS,
        took_ms,
    };
    let reader = Reader {
        database,
        ledger,
        projections,
    };
    read_back(&reader, (trace, &plan), (&driven, rebuilt), simulated, kept).await
}

async fn read_back(
    reader: &Reader,
    (trace, plan): (&Trace, &Plan),
    (driven, rebuilt): (&Driven, Option<Rebuilt>),
    simulated: Simulated,
    kept: Option<Kept>,
) -> anyhow::Result<Facts> {
    reader.database.settle_figures().await?;
    let accounts = reader.accounts().await?;
    let jobs = reader.jobs().await?;
    let (statement, life) = match jobs.told() {
        Some(told) => (
            Some(reader.statement(told).await?),
            Some(reader.life(&told.job).await?),
        ),
        None => (None, None),
    };
    let is_race = |(index, job): &(usize, &plan::JobPlan)| {
        job.is_race && driven.expectation.is_charged(*index)
    };
    let races = plan.jobs.iter().enumerate().filter(is_race).count() as u64;
    let comparison = report::compare(&driven.expectation.expected(plan), &accounts, &jobs);
    let balances = report::balances(&accounts, &jobs);
    Ok(Facts {
        simulated,
        input: input(trace, plan),
        scale: reader.database.identity().scale,
        answers: report::answers(driven),
        refused: reader.refused(driven),
        jobs: jobs.groups,
        balances,
        usage: reader.usage(&accounts).await?,
        statement,
        life,
        contradictions: reader.contradictions().await?,
        rebuilt,
        audit: reader.audit().await?,
        comparison,
        races,
        kept,
    })
}

fn input(trace: &Trace, plan: &Plan) -> Input {
    // A span of nanoseconds below 2^53 is exact as a float, and this one is for people.
    let span_s = trace.span_ns() as f64 / 1e9;
    let window = plan::ARRIVALS_S.end - plan::ARRIVALS_S.start;
    let (source, is_cited) = match &trace.source {
        Source::File { path, is_cited } => {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            (
                name.unwrap_or_else(|| path.display().to_string()),
                *is_cited,
            )
        }
        Source::Generated => ("generated with the source's percentiles".to_owned(), true),
    };
    Input {
        source,
        is_cited,
        citation: CITATION,
        requests: trace.requests.len(),
        jobs: plan.jobs.len(),
        free_requests: plan.free_requests,
        span_s,
        simulated_span_s: f64::from(window),
        stretched: if span_s > 0.0 {
            f64::from(window) / span_s
        } else {
            0.0
        },
    }
}

#[cfg(test)]
mod tests {
    use recoup::store::fresh::{Fresh, Opening};

    use super::signals::Verb;
    use super::*;

    async fn facts(rows: usize) -> Facts {
        let home = Home::open(None).expect("a temporary folder can be made");
        let trace = Trace::generate(rows, SEED);
        live(&trace, &home)
            .await
            .expect("the days can be lived through")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_demo_ends_clean_and_as_it_was_reckoned() {
        let facts = facts(300).await;
        assert_eq!(facts.audit.findings, [] as [String; 0]);
        assert!(facts.audit.checks.iter().all(|check| check.violations == 0));
        assert!(facts.comparison.is_equal(), "{:?}", facts.comparison);
        assert!(facts.is_clean());
        let found = facts.comparison.found;
        assert!(
            found.jobs.reclaims > 0 && found.jobs.refunds > found.jobs.reclaims,
            "{found:?}"
        );
        assert_eq!(found.balance, facts.balances.total.figures.balance);
        let charged: i64 = facts.usage.iter().map(|row| row.jobs).sum();
        assert_eq!(charged.unsigned_abs(), found.jobs.charges);
        assert_eq!(
            facts.refused.len(),
            2,
            "credit and caps both run out: {:?}",
            facts.refused
        );
        assert!(facts.contradictions.count > 0);
        let rebuilt = facts.rebuilt.as_ref().expect("there are jobs");
        assert!(rebuilt.is_clean && rebuilt.runs[0].rows_different > 0);
        let worst = rebuilt.runs[0].worst_ratio.expect("something was charged");
        assert!(worst > 2.0, "{worst}");
        let life = facts.life.as_ref().expect("somebody recovered late");
        assert_eq!((life.money.as_str(), life.net), ("reclaimed", -life.cost));

        let mut paper = Paper::default();
        show::page(&mut paper, &facts, "recoup");
        for line in paper.text.lines() {
            assert!(
                line.chars().count() <= 100 && line == line.trim_end(),
                "{line:?}"
            );
        }
        serde_json::to_string(&facts).expect("facts are JSON");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn the_same_input_ends_with_the_same_balances() {
        let (one, other) = (facts(150).await, facts(150).await);
        let balances =
            |facts: &Facts| serde_json::to_value(&facts.balances).expect("facts are JSON");
        assert_eq!(balances(&one), balances(&other));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn days_in_haste_over_a_log_elsewhere_end_clean() {
        recoup_kurrentdb_standin::keep_logs();
        let (zone, scale) = identity().expect("they are constants");
        let opening = Opening {
            zone: Some(zone),
            scale: Some(scale),
            ..Opening::default()
        };
        let log = Fresh::beside_a_log();
        let opened = log.open_with(opening).await;
        let trace = Trace::generate(200, SEED);
        // Faster than the demo's own haste: retries are due in 36 ms, whoever starts nothing is late after 432 ms.
        let place = (
            opened.expect("the log can be opened"),
            Pace::hasty(7 * HASTE),
        );
        let facts = live_in(&trace, place, None)
            .await
            .expect("the days can be lived through");
        assert_eq!(facts.audit.findings, [] as [String; 0]);
        assert!(facts.is_clean(), "{:?}", facts.comparison);
        let found = facts.comparison.found;
        assert!(
            found.jobs.reclaims > 0 && found.jobs.refunds > found.jobs.reclaims,
            "{found:?}"
        );
        let expired = facts.answers.iter().find(|of| of.verb == Verb::Expire);
        let expired = expired.expect("somebody started nothing");
        assert_eq!(
            expired.tally.applied + expired.tally.already_applied,
            expired.tally.sent
        );
        let refused_starts = facts.answers.iter().find(|of| of.verb == Verb::Start);
        let refused_starts = &refused_starts.expect("there are batches").tally.rejected;
        assert!(
            !refused_starts.contains_key("not_due"),
            "what is due in the plan is due: {refused_starts:?}"
        );
        let rebuilt = facts.rebuilt.as_ref().expect("there are jobs");
        assert!(rebuilt.is_clean && rebuilt.runs[0].rows_different > 0);
    }

    #[test]
    fn a_folder_with_something_in_it_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let new = folder.path().join("a/b");
        assert!(
            Home::open(Some(new.clone())).is_ok(),
            "a new folder is made"
        );
        assert!(
            Home::open(Some(new.clone())).is_ok(),
            "an empty one is used"
        );
        fs::write(new.join("notes.txt"), "mine").expect("a temporary folder can be written to");
        for path in [new.clone(), new.join("notes.txt")] {
            assert!(Home::open(Some(path)).is_err());
        }
        assert_eq!(fs::read_dir(new).expect("it is there").count(), 1);
    }
}
