//! One batch into one projection: rows and checkpoint in one transaction.
//!
//! Order inside the transaction: read the checkpoint under the write lock and compare it with the place that the batch was read
//! for; fold the batch's changes in memory, loading each touched row once; write each changed row once; move the checkpoint. If
//! another runner has been here, nothing is loaded and nothing is written. An event that cannot be applied halts the
//! projection before it: what comes before it is kept, the reason is stored, and the next run tries it again.
//!
//! SQLite answers on this thread, and rows are loaded one by one, as events call for them. Where each answer is a round trip, all
//! rows that a batch touches are loaded before its first event ([`Loading`]).
//!
//! The caller holds the write transaction and commits it; an error rolls all of it back.

use recoup::sql::{Database, Transaction};
use recoup::store::{EventId, StoreError};
use recoup::{Position, Zone};

use crate::batch::{Batch, BatchEvent, Body};
use crate::catalog::Projection;
use crate::checkpoint::{self, Halt, Step};
use crate::error::{ProjectionError, damaged};

/// A projection's changes by one batch: folded event by event, written once.
pub(crate) trait Changes<'a> {
    /// Loads what `events` will ask for, in few statements. Without it they find the same, one by one.
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError>;

    /// Folds one event. On [`Refused::Impossible`] the event has changed nothing.
    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused>;

    /// Writes what is not written yet.
    fn write(self: Box<Self>) -> Result<(), StoreError>;
}

/// When a batch's rows are loaded. The rows that it leaves are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loading {
    /// Each with the first event that touches it.
    OneByOne,
    /// All of them before the first event, in few statements: each answer is a round trip.
    AtOnce,
}

impl Loading {
    pub(crate) const fn of(database: &Database) -> Self {
        match database.as_sqlite() {
            Some(_) => Self::OneByOne,
            None => Self::AtOnce,
        }
    }
}

