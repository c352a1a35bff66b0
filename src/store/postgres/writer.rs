//! The one task of a process that appends, on a connection of its own.
//!
//! It takes what waits, up to [`MAX_GROUP`] appends, into one transaction, and answers after the commit. A request that was taken is carried out, whether or not
//! its caller still waits. Other processes append between its transactions: the lock that orders them is the server's, and goes to whoever has waited longest.
//!
//! A connection that is lost is made anew when the next request comes; what was on its way then is answered `Unavailable`, or `Unknown` if its COMMIT was. While another
//! process keeps the lock, one try waits out the patience; then everything that has waited as long is answered `Unavailable` at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tokio::sync::{mpsc, oneshot};

use super::group::{self, Done, Stop};
use super::hints::Known;
use super::open::Place;
use super::time::DatabaseClock;
use crate::clock::{Timestamp, Zone};
use crate::store::backfill::IsBackfill;
use crate::store::clock::StoreClock;
use crate::store::group::{Answer, Broken, Group, Member};
use crate::store::{Append, Appended, MAX_GROUP, Position, QUEUE, StoreError};

enum Request {
    One(Append, oneshot::Sender<Answer>),
    Many(Vec<Append>, oneshot::Sender<Vec<Answer>>),
}

impl Request {
    /// Answers a request whose turn does not come.
    fn refuse(self, error: StoreError) {
        // A caller that is gone wants no answer.
        match self {
            Self::One(_, reply) => {
                let _ = reply.send(Err(error));
            }
            Self::Many(appends, reply) => {
                let _ = reply.send(vec![Err(error); appends.len()]);
            }
        }
    }
}

/// A request, and since when it waits.
struct Waiting {
    since: Instant,
    request: Request,
}

/// What every transaction of appends needs to know.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) place: Place,
    pub(super) zone: Zone,
    pub(super) clock: StoreClock,
    pub(super) database_clock: Arc<DatabaseClock>,
    pub(super) is_backfill: IsBackfill,
    /// How a transaction begins.
    pub(super) begin: String,
    /// How long another process's transaction is waited for.
    pub(super) busy_timeout: Duration,
    /// How long the server may take for an answer.
    pub(super) answer_within: Duration,
}

impl Context {
    /// The statements that begin a transaction of appends. The last one has a snapshot of its own, taken behind the lock.
    pub(super) fn begin_with(bounds: &str, log_lock: i64) -> String {
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {bounds};
            SELECT pg_advisory_xact_lock({log_lock});
            SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
                (SELECT position + events - 1 FROM appends ORDER BY position DESC LIMIT 1) AS head,
                (SELECT posted_at FROM appends ORDER BY position DESC LIMIT 1) AS posted_at,
                (SELECT sha256 FROM backfill) AS sha256, (SELECT state FROM backfill) AS state"
        )
    }
}

/// The way to the task. Clones lead to the same one, which ends with the last of them.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    queue: mpsc::Sender<Waiting>,
    patience: Duration,
}

impl Writer {
    /// Starts the task; it says how far it has committed.
    pub(super) fn start(connection: PgConnection, context: Arc<Context>, known: Known) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE);
        let patience = context.busy_timeout;
        let turns = Turns {
            connection: Some(connection),
            context,
            known,
        };
        tokio::spawn(turns.run(requests));
        Self { queue, patience }
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        let since = Instant::now();
        let Ok(place) = tokio::time::timeout(self.patience, self.queue.reserve()).await else {
            let cause = format!("{QUEUE} requests wait for the writer");
            return Err(StoreError::Unavailable { cause });
        };
        place.map_err(|_| gone())?.send(Waiting { since, request });
        Ok(())
    }

    pub(super) async fn append(&self, append: Append) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.send(Request::One(append, reply)).await?;
        answer.await.unwrap_or_else(|_| Ok(unknown()))
    }

    pub(super) async fn append_many(&self, appends: Vec<Append>) -> Vec<Answer> {
        let count = appends.len();
        let (reply, answer) = oneshot::channel();
        if let Err(error) = self.send(Request::Many(appends, reply)).await {
            return vec![Err(error); count];
        }
        answer.await.unwrap_or_else(|_| vec![Ok(unknown()); count])
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable {
        cause: "the writing task has ended".to_owned(),
    }
}

