//! The steps of an append: what it spends is reserved, then it is sent to the log.
//!
//! One task of a process reserves for everybody who waits, many in one transaction. Every wait ends within the store's patience.

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::following::LINGER;
use crate::account::{AccountEvent, Admission};
use crate::codec::{Event, Metadata};
use crate::sql::Database;
use crate::store::kurrentdb::beside::{self, Reservation, Reserved};
use crate::store::kurrentdb::error::unavailable;
use crate::store::{Append, Appended, EventStore, Expected, Position, Revision, StoreError};

/// How many reservations are made in one transaction.
const MAX_GROUP: usize = 256;

/// How many appends may wait to be reserved for.
pub(super) const QUEUE: usize = 4_096;

/// Somebody waits for a reservation.
#[derive(Debug)]
pub(super) struct Ask {
    wanted: Reservation,
    reply: oneshot::Sender<Result<Reserved, StoreError>>,
}

/// Reserves for everybody who waits, many in one transaction.
pub(super) async fn reserve_for_all(mut waiting: mpsc::Receiver<Ask>, beside: Database) {
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

impl Shared {
    pub(super) async fn append(&self, append: Append) -> Result<Appended, StoreError> {
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
}

/// Whether an event may leave less to be spent than before.
fn takes_credit(event: &Event) -> bool {
    match event.posting() {
        Some(posting) => posting.held > posting.amount,
        None => matches!(event, Event::Account(AccountEvent::LimitsSet(_))),
    }
}
