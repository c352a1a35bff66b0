//! Ledgers over a stand-in, and what happens to them.

use std::sync::Arc;
use std::time::Duration;

use recoup::account::{AccountState, Admission, Posting, Refusal};
use recoup::clock::{Clock, ManualClock, Timestamp};
use recoup::codec::{Event, Stream};
use recoup::job::{Charged, JobEvent};
use recoup::store::fresh::{Fresh, Opening};
use recoup::store::kurrentdb::{KurrentStore, Options, Recovery};
use recoup::store::{
    Append, Appended, EventStore, Expected, Identity, OpenError, Position, Revision, StoreError,
};
use recoup::{AccountId, CommandId, Cost, JobId, Kind, Ledger, Policies, PriceSnapshot};
use recoup_kurrentdb_standin::{Standin, Ticks};

/// Sunday noon.
pub(crate) fn noon() -> Timestamp {
    Timestamp::parse("2026-11-29T12:00:00Z").expect("a literal is an instant")
}

/// The stand-in's time is the test's.
pub(crate) fn ticks(clock: Arc<dyn Clock>) -> Ticks {
    Arc::new(move || clock.now().as_micros().unsigned_abs() * 10)
}

/// A stand-in, and a database beside it.
pub(crate) struct World {
    pub(crate) standin: Standin,
    pub(crate) fresh: Fresh,
    pub(crate) clock: ManualClock,
}

/// Nothing is recovered unless a test says so.
pub(crate) const NEVER: Recovery = Recovery {
    after: Duration::from_secs(1_000_000),
    every: Duration::from_secs(1_000_000),
};

impl World {
    pub(crate) async fn new(nodes: usize) -> Self {
        let clock = ManualClock::starting_at(noon());
        Self {
            standin: Standin::with(nodes, ticks(Arc::new(clock.clone()))).await,
            fresh: Fresh::new(),
            clock,
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            connect_within: Duration::from_secs(10),
            answer_within: Duration::from_secs(10),
            clock: Arc::new(self.clock.clone()),
            poll_every: Duration::from_millis(20),
            ..Options::at(self.standin.connection_string())
        }
    }

    /// Patience that ends within a test.
    pub(crate) fn hasty(&self) -> Options {
        Options {
            connect_within: Duration::from_millis(400),
            answer_within: Duration::from_millis(400),
            ..self.options()
        }
    }

    /// A store, as another process would have it.
    pub(crate) async fn open(&self) -> KurrentStore {
        self.open_with(self.options()).await.expect("it opens")
    }

    /// A store whose account `a` was given so much, with its figures at the end of the log.
    pub(crate) async fn open_granted(&self, amount: i64) -> KurrentStore {
        let store = self.open().await;
        grant(&store, "a", amount).await;
        store.settle_figures().await.expect("they are settled");
        store
    }

    /// Stores what no version of ours has written, in a stream of account `a`.
    pub(crate) fn put_unheard_of(&self) {
        self.standin
            .put("recoup.grant-a+g9", "recoup.account.unheard_of", b"?");
    }

    pub(crate) async fn open_with(&self, options: Options) -> Result<KurrentStore, OpenError> {
        open_beside(&self.fresh, options, Arc::new(self.clock.clone())).await
    }

    /// A store that recovers by itself.
    pub(crate) async fn open_recovering(
        &self,
        options: Options,
        recovery: Recovery,
    ) -> KurrentStore {
        let opened = KurrentStore::open(options, recovery, |identity| {
            let clock = Arc::new(self.clock.clone());
            self.fresh.open_with(opening(&identity, clock))
        });
        opened.await.expect("it opens")
    }

    pub(crate) fn count(&self, table: &str) -> usize {
        let sql = format!("SELECT count(*) FROM {table}");
        let count = self.fresh.table(&sql)[0][0].parse();
        count.expect("a count is a number")
    }
}

pub(crate) async fn open_beside(
    fresh: &Fresh,
    options: Options,
    clock: Arc<dyn Clock>,
) -> Result<KurrentStore, OpenError> {
    let opened = KurrentStore::open(options, NEVER, |identity| {
        fresh.open_with(opening(&identity, clock))
    });
    bounded("an opening", opened).await
}

