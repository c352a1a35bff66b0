//! The one thread of a process that writes.
//!
//! It takes what waits, up to [`MAX_GROUP`] appends, into one transaction, and answers after the commit. Work that needs a
//! transaction of its own (a projection's batch, a repair) queues with the appends, so nothing inside a process competes for
//! the file's lock. A request that was taken is carried out, whether or not its caller still waits.
//!
//! While another process keeps the file's lock, one try waits out the patience; then everything that has waited as long is answered
//! `Unavailable` at once, so that no request waits for more than twice the patience, however many stand before it. A panic
//! ends its transaction and its answers, not the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::error::{is_unknown_after_commit, store_error};
use super::group::{self, Context};
use super::place::Place;
use super::{Options, open, patience};
use crate::clock::{Timestamp, Zone};
use crate::sql::Transaction;
use crate::store::backfill::IsBackfill;
use crate::store::clock::StoreClock;
use crate::store::group::{Answer, Broken, Group};
use crate::store::queue::{Exclusive, Queue, Requests, gone};
use crate::store::{Append, MAX_GROUP, OpenError, Position, StoreError};

type Turn<'t> = Result<(&'t Connection, &'t Place), StoreError>;

/// Work that needs a transaction of its own. It is told why if its turn does not come, and says whether another process kept the lock.
struct Work(Box<Run>);

type Run = dyn FnOnce(Turn<'_>) -> Result<(), Busy> + Send;

impl Exclusive for Work {
    fn refuse(self, error: StoreError) {
        let _ = (self.0)(Err(error));
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("work")
    }
}

/// Another process kept the file's lock for as long as this one waits.
pub(super) struct Busy(pub(super) StoreError);

#[derive(Debug)]
pub(super) struct Writer {
    /// None once the writer is being dropped.
    queue: Option<Queue<Work>>,
    head: watch::Sender<Position>,
    clock: StoreClock,
    is_backfill: IsBackfill,
    thread: Option<thread::JoinHandle<()>>,
}

/// Lets the thread finish what it was given: then it copies the WAL back, so that the file is whole by itself.
impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        // The last handle may go with a piece of exclusive work, on the writer's own thread, which cannot wait for itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the writing thread died");
        }
    }
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        options: &Options,
        zone: Zone,
    ) -> Result<Self, OpenError> {
        let busy_timeout = options.busy_timeout;
        let (queue, requests) = Queue::new(busy_timeout);
        let tail = Transaction::on_sqlite(&connection).read_tail()?;
        let head = watch::Sender::new(tail.head);
        let context = Context {
            clock: StoreClock::new(Arc::clone(&options.clock), tail.posted_at),
            zone,
            place: Place::of(&options.path)?,
            is_backfill: IsBackfill::default(),
        };
        let is_backfill = context.is_backfill.clone();
        let clock = context.clock.clone();
        let published = head.clone();
        let thread = thread::Builder::new()
            .name("recoup-write".to_owned())
            .spawn(move || {
                if let Err(error) = patience::install(&connection, busy_timeout) {
                    tracing::error!(%error, "writes of this process will not wait for others");
                }
                let turns = Turns {
                    connection: &connection,
                    context: &context,
                    head: &published,
                };
                turns.run(requests);
            })
            .map_err(|error| OpenError::Io {
                why: format!("no thread for writing: {error}"),
            })?;
        Ok(Self {
            queue: Some(queue),
            head,
            clock,
            is_backfill,
            thread: Some(thread),
        })
    }

    /// The store's clock, as far as this process knows the log.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) const fn is_backfill(&self) -> &IsBackfill {
        &self.is_backfill
    }

    pub(super) fn appended(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }

    fn queue(&self) -> Result<&Queue<Work>, StoreError> {
        self.queue.as_ref().ok_or_else(gone)
    }

    pub(super) async fn append(&self, append: Append) -> Answer {
        self.queue()?.append(append).await
    }

    pub(super) async fn append_many(&self, appends: Vec<Append>) -> Vec<Answer> {
        match self.queue() {
            Ok(queue) => queue.append_many(appends).await,
            Err(error) => vec![Err(error); appends.len()],
        }
    }

    pub(super) async fn exclusive<T, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let work = Work(Box::new(move |turn| {
            let (result, busy) = match turn {
                Ok((connection, place)) => match in_transaction(connection, place, work) {
                    Ok(result) => (result, Ok(())),
                    Err(Busy(error)) => (Err(error.clone().into()), Err(Busy(error))),
                },
                Err(error) => (Err(error.into()), Ok(())),
            };
            let _ = reply.send(result);
            busy
        }));
        self.queue()?.exclusive(work).await?;
        answer.await.unwrap_or_else(|_| {
            let cause = "the work or its thread died".to_owned();
            Err(StoreError::Unconfirmed { cause }.into())
        })
    }
}

