//! The one task of a process that appends, on a connection of its own.
//!
//! It takes what waits, up to [`MAX_GROUP`] appends, and what comes until it has the lock, into one transaction, and answers after the commit. A request that was taken is carried out, whether or not
//! its caller still waits. Other processes append between its transactions: the lock that orders them is the server's, and goes to whoever has waited longest.
//!
//! A connection that is lost is made anew when the next request comes; what was on its way then is answered `Unavailable`, or `Unknown` if its COMMIT was. While another
//! process keeps the lock, one try waits out the patience; then everything that has waited as long is answered `Unavailable` at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::group::{self, Stop};
use super::hints::Known;
use super::open::Place;
use super::time::{DatabaseClock, NOW};
use crate::clock::Zone;
use crate::store::backfill::IsBackfill;
use crate::store::clock::StoreClock;
use crate::store::group::{Answer, Broken, Group, Member, Start};
use crate::store::queue::{Queue, Requests};
use crate::store::{MAX_GROUP, Position, StoreError};

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
            {NOW},
                (SELECT position + events - 1 FROM appends ORDER BY position DESC LIMIT 1) AS head,
                (SELECT posted_at FROM appends ORDER BY position DESC LIMIT 1) AS posted_at,
                (SELECT sha256 FROM backfill) AS sha256, (SELECT state FROM backfill) AS state"
        )
    }
}

/// The way to the task, which ends with the last clone of it.
pub(super) type Writer = Queue<Infallible>;

/// Starts the task; it says how far it has committed.
pub(super) fn start(connection: PgConnection, context: Arc<Context>, known: Known) -> Writer {
    let (queue, requests) = Queue::new(context.busy_timeout);
    let turns = Turns {
        connection: Some(connection),
        context,
        known,
    };
    tokio::spawn(turns.run(requests));
    queue
}

/// The writing task.
struct Turns {
    /// None after it was lost.
    connection: Option<PgConnection>,
    context: Arc<Context>,
    known: Known,
}

impl Turns {
    async fn run(mut self, mut requests: Requests<Infallible>) {
        let mut next = requests.next().await;
        while let Some(first) = next.take() {
            let (mut group, _) = requests.gather(first);
            let begun = self.begin().await;
            if begun.is_ok() {
                // What came while the transaction was begun goes along: there is no other work.
                let _ = requests.gather_more(&mut group);
            }
            if let Err(error) = self.commit(group, begun).await {
                next = requests.refuse_what_waited(&error);
            }
            if next.is_none() {
                next = requests.next().await;
            }
        }
        if let Some(connection) = self.connection.take() {
            // The server finds out by itself, too.
            let _ = connection.close().await;
        }
    }

    /// Commits a group in transactions of at most [`MAX_GROUP`] appends, of which the first is begun. Each caller is answered as soon as all of its own are done. An error says
    /// that the server, or the lock, was waited for in vain.
    async fn commit(
        &mut self,
        group: Group,
        begun: Result<Begun, StoreError>,
    ) -> Result<(), StoreError> {
        let (members, mut replies) = group.into_parts();
        let mut broken = Broken::default();
        let (mut begun, mut busy) = match begun {
            Ok(begun) => (Some(begun), Ok(())),
            Err(error) => (None, Err(error)),
        };
        for chunk in members.chunks(MAX_GROUP) {
            let turn = match (begun.take(), &busy) {
                (Some(begun), _) => Ok(begun),
                (None, Ok(())) => self.begin().await,
                // Nobody waits for the same lock twice.
                (None, Err(error)) => Err(StoreError::clone(error)),
            };
            match turn {
                Ok(begun) => {
                    let (answers, head) = self.commit_chunk(begun, chunk, &mut broken).await;
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
        if let Some(unused) = begun {
            // A call of no appends.
            self.connection = group::give_up(unused.connection, &self.context).await;
        }
        busy
    }

    async fn commit_chunk(
        &mut self,
        Begun {
            mut connection,
            start,
        }: Begun,
        members: &[Member],
        broken: &mut Broken,
    ) -> (Vec<Answer>, Option<Position>) {
        let turn = (&*self.context, start);
        let done = group::commit(&mut connection, turn, members, broken).await;
        if !done.is_lost {
            self.connection = Some(connection);
        }
        (done.answers, done.head)
    }

    /// Begins a transaction, on a connection that is taken out of `self` meanwhile: a future that is dropped drops it with its transaction.
    async fn begin(&mut self) -> Result<Begun, StoreError> {
        // A connection may have died while nothing was to be done: that shows here, and a new one is tried.
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
            match group::begin(&mut connection, &self.context).await {
                Ok(start) => return Ok(Begun { connection, start }),
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
}

/// A transaction that is begun and holds the lock.
struct Begun {
    connection: PgConnection,
    start: Start,
}
