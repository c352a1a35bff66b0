//! A ledger of its own, usage in it that is counted apart, and ways to spoil its rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::fresh::{Fresh, Opening};
use recoup::{
    AccountId, Attempt, CommandId, Cost, EventStore, FailureClass, Floor, JobCommand, JobId, Kind,
    Ledger, Limit, ManualClock, Policies, PriceSnapshot, Timestamp, Zone,
};
use recoup_projections::Projections;
use recoup_projections::audit::audit;
use recoup_rebuild_worker::rebuild::{
    Control, Difference, Mode, Origin, Request, Run, Window, differences, rebuild,
};

/// (account, day, kind) → (charged, refunded, reclaimed, jobs): counted from what was asked for, not from the log.
pub(crate) type Usage = BTreeMap<(String, String, String), (i64, i64, i64, i64)>;

pub(crate) struct World {
    pub(crate) fresh: Fresh,
    pub(crate) clock: ManualClock,
    pub(crate) store: Database,
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
        recoup_kurrentdb_standin::keep_logs();
        let fresh = Fresh::new();
        let clock = ManualClock::starting_at(at(start));
        let opening = Opening {
            clock: Arc::new(clock.clone()),
            zone: Some(Zone::parse(zone).unwrap()),
            ..Opening::default()
        };
        let store = fresh.open_with(opening).await.unwrap();
        let ledger = Ledger::new(store.as_store(), Policies::default());
        let projections = Projections::open(store.clone()).await.unwrap();
        Self {
            fresh,
            clock,
            store,
            ledger,
            projections,
            jobs: AtomicU64::new(0),
            counted: std::sync::Mutex::default(),
        }
    }

    /// The same ledger, opened as another process would.
    pub(crate) async fn beside(&self) -> Projections {
        self.beside_at(&self.clock).await
    }

    /// The same, by another clock.
    pub(crate) async fn beside_at(&self, clock: &ManualClock) -> Projections {
        let store = self.fresh.open(Arc::new(clock.clone())).await;
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
        let sql = "SELECT account, day, kind, charged, refunded, reclaimed, jobs FROM daily_usage";
        let rows = self.fresh.table(sql).into_iter().map(|row| {
            let [account, day, kind, charged, refunded, reclaimed, jobs] =
                row.try_into().expect("seven columns");
            let number = |text: String| text.parse().expect("a number");
            let sums = (charged, refunded, reclaimed, jobs);
            let sums = (
                number(sums.0),
                number(sums.1),
                number(sums.2),
                number(sums.3),
            );
            ((account, day, kind), sums)
        });
        rows.collect()
    }

    /// Gives how many rows it changed.
    pub(crate) fn sql(&self, sql: &str) -> u64 {
        self.fresh.execute(sql)
    }

    /// Brings the projections, and the account figures where they follow the log, to its end: what a test spoils then stays spoilt.
    pub(crate) async fn catch_up(&self) {
        self.projections.catch_up().await.unwrap();
        self.projections.database().settle_figures().await.unwrap();
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
