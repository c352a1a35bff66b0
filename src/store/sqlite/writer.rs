//! The one thread of a process that writes.
//!
//! It takes what waits, up to [`MAX_GROUP`](super::MAX_GROUP) appends, into one transaction, and answers after the commit. Work that needs a
//! transaction of its own (a projection's batch, a repair) queues with the appends, so nothing inside a process competes for
//! the file's lock. A request that was taken is carried out, whether or not its caller still waits.

use std::sync::Arc;
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::error::{OpenError, is_unknown_after_commit, store_error};
use super::group::{self, Broken, Context, Group};
use super::place::Place;
use super::time::StoreClock;
use super::{MAX_GROUP, Options, QUEUE, open, patience, rows};
use crate::clock::{Timestamp, Zone};
use crate::store::{Append, Appended, Position, StoreError};

type Answer = Result<Appended, StoreError>;

/// Work that needs a transaction of its own.
type Work = Box<dyn FnOnce(&Connection, &Place) + Send>;

enum Request {
    One(Append, oneshot::Sender<Answer>),
    Many(Vec<Append>, oneshot::Sender<Vec<Answer>>),
    Exclusive(Work),
}

/// Answers that one request waits for.
pub(super) enum Reply {
    One(oneshot::Sender<Answer>),
    /// The last part of many: earlier parts are collected in front.
    Many(oneshot::Sender<Vec<Answer>>, usize),
}

#[derive(Debug)]
pub(super) struct Writer {
    /// None once the writer is being dropped.
    queue: Option<mpsc::Sender<Request>>,
    head: watch::Sender<Position>,
    clock: StoreClock,
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
        let (queue, requests) = mpsc::channel(QUEUE);
        let tail = rows::read_tail(&connection)?;
        let head = watch::Sender::new(tail.head);
        let context = Context {
            clock: StoreClock::new(Arc::clone(&options.clock), tail.posted_at),
            zone,
            place: Place::of(&options.path)?,
        };
        let clock = context.clock.clone();
        let published = head.clone();
        let thread = thread::Builder::new()
            .name("recoup-write".to_owned())
            .spawn(move || {
                if let Err(error) = patience::install(&connection, busy_timeout) {
                    tracing::error!(%error, "writes of this process will not wait for others");
                }
                run(&connection, &context, requests, &published);
            })
            .map_err(|error| OpenError::Io {
                why: format!("no thread for writing: {error}"),
            })?;
        Ok(Self {
            queue: Some(queue),
            head,
            clock,
            thread: Some(thread),
        })
    }

    /// The store's clock, as far as this process knows the log.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn appended(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue.send(request).await.map_err(|_| gone())
    }

    pub(super) async fn append(&self, append: Append) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.send(Request::One(append, reply)).await?;
        answer.await.unwrap_or_else(|_| {
            Ok(Appended::Unknown {
                cause: gone().to_string(),
            })
        })
    }

    pub(super) async fn append_many(&self, appends: Vec<Append>) -> Vec<Answer> {
        let count = appends.len();
        let (reply, answer) = oneshot::channel();
        if self.send(Request::Many(appends, reply)).await.is_err() {
            return vec![Err(gone()); count];
        }
        let unknown = || {
            Ok(Appended::Unknown {
                cause: gone().to_string(),
            })
        };
        answer.await.unwrap_or_else(|_| vec![unknown(); count])
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
        let request = Request::Exclusive(Box::new(move |connection, place| {
            let _ = reply.send(in_transaction(connection, place, work));
        }));
        self.send(request).await?;
        answer.await.unwrap_or_else(|_| Err(gone().into()))
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable {
        cause: "the writing thread has ended".to_owned(),
    }
}

fn run(
    connection: &Connection,
    context: &Context,
    mut requests: mpsc::Receiver<Request>,
    head: &watch::Sender<Position>,
) {
    while let Some(first) = requests.blocking_recv() {
        let mut next = Some(first);
        let mut group = Group::default();
        let mut exclusive = None;
        while let Some(request) = next {
            match request {
                Request::One(append, reply) => group.push(append, reply),
                Request::Many(appends, reply) => group.push_many(appends, reply),
                Request::Exclusive(work) => {
                    exclusive = Some(work);
                    break;
                }
            }
            next = if group.len() < MAX_GROUP {
                requests.try_recv().ok()
            } else {
                None
            };
        }
        if group.len() > 0 {
            commit(connection, context, group, head);
        }
        if let Some(work) = exclusive {
            work(connection, &context.place);
        }
    }
    open::copy_back(connection);
}

/// Commits a group in transactions of at most [`MAX_GROUP`] appends, and answers.
fn commit(
    connection: &Connection,
    context: &Context,
    group: Group,
    head: &watch::Sender<Position>,
) {
    let (members, replies) = group.into_parts();
    let mut answers = Vec::with_capacity(members.len());
    let mut broken = Broken::default();
    for chunk in members.chunks(MAX_GROUP) {
        let (part, position) = group::commit(connection, context, chunk, &mut broken);
        answers.extend(part);
        if let Some(position) = position {
            head.send_replace(position);
        }
    }
    let mut answers = answers.into_iter();
    for reply in replies {
        // A caller that is gone wants no answer; what it asked for is done.
        match reply {
            Reply::One(reply) => {
                if let Some(answer) = answers.next() {
                    let _ = reply.send(answer);
                }
            }
            Reply::Many(reply, count) => {
                let _ = reply.send(answers.by_ref().take(count).collect());
            }
        }
    }
}

fn in_transaction<T, E: From<StoreError>>(
    connection: &Connection,
    place: &Place,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(store_error)?;
    let committed = work(connection).and_then(|value| {
        place.check()?;
        connection
            .execute_batch("COMMIT")
            .map(|()| value)
            .map_err(|error| {
                let unknown = is_unknown_after_commit(&error);
                tracing::debug!(unknown, %error, "a commit failed");
                store_error(error).into()
            })
    });
    if committed.is_err() {
        roll_back(connection);
    }
    committed
}

/// Ends a transaction that failed. SQLite may have ended it by itself.
pub(super) fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a rollback failed");
    }
}