/// The writing thread.
struct Turns<'a> {
    connection: &'a Connection,
    context: &'a Context,
    head: &'a watch::Sender<Position>,
}

impl Turns<'_> {
    fn run(&self, mut requests: Requests<Work>) {
        let mut next = requests.blocking_next();
        while let Some(first) = next.take() {
            let (group, exclusive) = requests.gather(first);
            let mut busy = Ok(());
            if group.len() > 0 {
                busy = self.unharmed(|| commit(self.connection, self.context, group, self.head));
            }
            if let Some(work) = exclusive {
                match busy {
                    Ok(()) => {
                        let turn = Ok((self.connection, &self.context.place));
                        busy = self.unharmed(|| (work.0)(turn));
                    }
                    Err(Busy(ref error)) => work.refuse(error.clone()),
                }
            }
            if let Err(Busy(error)) = busy {
                next = requests.refuse_what_waited(&error);
            }
            next = next.or_else(|| requests.blocking_next());
        }
        open::copy_back(self.connection);
    }

    /// Runs a transaction. A panic in it answers nobody: what was asked for is then unknown to who asked, and rolled back.
    fn unharmed(&self, turn: impl FnOnce() -> Result<(), Busy>) -> Result<(), Busy> {
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|_| {
            tracing::error!("a transaction panicked");
            roll_back(self.connection);
            Ok(())
        })
    }
}

/// Commits a group in transactions of at most [`MAX_GROUP`] appends. Each caller is answered as soon as all of its own are done.
fn commit(
    connection: &Connection,
    context: &Context,
    group: Group,
    head: &watch::Sender<Position>,
) -> Result<(), Busy> {
    let (members, mut replies) = group.into_parts();
    let mut broken = Broken::default();
    let mut busy = Ok(());
    for chunk in members.chunks(MAX_GROUP) {
        let committed = match &busy {
            Ok(()) => group::commit(connection, context, chunk, &mut broken),
            // Nobody waits for the same lock twice.
            Err(Busy(error)) => Err(Busy(error.clone())),
        };
        match committed {
            Ok((answers, position)) => {
                if let Some(position) = position {
                    head.send_replace(position);
                }
                replies.push(answers);
            }
            Err(Busy(error)) => {
                replies.push(vec![Err(error.clone()); chunk.len()]);
                busy = Err(Busy(error));
            }
        }
    }
    replies.finish();
    busy
}

/// Takes the file's lock. A transaction that could not be ended before is ended first.
pub(super) fn begin(connection: &Connection) -> Result<(), StoreError> {
    roll_back(connection);
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(store_error)
}

fn in_transaction<T, E: From<StoreError>>(
    connection: &Connection,
    place: &Place,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<Result<T, E>, Busy> {
    begin(connection).map_err(Busy)?;
    let committed = work(connection).and_then(|value| {
        place.check()?;
        connection
            .execute_batch("COMMIT")
            .map(|()| value)
            .map_err(|error| {
                let cause = error.to_string();
                let is_unknown = is_unknown_after_commit(&error);
                tracing::debug!(is_unknown, cause, "a commit failed");
                if is_unknown {
                    StoreError::Unconfirmed { cause }.into()
                } else {
                    store_error(error).into()
                }
            })
    });
    if committed.is_err() {
        roll_back(connection);
    }
    Ok(committed)
}

/// Ends a transaction that failed. SQLite may have ended it by itself.
pub(super) fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a rollback failed");
    }
}
