//! A ledger of its own, with claimed and external kinds of work.

use std::sync::Arc;
use std::time::Duration;

use recoup::job::{Job, Work};
use recoup::sql::Database;
use recoup::store::fresh::Fresh;
use recoup::{
    AccountId, Attempt, Claimed, CommandId, Cost, FailureClass, Grant, GrantId, JobCommand, JobId,
    Kind, Ledger, ManualClock, Mode, Outcome, Policies, Policy, PriceSnapshot, Timestamp, WorkerId,
};
use recoup_projections::Projections;
use recoup_projections::audit::audit;
use recoup_rebuild_worker::due::{self, Sweep};

pub(crate) const CLAIMED: &str = "video.render";
pub(crate) const EXTERNAL: &str = "audio.transcribe";
pub(crate) const COST: i64 = 40;
/// What the account has when all is said and nothing spent.
pub(crate) const OPENING: i64 = 1_000_000;
/// How often a claimed job is started.
pub(crate) const CAP: u32 = 3;

pub(crate) struct World {
    pub(crate) fresh: Fresh,
    pub(crate) clock: ManualClock,
    pub(crate) store: Database,
    pub(crate) ledger: Ledger,
    pub(crate) projections: Projections,
}

pub(crate) fn job(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

pub(crate) fn account() -> AccountId {
    AccountId::new("acme").unwrap()
}

pub(crate) fn policy() -> Policy {
    Policy {
        cap: CAP,
        ..Policy::default_for(Mode::Claimed)
    }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn open(fresh: &Fresh, clock: &ManualClock) -> (Database, Ledger, Projections) {
    let store = fresh.open(Arc::new(clock.clone())).await;
    let policies = Policies::default().with(Kind::new(CLAIMED).unwrap(), policy());
    let ledger = Ledger::new(store.as_store(), policies);
    let projections = Projections::open(store.clone()).await.unwrap();
    (store, ledger, projections)
}

impl World {
    pub(crate) async fn new() -> Self {
        recoup_kurrentdb_standin::keep_logs();
        let fresh = Fresh::new();
        let noon = Timestamp::parse("2026-11-29T12:00:00Z").unwrap();
        let clock = ManualClock::starting_at(noon);
        let (store, ledger, projections) = open(&fresh, &clock).await;
        let grant = Grant {
            account: account(),
            grant: GrantId::new("opening").unwrap(),
            amount: Cost::new(OPENING).unwrap(),
        };
        let granted = ledger.grant(CommandId::random(), grant).await.unwrap();
        assert!(granted.is_done());
        Self {
            fresh,
            clock,
            store,
            ledger,
            projections,
        }
    }

    /// The ledger and its projections as another process opens them: nothing is shared but what is stored.
    pub(crate) async fn beside(&self) -> (Ledger, Projections) {
        let (_, ledger, projections) = open(&self.fresh, &self.clock).await;
        (ledger, projections)
    }

    pub(crate) async fn send(&self, name: &str, command: JobCommand) -> Outcome {
        let id = CommandId::random();
        self.ledger.job(id, job(name), command).await.unwrap()
    }

    pub(crate) async fn charge(&self, name: &str, kind: &str) {
        let cost = Cost::new(COST).unwrap();
        let kind = Kind::new(kind).unwrap();
        let charge = self
            .ledger
            .charge_of(account(), kind, cost, PriceSnapshot::flat(cost), None)
            .unwrap();
        let outcome = self.send(name, JobCommand::Charge(Box::new(charge))).await;
        assert_eq!(outcome.name(), "applied", "{outcome:?}");
    }

    pub(crate) async fn catch_up(&self) {
        let progress = self.projections.catch_up().await.unwrap();
        assert_eq!(progress.halted().count(), 0, "{progress:?}");
    }

    /// Brings the projections to the head and claims at most `limit`.
    pub(crate) async fn claim(&self, limit: usize) -> Vec<Claimed> {
        self.catch_up().await;
        let claimed = self
            .ledger
            .claim(&self.projections, &[], &worker("w"), None, limit)
            .await;
        claimed.unwrap()
    }

    pub(crate) async fn claim_one(&self) -> Claimed {
        let mut claimed = self.claim(1).await;
        claimed.pop().expect("something is due")
    }

    /// Moves the clock, and lets everything run out that does.
    pub(crate) async fn pass(&self, duration: Duration) -> Sweep {
        self.clock.advance(duration);
        due::settle(&self.ledger, &self.projections).await.unwrap()
    }

    pub(crate) async fn fail(&self, name: &str, attempt: u32, class: FailureClass) {
        let fail = JobCommand::Fail {
            attempt: Attempt::new(attempt),
            class,
            reason: None,
        };
        let outcome = self.send(name, fail).await;
        assert!(outcome.is_done(), "{outcome:?}");
    }

    pub(crate) async fn succeed(&self, name: &str, attempt: u32) {
        let succeed = JobCommand::Succeed {
            attempt: Attempt::new(attempt),
            result: None,
        };
        let outcome = self.send(name, succeed).await;
        assert!(outcome.is_done(), "{outcome:?}");
    }

    pub(crate) async fn show(&self, name: &str) -> Job {
        self.ledger.show(&job(name)).await.unwrap().0
    }

    pub(crate) async fn state(&self, name: &str) -> &'static str {
        self.show(name).await.recorded().unwrap().work.name()
    }

    /// The names of the job's events, in order.
    pub(crate) async fn events(&self, name: &str) -> Vec<&'static str> {
        let (_, history) = self.ledger.show(&job(name)).await.unwrap();
        let events = history.iter().filter_map(|one| one.event.as_ref());
        events.map(recoup::job::JobEvent::name).collect()
    }

    /// When the job's retry is due.
    pub(crate) async fn due_at(&self, name: &str) -> Timestamp {
        match self.show(name).await.recorded().unwrap().work {
            Work::RetryScheduled { due_at, .. } => due_at,
            ref other => panic!("{name} is {other:?}"),
        }
    }

    /// Balance and hold.
    pub(crate) async fn figures(&self) -> (i64, i64) {
        let state = self.ledger.account(&account()).await.unwrap();
        (state.balance, state.held)
    }

    pub(crate) async fn audited(&self) {
        self.catch_up().await;
        let audit = audit(self.projections.database()).await.unwrap();
        assert_eq!(audit.findings, [], "no violation");
        assert_eq!(audit.violations, 0);
    }
}

impl World {
    /// The instant it will be in so many seconds.
    pub(crate) fn clock_in(&self, after_s: u64) -> Timestamp {
        recoup::Clock::now(&self.clock).after(seconds(after_s))
    }

    /// Gives a job's events a type that this build has never heard of. Gives what was there.
    pub(crate) fn break_stream(&self, name: &str) -> Vec<u8> {
        let sql = format!("SELECT body FROM appends WHERE stream = 'job-{name}' AND revision = 0");
        let body = self.fresh.bytes(&sql);
        let (known, unknown) = (b"recoup.job.charged", b"recoup.job.changed");
        let at = body.windows(known.len()).position(|some| some == known);
        let mut broken = body.clone();
        broken[at.unwrap()..][..known.len()].copy_from_slice(unknown);
        self.mend_stream(name, &broken);
        body
    }

    /// Puts the first append of a job's stream back.
    pub(crate) fn mend_stream(&self, name: &str, body: &[u8]) {
        let body = self.fresh.literal(body);
        let sql = format!(
            "UPDATE appends SET body = {body} WHERE stream = 'job-{name}' AND revision = 0"
        );
        assert_eq!(self.fresh.execute(&sql), 1);
    }
}
