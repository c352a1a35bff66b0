//! What waits for the one writer of a process, and how long.
//!
//! Appends, and work that needs a transaction of its own, queue up in the order in which they came. A request that was taken is carried out, whether or not its caller still
//! waits. A place in the queue is waited for as long as the patience; and once the writer itself has waited that long in vain, everything that has waited as long
//! is told at once.

#[cfg(feature = "postgres")]
use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::group::{Answer, Group};
use super::{Append, Appended, MAX_GROUP, QUEUE, StoreError};

/// Work that needs a transaction of its own.
pub(crate) trait Exclusive {
    /// Its turn does not come.
    fn refuse(self, error: StoreError);
}

/// Where there is none.
#[cfg(feature = "postgres")]
impl Exclusive for Infallible {
    fn refuse(self, _: StoreError) {
        match self {}
    }
}

enum Request<W> {
    One(Append, oneshot::Sender<Answer>),
    Many(Vec<Append>, oneshot::Sender<Vec<Answer>>),
    #[cfg_attr(
        not(feature = "sqlite"),
        expect(dead_code, reason = "only a file has one writer for all work")
    )]
    Exclusive(W),
}

impl<W: Exclusive> Request<W> {
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
            Self::Exclusive(work) => work.refuse(error),
        }
    }
}

/// A request, and since when it waits.
pub(crate) struct Waiting<W> {
    since: Instant,
    request: Request<W>,
}

/// The way into the queue. Clones lead to the same one.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    sender: mpsc::Sender<Waiting<W>>,
    patience: Duration,
}

impl<W> Clone for Queue<W> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            patience: self.patience,
        }
    }
}

pub(crate) fn gone() -> StoreError {
    StoreError::Unavailable {
        cause: "the writer has ended".to_owned(),
    }
}

/// The answer of a writer that ended over the append.
fn unknown() -> Answer {
    Ok(Appended::Unknown {
        cause: gone().to_string(),
    })
}

impl<W> Queue<W> {
    /// A queue, and its end.
    pub(crate) fn new(patience: Duration) -> (Self, Requests<W>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, patience }, Requests { receiver, patience })
    }

    async fn send(&self, request: Request<W>) -> Result<(), StoreError> {
        let since = Instant::now();
        let Ok(place) = tokio::time::timeout(self.patience, self.sender.reserve()).await else {
            let cause = format!("{QUEUE} requests wait for the writer");
            return Err(StoreError::Unavailable { cause });
        };
        place.map_err(|_| gone())?.send(Waiting { since, request });
        Ok(())
    }

    pub(crate) async fn append(&self, append: Append) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.send(Request::One(append, reply)).await?;
        answer.await.unwrap_or_else(|_| unknown())
    }

    pub(crate) async fn append_many(&self, appends: Vec<Append>) -> Vec<Answer> {
        let count = appends.len();
        let (reply, answer) = oneshot::channel();
        if let Err(error) = self.send(Request::Many(appends, reply)).await {
            return vec![Err(error); count];
        }
        answer.await.unwrap_or_else(|_| vec![unknown(); count])
    }

    #[cfg(feature = "sqlite")]
    pub(crate) async fn exclusive(&self, work: W) -> Result<(), StoreError> {
        self.send(Request::Exclusive(work)).await
    }
}

/// The queue's end: the writer's.
pub(crate) struct Requests<W> {
    receiver: mpsc::Receiver<Waiting<W>>,
    patience: Duration,
}

impl<W: Exclusive> Requests<W> {
    /// The next request; none once nobody can send one.
    #[cfg(feature = "postgres")]
    pub(crate) async fn next(&mut self) -> Option<Waiting<W>> {
        self.receiver.recv().await
    }

    /// As [`Self::next`], for a thread that may block.
    #[cfg(feature = "sqlite")]
    pub(crate) fn blocking_next(&mut self) -> Option<Waiting<W>> {
        self.receiver.blocking_recv()
    }

    /// What waits, from `first` on: appends for one group, and the work behind them if that is what ends it.
    pub(crate) fn gather(&mut self, first: Waiting<W>) -> (Group, Option<W>) {
        let mut group = Group::default();
        let work = self.fill(&mut group, Some(first));
        (group, work)
    }

    /// Adds what has come since to a group, with which there was no work.
    #[cfg(feature = "postgres")]
    pub(crate) fn gather_more(&mut self, group: &mut Group) -> Option<W> {
        let turn = self.next_of(group);
        self.fill(group, turn)
    }

    fn fill(&mut self, group: &mut Group, mut turn: Option<Waiting<W>>) -> Option<W> {
        while let Some(Waiting { request, .. }) = turn {
            match request {
                Request::One(append, reply) => group.push(append, reply),
                Request::Many(appends, reply) => group.push_many(appends, reply),
                Request::Exclusive(work) => return Some(work),
            }
            turn = self.next_of(group);
        }
        None
    }

    /// What waits and may still join.
    fn next_of(&mut self, group: &Group) -> Option<Waiting<W>> {
        if group.len() < MAX_GROUP {
            self.receiver.try_recv().ok()
        } else {
            None
        }
    }

    /// Answers everything that has waited for as long as the try that failed. Gives the first request that has not.
    pub(crate) fn refuse_what_waited(&mut self, error: &StoreError) -> Option<Waiting<W>> {
        let now = Instant::now();
        while let Ok(waiting) = self.receiver.try_recv() {
            if now.duration_since(waiting.since) < self.patience {
                return Some(waiting);
            }
            waiting.request.refuse(error.clone());
        }
        None
    }
}
