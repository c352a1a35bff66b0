//! Figures that follow the log, and the end of what dead callers have reserved.
//!
//! A page is read without a transaction and folded in one that names where it begins; of several processes one folds it. What cannot be folded halts the
//! figures in front of it, written down with the place that they have come to.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::Shared;
use crate::clock::Timestamp;
use crate::codec::{Event, Stream};
use crate::ids::CommandId;
use crate::job::{JobEvent, Voided};
use crate::sql::Transaction;
use crate::store::kurrentdb::beside::{self, Followed, Old, Reservation};
use crate::store::kurrentdb::error::unavailable;
use crate::store::kurrentdb::keeper;
use crate::store::{Append, Appended, EventStore, OpenError, Position, RecordedEvent, StoreError};

/// How many events are folded in one transaction.
const PAGE_EVENTS: usize = 1_000;

/// How long the figures' task lets appends gather.
pub(super) const LINGER: Duration = Duration::from_millis(20);

/// The longest wait between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many reservations recovery reads at once, and how many of them it ends at once.
const OLD_AT_ONCE: u32 = 256;
const VOIDED_AT_ONCE: usize = 16;

/// What this process knows of the figures.
#[derive(Debug)]
pub(super) struct Figures {
    /// The position that they have been folded to, or that the log had when it was opened: what decides is not read from figures that are behind it.
    floor: AtomicI64,
    /// Whether the log named another database as theirs.
    is_elsewhere: AtomicBool,
}

impl Figures {
    pub(super) fn from(floor: Position) -> Self {
        Self {
            floor: AtomicI64::new(floor.get()),
            is_elsewhere: AtomicBool::new(false),
        }
    }

    pub(super) fn floor(&self) -> Position {
        Position::new(self.floor.load(Ordering::Acquire))
    }

    fn reached(&self, position: Position) {
        self.floor.fetch_max(position.get(), Ordering::AcqRel);
    }

    /// An error if the figures are another database's by now.
    pub(super) fn check_kept(&self) -> Result<(), StoreError> {
        if self.is_elsewhere.load(Ordering::Acquire) {
            return Err(StoreError::ReadOnly {
                cause: keeper::ELSEWHERE.to_owned(),
            });
        }
        Ok(())
    }
}

/// Keeps the figures near the end of the log, and ends what dead callers left behind.
pub(super) async fn follow(shared: Weak<Shared>) {
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
            tracing::warn!(%error, "account figures fall behind the log");
        }
        if recovered.elapsed() >= shared.recovery.every {
            recovered = Instant::now();
            shared.look_at_keeper().await;
            if let Err(error) = shared.recover(shared.recovery.after).await {
                tracing::warn!(%error, "credit that dead callers have reserved is not given back yet");
            }
        }
    }
}

impl Shared {
    pub(super) async fn state(&self) -> Result<Followed, StoreError> {
        self.beside.glance(beside::read_state).await
    }

