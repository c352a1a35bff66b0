//! Appends: one stream at a time, sent once, and read back.
//!
//! Sent once: what may have gone out is not sent again here; the caller repeats an append whose answer is unknown, and is told what became of it. What surely
//! did not go out is tried again as long as there is patience, so a leader that died costs its callers time and no answer.

use std::collections::HashMap;
use std::time::Duration;

use kurrentdb::{AppendToStreamOptions, CurrentRevision, Error, EventData, StreamState, Streaming};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::error::unavailable;
use super::gate::Gate;
use super::link::Link;
use super::stored::{self, Stored};
use super::{Log, Shared};
use crate::clock::Timestamp;
use crate::store::{Append, Appended, Expected, Revision, StoreError};

/// Between two attempts of which the first did not go out.
const PAUSE: Duration = Duration::from_millis(10);

/// How often an event is sent that is alone in its stream's place, and whose answer is unknown.
const TRIES: u32 = 3;

/// What became of events that were sent.
#[derive(Debug)]
pub(super) enum Sent {
    /// The server has events with these ids there.
    Stored,
    /// The stream is elsewhere.
    Conflict(Option<Revision>),
    /// The server may have them.
    Unknown(String),
}

/// Sends events to a stream of the server. An error says that it got none.
pub(super) async fn send(
    link: &Link,
    stream: &str,
    expected: StreamState,
    events: &[EventData],
) -> Result<Sent, StoreError> {
    let until = link.patience();
    let options = AppendToStreamOptions::default()
        .stream_state(expected)
        .deadline(link.answer_within());
    loop {
        let lent = link.client(until).await?;
        let gate = Gate::default();
        let events = events.to_vec();
        let guarded = Streaming(gate.guard(events.into_iter()));
        let call = async {
            match lent
                .client
                .append_to_stream(stream, &options, guarded)
                .await
            {
                Ok(_) => Ok(Sent::Stored),
                Err(Error::WrongExpectedVersion { current, .. }) => {
                    Ok(Sent::Conflict(match current {
                        CurrentRevision::Current(last) => Some(Revision::new(last)),
                        CurrentRevision::NoStream => None,
                    }))
                }
                Err(error) => Err(error),
            }
        };
        let no_answer = match link.ask(&lent, call).await {
            Ok(sent) => return Ok(sent),
            Err(no_answer) => no_answer,
        };
        if let Some(refusal) = link.never(&no_answer) {
            return Err(refusal);
        }
        if !gate.withdraw() {
            return Ok(Sent::Unknown(no_answer.to_string()));
        }
        if Instant::now() >= until {
            return Err(unavailable(no_answer));
        }
        // Nothing went out, yet the client was not lost: a node that is too busy to take a request.
        sleep(PAUSE).await;
    }
}

/// Sends an event until `read` tells what stands in its place, whoever has written that.
pub(super) async fn send_until_known<T, F>(
    link: &Link,
    stream: &str,
    expected: StreamState,
    event: EventData,
    read: impl Fn() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<Option<T>, StoreError>>,
{
    let events = [event];
    let mut cause = "what was stored cannot be read".to_owned();
    for _ in 0..TRIES {
        if let Sent::Unknown(why) = send(link, stream, expected, &events).await? {
            cause = why;
        }
        if let Some(known) = read().await? {
            return Ok(known);
        }
    }
    Err(StoreError::Unconfirmed { cause })
}

const fn state(expected: Expected) -> StreamState {
    match expected {
        Expected::NoStream => StreamState::NoStream,
        Expected::Exact(revision) => StreamState::StreamRevision(revision.get()),
    }
}

impl Log {
    /// The answer to an append that cannot be, before anything is done for it.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) async fn conflict_without_asking(
        &self,
        append: &Append,
    ) -> Result<Option<Appended>, StoreError> {
        self.shared.conflict_without_asking(append).await
    }

    /// Appends one command's events. The admission is not looked at.
    pub async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.shared.append(&append).await
    }

    /// Appends many, at once for different streams, in order within one; an answer each.
    ///
    /// Behind the first append of a stream that is not `Committed` the rest of them is not tried and answers `Conflict`.
    pub async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        let mut answers: Vec<_> = appends.iter().map(|_| None).collect();
        let mut chains: HashMap<_, Vec<_>> = HashMap::new();
        for (index, append) in appends.into_iter().enumerate() {
            let chain = chains.entry(append.stream.clone()).or_default();
            chain.push((index, append));
        }
        let mut running = JoinSet::new();
        for chain in chains.into_values() {
            let log = self.clone();
            running.spawn(async move { log.shared.append_chain(chain).await });
        }
        for (index, answer) in running.join_all().await.into_iter().flatten() {
            answers[index] = Some(answer);
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.expect("every append is in one chain"))
            .collect()
    }
}

