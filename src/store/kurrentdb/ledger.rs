//! A ledger whose log is in KurrentDB and whose figures are in an SQL database beside it.
//!
//! A charge goes three steps, since two databases share no transaction. Its credit is reserved (one conditional write beside the log); it is appended; and
//! whoever folds the log next closes the reservation in the transaction that applies the event ([`beside`](super::beside)). In between the credit
//! counts as spent. A caller that loses its append releases nothing: the event that it lost to closes what it shared with the winner.
//!
//! **A caller that dies in between** leaves a reservation. Recovery ends one that is old by appending a `Voided` at the very revision that it was made for.
//! If that is stored, the late append can never be: the server's guard refuses it, and the credit is free when the `Voided` is folded. If it
//! conflicts, another event stands there, which closes the reservation as any other does. If the server does not answer, nothing is decided. No time decides about
//! money: a `Voided` that comes early costs the caller a second decision.
//!
//! **Refusals** are as exact as in one database: before one is told, the figures are brought to the end of the log and the charge is asked for once more; and
//! then its stream is looked at, since a conflict comes before a refusal.
//!
//! **What takes credit and reserves none** (a reclaim, an adjustment, a limit) is folded before it is answered: from then on every process's next charge is
//! checked against it.
//!
//! **Reads of figures** bring them to the end of the log first.
//!
//! Work that was begun is gone on with when its caller goes away: an append must not stop between its steps for that reason alone. Tasks: one reserves for
//! everybody who waits, one follows the log and recovers. Both end with the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::beside::{self, Followed, Owner, Reservation, Reserved, Skip};
use super::error::unavailable;
use super::{Log, Options};
use crate::account::{AccountEvent, AccountState, Admission};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::{Event, Metadata, Stream, StreamName};
use crate::ids::{AccountId, CommandId};
use crate::job::{JobEvent, Voided};
use crate::sql::Database;
use crate::store::figures::touched;
use crate::store::{
    Append, Appended, EventStore, Expected, Identity, OpenError, Position, RecordedEvent, Revision,
    StoreError,
};

/// How many events are folded in one transaction.
const PAGE_EVENTS: usize = 1_000;

/// How many reservations are made in one transaction.
const MAX_GROUP: usize = 256;

/// How many appends may wait to be reserved for.
const QUEUE: usize = 4_096;

/// How long the figures' task lets appends gather.
const LINGER: Duration = Duration::from_millis(20);

/// The longest wait between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many reservations one round of recovery ends.
const RECOVERED_AT_ONCE: u32 = 64;

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
    folding: tokio::sync::Mutex<()>,
    recovery: Recovery,
    patience: Duration,
}

/// Somebody waits for a reservation.
#[derive(Debug)]
struct Ask {
    wanted: Reservation,
    reply: oneshot::Sender<Result<Reserved, StoreError>>,
}

