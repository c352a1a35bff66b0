//! Many appends in one transaction: who waits for which answer, and what each append is checked against.
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
//!
//! The caller of [`Check`] holds the lock that orders appends, took it before it read what [`Stored`] answers with, and keeps it until the commit.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::sync::oneshot;

use super::figures::{Changes, Figures, Stored};
use super::{Append, Appended, Expected, Position, Revision, StoreError};
use crate::clock::{Timestamp, Zone};
use crate::codec::StreamName;
use crate::sql::log::Tail;

/// How many requests may wait for a process's writer.
pub const QUEUE: usize = 8_192;

/// How many appends one transaction takes at the most.
pub const MAX_GROUP: usize = 2_048;

pub(crate) type Answer = Result<Appended, StoreError>;

/// An append that waits.
pub(crate) struct Member {
    pub(crate) append: Append,
    /// The call of many appends that it is part of.
    call: Option<usize>,
}

/// What waits for the next transactions.
#[derive(Default)]
pub(crate) struct Group {
    members: Vec<Member>,
    replies: Vec<Reply>,
}

impl Group {
    pub(crate) fn push(&mut self, append: Append, reply: oneshot::Sender<Answer>) {
        self.members.push(Member { append, call: None });
        self.replies.push(Reply::One(reply));
    }

    pub(crate) fn push_many(&mut self, appends: Vec<Append>, reply: oneshot::Sender<Vec<Answer>>) {
        let call = Some(self.replies.len());
        self.replies.push(Reply::Many(reply, appends.len()));
        let members = appends.into_iter().map(|append| Member { append, call });
        self.members.extend(members);
    }

    /// How many requests wait; one of no appends counts too, as its caller waits for an answer.
    pub(crate) fn len(&self) -> usize {
        self.members.len().max(self.replies.len())
    }

    /// The appends in their order, and who waits for them.
    pub(crate) fn into_parts(self) -> (Vec<Member>, Replies) {
        let replies = Replies {
            waiting: self.replies.into(),
            answers: VecDeque::new(),
        };
        (self.members, replies)
    }
}

/// Answers that one request waits for.
enum Reply {
    One(oneshot::Sender<Answer>),
    /// How many appends it has.
    Many(oneshot::Sender<Vec<Answer>>, usize),
}

/// Answers on their way to who waits for them: each is told as soon as all of its own are there.
pub(crate) struct Replies {
    waiting: VecDeque<Reply>,
    answers: VecDeque<Answer>,
}

impl Replies {
    /// The answers to the next members, in order.
    pub(crate) fn push(&mut self, answers: Vec<Answer>) {
        self.answers.extend(answers);
        while let Some(reply) = self.waiting.pop_front() {
            if reply.count() > self.answers.len() {
                self.waiting.push_front(reply);
                break;
            }
            reply.send(&mut self.answers);
        }
    }

    /// Answers calls of no appends behind the last one.
    pub(crate) fn finish(mut self) {
        for reply in self.waiting {
            reply.send(&mut self.answers);
        }
    }
}

impl Reply {
    /// How many answers its caller waits for.
    const fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(_, count) => *count,
        }
    }

    /// Answers. A caller that is gone wants no answer; what it asked for is done.
    fn send(self, answers: &mut VecDeque<Answer>) {
        match self {
            Self::One(reply) => {
                if let Some(answer) = answers.pop_front() {
                    let _ = reply.send(answer);
                }
            }
            Self::Many(reply, count) => {
                let _ = reply.send(answers.drain(..count.min(answers.len())).collect());
            }
        }
    }
}

/// Chains in which an append was not committed: by call and stream.
#[derive(Default)]
pub(crate) struct Broken(HashSet<(usize, StreamName)>);

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

    /// Takes the answers that stand: those of the check may have been undone by a failed commit.
    pub(crate) fn note_all(&mut self, members: &[Member], answers: &[Answer]) {
        for (member, answer) in members.iter().zip(answers) {
            self.note(member, answer);
        }
    }
}

