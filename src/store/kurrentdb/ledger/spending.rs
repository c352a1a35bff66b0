//! The steps of an append: what it spends is reserved, then it is sent to the log.
//!
//! One task of a process reserves for everybody who waits, many in one transaction. Waits for another's reservation and for a place in the queue end within
//! the store's patience; a transaction of the database, and each read of the log, has bounds of its own. Figures that were lost are made anew before anything is
//! reserved, however long that takes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::following::{Figures, LINGER};
use crate::account::{AccountEvent, Admission};
use crate::codec::{Decoded, Event, Metadata, decode};
use crate::job::JobEvent;
use crate::sql::Database;
use crate::store::kurrentdb::beside::{self, Reservation, Reserved, Wanted};
use crate::store::kurrentdb::error::unavailable;
use crate::store::{
    Append, Appended, EventStore, Expected, Position, RecordedEvent, Revision, StoreError,
};

/// How many reservations are made in one transaction.
const MAX_GROUP: usize = 256;

/// How many appends may wait to be reserved for.
pub(super) const QUEUE: usize = 4_096;

/// The longest pause between two looks at another's reservation.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// Somebody waits for a reservation.
#[derive(Debug)]
pub(super) struct Ask {
    wanted: Wanted,
    reply: oneshot::Sender<Result<Reserved, StoreError>>,
}

/// Reserves for everybody who waits, many in one transaction.
pub(super) async fn reserve_for_all(
    waiting: Arc<Mutex<mpsc::Receiver<Ask>>>,
    beside: Database,
    figures: Arc<Figures>,
) {
    let mut waiting = waiting.lock().await;
    while let Some(first) = waiting.recv().await {
        let mut asks = vec![first];
        while asks.len() < MAX_GROUP
            && let Ok(ask) = waiting.try_recv()
        {
            asks.push(ask);
        }
        let wanted: Vec<_> = asks.iter().map(|ask| ask.wanted.clone()).collect();
        let floor = figures.floor();
        let reserved = beside.write_figures(move |tx| beside::reserve(tx, &wanted, floor));
        // A caller that is gone wants no answer.
        match reserved.await {
            Ok(answers) => {
                for (ask, answer) in asks.into_iter().zip(answers) {
                    let _ = ask.reply.send(answer);
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
    pub(super) async fn append(self: &Arc<Self>, append: Append) -> Result<Appended, StoreError> {
        if let Some(conflict) = self.log.conflict_without_asking(&append).await? {
            return Ok(conflict);
        }
        self.figures.check_kept()?;
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
        let Appended::Committed { position, .. } = &answer else {
            // What another one has stored is folded as it is read.
            return Ok(answer);
        };
        if !takes {
            return Ok(answer);
        }
        match unless_halted(self.fold_to(*position).await) {
            Ok(()) => Ok(answer),
            // The repeat of the append folds it, and is told what is stored.
            Err(error) => Ok(Appended::Unknown {
                cause: format!("what takes credit is not in the figures yet: {error}"),
            }),
        }
    }

    /// Folds what is read and takes credit without a reservation: whoever reads it answers that it is in force.
    pub(super) async fn fold_what_takes(&self, events: &[RecordedEvent]) -> Result<(), StoreError> {
        let floor = self.figures.floor();
        let unfolded = events.iter().rev().take_while(|it| it.position > floor);
        let mut taking = unfolded.filter(|it| match decode(it) {
            Ok(Decoded::Event(event)) => is_unreserved(&event) && takes_credit(&event),
            Ok(Decoded::Retired) | Err(_) => false,
        });
        let Some(last) = taking.next() else {
            return Ok(());
        };
        unless_halted(self.fold_to(last.position).await)
    }

    async fn spend(self: &Arc<Self>, append: Append) -> Result<Appended, StoreError> {
        let until = Instant::now() + self.patience;
        let command = Metadata::parse(append.metadata.as_bytes(), Position::START);
        let command = command.map_err(|error| StoreError::Damaged {
            why: format!("an append to {}: its metadata: {error}", append.stream),
        })?;
        let now = self.beside.now();
        let Some(own) = Reservation::of(&append, &command.command, now) else {
            return self.log.append(append).await;
        };
        let (mut is_exact, mut is_next) = (false, false);
        let mut pause = LINGER;
        loop {
            match self.reserve(own.clone(), is_next).await? {
                Reserved::Held => return self.log.append(append).await,
                Reserved::Passed => {
                    // Folded already, so the stream surely tells it.
                    if let Some(conflict) = self.conflict(&append).await? {
                        return Ok(conflict);
                    }
                    let why = format!(
                        "stream {}: revision {} was folded, or credit is reserved behind it, and the log has it not: the stream was deleted, or the tables beside the log are not as they were",
                        append.stream,
                        append.expected.next()
                    );
                    return Err(StoreError::Damaged { why });
                }
                Reserved::Behind => {
                    self.catch_up().await?;
                    if self.state().await?.position < self.figures.floor() {
                        return Err(unavailable(
                            "the log ends before what the account figures have been folded to",
                        ));
                    }
                }
                Reserved::Ahead => {
                    self.catch_up().await?;
                    if let Some(conflict) = self.conflict(&append).await? {
                        return Ok(conflict);
                    }
                    is_next = true;
                }
                Reserved::Refused(refusal) if is_exact => {
                    // A stream that had gone on would have been `Passed`: it was folded before the charge was asked for once more.
                    return Ok(Appended::Refused(refusal));
                }
                Reserved::Refused(_) => {
                    // Also of what nobody alive will ask for.
                    if self.recover(self.recovery.after).await? == 0 {
                        self.catch_up().await?;
                    }
                    is_exact = true;
                }
                Reserved::Waits(other) => {
                    self.catch_up().await?;
                    if let Some(conflict) = self.conflict(&append).await? {
                        return Ok(conflict);
                    }
                    // This command decided otherwise the first time, and what it sent then was not answered: that sending is ruled out.
                    if pause >= LONGEST_PAUSE && other.command == own.command {
                        self.void(&other).await?;
                    }
                    if Instant::now() >= until {
                        let cause = format!(
                            "credit is taken for command {} on the same job, whose append is on its way",
                            other.command
                        );
                        return Err(StoreError::Unavailable { cause });
                    }
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
            }
        }
    }

    async fn reserve(
        &self,
        reservation: Reservation,
        is_next: bool,
    ) -> Result<Reserved, StoreError> {
        let wanted = Wanted {
            reservation,
            is_next,
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

/// Figures that are halted need not be folded before something is answered: they admit no charge.
fn unless_halted(folded: Result<(), StoreError>) -> Result<(), StoreError> {
    match folded {
        Err(StoreError::Corrupt { .. }) => Ok(()),
        folded => folded,
    }
}

/// Whether an event may take credit that nothing was reserved for.
const fn is_unreserved(event: &Event) -> bool {
    matches!(
        event,
        Event::Job(JobEvent::Reclaimed(_))
            | Event::Account(AccountEvent::Adjusted(_) | AccountEvent::LimitsSet(_))
    )
}

/// Whether an event may leave less to be spent than before.
fn takes_credit(event: &Event) -> bool {
    match event.posting() {
        Some(posting) => posting.held > posting.amount,
        None => matches!(event, Event::Account(AccountEvent::LimitsSet(_))),
    }
}