impl KurrentStore {
    /// Opens the log, and beside it the database that `open_beside` gives: one that is opened with the zone and scale of the identity that it is handed. Creates what is not there.
    ///
    /// A database that has a log of its own, or the figures of another log, is refused.
    pub async fn open<F>(
        options: Options,
        recovery: Recovery,
        open_beside: impl FnOnce(Identity) -> F,
    ) -> Result<Self, OpenError>
    where
        F: Future<Output = Result<Database, OpenError>>,
    {
        let (prefix, patience) = (options.prefix.to_string(), options.connect_within);
        let log = Log::open(options).await?;
        let database = open_beside(log.identity().clone()).await?;
        let owner = Owner {
            ledger: log.identity().ledger.to_string(),
            prefix,
        };
        beside::bind(&database, owner).await?;
        let (asks, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(reserve_for_all(waiting, database.clone()));
        let shared = Arc::new(Shared {
            log,
            beside: database,
            asks,
            folding: tokio::sync::Mutex::new(()),
            recovery,
            patience,
        });
        shared.check_log().await?;
        tokio::spawn(follow(Arc::downgrade(&shared)));
        Ok(Self { shared })
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

    /// Brings the figures to the end of the log as it is now.
    pub async fn settle_figures(&self) -> Result<(), StoreError> {
        self.shared.catch_up().await
    }

    /// Ends every reservation that is older than `age`: appends that have not arrived by then never will. Gives how many it found.
    pub async fn recover(&self, age: Duration) -> Result<usize, StoreError> {
        self.shared.recover(age).await
    }

    /// The event that the figures cannot get past, and why.
    pub async fn halted(&self) -> Result<Option<(Position, String)>, StoreError> {
        Ok(self.shared.state().await?.halted)
    }

    /// Moves the figures past the event at `position`, if that is what they are halted at; `by` decides so for `reason`. False if it is not.
    pub async fn skip_figures(
        &self,
        position: Position,
        (reason, by): (String, String),
    ) -> Result<bool, StoreError> {
        let event = self.shared.log.place_of(position).await?;
        let skip = Skip {
            position,
            reason,
            by,
            at: self.now(),
            event,
        };
        let skipped = move |tx: &crate::sql::Transaction<'_>| beside::skip(tx, &skip);
        self.shared.beside.write_figures(skipped).await
    }
}

/// Reserves for everybody who waits, many in one transaction.
async fn reserve_for_all(mut waiting: mpsc::Receiver<Ask>, beside: Database) {
    while let Some(first) = waiting.recv().await {
        let mut asks = vec![first];
        while asks.len() < MAX_GROUP
            && let Ok(ask) = waiting.try_recv()
        {
            asks.push(ask);
        }
        let wanted: Vec<_> = asks.iter().map(|ask| ask.wanted.clone()).collect();
        let now = beside.now();
        let reserved = beside.write_figures(move |tx| beside::reserve(tx, &wanted, now));
        // A caller that is gone wants no answer.
        match reserved.await {
            Ok(answers) => {
                for (ask, answer) in asks.into_iter().zip(answers) {
                    let _ = ask.reply.send(Ok(answer));
                }
            }
            Err(error) => {
                for ask in asks {
                    let _ = ask.reply.send(Err(not_reserved(&error)));
                }
            }
        }
    }
}

/// Nothing was appended, whatever became of the reservation: one that is there is found when the append is tried again, or ended by recovery.
fn not_reserved(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unconfirmed { cause } => StoreError::Unavailable {
            cause: cause.clone(),
        },
        error => error.clone(),
    }
}

/// Keeps the figures near the end of the log, and ends what dead callers left behind.
async fn follow(shared: Weak<Shared>) {
    let Some(mut appended) = shared.upgrade().map(|shared| shared.log.appended()) else {
        return;
    };
    let mut recovered = Instant::now();
    loop {
        let _ = timeout(LOOK_EVERY, appended.changed()).await;
        sleep(LINGER).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        appended.borrow_and_update();
        let target = *appended.borrow();
        if let Err(error) = shared.fold_to(target).await {
            tracing::debug!(%error, "the figures fall behind the log");
        }
        if recovered.elapsed() >= shared.recovery.every {
            recovered = Instant::now();
            if let Err(error) = shared.recover(shared.recovery.after).await {
                tracing::debug!(%error, "old reservations are left for later");
            }
        }
    }
}

impl Shared {
    async fn state(&self) -> Result<Followed, StoreError> {
        self.beside.glance(beside::read_state).await
    }

    /// An error if the figures were folded from another log than the one that is there.
    async fn check_log(&self) -> Result<(), OpenError> {
        let state = self.state().await?;
        let Some(id) = state.event_id.filter(|id| *id != Uuid::nil().to_string()) else {
            return Ok(());
        };
        let found = match self.log.place_of(state.position).await? {
            Some((_, _, found)) if found.to_string() == id => return Ok(()),
            Some((_, _, found)) => found.to_string(),
            None => "nothing".to_owned(),
        };
        Err(OpenError::Damaged {
            path: self.beside.place_name(),
            why: format!(
                "its figures follow the log up to event {id} at position {}, where the log has {found}",
                state.position
            ),
        })
    }

    /// Folds everything up to the end of the log as it is now.
    async fn catch_up(&self) -> Result<(), StoreError> {
        let head = self.log.head().await?;
        self.fold_to(head).await
    }

