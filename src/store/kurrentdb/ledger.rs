//! A ledger whose log is in KurrentDB and whose figures are in an SQL database beside it.
//!
//! A charge goes three steps, since two databases share no transaction. Its credit is reserved (one conditional write beside the log); it is appended; and
//! whoever folds the log next closes the reservation in the transaction that applies the event ([`beside`](super::beside)). In between the credit
//! counts as spent. A caller that loses its append releases nothing: the event that it lost to closes what it shared with the winner.
//!
//! **Figures that are behind.** What is spent and not folded yet counts by its reservation, so nothing is decided over figures that may have lost some: behind
//! where this process has seen them, or behind the log as it was when it was opened, they are brought forward first. And of two databases beside one log
//! neither would know the other's reservations: the log names the one that keeps the figures (`keeper`).
//!
//! **A caller that dies in between** leaves a reservation. Recovery ends one that is old by appending a `Voided` at the very revision that it was made for.
//! If that is stored, the late append can never be: the server's guard refuses it, and the credit is free when the `Voided` is folded. If it
//! conflicts, another event stands there, which closes the reservation as any other does. If the server does not answer, nothing is decided. No time decides about
//! money: a `Voided` that comes early costs the caller a second decision.
//!
//! **Refusals** are as exact as in one database: before one is told, the figures are brought to the end of the log and the charge is asked for once more. A
//! conflict comes before a refusal: a stream that has gone on is folded by then.
//!
//! **What takes credit and reserves none** (a reclaim, an adjustment, a limit) is folded before it is answered, by whoever appended or read it: from then on every process's next charge is
//! checked against it. Where that fails its outcome is unknown, and the repeat folds it.
//!
//! **Reads of figures** bring them to the end of the log first.
//!
//! Work that was begun is gone on with when its caller goes away: an append must not stop between its steps for that reason alone. Tasks: one reserves for
//! everybody who waits, one follows the log and recovers. Both end with the store.
//! A task that panics begins anew.
//! (`spending`: the steps of an append; `following`: figures and recovery; `together`: many appends in one call.)

mod following;
mod spending;
mod together;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use self::following::{Figures, follow};
use self::spending::{Ask, QUEUE, reserve_for_all};
use self::together::{append_in_order, related};
use super::beside::{self, Owner, Skip};
use super::{Log, Options, keep_going};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::StreamName;
use crate::ids::{AccountId, Reason};
use crate::sql::Database;
use crate::store::{
    Append, Appended, EventStore, Identity, OpenError, Position, RecordedEvent, Revision,
    StoreError,
};

/// When recovery takes a caller for dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// How old a reservation must be.
    pub after: Duration,
    /// How often old ones are looked for.
    pub every: Duration,
}

impl Default for Recovery {
    /// After 30 s, looked for every 5 s.
    fn default() -> Self {
        Self {
            after: Duration::from_secs(30),
            every: Duration::from_secs(5),
        }
    }
}

/// A ledger with its log in KurrentDB and its figures beside it. Clones share both.
#[derive(Debug, Clone)]
pub struct KurrentStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    beside: Database,
    asks: mpsc::Sender<Ask>,
    /// Held by the one who folds.
    folding: Mutex<()>,
    figures: Arc<Figures>,
    recovery: Recovery,
    patience: Duration,
}

impl KurrentStore {
    /// Opens the log, and beside it the database that `open_beside` gives: one that is opened with the zone and scale of the identity that it is handed. Creates what is not there.
    ///
    /// The first database beside a log keeps its figures from then on. Another one is refused ([`OpenError::Foreign`]), and so is a database that has a log of its own, or the figures of another log.
    pub async fn open<F>(
        options: Options,
        recovery: Recovery,
        open_beside: impl FnOnce(Identity) -> F,
    ) -> Result<Self, OpenError>
    where
        F: Future<Output = Result<Database, OpenError>>,
    {
        let patience = options.connect_within;
        let (log, database) = open_both(options, open_beside).await?;
        log.bind_keeper(&database).await?;
        let (asks, waiting) = mpsc::channel(QUEUE);
        let figures = Arc::new(Figures::from(log.head().await?));
        let shared = Arc::new(Shared {
            log,
            beside: database.clone(),
            asks,
            folding: Mutex::new(()),
            figures: Arc::clone(&figures),
            recovery,
            patience,
        });
        shared.check_log().await?;
        let waiting = Arc::new(Mutex::new(waiting));
        keep_going("reserving credit", move || {
            reserve_for_all(Arc::clone(&waiting), database.clone(), Arc::clone(&figures))
        });
        let weak = Arc::downgrade(&shared);
        keep_going("following the log", move || follow(weak.clone()));
        Ok(Self { shared })
    }