    /// An error if the figures were folded from another log than the one that is there.
    pub(super) async fn check_log(&self) -> Result<(), OpenError> {
        let state = self.state().await?;
        let Some(id) = state.event_id else {
            return Ok(());
        };
        if id == Uuid::nil().to_string() {
            // Of an event that a person had them skip nothing may have been known.
            let is_skipped = move |tx: &Transaction<'_>| beside::is_skipped(tx, state.position);
            if self.beside.glance(is_skipped).await? {
                return Ok(());
            }
        }
        let found = match self.log.place_of(state.position).await? {
            Some(found) if found.id.to_string() == id => return Ok(()),
            Some(found) => found.id.to_string(),
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
    pub(super) async fn catch_up(&self) -> Result<(), StoreError> {
        let head = self.log.head().await?;
        self.fold_to(head).await
    }

    /// Folds everything up to `target`; an error if an event stands in the way.
    pub(super) async fn fold_to(&self, target: Position) -> Result<(), StoreError> {
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

    pub(super) async fn fold(
        &self,
        from: Position,
        page: Vec<RecordedEvent>,
        halt: Option<(Position, String)>,
    ) -> Result<Followed, StoreError> {
        let folded = self
            .beside
            .write_figures(move |tx| beside::fold(tx, from, &page, halt.as_ref()))
            .await;
        if let Ok(state) = &folded {
            self.figures.reached(state.position);
        }
        match folded {
            // What is there is read again, and what is missing folded again.
            Err(StoreError::Unconfirmed { cause }) => Err(StoreError::Unavailable { cause }),
            folded => folded,
        }
    }

    /// Folds what stands before an event that cannot be folded, and writes down that the figures are halted there.
    pub(super) async fn halt(
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

    /// Takes note if the log names another database as the figures' one.
    async fn look_at_keeper(&self) {
        match self.log.keeper().await {
            Ok(Some(keeper)) if keeper != self.beside.identity().ledger => {
                tracing::error!("{}", keeper::ELSEWHERE);
                self.figures.is_elsewhere.store(true, Ordering::Release);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "who keeps the figures is not known"),
        }
    }

    /// Ends reservations that are older than `age`; gives how many. One that cannot be ended is passed over, and stays.
    pub(super) async fn recover(self: &Arc<Self>, age: Duration) -> Result<usize, StoreError> {
        self.figures.check_kept()?;
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let now = self.beside.now().as_micros();
        let old = Old {
            before: Timestamp::from_micros(now.saturating_sub(age)),
            after: Timestamp::from_micros(now.saturating_add(age)),
        };
        if self.read_old(old, None).await?.is_empty() {
            return Ok(0);
        }
        // Most of them wait for nothing but this.
        self.catch_up().await?;
        let (mut ended, mut last) = (0, None);
        loop {
            let page = self.read_old(old, last).await?;
            last = page.last().cloned();
            if last.is_none() {
                break;
            }
            for some in page.chunks(VOIDED_AT_ONCE) {
                ended += self.void_all(some).await?;
            }
        }
        self.catch_up().await?;
        Ok(ended)
    }

    async fn read_old(
        &self,
        old: Old,
        last: Option<Reservation>,
    ) -> Result<Vec<Reservation>, StoreError> {
        let read =
            move |tx: &Transaction<'_>| beside::read_old(tx, old, last.as_ref(), OLD_AT_ONCE);
        self.beside.glance(read).await
    }

    /// Gives how many were ended. An error if nobody is there to be asked: the rest would have to wait for the same.
    async fn void_all(self: &Arc<Self>, some: &[Reservation]) -> Result<usize, StoreError> {
        let mut running = JoinSet::new();
        for reservation in some.iter().cloned() {
            let shared = Arc::clone(self);
            running.spawn(async move {
                let answer = shared.void(&reservation).await;
                (reservation, answer)
            });
        }
        let (mut ended, mut away) = (0, None);
        while let Some(done) = running.join_next().await {
            match done {
                Ok((_, Ok(is_ended))) => ended += usize::from(is_ended),
                Ok((_, Err(error @ StoreError::Unavailable { .. }))) => away = Some(error),
                Ok((reservation, Err(error))) => {
                    let stream = &reservation.stream;
                    tracing::warn!(stream.name = %stream, %error, "credit that is reserved cannot be given back");
                }
                Err(died) => tracing::error!(%died, "giving back reserved credit failed"),
            }
        }
        away.map_or(Ok(ended), Err)
    }

    /// Puts an end to whatever was to be appended at the reservation's place; says whether that is known.
    pub(super) async fn void(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let damaged = |why: String| StoreError::Damaged {
            why: format!("table reservations: {why}"),
        };
        let (stream, command) = reservation.parsed().map_err(damaged)?;
        let append = voided(&stream, reservation, command);
        let name = &reservation.stream;
        match self.log.append(append).await? {
            Appended::Committed { .. } => {
                tracing::info!(stream.name = %name, "a charge that never arrived was ruled out: its credit is given back");
                Ok(true)
            }
            Appended::Conflict { current } if current >= Some(reservation.revision) => Ok(true),
            Appended::Conflict { .. } => Err(damaged(format!(
                "{name}: credit is reserved at revision {}, which the stream has not come to",
                reservation.revision
            ))),
            Appended::Unknown { .. } | Appended::Refused(_) => Ok(false),
        }
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