    /// Folds everything up to `target`; an error if an event stands in the way.
    async fn fold_to(&self, target: Position) -> Result<(), StoreError> {
        let _one = self.folding.lock().await;
        let mut state = self.state().await?;
        while state.position < target {
            let from = state.position;
            let page = match self.log.read_all(from, PAGE_EVENTS).await {
                Ok(page) => page,
                Err(StoreError::Corrupt { position, why }) => {
                    return self.halt(from, Vec::new(), (position, why)).await;
                }
                Err(error) => return Err(error),
            };
            if page.is_empty() {
                return Err(unavailable("the log ends before its last event"));
            }
            state = match self.fold(from, page.clone(), None).await {
                Ok(state) => state,
                Err(StoreError::Corrupt { position, why }) => {
                    let readable = page
                        .into_iter()
                        .take_while(|event| event.position < position);
                    return self.halt(from, readable.collect(), (position, why)).await;
                }
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    async fn fold(
        &self,
        from: Position,
        page: Vec<RecordedEvent>,
        halt: Option<(Position, String)>,
    ) -> Result<Followed, StoreError> {
        let folded = self
            .beside
            .write_figures(move |tx| beside::fold(tx, from, &page, halt.as_ref()))
            .await;
        match folded {
            // What is there is read again, and what is missing folded again.
            Err(StoreError::Unconfirmed { cause }) => Err(StoreError::Unavailable { cause }),
            folded => folded,
        }
    }

    /// Folds what stands before an event that cannot be folded, and writes down that the figures are halted there.
    async fn halt(
        &self,
        from: Position,
        readable: Vec<RecordedEvent>,
        (position, why): (Position, String),
    ) -> Result<(), StoreError> {
        let halt = Some((position, why.clone()));
        let before = self.state().await?.halted;
        self.fold(from, readable, halt.clone()).await?;
        if before != halt {
            tracing::warn!(%position, why, "account figures are halted");
        }
        Err(StoreError::Corrupt { position, why })
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        if let Some(conflict) = self.log.conflict_without_asking(&append).await? {
            return Ok(conflict);
        }
        match &append.admission {
            None => self.append_and_fold(append).await,
            Some(Admission::Post { .. }) => self.post(append).await,
            Some(Admission::Spend { .. }) => self.spend(append).await,
        }
    }

    /// Where the append's stream is, if that is not where the append expects it.
    async fn conflict(&self, append: &Append) -> Result<Option<Appended>, StoreError> {
        let stored = self
            .log
            .read_stream(&append.stream, Revision::FIRST)
            .await?;
        let current = stored.last().map(|last| last.revision);
        let is_there = Expected::after(current) == append.expected;
        Ok((!is_there).then_some(Appended::Conflict { current }))
    }

    /// What moves credit and spends none is checked, and reserves nothing.
    async fn post(&self, append: Append) -> Result<Appended, StoreError> {
        let Some(admission) = append.admission.clone() else {
            return self.append_and_fold(append).await;
        };
        self.catch_up().await?;
        let checked = self
            .beside
            .glance(move |tx| beside::admit_post(tx, &admission))
            .await?;
        match checked {
            Ok(()) => self.append_and_fold(append).await,
            Err(refusal) => match self.conflict(&append).await? {
                Some(conflict) => Ok(conflict),
                None => Ok(Appended::Refused(refusal)),
            },
        }
    }

    /// Appends what reserves nothing; what takes credit is in the figures when it is answered, also by a conflict: its own first sending may be what it met.
    async fn append_and_fold(&self, append: Append) -> Result<Appended, StoreError> {
        let takes = append.events.iter().any(|new| takes_credit(&new.event));
        let answer = self.log.append(append).await?;
        let folded = match (&answer, takes) {
            (Appended::Committed { position, .. }, true) => self.fold_to(*position).await,
            (Appended::Conflict { .. }, true) => self.catch_up().await,
            (Appended::Refused(_) | Appended::Unknown { .. }, true) | (_, false) => Ok(()),
        };
        if let Err(error) = folded {
            // It is stored, and folded sooner or later: its caller is told so.
            tracing::warn!(%error, "an event that takes credit is not in the figures yet");
        }
        Ok(answer)
    }

    async fn spend(&self, append: Append) -> Result<Appended, StoreError> {
        let until = Instant::now() + self.patience;
        let mut is_exact = false;
        loop {
            match self.reserve(&append).await? {
                Reserved::Held => return self.log.append(append).await,
                Reserved::Passed => {
                    // Folded already, so the stream surely tells it.
                    if let Some(conflict) = self.conflict(&append).await? {
                        return Ok(conflict);
                    }
                    return Err(unavailable("the stream is behind what was folded of it"));
                }
                Reserved::Refused(refusal) if is_exact => {
                    return Ok(match self.conflict(&append).await? {
                        Some(conflict) => conflict,
                        None => Appended::Refused(refusal),
                    });
                }
                Reserved::Refused(_) => {
                    self.catch_up().await?;
                    is_exact = true;
                }
                Reserved::Waits(other) => {
                    self.catch_up().await?;
                    if let Some(conflict) = self.conflict(&append).await? {
                        return Ok(conflict);
                    }
                    if Instant::now() >= until {
                        let cause = format!(
                            "credit is taken for command {} on the same job, whose append is on its way",
                            other.command
                        );
                        return Err(StoreError::Unavailable { cause });
                    }
                    sleep(LINGER).await;
                }
            }
        }
    }

    async fn reserve(&self, append: &Append) -> Result<Reserved, StoreError> {
        let metadata = Metadata::parse(append.metadata.as_bytes(), Position::START);
        let command = metadata.map_err(|error| unavailable(error.to_string()))?;
        let Some(wanted) = Reservation::of(append, &command.command) else {
            return Ok(Reserved::Held);
        };
        let (reply, answer) = oneshot::channel();
        let ask = Ask { wanted, reply };
        let gone = || unavailable("the task that reserves has ended");
        match timeout(self.patience, self.asks.send(ask)).await {
            Ok(Ok(())) => answer.await.map_err(|_| gone())?,
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(unavailable(format!(
                "{QUEUE} appends wait to be reserved for"
            ))),
        }
    }

    /// Ends reservations that are older than `age`.
    async fn recover(&self, age: Duration) -> Result<usize, StoreError> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let before = Timestamp::from_micros(self.beside.now().as_micros().saturating_sub(age));
        let read = move |tx: &crate::sql::Transaction<'_>| {
            beside::read_older(tx, before, RECOVERED_AT_ONCE)
        };
        if self.beside.glance(read).await?.is_empty() {
            return Ok(0);
        }
        // Most of them wait for nothing but this.
        self.catch_up().await?;
        let old = self.beside.glance(read).await?;
        for reservation in &old {
            match self.void(reservation).await {
                Ok(()) => {}
                // Nobody is there to be asked: the others would have to wait for the same.
                Err(error @ StoreError::Unavailable { .. }) => return Err(error),
                Err(error) => {
                    let stream = &reservation.stream;
                    tracing::warn!(stream.name = %stream, %error, "a reservation cannot be given up");
                }
            }
        }
        self.catch_up().await?;
        Ok(old.len())
    }

    /// Puts an end to whatever was to be appended at the reservation's place.
    async fn void(&self, reservation: &Reservation) -> Result<(), StoreError> {
        let damaged = |why: String| StoreError::Damaged {
            why: format!("table reservations: {why}"),
        };
        let stream = reservation.stream.parse();
        let stream = stream.map_err(|error| damaged(error.to_string()))?;
        let command = CommandId::new(&reservation.command);
        let command = command.map_err(|error| damaged(error.to_string()))?;
        let append = voided(&stream, reservation, command);
        let answer = self.log.append(append).await?;
        tracing::info!(stream.name = %reservation.stream, ?answer, "a reservation was given up");
        Ok(())
    }
}

/// Whether an event may leave less to be spent than before.
fn takes_credit(event: &Event) -> bool {
    match event.posting() {
        Some(posting) => posting.held > posting.amount,
        None => matches!(event, Event::Account(AccountEvent::LimitsSet(_))),
    }
}

/// The same in every process, so that a repeat is one.
fn voided(stream: &Stream, reservation: &Reservation, command: CommandId) -> Append {
    let name = format!(
        "{}@{}:{}",
        reservation.stream, reservation.revision, command
    );
    let own = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
    let own = CommandId::new(format!("void-{own}")).expect("a UUID is an id");
    let event = Event::Job(JobEvent::Voided(Voided { command }));
    Append::new(stream, reservation.expected(), &own, vec![event], None)
}

/// Appends that share a stream or an account, in the order of their call: what one leads to decides about the next.
fn related(appends: Vec<Append>) -> Vec<Vec<(usize, Append)>> {
    let mut groups: Vec<Vec<(usize, Append)>> = Vec::new();
    let mut of_key: HashMap<String, usize> = HashMap::new();
    for (index, append) in appends.into_iter().enumerate() {
        let admitted = append.admission.iter().map(Admission::account);
        let moved = append.events.iter().filter_map(|new| touched(&new.event));
        let accounts = admitted.chain(moved).map(|account| format!("a{account}"));
        let keys: Vec<_> = accounts.chain([format!("s{}", append.stream)]).collect();
        let mut known: Vec<_> = keys
            .iter()
            .filter_map(|key| of_key.get(key).copied())
            .collect();
        known.sort_unstable();
        known.dedup();
        let home = known.first().copied().unwrap_or(groups.len());
        if home == groups.len() {
            groups.push(Vec::new());
        }
        for other in known.into_iter().skip(1) {
            let moved = std::mem::take(&mut groups[other]);
            groups[home].extend(moved);
            for group in of_key.values_mut().filter(|group| **group == other) {
                *group = home;
            }
        }
        groups[home].push((index, append));
        for key in keys {
            of_key.insert(key, home);
        }
    }
    for group in &mut groups {
        group.sort_unstable_by_key(|(index, _)| *index);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

async fn append_in_order(
    shared: Arc<Shared>,
    group: Vec<(usize, Append)>,
) -> Vec<(usize, Result<Appended, StoreError>)> {
    let mut answers = Vec::with_capacity(group.len());
    let mut broken: HashSet<StreamName> = HashSet::new();
    for (index, append) in group {
        let stream = append.stream.clone();
        let answer = if broken.contains(&stream) {
            let stored = shared.log.read_stream(&stream, Revision::FIRST).await;
            stored.map(|events| Appended::Conflict {
                current: events.last().map(|last| last.revision),
            })
        } else {
            shared.append(append).await
        };
        if !matches!(answer, Ok(Appended::Committed { .. })) {
            broken.insert(stream);
        }
        answers.push((index, answer));
    }
    answers
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
        self.shared.log.read_stream(stream, from).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.shared.log.read_streams(streams).await
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