fn unknown() -> Appended {
    Appended::Unknown {
        cause: gone().to_string(),
    }
}

/// The writing task.
struct Turns {
    /// None after it was lost.
    connection: Option<PgConnection>,
    context: Arc<Context>,
    known: Known,
}

impl Turns {
    async fn run(mut self, mut requests: mpsc::Receiver<Waiting>) {
        let mut next = requests.recv().await;
        while let Some(first) = next.take() {
            let mut group = Group::default();
            let mut turn = Some(first);
            while let Some(Waiting { request, .. }) = turn {
                match request {
                    Request::One(append, reply) => group.push(append, reply),
                    Request::Many(appends, reply) => group.push_many(appends, reply),
                }
                turn = if group.len() < MAX_GROUP {
                    requests.try_recv().ok()
                } else {
                    None
                };
            }
            if let Err(error) = self.commit(group).await {
                next = self.refuse_what_waited(&mut requests, &error);
            }
            if next.is_none() {
                next = requests.recv().await;
            }
        }
        if let Some(connection) = self.connection.take() {
            // The server finds out by itself, too.
            let _ = connection.close().await;
        }
    }

    /// Commits a group in transactions of at most [`MAX_GROUP`] appends. Each caller is answered as soon as all of its own are done. An error says that
    /// the server, or the lock, was waited for in vain.
    async fn commit(&mut self, group: Group) -> Result<(), StoreError> {
        let (members, mut replies) = group.into_parts();
        let mut broken = Broken::default();
        let mut busy = Ok(());
        for chunk in members.chunks(MAX_GROUP) {
            let committed = match &busy {
                Ok(()) => self.commit_chunk(chunk, &mut broken).await,
                // Nobody waits for the same lock twice.
                Err(error) => Err(StoreError::clone(error)),
            };
            match committed {
                Ok((answers, head)) => {
                    if let Some(head) = head {
                        self.known.committed(head);
                    }
                    replies.push(answers);
                }
                Err(error) => {
                    replies.push(vec![Err(error.clone()); chunk.len()]);
                    busy = Err(error);
                }
            }
        }
        replies.finish();
        busy
    }

    async fn commit_chunk(
        &mut self,
        members: &[Member],
        broken: &mut Broken,
    ) -> Result<(Vec<Answer>, Option<Position>), StoreError> {
        // A connection may have died while nothing was to be done: that shows at the begin of a transaction, and a new one is tried.
        let mut is_fresh = false;
        loop {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    is_fresh = true;
                    let connected = self.context.place.connect();
                    connected
                        .await
                        .map_err(|error| super::error::store_error(&error))?
                }
            };
            // Taken out of `self` meanwhile: a future that is dropped drops it with its transaction.
            match group::commit(&mut connection, &self.context, members, broken).await {
                Ok(Done {
                    answers,
                    head,
                    is_lost,
                }) => {
                    if !is_lost {
                        self.connection = Some(connection);
                    }
                    return Ok((answers, head));
                }
                Err(Stop::Busy(error)) => {
                    self.connection = Some(connection);
                    return Err(error);
                }
                Err(Stop::Lost(error)) if is_fresh => return Err(error),
                Err(Stop::Lost(error)) => {
                    tracing::debug!(%error, "the writing connection was lost");
                }
            }
        }
    }

    /// Answers everything that has waited for as long as the try that failed. Gives the first request that has not.
    fn refuse_what_waited(
        &self,
        requests: &mut mpsc::Receiver<Waiting>,
        error: &StoreError,
    ) -> Option<Waiting> {
        let now = Instant::now();
        while let Ok(waiting) = requests.try_recv() {
            if now.duration_since(waiting.since) < self.context.busy_timeout {
                return Some(waiting);
            }
            waiting.request.refuse(error.clone());
        }
        None
    }
}

impl Context {
    /// The store's clock, as far as this process knows the log.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
