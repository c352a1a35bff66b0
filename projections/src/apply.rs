//! One batch into one projection: rows and checkpoint in one transaction.
//!
//! Order inside the transaction: read the checkpoint under the write lock and compare it with the place that the batch was read
//! for; fold the batch's changes in memory, loading each touched row once; write each changed row once; move the checkpoint. If
//! another runner has been here, nothing is loaded and nothing is written. An event that cannot be applied halts the
//! projection before it: what comes before it is kept, the reason is stored, and the next run tries it again.
//!
//! The caller holds the write transaction and commits it; an error rolls all of it back.

use recoup::store::{EventId, StoreError};
use recoup::{Position, Zone};
use rusqlite::Connection;

use crate::batch::{Batch, BatchEvent, Body};
use crate::catalog::Projection;
use crate::checkpoint::{self, Halt, Step};
use crate::error::{ProjectionError, damaged};

/// A projection's changes by one batch: folded event by event, written once.
pub(crate) trait Changes {
    /// Folds one event. On [`Refused::Impossible`] the event has changed nothing.
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused>;

    /// Writes what is not written yet.
    fn write(self: Box<Self>) -> Result<(), StoreError>;
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
    connection: &Connection,
    zone: Zone,
    projection: Projection,
    from: Position,
    batch: &Batch,
) -> Result<Applied, ProjectionError> {
    let Some(checkpoint) = checkpoint::read(connection, projection)? else {
        return Err(damaged("checkpoints", format_args!("{projection} has no row")).into());
    };
    if checkpoint.position != from {
        return Ok(Applied::Moved);
    }
    checkpoint.check_definition(zone)?;
    let folded = fold(connection, projection, from, batch)?;
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
    if !checkpoint::advance(connection, &checkpoint, &step)? {
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
    connection: &Connection,
    projection: Projection,
    from: Position,
    batch: &Batch,
) -> Result<Folded, StoreError> {
    let mut changes = projection.begin(connection, batch)?;
    let mut folded = Folded {
        halted: batch.unreadable.clone(),
        ..Folded::default()
    };
    for event in batch.after(from) {
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
    use recoup::{AccountId, CommandId, Cost, EventStore, Grant, GrantId, Ledger, Policies};

    use super::*;
    use crate::Projections;

    /// A ledger with two grants and projections that have applied nothing yet.
    async fn two_grants(folder: &tempfile::TempDir) -> SqliteStore {
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
        store
    }

    async fn read(store: &SqliteStore) -> Arc<Batch> {
        let zone = store.identity().zone;
        let catalog = Catalog::standard();
        let batch = store.snapshot(move |connection| {
            Batch::read(connection, (catalog, zone), Position::START, 10)
        });
        Arc::new(batch.await.unwrap())
    }

    async fn apply_entries(store: &SqliteStore, batch: &Arc<Batch>) -> Applied {
        let (zone, batch) = (store.identity().zone, Arc::clone(batch));
        let applied = store.write(move |connection| {
            apply(
                connection,
                zone,
                Projection::Entries,
                Position::START,
                &batch,
            )
        });
        applied.await.unwrap()
    }

    async fn balances(store: &SqliteStore) -> (i64, Vec<i64>) {
        let read = store.snapshot(|connection| {
            let checkpoint = checkpoint::read(connection, Projection::Entries)?;
            let sql = "SELECT balance FROM entries ORDER BY position";
            let mut statement = connection.prepare(sql).unwrap();
            let balances = statement.query_map([], |row| row.get(0)).unwrap();
            let balances = balances.map(Result::unwrap).collect();
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
            .write(move |connection| {
                let from = Position::START;
                let applied = apply(connection, zone, Projection::Entries, from, &lost)?;
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
            .write(move |connection| {
                let newer = "UPDATE checkpoints SET definition = 'version 2, zone UTC'";
                connection.execute(newer, []).unwrap();
                apply(
                    connection,
                    zone,
                    Projection::Entries,
                    Position::START,
                    &batch,
                )
            })
            .await;
        let refused = matches!(applied, Err(ProjectionError::OtherDefinition { .. }));
        assert!(refused, "{applied:?}");
    }
}
