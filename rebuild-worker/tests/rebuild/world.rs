//! A ledger in a folder of its own, usage in it that is counted apart, and ways to spoil its rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use recoup::store::sqlite::{Options, SqliteStore};
use recoup::{
    AccountId, Attempt, CommandId, Cost, EventStore, FailureClass, Floor, JobCommand, JobId, Kind,
    Ledger, Limit, ManualClock, Policies, PriceSnapshot, Timestamp, Zone,
};
use recoup_projections::Projections;
use recoup_projections::audit::audit;
use recoup_rebuild_worker::rebuild::{
    Control, Difference, Mode, Origin, Request, Run, Window, differences, rebuild,
};
use tempfile::TempDir;

/// (account, day, kind) → (charged, refunded, reclaimed, jobs): counted from what was asked for, not from the log.
pub(crate) type Usage = BTreeMap<(String, String, String), (i64, i64, i64, i64)>;

pub(crate) struct World {
    _folder: TempDir,
    pub(crate) clock: ManualClock,
    pub(crate) store: SqliteStore,
    pub(crate) ledger: Ledger,
    pub(crate) projections: Projections,
    jobs: AtomicU64,
    counted: std::sync::Mutex<Usage>,
}

pub(crate) fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with("2026-11-29T12:00:00Z", "UTC").await
    }

    pub(crate) async fn with(start: &str, zone: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::starting_at(at(start));
        let mut options = Options::at(folder.path().join("ledger.db"));
        options.clock = Arc::new(clock.clone());
        options.zone = Some(Zone::parse(zone).unwrap());
        let store = SqliteStore::open(options).await.unwrap();
        let ledger = Ledger::new(Arc::new(store.clone()), Policies::default());
        let projections = Projections::open(store.clone()).await.unwrap();
        Self {
            _folder: folder,
            clock,
            store,
            ledger,
            projections,
            jobs: AtomicU64::new(0),
            counted: std::sync::Mutex::default(),
        }
    }

    /// The same file, opened as another process would.
    pub(crate) async fn beside(&self) -> Projections {
        let mut options = Options::at(self.store.path());
        options.clock = Arc::new(self.clock.clone());
        let store = SqliteStore::open(options).await.unwrap();
        Projections::open(store).await.unwrap()
    }

    pub(crate) async fn postpaid(&self, account: &str) {
        let limit = Limit {
            account: AccountId::new(account).unwrap(),
            floor: Some(Floor::None),
            monthly_cap: None,
        };
        let set = self.ledger.limit(CommandId::random(), limit).await.unwrap();
        assert!(set.is_done());
    }

    async fn command(&self, job: &JobId, command: JobCommand) {
        let id = CommandId::random();
        let outcome = self.ledger.job(id, job.clone(), command).await.unwrap();
        assert!(outcome.is_done(), "{outcome:?}");
    }

    /// A job that is charged, and every third one fails and then succeeds after all: on the day that it is.
    pub(crate) async fn usage(&self, account: &str, kind: &str, cost: i64) {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        let job = JobId::new(format!("job-{number}")).unwrap();
        let amount = Cost::new(cost).unwrap();
        let charge = self.ledger.charge_of(
            AccountId::new(account).unwrap(),
            Kind::new(kind).unwrap(),
            amount,
            PriceSnapshot::flat(amount),
            None,
        );
        let charge = JobCommand::Charge(Box::new(charge.unwrap()));
        self.command(&job, charge).await;
        let returns = number.is_multiple_of(3);
        if returns {
            let (attempt, reason) = (Attempt::FIRST, None);
            let class = FailureClass::Retryable;
            let failed = JobCommand::Fail {
                attempt,
                class,
                reason,
            };
            self.command(&job, failed).await;
            let result = None;
            self.command(&job, JobCommand::Succeed { attempt, result })
                .await;
        }
        let day = self.store.identity().zone.day_of(self.clock.now_at());
        let key = (account.to_owned(), day.to_string(), kind.to_owned());
        let mut counted = self.counted.lock().unwrap();
        let row = counted.entry(key).or_default();
        row.0 += cost;
        row.3 += 1;
        if returns {
            row.1 += cost;
            row.2 += cost;
        }
    }

    /// Five accounts with two kinds on each of `days` days, the last of them being today.
    pub(crate) async fn days(&self, days: u32) {
        for account in 0..5 {
            self.postpaid(&format!("acct-{account}")).await;
        }
        for day in 0..days {
            if day > 0 {
                self.clock.advance_by(Duration::from_secs(86_400));
            }
            for account in 0..5 {
                for (kind, cost) in [("video", 40), ("text", 3)] {
                    self.usage(&format!("acct-{account}"), kind, cost).await;
                    self.usage(&format!("acct-{account}"), kind, cost + 1).await;
                }
            }
        }
    }

    pub(crate) fn counted(&self) -> Usage {
        self.counted.lock().unwrap().clone()
    }

    pub(crate) fn shown(&self) -> Usage {
        let connection = rusqlite::Connection::open(self.store.path()).unwrap();
        let sql = "SELECT account, day, kind, charged, refunded, reclaimed, jobs FROM daily_usage";
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| {
            Ok((
                (row.get(0)?, row.get(1)?, row.get(2)?),
                (row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?),
            ))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    pub(crate) fn sql(&self, sql: &str) -> usize {
        let connection = rusqlite::Connection::open(self.store.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute(sql, []).unwrap()
    }

    pub(crate) async fn catch_up(&self) {
        self.projections.catch_up().await.unwrap();
    }

    pub(crate) async fn rebuild(&self, mode: Mode, window: Window) -> Run {
        let request = request(mode, window);
        rebuild(&self.projections, &request, &Control::default())
            .await
            .unwrap()
    }

    /// How many rows a run finds different.
    pub(crate) async fn different(&self, mode: Mode, window: Window) -> i64 {
        self.rebuild(mode, window).await.rows_different
    }

    /// How many rows a run finds different again.
    pub(crate) async fn recurring(&self, mode: Mode, window: Window) -> i64 {
        self.rebuild(mode, window).await.rows_recurring
    }

    pub(crate) async fn differences(&self, run: &Run) -> Vec<Difference> {
        differences(self.projections.database(), run.run, None, 1_000)
            .await
            .unwrap()
    }

    /// Everything is applied, audited, and what was asked for.
    pub(crate) async fn is_right(&self) {
        self.catch_up().await;
        assert_eq!(self.shown(), self.counted());
        let audit = audit(self.projections.database()).await.unwrap();
        assert_eq!(audit.violations, 0, "{:?}", audit.findings);
    }
}

pub(crate) fn request(mode: Mode, window: Window) -> Request {
    Request {
        window,
        account: None,
        mode,
        origin: Origin::Operator,
    }
}

/// The manual clock, as this test needs it.
pub(crate) trait Hands {
    fn now_at(&self) -> Timestamp;
    fn advance_by(&self, by: Duration);
}

impl Hands for ManualClock {
    fn now_at(&self) -> Timestamp {
        recoup::Clock::now(self)
    }

    fn advance_by(&self, by: Duration) {
        self.advance(by);
    }
}
