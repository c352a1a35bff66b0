//! Callers that charge, fail and succeed jobs, know what they were told, and repeat what they were not told, as a service does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::StoreError;
use recoup::{
    AccountId, Attempt, Command, CommandId, Cost, EventStore, FailureClass, Floor, Grant, GrantId,
    JobCommand, JobId, Kind, Ledger, LedgerError, Limit, Outcome, Policies, Position,
    PriceSnapshot,
};
use recoup_projections::Projections;
use recoup_projections::audit::audit;

/// What each job costs.
const COST: i64 = 7;

/// How often one command is repeated before it counts as never answered.
const MAX_TRIES: u32 = 2_000;

/// What a load has come to.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Lifecycles whose every command was answered.
    pub(crate) done: AtomicU64,
    /// Answers that said unknown or unavailable; each was repeated.
    pub(crate) repeated: AtomicU64,
    /// Those of them that said unknown.
    pub(crate) unknown: AtomicU64,
}

/// Callers on one ledger.
pub(crate) struct Load {
    pub(crate) ledger: Ledger,
    pub(crate) told: Arc<Told>,
    next: Arc<AtomicU32>,
    /// How many lifecycles there are to be.
    until: u32,
}

impl Load {
    pub(crate) async fn new(store: Arc<dyn EventStore>, until: u32) -> Self {
        let ledger = Ledger::new(store, Policies::default());
        let load = Self {
            ledger,
            told: Arc::default(),
            next: Arc::default(),
            until,
        };
        let limit = Limit {
            account: account(),
            floor: Some(Floor::None),
            monthly_cap: None,
        };
        let set = load.tell(Command::Limit(limit)).await;
        assert!(set.is_done(), "{set:?}");
        load
    }

    /// Runs `callers` until all lifecycles are done.
    pub(crate) async fn run(self: &Arc<Self>, callers: usize) {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let load = Arc::clone(self);
            running.spawn(async move {
                loop {
                    let number = load.next.fetch_add(1, Ordering::Relaxed);
                    if number >= load.until {
                        return;
                    }
                    load.lifecycle(number).await;
                }
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.expect("no caller panics");
        }
    }

    async fn lifecycle(&self, number: u32) {
        let job = JobId::new(format!("j{number}")).expect("valid");
        let cost = Cost::new(COST).expect("valid");
        let kind = Kind::new("k").expect("valid");
        let price = PriceSnapshot::flat(cost);
        let charge = self.ledger.charge_of(account(), kind, cost, price, None);
        let fail = JobCommand::Fail {
            attempt: Attempt::FIRST,
            class: FailureClass::Retryable,
            reason: None,
        };
        let succeed = JobCommand::Succeed {
            attempt: Attempt::FIRST,
            result: None,
        };
        for command in [
            JobCommand::Charge(Box::new(charge.expect("valid"))),
            fail,
            succeed,
        ] {
            let outcome = self.tell(Command::Job(job.clone(), command)).await;
            assert!(outcome.is_done(), "{job}: {outcome:?}");
        }
        self.told.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Appends one event.
    pub(crate) async fn grant(&self, number: u32) {
        let grant = Grant {
            account: account(),
            grant: GrantId::new(format!("g{number}")).expect("valid"),
            amount: Cost::new(1).expect("valid"),
        };
        assert!(self.tell(Command::Grant(grant)).await.is_done());
    }

    /// Sends a command under one id until it is answered.
    async fn tell(&self, command: Command) -> Outcome {
        let id = CommandId::random();
        let mut last = None;
        for _ in 0..MAX_TRIES {
            match self.ledger.execute(id.clone(), command.clone()).await {
                Ok(outcome) => return outcome,
                Err(error @ (LedgerError::OutcomeUnknown { .. } | LedgerError::Store(_))) => {
                    self.told.repeated.fetch_add(1, Ordering::Relaxed);
                    if matches!(
                        error,
                        LedgerError::OutcomeUnknown { .. }
                            | LedgerError::Store(StoreError::Unconfirmed { .. })
                    ) {
                        self.told.unknown.fetch_add(1, Ordering::Relaxed);
                    }
                    last = Some(error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("never answered: {last:?}");
    }

    /// Everything that was told is there, once, and nothing else.
    pub(crate) async fn is_right(&self, database: &Database) {
        let done = self.told.done.load(Ordering::Relaxed);
        assert_eq!(done, u64::from(self.until), "every lifecycle ended");
        let state = self.ledger.account(&account()).await.expect("readable");
        let spent = -COST * i64::from(self.until);
        assert_eq!((state.balance, state.held), (spent, 0));
        // Six events a lifecycle, one for the limit: no duplicate.
        let events = 6 * u64::from(self.until) + 1;
        assert_eq!(events_in(&*database.as_store()).await, events);
        let projections = Projections::open(database.clone()).await.expect("open");
        projections.catch_up().await.expect("applied");
        let audit = audit(database).await.expect("audited");
        assert_eq!(audit.violations, 0, "{:?}", audit.findings);
    }
}

/// How many events the log has; their positions are not a count on every backend.
async fn events_in(store: &dyn EventStore) -> u64 {
    let (mut count, mut position) = (0, Position::START);
    loop {
        let page = store.read_all(position, 500).await.expect("readable");
        let Some(last) = page.last() else {
            return count;
        };
        position = last.position;
        count += u64::try_from(page.len()).expect("a page is small");
    }
}

fn account() -> AccountId {
    AccountId::new("acme").expect("valid")
}
