//! Streams into states: freshly read, or from the cache of recent ones.
//!
//! Stored history is checked here, event by event and once at the end: a stream that no legal history can have fails its own commands
//! as `Corrupt`, and nobody else's.

use std::sync::Arc;

use super::{Ledger, LedgerError};
use crate::clock::Timestamp;
use crate::codec::{Decoded, Event, Metadata, Stream, StreamName, decode};
use crate::ids::{CommandId, JobId};
use crate::job::{Job, JobCommand, JobEvent, evolve, invariants};
use crate::store::{Position, RecordedEvent, Revision};

/// One event of a job's stream, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Its place in the log.
    pub position: Position,
    /// Its place in the stream.
    pub revision: Revision,
    /// When the store recorded it.
    pub posted_at: Timestamp,
    /// The command that caused it.
    pub command: CommandId,
    /// What it says; none for an event of a retired type.
    pub event: Option<JobEvent>,
}

impl Ledger {
    /// A state to decide on, and whether it is freshly read. A charge of a job that is not cached is taken for the first:
    /// if it is not, its append conflicts.
    pub(super) async fn recent_job(
        &self,
        stream: &Stream,
        job: &JobId,
        command: &JobCommand,
    ) -> Result<(Arc<Job>, bool), LedgerError> {
        match self.guess(&stream.name(), job, command) {
            Some(guess) => Ok((guess, false)),
            None => Ok((self.load_job(stream, job).await?, true)),
        }
    }

    pub(super) fn guess(
        &self,
        name: &StreamName,
        job: &JobId,
        command: &JobCommand,
    ) -> Option<Arc<Job>> {
        let cached = self.recent.get(name);
        cached.or_else(|| {
            matches!(command, JobCommand::Charge(_)).then(|| Arc::new(Job::empty(job.clone())))
        })
    }

    pub(super) async fn load_job(
        &self,
        stream: &Stream,
        job: &JobId,
    ) -> Result<Arc<Job>, LedgerError> {
        let name = stream.name();
        let recorded = self.store.read_stream(&name, Revision::FIRST).await?;
        let state = Arc::new(fold(job, &name, &recorded)?);
        self.remember(name, Arc::clone(&state));
        Ok(state)
    }

    pub(super) fn remember(&self, name: StreamName, state: impl Into<Arc<Job>>) {
        let state = state.into();
        // An empty stream is not worth a place; a state that lost a race to a newer one would only cost a conflict.
        if state.revision.is_some() {
            self.recent.insert(name, state);
        }
    }

    pub(super) async fn history(&self, job: &JobId) -> Result<(Job, Vec<History>), LedgerError> {
        let name = Stream::Job(job.clone()).name();
        let recorded = self.store.read_stream(&name, Revision::FIRST).await?;
        let state = fold(job, &name, &recorded)?;
        let mut history = Vec::with_capacity(recorded.len());
        for event in &recorded {
            let unreadable = |error| LedgerError::unreadable(&name, error);
            history.push(History {
                position: event.position,
                revision: event.revision,
                posted_at: event.posted_at,
                command: Metadata::parse(&event.metadata, event.position)
                    .map_err(unreadable)?
                    .command,
                event: match decode(event).map_err(unreadable)? {
                    Decoded::Event(Event::Job(event)) => Some(event),
                    Decoded::Event(Event::Account(_)) | Decoded::Retired => None,
                },
            });
        }
        Ok((state, history))
    }
}

/// Folds a whole stream, and checks the job after each append.
pub fn fold(
    job: &JobId,
    name: &StreamName,
    recorded: &[RecordedEvent],
) -> Result<Job, LedgerError> {
    let mut state = Job::empty(job.clone());
    for (index, event) in recorded.iter().enumerate() {
        fold_one(&mut state, name, event)?;
        // Events of one append stand together, and have its metadata.
        let next = recorded.get(index + 1);
        if next.is_none_or(|next| next.metadata != event.metadata) {
            invariants::check(&state).map_err(|violation| LedgerError::Corrupt {
                stream: name.clone(),
                position: event.position,
                why: violation.to_string(),
            })?;
        }
    }
    Ok(state)
}

/// Decodes one event and folds it into `state`.
pub fn fold_one(
    state: &mut Job,
    name: &StreamName,
    recorded: &RecordedEvent,
) -> Result<(), LedgerError> {
    let position = recorded.position;
    let event = match decode(recorded).map_err(|error| LedgerError::unreadable(name, error))? {
        Decoded::Event(Event::Job(event)) => event,
        Decoded::Event(Event::Account(_)) => {
            return Err(LedgerError::Corrupt {
                stream: name.clone(),
                position,
                why: "an account's event in a job's stream".to_owned(),
            });
        }
        Decoded::Retired => {
            state.revision = Some(recorded.revision);
            return Ok(());
        }
    };
    let metadata = Metadata::parse(&recorded.metadata, position)
        .map_err(|error| LedgerError::unreadable(name, error))?;
    evolve(
        state,
        &event,
        recorded.revision,
        recorded.posted_at,
        &metadata.command,
    )
    .map_err(|error| LedgerError::illegal(name, position, &error))
}

/// The state after an append of this process.
pub(super) fn advance(
    before: &Job,
    name: &StreamName,
    events: &[JobEvent],
    posted_at: Timestamp,
    command: &CommandId,
) -> Result<Job, LedgerError> {
    let mut state = before.clone();
    for event in events {
        let revision = Revision::new(state.events());
        evolve(&mut state, event, revision, posted_at, command)
            .map_err(|error| LedgerError::illegal(name, Position::START, &error))?;
    }
    // `decide` promised a legal state: anything else is a fault of ours, and the append must not be taken for done twice.
    debug_assert_eq!(invariants::check(&state), Ok(()));
    Ok(state)
}
