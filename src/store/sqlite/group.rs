//! One transaction for many appends.
//!
//! Every member is checked, revision then limits, against what is committed and what earlier members of the group add, before
//! anything of it is written. A refused member writes nothing and fails no other. Account figures are folded in memory and each
//! touched row is written once, last, in the order of accounts.
//!
//! If the commit fails, no answer of the group stands: what would have been committed is `Unavailable`, or `Unknown` where the
//! error leaves it open, and so is a refusal that an earlier member may have caused.

use std::collections::HashMap;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::{is_unknown_after_commit, store_error};
use super::figures::Figures;
use super::rows::{self, Tail};
use super::writer::{Reply, roll_back};
use crate::clock::{Clock, Timestamp};
use crate::codec::StreamName;
use crate::store::{Append, Appended, Expected, Position, Revision, StoreError};

type Answer = Result<Appended, StoreError>;

/// What waits for the next transaction.
#[derive(Default)]
pub(super) struct Group {
    appends: Vec<Append>,
    replies: Vec<Reply>,
}

impl Group {
    pub(super) fn push(&mut self, append: Append, reply: oneshot::Sender<Answer>) {
        self.appends.push(append);
        self.replies.push(Reply::One(reply));
    }

    pub(super) fn push_many(&mut self, appends: Vec<Append>, reply: oneshot::Sender<Vec<Answer>>) {
        self.replies.push(Reply::Many(reply, appends.len()));
        self.appends.extend(appends);
    }

    /// How many requests wait; one of no appends counts too, as its caller waits for an answer.
    pub(super) fn len(&self) -> usize {
        self.appends.len().max(self.replies.len())
    }

    pub(super) fn into_parts(self) -> (Vec<Append>, Vec<Reply>) {
        (self.appends, self.replies)
    }
}

/// Checks and writes `appends` in one transaction. Gives an answer each, and the new head if anything was committed.
pub(super) fn commit(
    connection: &Connection,
    clock: &dyn Clock,
    appends: &[Append],
) -> (Vec<Answer>, Option<Position>) {
    let all = |error: &StoreError| (vec![Err(error.clone()); appends.len()], None);
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
        return all(&store_error(error));
    }
    let written = Transaction::begin(connection, clock).and_then(|mut transaction| {
        let answers = appends
            .iter()
            .map(|append| transaction.append(append))
            .collect::<Result<_, _>>()?;
        let head = transaction.finish()?;
        Ok::<(Vec<Answer>, Option<Position>), StoreError>((answers, head))
    });
    let (answers, head) = match written {
        Ok(written) => written,
        Err(error) => {
            roll_back(connection);
            return all(&error);
        }
    };
    if head.is_none() {
        // Every member was refused: there is nothing to commit.
        roll_back(connection);
        return (answers, None);
    }
    match connection.execute_batch("COMMIT") {
        Ok(()) => (answers, head),
        Err(error) => {
            roll_back(connection);
            (after_failed_commit(answers, error), None)
        }
    }
}

fn after_failed_commit(answers: Vec<Answer>, error: rusqlite::Error) -> Vec<Answer> {
    let unknown = is_unknown_after_commit(&error);
    let error = store_error(error);
    tracing::warn!(unknown, %error, "a commit failed");
    let answer = |answer| match answer {
        Ok(Appended::Committed { .. }) if unknown => Ok(Appended::Unknown {
            cause: error.to_string(),
        }),
        Err(own) => Err(own),
        Ok(_) => Err(error.clone()),
    };
    answers.into_iter().map(answer).collect()
}

/// The state of a transaction that is being written.
struct Transaction<'a> {
    connection: &'a Connection,
    head: Position,
    posted_at: Timestamp,
    wrote: bool,
    /// The last revision of streams that were looked at, as this transaction leaves it.
    revisions: HashMap<StreamName, Option<Revision>>,
    figures: Figures<'a>,
}

impl<'a> Transaction<'a> {
    fn begin(connection: &'a Connection, clock: &dyn Clock) -> Result<Self, StoreError> {
        let Tail { head, posted_at } = rows::read_tail(connection)?;
        // Read after the lock was taken, and never earlier than what stands before: days are ranges of positions.
        let posted_at = posted_at.map_or(clock.now(), |last| last.max(clock.now()));
        Ok(Self {
            connection,
            head,
            posted_at,
            wrote: false,
            revisions: HashMap::new(),
            figures: Figures::new(connection),
        })
    }

    /// Checks one member and, if nothing speaks against it, writes it. The outer error fails the whole group.
    fn append(&mut self, append: &Append) -> Result<Answer, StoreError> {
        let current = match self.revisions.get(&append.stream) {
            Some(current) => *current,
            None => rows::last_revision(self.connection, &append.stream)?,
        };
        if Expected::after(current) != append.expected {
            self.revisions.insert(append.stream.clone(), current);
            return Ok(Ok(Appended::Conflict { current }));
        }
        if let Some(admission) = &append.admission
            && let Err(refusal) = self.figures.admit(admission)?
        {
            return Ok(Ok(Appended::Refused(refusal)));
        }
        let first = self.head.get().saturating_add(1);
        let events = i64::try_from(append.events.len()).unwrap_or(i64::MAX);
        // Figures first: a posting that does not fit fails this member before anything of it is written.
        if let Err(why) = self.figures.apply(&append.events, first)? {
            let position = Position::new(first);
            return Ok(Err(StoreError::Corrupt {
                position,
                why: why.to_string(),
            }));
        }
        rows::insert(
            self.connection,
            Position::new(first),
            append,
            self.posted_at,
        )?;
        self.head = Position::new(first.saturating_add(events).saturating_sub(1));
        self.revisions
            .insert(append.stream.clone(), Some(append.last_revision()));
        self.wrote = true;
        Ok(Ok(Appended::Committed {
            position: self.head,
            posted_at: self.posted_at,
        }))
    }

    /// Writes the figures. Gives the new head, if anything was written.
    fn finish(self) -> Result<Option<Position>, StoreError> {
        self.figures.write()?;
        Ok(self.wrote.then_some(self.head))
    }
}