    /// Makes the database that `open_beside` gives the one that keeps the figures, instead of the one before; `by` decides so for `reason`. False if it was already.
    ///
    /// What the one before had reserved for appends on their way is not known here, and its processes notice it only after [`Recovery::every`]: end every process that
    /// has the ledger open first.
    pub async fn move_figures<F>(
        options: Options,
        open_beside: impl FnOnce(Identity) -> F,
        reason: &Reason,
        by: &str,
    ) -> Result<bool, OpenError>
    where
        F: Future<Output = Result<Database, OpenError>>,
    {
        let (log, database) = open_both(options, open_beside).await?;
        log.move_keeper(&database, reason, by).await
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// The database beside it: everything but the log.
    #[must_use]
    pub fn beside(&self) -> &Database {
        &self.shared.beside
    }

    /// Brings the figures to the end of the log as it is now. Fails with [`StoreError::Corrupt`] where they are halted, and while the log or the database cannot be reached.
    pub async fn settle_figures(&self) -> Result<(), StoreError> {
        self.shared.catch_up().await
    }

    /// Ends every reservation that is older than `age`: appends that have not arrived by then never will. Gives how many it ended; one that cannot be ended is passed
    /// over, and told to the log of the process. Fails while the log or the database cannot be reached.
    pub async fn recover(&self, age: Duration) -> Result<usize, StoreError> {
        self.shared.recover(age).await
    }

    /// The event that the figures cannot get past, and why. Fails while the database cannot be reached.
    pub async fn halted(&self) -> Result<Option<(Position, String)>, StoreError> {
        Ok(self.shared.state().await?.halted)
    }

    /// Moves the figures past the event at `position`, if that is what they are halted at; `by` decides so for `reason`. False if they are not halted there. Fails while the log or the
    /// database cannot be reached.
    pub async fn skip_figures(
        &self,
        position: Position,
        reason: &Reason,
        by: &str,
    ) -> Result<bool, StoreError> {
        let event = self.shared.log.place_of(position).await?;
        let skip = Skip {
            position,
            reason: reason.clone(),
            by: by.to_owned(),
            at: self.now(),
            event,
        };
        let skipped = move |tx: &crate::sql::Transaction<'_>| beside::skip(tx, &skip);
        self.shared.beside.write_figures(skipped).await
    }
}

/// The log, and the database beside it, bound to the log.
async fn open_both<F>(
    options: Options,
    open_beside: impl FnOnce(Identity) -> F,
) -> Result<(Log, Database), OpenError>
where
    F: Future<Output = Result<Database, OpenError>>,
{
    let prefix = options.prefix.to_string();
    let log = Log::open(options).await?;
    let database = open_beside(log.identity().clone()).await?;
    let ledger = log.identity().ledger.to_string();
    beside::bind(&database, Owner { ledger, prefix }).await?;
    Ok((log, database))
}

/// The answer of a task that ended over an append.
fn unknown(died: &tokio::task::JoinError) -> Result<Appended, StoreError> {
    Ok(Appended::Unknown {
        cause: died.to_string(),
    })
}

#[async_trait]
impl EventStore for KurrentStore {
    fn identity(&self) -> &Identity {
        self.shared.log.identity()
    }

    fn now(&self) -> Timestamp {
        self.shared.log.now()
    }

    fn clock_skew(&self) -> Duration {
        self.shared.log.clock_skew()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        let shared = Arc::clone(&self.shared);
        let appended = tokio::spawn(async move { shared.append(append).await });
        appended.await.unwrap_or_else(|died| unknown(&died))
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        let mut answers: Vec<_> = appends
            .iter()
            .map(|_| {
                Ok(Appended::Unknown {
                    cause: "the task that appends has ended".to_owned(),
                })
            })
            .collect();
        let mut running = JoinSet::new();
        for group in related(appends) {
            running.spawn(append_in_order(Arc::clone(&self.shared), group));
        }
        // Dropping the set would end its tasks in the middle of their steps.
        let all = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(done) = running.join_next().await {
                all.extend(done.into_iter().flatten());
            }
            all
        });
        for (index, answer) in all.await.into_iter().flatten() {
            answers[index] = answer;
        }
        answers
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let events = self.shared.log.read_stream(stream, from).await?;
        self.shared.fold_what_takes(&events).await?;
        Ok(events)
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        let read = self.shared.log.read_streams(streams).await?;
        for events in &read {
            self.shared.fold_what_takes(events).await?;
        }
        Ok(read)
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.shared.log.read_all(after, limit).await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.shared.log.head().await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        self.shared.catch_up().await?;
        let account = account.clone();
        self.shared
            .beside
            .glance(move |tx| beside::read_account(tx, &account, month))
            .await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        self.shared.catch_up().await?;
        let after = after.cloned();
        self.shared
            .beside
            .glance(move |tx| {
                let mut accounts = tx.read_accounts(after.as_ref(), limit)?;
                beside::add_reserved(tx, &mut accounts)?;
                Ok(accounts)
            })
            .await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.shared.log.appended()
    }
}