/// Why an event was not applied.
pub(crate) enum Refused {
    /// It does not fit the rows before it: the projection halts here.
    Impossible(String),
    /// The database did not do as it was asked: the batch is rolled back.
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum Applied {
    /// The checkpoint was where the batch begins, and has moved on.
    Advanced {
        /// Where it is now.
        to: Position,
        /// How many events were applied or skipped.
        events: u64,
        /// The event that it could not get past.
        halted: Option<Halt>,
    },
    /// Nothing was written: the event that stands in the way, at this position, is the one that stood there before.
    StillHalted(Position),
    /// Nothing was written: another runner has moved the checkpoint.
    Moved,
}

/// Applies what `batch` has after `from`, provided that the projection's checkpoint still is at `from`.
pub(crate) fn apply(
    tx: &Transaction<'_>,
    zone: Zone,
    (projection, loading): (Projection, Loading),
    from: Position,
    batch: &Batch,
) -> Result<Applied, ProjectionError> {
    let Some(checkpoint) = checkpoint::read(tx, projection)? else {
        return Err(damaged("checkpoints", format_args!("{projection} has no row")).into());
    };
    if checkpoint.position != from {
        return Ok(Applied::Moved);
    }
    checkpoint.check_definition(zone)?;
    let folded = fold(tx, (projection, loading), from, batch)?;
    if folded.last.is_none() && folded.halted == checkpoint.halted {
        return Ok(match folded.halted {
            Some(halt) => Applied::StillHalted(halt.position),
            None => Applied::Moved,
        });
    }
    let step = Step {
        to: folded.last,
        retired: folded.retired,
        halted: folded.halted.as_ref(),
    };
    if !checkpoint::advance(tx, &checkpoint, &step)? {
        let why = format_args!("{projection} moved under the write lock");
        return Err(damaged("checkpoints", why).into());
    }
    Ok(Applied::Advanced {
        to: folded.last.map_or(from, |(position, _)| position),
        events: folded.events,
        halted: folded.halted,
    })
}

/// What a batch came to, with its rows written.
#[derive(Default)]
struct Folded {
    last: Option<(Position, EventId)>,
    events: u64,
    retired: u64,
    halted: Option<Halt>,
}

fn fold(
    tx: &Transaction<'_>,
    (projection, loading): (Projection, Loading),
    from: Position,
    batch: &Batch,
) -> Result<Folded, StoreError> {
    let events = batch.after(from);
    let mut changes = projection.begin(tx, batch);
    if loading == Loading::AtOnce {
        changes.prefetch(events)?;
    }
    let mut folded = Folded {
        halted: batch.unreadable.clone(),
        ..Folded::default()
    };
    for event in events {
        if matches!(event.body, Body::Retired) {
            folded.retired += 1;
        } else if let Err(refused) = changes.apply(event) {
            let reason = match refused {
                Refused::Impossible(reason) => reason,
                Refused::Store(error) => return Err(error),
            };
            let position = event.position;
            folded.halted = Some(Halt { position, reason });
            break;
        }
        folded.last = Some((event.position, event.id));
        folded.events += 1;
    }
    changes.write()?;
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use recoup::codec::Catalog;
    use recoup::store::sqlite::{Options, SqliteStore};
    use recoup::{
        AccountId, CommandId, Cost, EventStore, Grant, GrantId, Ledger, Policies, values,
    };

    use super::*;
    use crate::Projections;

    /// A ledger with two grants and projections that have applied nothing yet.
    async fn two_grants(folder: &tempfile::TempDir) -> Database {
        let options = Options::at(folder.path().join("ledger.db"));
        let store = SqliteStore::open(options).await.unwrap();
        let ledger = Ledger::new(Arc::new(store.clone()), Policies::default());
        for name in ["g1", "g2"] {
            let grant = Grant {
                account: AccountId::new("acme").unwrap(),
                grant: GrantId::new(name).unwrap(),
                amount: Cost::new(100).unwrap(),
            };
            let outcome = ledger.grant(CommandId::random(), grant).await;
            assert!(outcome.unwrap().is_done());
        }
        Projections::open(store.clone()).await.unwrap();
        store.into()
    }

    async fn read(store: &Database) -> Arc<Batch> {
        let zone = store.identity().zone;
        let catalog = Catalog::standard();
        let whole = (Position::START, Position::new(i64::MAX));
        let batch = store.snapshot(move |tx| Batch::read(tx, (catalog, zone), whole, 10));
        Arc::new(batch.await.unwrap())
    }

    async fn apply_entries(store: &Database, batch: &Arc<Batch>) -> Applied {
        let (zone, batch) = (store.identity().zone, Arc::clone(batch));
        let applied = store.write(move |tx| {
            let entries = (Projection::Entries, Loading::OneByOne);
            apply(tx, zone, entries, Position::START, &batch)
        });
        applied.await.unwrap()
    }

    async fn balances(store: &Database) -> (i64, Vec<i64>) {
        let read = store.snapshot(|tx| {
            let checkpoint = checkpoint::read(tx, Projection::Entries)?;
            let sql = "SELECT balance FROM entries ORDER BY position";
            let balances = tx.rows(sql, values![], |row| row.get(0))?;
            Ok::<_, StoreError>((checkpoint.unwrap().position.get(), balances))
        });
        read.await.unwrap()
    }

    /// Both runners read the page before either of them applies it; then one does, and then the other.
    #[tokio::test]
    async fn of_two_runners_that_read_one_page_one_applies_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = two_grants(&folder).await;
        let (one, other) = (read(&store).await, read(&store).await);
        let applied = Applied::Advanced {
            to: Position::new(2),
            events: 2,
            halted: None,
        };
        assert_eq!(apply_entries(&store, &one).await, applied);
        assert_eq!(apply_entries(&store, &other).await, Applied::Moved);
        assert_eq!(balances(&store).await, (2, vec![100, 200]));
    }

    #[tokio::test]
    async fn rows_and_checkpoint_are_committed_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = two_grants(&folder).await;
        let batch = read(&store).await;
        let (zone, lost) = (store.identity().zone, Arc::clone(&batch));
        let failed: Result<(), ProjectionError> = store
            .write(move |tx| {
                let entries = (Projection::Entries, Loading::OneByOne);
                let applied = apply(tx, zone, entries, Position::START, &lost)?;
                assert!(matches!(applied, Applied::Advanced { .. }));
                Err(damaged("entries", "the process dies here").into())
            })
            .await;
        assert!(failed.is_err());
        assert_eq!(balances(&store).await, (0, vec![]));
        assert!(matches!(
            apply_entries(&store, &batch).await,
            Applied::Advanced { .. }
        ));
        assert_eq!(balances(&store).await, (2, vec![100, 200]));
    }
    /// The checkpoint passes to another build after this one's runner has looked at it.
    #[tokio::test]
    async fn rows_that_another_build_took_over_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = two_grants(&folder).await;
        let batch = read(&store).await;
        let zone = store.identity().zone;
        let applied: Result<Applied, ProjectionError> = store
            .write(move |tx| {
                let newer = "UPDATE checkpoints SET definition = 'version 2, zone UTC'";
                tx.execute(newer, values![]).unwrap();
                let entries = (Projection::Entries, Loading::OneByOne);
                apply(tx, zone, entries, Position::START, &batch)
            })
            .await;
        let refused = matches!(applied, Err(ProjectionError::OtherDefinition { .. }));
        assert!(refused, "{applied:?}");
    }
}
