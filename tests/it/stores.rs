//! Stores to test a ledger over: real ones, and a wrapper whose answers go as a test has written down.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use recoup::codec::StreamName;
use recoup::sql::Database;
use recoup::store::fresh::{Fresh, backend};
use recoup::store::{Append, Appended, Identity, RecordedEvent, StoreError};
use recoup::{
    AccountId, AccountState, BudgetMonth, Clock, EventStore, Ledger, ManualClock, Policies,
    Position, Revision, Timestamp,
};
use tokio::sync::watch;

use crate::values::noon;

/// A ledger's place, which goes with it, and its clock.
pub(crate) struct Place {
    pub(crate) clock: ManualClock,
    pub(crate) fresh: Fresh,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::starting_at(noon())
    }

    pub(crate) fn starting_at(start: Timestamp) -> Self {
        recoup_kurrentdb_standin::keep_logs();
        Self {
            clock: ManualClock::starting_at(start),
            fresh: Fresh::new(),
        }
    }

    /// A store of its own on it, as another process would have.
    pub(crate) async fn store(&self) -> Arc<Database> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        Arc::new(self.fresh.open(clock).await)
    }

    /// A ledger with a store and a cache of its own.
    pub(crate) async fn ledger(&self) -> Ledger {
        ledger(self.store().await)
    }
}

/// How many tries of a property: a tenth over a server, where each ledger is a schema that has to be made.
pub(crate) fn tries(cases: u32) -> u32 {
    if backend() == "sqlite" {
        cases
    } else {
        cases.div_ceil(10)
    }
}

pub(crate) fn ledger(store: Arc<dyn EventStore>) -> Ledger {
    Ledger::new(store, Policies::default())
}

/// The whole log, in order.
pub(crate) async fn log(store: &dyn EventStore) -> Vec<RecordedEvent> {
    store
        .read_all(Position::START, usize::MAX)
        .await
        .expect("the log is readable")
}

/// What becomes of an append.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Fine,
    /// The inner store has answered, and the answer is lost.
    AnswerLost,
    /// The append never arrived.
    NeverSent,
}

/// A store whose appends meet the fates of a list, in order; past its end all is fine.
#[derive(Debug)]
pub(crate) struct Scripted {
    inner: Arc<dyn EventStore>,
    fates: Mutex<VecDeque<Fate>>,
}

impl Scripted {
    pub(crate) fn new(inner: Arc<dyn EventStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fates: Mutex::default(),
        })
    }

    /// Adds to the list.
    pub(crate) fn then(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(fates);
    }

    fn next(&self) -> Fate {
        let mut fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        fates.pop_front().unwrap_or(Fate::Fine)
    }
}

fn lost() -> Appended {
    Appended::Unknown {
        cause: "the test lost it".to_owned(),
    }
}

#[async_trait]
impl EventStore for Scripted {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        match self.next() {
            Fate::Fine => self.inner.append(append).await,
            Fate::AnswerLost => self.inner.append(append).await.map(|_| lost()),
            Fate::NeverSent => Ok(lost()),
        }
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        // One fate for the whole call: its members share a commit.
        match self.next() {
            Fate::Fine => self.inner.append_many(appends).await,
            Fate::AnswerLost => {
                let answers = self.inner.append_many(appends).await;
                answers
                    .into_iter()
                    .map(|answer| answer.map(|_| lost()))
                    .collect()
            }
            Fate::NeverSent => appends.iter().map(|_| Ok(lost())).collect(),
        }
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.inner.read_stream(stream, from).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.inner.read_streams(streams).await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.inner.read_all(after, limit).await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.inner.head().await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        self.inner.account(account, month).await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        self.inner.accounts(after, limit).await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.inner.appended()
    }
}
