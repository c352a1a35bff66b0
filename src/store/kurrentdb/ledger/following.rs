//! Figures that follow the log, and the end of what dead callers have reserved.
//!
//! A page is read without a transaction and folded in one that names where it begins; of several processes one folds it. What cannot be folded halts the
//! figures in front of it, written down with the place that they have come to.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::Shared;
use crate::clock::Timestamp;
use crate::codec::{Event, Stream};
use crate::ids::CommandId;
use crate::job::{JobEvent, Voided};
use crate::sql::Transaction;
use crate::store::kurrentdb::beside::{self, Followed, Reservation};
use crate::store::kurrentdb::error::unavailable;
use crate::store::{Append, EventStore, OpenError, Position, RecordedEvent, StoreError};

/// How many events are folded in one transaction.
const PAGE_EVENTS: usize = 1_000;

/// How long the figures' task lets appends gather.
pub(super) const LINGER: Duration = Duration::from_millis(20);

/// The longest wait between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many reservations one round of recovery ends.
const RECOVERED_AT_ONCE: u32 = 64;

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
    pub(super) async fn state(&self) -> Result<Followed, StoreError> {
        self.beside.glance(beside::read_state).await
    }

    /// An error if the figures were folded from another log than the one that is there.
    pub(super) async fn check_log(&self) -> Result<(), OpenError> {
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

    /// Ends reservations that are older than `age`.
    pub(super) async fn recover(&self, age: Duration) -> Result<usize, StoreError> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let before = Timestamp::from_micros(self.beside.now().as_micros().saturating_sub(age));
        let read = move |tx: &Transaction<'_>| beside::read_older(tx, before, RECOVERED_AT_ONCE);
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