/// Where a transaction begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Where the log ends, read under the lock.
    pub(crate) tail: Tail,
    /// When the events of this transaction are posted: read under the lock, and never earlier than the tail, as days are ranges of positions.
    pub(crate) posted_at: Timestamp,
    pub(crate) zone: Zone,
}

/// The check of one transaction's members.
pub(crate) struct Check<S> {
    start: Start,
    head: Position,
    /// The last revision of streams that were written to.
    revisions: HashMap<StreamName, Option<Revision>>,
    figures: Figures<S>,
}

/// What the members of a transaction come to, once it is committed.
#[derive(Debug)]
pub(crate) struct Checked {
    /// In the order of the members.
    pub(crate) answers: Vec<Answer>,
    /// Where the log then ends; none if no member is let in.
    pub(crate) head: Option<Position>,
    /// The figures that change.
    pub(crate) changes: Changes,
}

impl<S: Stored> Check<S> {
    pub(crate) fn new(start: Start, stored: S) -> Self {
        Self {
            start,
            head: start.tail.head,
            revisions: HashMap::new(),
            figures: Figures::new(stored),
        }
    }

    /// Checks `members` in order. `write` is given each that is let in, with the place of its first event. An error fails the whole transaction.
    pub(crate) fn run(
        mut self,
        members: &[Member],
        broken: &mut Broken,
        mut write: impl FnMut(Position, &Append) -> Result<(), StoreError>,
    ) -> Result<Checked, StoreError> {
        let mut answers = Vec::with_capacity(members.len());
        for member in members {
            let answer = if broken.contains(member) {
                let current = self.last_revision(&member.append.stream)?;
                Ok(Appended::Conflict { current })
            } else {
                self.append(&member.append, &mut write)?
            };
            broken.note(member, &answer);
            answers.push(answer);
        }
        let has_written = self.head != self.start.tail.head;
        Ok(Checked {
            answers,
            head: has_written.then_some(self.head),
            changes: self.figures.into_changes(),
        })
    }

    /// A stream's last revision, as this transaction leaves it.
    fn last_revision(&self, stream: &StreamName) -> Result<Option<Revision>, StoreError> {
        match self.revisions.get(stream) {
            Some(current) => Ok(*current),
            None => self.figures.stored().last_revision(stream),
        }
    }

    /// Checks one member and, if nothing speaks against it, lets it in.
    fn append(
        &mut self,
        append: &Append,
        write: &mut impl FnMut(Position, &Append) -> Result<(), StoreError>,
    ) -> Result<Answer, StoreError> {
        let Start {
            tail,
            posted_at,
            zone,
        } = self.start;
        let current = self.last_revision(&append.stream)?;
        let is_stale = |tail| append.is_charged_before_month_of(tail, zone);
        if Expected::after(current) != append.expected || tail.posted_at.is_some_and(is_stale) {
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
        write(Position::new(first), append)?;
        self.head = Position::new(first.saturating_add(events).saturating_sub(1));
        self.revisions
            .insert(append.stream.clone(), Some(append.last_revision()));
        Ok(Ok(Appended::Committed {
            position: self.head,
            posted_at,
        }))
    }
}

/// What is answered after a commit that failed with `error`: `is_unknown` if it leaves it open whether the transaction is stored.
pub(crate) fn after_failed_commit(
    answers: Vec<Answer>,
    error: &StoreError,
    is_unknown: bool,
) -> Vec<Answer> {
    tracing::debug!(is_unknown, %error, "a commit failed");
    let answer = |answer| match answer {
        Ok(Appended::Committed { .. }) if is_unknown => Ok(Appended::Unknown {
            cause: error.to_string(),
        }),
        Err(own) => Err(own),
        Ok(_) => Err(error.clone()),
    };
    answers.into_iter().map(answer).collect()
}
