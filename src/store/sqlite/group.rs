//! One transaction for many appends.
//!
//! Every member is checked, revision then limits, against what is committed and what earlier members of the group add, before
//! anything of it is written. A refused member writes nothing and fails no other. Account figures are folded in memory and each
//! touched row is written once, last, in the order of accounts.
//!
//! The appends that one call makes to one stream are a chain: behind the first that is not committed the rest is not tried, also
//! where a call spans several transactions.
//!
//! If the commit fails, no answer of the group stands: what would have been committed is `Unavailable`, or `Unknown` where the
//! error leaves it open, and so is a refusal that an earlier member may have caused.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::backfill::IsBackfill;
use super::error::{is_unknown_after_commit, store_error};
use super::figures::Figures;
use super::place::Place;
use super::rows::{self, Tail};
use super::time::StoreClock;
use super::writer::{Busy, Reply, begin, roll_back};
use crate::clock::{Timestamp, Zone};
use crate::codec::StreamName;
use crate::store::{Append, Appended, Expected, Position, Revision, StoreError};

type Answer = Result<Appended, StoreError>;

/// An append that waits.
pub(super) struct Member {
    append: Append,
    /// The call of many appends that it is part of.
    call: Option<usize>,
}

/// What every transaction needs to know.
pub(super) struct Context {
    pub(super) clock: StoreClock,
    pub(super) zone: Zone,
    pub(super) place: Place,
    pub(super) is_backfill: IsBackfill,
}

/// What waits for the next transaction.
#[derive(Default)]
pub(super) struct Group {
    members: Vec<Member>,
    replies: Vec<Reply>,
}

impl Group {
    pub(super) fn push(&mut self, append: Append, reply: oneshot::Sender<Answer>) {
        self.members.push(Member { append, call: None });
        self.replies.push(Reply::One(reply));
    }

    pub(super) fn push_many(&mut self, appends: Vec<Append>, reply: oneshot::Sender<Vec<Answer>>) {
        let call = Some(self.replies.len());
        self.replies.push(Reply::Many(reply, appends.len()));
        let members = appends.into_iter().map(|append| Member { append, call });
        self.members.extend(members);
    }

    /// How many requests wait; one of no appends counts too, as its caller waits for an answer.
    pub(super) fn len(&self) -> usize {
        self.members.len().max(self.replies.len())
    }

    pub(super) fn into_parts(self) -> (Vec<Member>, Vec<Reply>) {
        (self.members, self.replies)
    }
}

/// Chains in which an append was not committed: by call and stream.
#[derive(Default)]
pub(super) struct Broken(HashSet<(usize, StreamName)>);

impl Broken {
    fn contains(&self, member: &Member) -> bool {
        // Mostly empty: then nothing is hashed and no name is copied.
        !self.0.is_empty()
            && member
                .call
                .is_some_and(|call| self.0.contains(&(call, member.append.stream.clone())))
    }

    fn note(&mut self, member: &Member, answer: &Answer) {
        if let Some(call) = member.call
            && !matches!(answer, Ok(Appended::Committed { .. }))
        {
            self.0.insert((call, member.append.stream.clone()));
        }
    }
}

/// Checks and writes `members` in one transaction. Gives an answer each, and the new head if anything was committed.
pub(super) fn commit(
    connection: &Connection,
    context: &Context,
    members: &[Member],
    broken: &mut Broken,
) -> Result<(Vec<Answer>, Option<Position>), Busy> {
    begin(connection).map_err(Busy)?;
    let (answers, head) = try_commit(connection, context, members, broken);
    for (member, answer) in members.iter().zip(&answers) {
        broken.note(member, answer);
    }
    Ok((answers, head))
}

fn try_commit(
    connection: &Connection,
    context: &Context,
    members: &[Member],
    broken: &mut Broken,
) -> (Vec<Answer>, Option<Position>) {
    let all = |error: &StoreError| (vec![Err(error.clone()); members.len()], None);
    let written = Transaction::begin(connection, context).and_then(|mut transaction| {
        let mut answers = Vec::with_capacity(members.len());
        for member in members {
            let answer = if broken.contains(member) {
                let current = transaction.last_revision(&member.append.stream)?;
                Ok(Appended::Conflict { current })
            } else {
                transaction.append(&member.append)?
            };
            broken.note(member, &answer);
            answers.push(answer);
        }
        let posted_at = transaction.posted_at;
        let head = transaction.finish()?;
        context.place.check()?;
        Ok((answers, head, posted_at))
    });
    let (answers, head, posted_at) = match written {
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
        Ok(()) => {
            context.clock.saw(posted_at);
            (answers, head)
        }
        Err(error) => {
            roll_back(connection);
            (after_failed_commit(answers, error), None)
        }
    }
}

fn after_failed_commit(answers: Vec<Answer>, error: rusqlite::Error) -> Vec<Answer> {
    let unknown = is_unknown_after_commit(&error);
    let error = store_error(error);
    tracing::debug!(unknown, %error, "a commit failed");
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
    zone: Zone,
    /// When the last event before this transaction was posted.
    tail_posted_at: Option<Timestamp>,
    posted_at: Timestamp,
    wrote: bool,
    /// The last revision of streams that were written to.
    revisions: HashMap<StreamName, Option<Revision>>,
    figures: Figures<'a>,
}

impl<'a> Transaction<'a> {
    fn begin(connection: &'a Connection, context: &'a Context) -> Result<Self, StoreError> {
        let Tail { head, posted_at } = rows::read_tail(connection)?;
        context
            .is_backfill
            .check(connection, (context.clock.injected(), posted_at))?;
        if let Some(posted_at) = posted_at {
            context.clock.saw(posted_at);
        }
        Ok(Self {
            connection,
            zone: context.zone,
            head,
            tail_posted_at: posted_at,
            // Read after the lock was taken, and never earlier than what stands before: days are ranges of positions.
            posted_at: context.clock.now(),
            wrote: false,
            revisions: HashMap::new(),
            figures: Figures::new(connection),
        })
    }

    /// A stream's last revision, as this transaction leaves it.
    fn last_revision(&self, stream: &StreamName) -> Result<Option<Revision>, StoreError> {
        match self.revisions.get(stream) {
            Some(current) => Ok(*current),
            None => rows::last_revision(self.connection, stream),
        }
    }

    /// Checks one member and, if nothing speaks against it, writes it. The outer error fails the whole group.
    fn append(&mut self, append: &Append) -> Result<Answer, StoreError> {
        let current = self.last_revision(&append.stream)?;
        let is_stale = |tail| append.is_charged_before_month_of(tail, self.zone);
        if Expected::after(current) != append.expected || self.tail_posted_at.is_some_and(is_stale)
        {
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
