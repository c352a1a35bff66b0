//! A log over a stand-in, and a store that has figures folded from it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use recoup::account::{AccountEvent, AccountState};
use recoup::clock::{BudgetMonth, Clock, ManualClock, Timestamp};
use recoup::codec::{Decoded, Event, StreamName, decode};
use recoup::ids::AccountId;
use recoup::store::kurrentdb::{Log, Options};
use recoup::store::{
    Append, Appended, EventStore, Identity, Position, RecordedEvent, Revision, StoreError,
};
use recoup_kurrentdb_standin::{Standin, Ticks};
use tokio::sync::watch;

/// Sunday noon, in the month that the suite's jobs are charged in.
pub(crate) fn noon() -> Timestamp {
    Timestamp::parse("2026-11-29T12:00:00Z").expect("a literal is an instant")
}

/// The stand-in's time is the test's.
pub(crate) fn ticks(clock: Arc<dyn Clock>) -> Ticks {
    Arc::new(move || clock.now().as_micros().unsigned_abs() * 10)
}

/// A stand-in at noon: the month that jobs are charged in is not over.
pub(crate) async fn standin(nodes: usize) -> Standin {
    let clock = ManualClock::starting_at(noon());
    Standin::with(nodes, ticks(Arc::new(clock))).await
}

/// Patience that is long for a server that answers, and short for a test.
pub(crate) fn options(standin: &Standin) -> Options {
    options_at(standin.connection_string())
}

/// The same, for the server at `connection`.
pub(crate) fn options_at(connection: String) -> Options {
    Options {
        connect_within: Duration::from_secs(10),
        answer_within: Duration::from_secs(10),
        ..Options::at(connection)
    }
}

/// Opens a log that nothing speaks against.
pub(crate) async fn open(options: Options) -> Log {
    let opened = bounded("an opening", Log::open(options)).await;
    opened.expect("nothing speaks against it")
}

/// Waits for `future`, but not for ever.
pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(60);
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: no answer within {PATIENCE:?}"),
    }
}

/// A log with figures that are folded from it whenever they are asked for. It admits everything.
#[derive(Debug)]
pub(crate) struct Folded(pub(crate) Log);

#[async_trait]
impl EventStore for Folded {
    fn identity(&self) -> &Identity {
        self.0.identity()
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.0.append(append).await
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        self.0.append_many(appends).await
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.0.read_stream(stream, from).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.0.read_streams(streams).await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.0.read_all(after, limit).await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.0.head().await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        let mut accounts = self.accounts(None, usize::MAX).await?.into_iter();
        let found = accounts.find(|(of, _)| of == account);
        let mut state = found.map(|(_, state)| state).unwrap_or_default();
        state.months.retain(|&of, _| of == month);
        Ok(state)
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let mut accounts = std::collections::BTreeMap::<AccountId, AccountState>::new();
        for recorded in self.0.read_all(Position::START, usize::MAX).await? {
            let position = recorded.position;
            let Ok(Decoded::Event(event)) = decode(&recorded) else {
                panic!("the suite writes what can be read");
            };
            if let Some(posting) = event.posting() {
                let state = accounts.entry(posting.account.clone()).or_default();
                state.apply(posting, position).expect("small numbers");
            } else if let Event::Account(AccountEvent::LimitsSet(set)) = &event {
                let state = accounts.entry(set.account.clone()).or_default();
                state.set_limits(set.limits, position);
            }
        }
        let accounts = accounts.into_iter();
        let accounts = accounts.filter(|(account, _)| after.is_none_or(|after| account > after));
        Ok(accounts.take(limit).collect())
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.0.appended()
    }
}