impl Shared {
    async fn append(&self, append: &Append) -> Result<Appended, StoreError> {
        let turn = timeout_at(self.link.patience(), self.under_way.acquire());
        let Ok(_turn) = turn.await else {
            return Err(unavailable("too many appends are under way"));
        };
        if let Some(conflict) = self.conflict_without_asking(append).await? {
            return Ok(conflict);
        }
        let sending = Uuid::new_v4();
        let stream = stored::stream_on_server(&self.options.prefix, &append.stream);
        let events = stored::proposed(append, sending);
        match send(&self.link, &stream, state(append.expected), &events).await? {
            Sent::Conflict(current) => Ok(Appended::Conflict { current }),
            Sent::Unknown(cause) => Ok(Appended::Unknown { cause }),
            Sent::Stored => Ok(self.read_back(append, sending).await),
        }
    }

    /// The answer to an append that the server need not be asked about, since it cannot be.
    async fn conflict_without_asking(
        &self,
        append: &Append,
    ) -> Result<Option<Appended>, StoreError> {
        if !self.cannot_be(append) {
            return Ok(None);
        }
        let current = self.last_revision(append).await?;
        Ok(Some(Appended::Conflict { current }))
    }

    /// Whether the append is in conflict wherever its stream is: it follows a revision beyond the server's numbers, or charges in a month
    /// that this process has seen the end of.
    fn cannot_be(&self, append: &Append) -> bool {
        let is_beyond = match append.expected {
            Expected::NoStream => false,
            Expected::Exact(revision) => i64::try_from(revision.get()).is_err(),
        };
        let seen = self.seen.load(std::sync::atomic::Ordering::Acquire);
        let seen = Timestamp::from_micros(seen);
        is_beyond || append.is_charged_before_month_of(seen, self.identity.zone)
    }

    async fn last_revision(&self, append: &Append) -> Result<Option<Revision>, StoreError> {
        let stored = self.stream(&append.stream, Revision::FIRST).await?;
        Ok(stored.last().map(|last| last.event.revision))
    }

    /// What a success means: that this sending was stored, or that another one with the same ids was before it.
    async fn read_back(&self, append: &Append, sending: Uuid) -> Appended {
        let next = append.expected.next();
        let unknown = |cause: String| Appended::Unknown { cause };
        let stored = match self.stream(&append.stream, next).await {
            Ok(stored) => stored,
            Err(error) => return unknown(format!("it is stored, and cannot be read: {error}")),
        };
        let (Some(ours), Some(last)) = (stored.get(..append.events.len()), stored.last()) else {
            return unknown("it is stored, and cannot be read yet".to_owned());
        };
        let is_ours = |stored: &Stored| stored.sending == sending;
        match ours.last() {
            Some(end) if ours.iter().all(is_ours) => Appended::Committed {
                position: end.event.position,
                posted_at: end.event.posted_at,
            },
            _ => Appended::Conflict {
                current: Some(last.event.revision),
            },
        }
    }

    async fn append_chain(
        &self,
        chain: Vec<(usize, Append)>,
    ) -> Vec<(usize, Result<Appended, StoreError>)> {
        let mut answers = Vec::with_capacity(chain.len());
        let mut is_broken = false;
        for (index, append) in chain {
            let answer = if is_broken {
                let current = self.last_revision(&append).await;
                current.map(|current| Appended::Conflict { current })
            } else {
                self.append(&append).await
            };
            is_broken |= !matches!(answer, Ok(Appended::Committed { .. }));
            answers.push((index, answer));
        }
        answers
    }
}