/// How a database is opened beside a log.
pub(crate) fn opening(identity: &Identity, clock: Arc<dyn Clock>) -> Opening {
    Opening {
        zone: Some(identity.zone),
        scale: Some(identity.scale),
        clock,
        is_beside_a_log: true,
        ..Opening::default()
    }
}

pub(crate) fn ledger(store: &KurrentStore) -> Ledger {
    Ledger::new(Arc::new(store.clone()), Policies::default())
}

pub(crate) fn account(name: &str) -> AccountId {
    AccountId::new(name).expect("a literal is an id")
}

pub(crate) fn command(name: &str) -> CommandId {
    CommandId::new(name).expect("a literal is an id")
}

pub(crate) async fn figures(store: &KurrentStore, of: &str) -> AccountState {
    let month = store.identity().zone.month_of(noon());
    let told = store.account(&account(of), month).await;
    told.expect("the figures are told")
}

/// Gives an account credit, through the ledger.
pub(crate) async fn grant(store: &KurrentStore, of: &str, amount: i64) {
    let grant = recoup::account::Grant {
        account: account(of),
        grant: recoup::ids::GrantId::new(format!("g{amount}")).expect("an id"),
        amount: Cost::new(amount).expect("an amount"),
    };
    let outcome = ledger(store)
        .execute(
            command(&format!("grant {of} {amount}")),
            recoup::ledger::Command::Grant(grant),
        )
        .await;
    assert!(outcome.expect("it is answered").is_done());
}

/// The charge of a job, as a caller decides it who has seen the job's stream up to `after`.
pub(crate) fn charge(job: &str, of: &str, cost: i64, after: Option<u64>) -> Append {
    charge_by(&format!("charge {job}"), (job, of, cost), after)
}

pub(crate) fn charge_by(
    by: &str,
    (job, of, cost): (&str, &str, i64),
    after: Option<u64>,
) -> Append {
    let cost = Cost::new(cost).expect("a cost");
    let month = recoup::Zone::UTC.month_of(noon());
    let charged = Charged {
        posting: Posting {
            account: account(of),
            kind: Some(Kind::new("video").expect("a kind")),
            amount: cost.debit(),
            held: 0,
            charged_at: Some(noon()),
            budget_month: Some(month),
        },
        price: PriceSnapshot::flat(cost),
        policy: recoup::Policy::default_for(recoup::retry::Mode::External),
    };
    let admission = Admission::Spend {
        account: account(of),
        cost,
        cap_month: Some(month),
    };
    Append::new(
        &Stream::Job(JobId::new(job).expect("an id")),
        Expected::after(after.map(Revision::new)),
        &command(by),
        vec![Event::Job(JobEvent::Charged(charged))],
        Some(admission),
    )
}

pub(crate) fn is_committed(answer: &Result<Appended, StoreError>) -> bool {
    matches!(answer, Ok(Appended::Committed { .. }))
}

/// Whether there was not enough credit.
pub(crate) fn is_refused(answer: &Result<Appended, StoreError>) -> bool {
    matches!(
        answer,
        Ok(Appended::Refused(Refusal::InsufficientCredit { .. }))
    )
}

/// The types of the events in a job's stream.
pub(crate) async fn history(store: &KurrentStore, job: &str) -> Vec<String> {
    let stream = Stream::Job(JobId::new(job).expect("an id")).name();
    let events = store.read_stream(&stream, Revision::FIRST).await;
    let events = events.expect("it is read");
    events
        .iter()
        .map(|event| event.type_name.to_string())
        .collect()
}

/// Every position of the ledger's log.
pub(crate) async fn positions(store: &KurrentStore) -> Vec<Position> {
    let events = store.read_all(Position::START, usize::MAX).await;
    events
        .expect("it is read")
        .iter()
        .map(|event| event.position)
        .collect()
}

/// Waits for `future`, but not for ever.
pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(60);
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: no answer within {PATIENCE:?}"),
    }
}
