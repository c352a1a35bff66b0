//! Dead letters moved by people: redriven or discarded, many at once.
//!
//! The ids are selected once, as of one position, in the order in which the jobs became dead letters; each is moved at most once. A job that is
//! redriven and dead-letters again meanwhile is a new dead letter, at a later position, and not of this selection. The command of each
//! derives from job, verb and that position: a run that was interrupted, and is given again, finds what it has done and does the rest.
//!
//! Bounds: the selected ids in memory; [`CHUNK`] commands at a time, which share commits.

use recoup::job::{DeadLetterCause, JobEvent};
use recoup::ledger::load::History;
use recoup::store::StoreError;
use recoup::{
    Command, CommandId, JobCommand, JobId, Ledger, LedgerError, Outcome, Position, Reason,
    Rejection,
};
use recoup_projections::{
    DeadLetterFilter, MAX_PAGE_ROWS, Projection, ProjectionError, Projections,
};
use uuid::Uuid;

/// What the ids of moves derive from.
const SCOPE: Uuid = uuid::uuid!("2f7c4a1e-93d5-5c55-9d0e-51a6e0c4b8a2");

/// How many commands are sent at a time.
pub const CHUNK: usize = 64;

/// What is done with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Another round of attempts.
    Redrive,
    /// Given up for good.
    Discard,
}

impl Move {
    /// The verb.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    fn command(self, reason: &Reason) -> JobCommand {
        let reason = Some(reason.clone());
        match self {
            Self::Redrive => JobCommand::Redrive { reason },
            Self::Discard => JobCommand::Discard { reason },
        }
    }
}

/// A dead letter of a selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Which job.
    pub job: JobId,
    /// The place of the event that made it one.
    pub position: Position,
}

impl Letter {
    fn id(&self, to: Move) -> CommandId {
        let position = self.position.get().to_le_bytes();
        CommandId::derived(
            SCOPE,
            &[
                self.job.as_str().as_bytes(),
                to.name().as_bytes(),
                &position,
            ],
        )
    }
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Moved {
    /// How many were moved, or would be.
    pub applied: u64,
    /// How many an earlier run had moved.
    pub already_applied: u64,
    /// Where a rule said no.
    pub rejections: Vec<(JobId, Rejection)>,
    /// Where there was no answer. The run ends at the first that concerns the store and not one job.
    pub failures: Vec<(JobId, LedgerError)>,
}

/// The dead letters of `filter` as of the projection's checkpoint, at most `limit`, the oldest first.
pub async fn select(
    projections: &Projections,
    filter: &DeadLetterFilter,
    limit: Option<usize>,
) -> Result<Vec<Letter>, ProjectionError> {
    let checkpoints = projections.checkpoints().await?;
    let as_of = checkpoints
        .iter()
        .find(|checkpoint| checkpoint.projection == Projection::DeadLetters)
        .map_or(Position::START, |checkpoint| checkpoint.position);
    let limit = limit.unwrap_or(usize::MAX);
    let (mut letters, mut after) = (Vec::new(), None);
    loop {
        let page = projections
            .dead_letters(filter, after, MAX_PAGE_ROWS)
            .await?;
        // Pages are read one after the other: what came behind the first one's moment is not of this selection.
        let is_over = page.rows.last().is_none_or(|row| row.position > as_of);
        let of_then = page.rows.into_iter().filter(|row| row.position <= as_of);
        letters.extend(of_then.map(|row| Letter {
            job: row.job,
            position: row.position,
        }));
        after = page.next;
        if is_over || after.is_none() || letters.len() >= limit {
            letters.truncate(limit);
            return Ok(letters);
        }
    }
}

/// How a job became a dead letter the last time, as its stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Where.
    pub position: Position,
    /// Why.
    pub cause: DeadLetterCause,
    /// What was said of the last failure before it.
    pub reason: Option<String>,
}

/// Finds the last death in a job's history.
#[must_use]
pub fn last_death(history: &[History]) -> Option<Death> {
    let (mut reason, mut death) = (None, None);
    for one in history {
        match &one.event {
            Some(JobEvent::AttemptFailed(failed)) => {
                let timer = failed
                    .timer
                    .map(|timer| format!("{} ran out", timer.name()));
                reason = failed.reason.as_ref().map(ToString::to_string).or(timer);
            }
            Some(JobEvent::DeadLettered(dead)) => {
                death = Some(Death {
                    position: one.position,
                    cause: dead.cause,
                    reason: reason.clone(),
                });
            }
            _ => {}
        }
    }
    death
}

/// The dead letter of a job that is named, be it one now or one that an earlier run has moved; a rejection for one that never was.
pub async fn named(ledger: &Ledger, job: &JobId) -> Result<Result<Letter, Rejection>, LedgerError> {
    let (folded, history) = ledger.show(job).await?;
    let Some(recorded) = folded.recorded() else {
        return Ok(Err(Rejection::NoSuchJob));
    };
    let state = recorded.work.name();
    Ok(last_death(&history)
        .map(|death| Letter {
            job: job.clone(),
            position: death.position,
        })
        .ok_or(Rejection::NotDeadLettered { state }))
}

/// Moves the letters, in order. `progress` hears how many have an answer.
pub async fn carry_out(
    ledger: &Ledger,
    letters: &[Letter],
    (to, reason): (Move, &Reason),
    mut progress: impl FnMut(usize),
) -> Moved {
    let mut moved = Moved::default();
    let mut done = 0;
    for chunk in letters.chunks(CHUNK) {
        let command = |letter: &Letter| {
            let command = Command::Job(letter.job.clone(), to.command(reason));
            (letter.id(to), command)
        };
        let answers = ledger.batch(chunk.iter().map(command).collect()).await;
        let mut is_answering = true;
        for (letter, answer) in chunk.iter().zip(answers) {
            is_answering &= moved.take(&letter.job, answer);
        }
        done += chunk.len();
        progress(done);
        if !is_answering {
            break;
        }
    }
    moved
}

/// Says what [`carry_out`] would come to, and moves nothing.
pub async fn try_out(ledger: &Ledger, letters: &[Letter], (to, reason): (Move, &Reason)) -> Moved {
    let mut moved = Moved::default();
    for letter in letters {
        let command = to.command(reason);
        let answer = ledger.dry_run(&letter.id(to), &letter.job, &command).await;
        if !moved.take(&letter.job, answer) {
            break;
        }
    }
    moved
}

impl Moved {
    /// Counts an answer. Gives false where it is the store that does not answer.
    fn take(&mut self, job: &JobId, answer: Result<Outcome, LedgerError>) -> bool {
        match answer {
            Ok(Outcome::Applied(_)) => self.applied += 1,
            Ok(Outcome::AlreadyApplied(_) | Outcome::Noted(_)) => self.already_applied += 1,
            // An earlier run moved it, for a reason in other words.
            Ok(Outcome::Rejected {
                rejection: Rejection::CommandIdReused { field: "reason" },
                ..
            }) => self.already_applied += 1,
            Ok(Outcome::Rejected { rejection, .. }) => {
                self.rejections.push((job.clone(), rejection));
            }
            Err(error) => {
                let is_of_the_job = matches!(
                    error,
                    LedgerError::StreamTooNew { .. }
                        | LedgerError::Corrupt { .. }
                        | LedgerError::Store(StoreError::Corrupt { .. })
                );
                self.failures.push((job.clone(), error));
                return is_of_the_job;
            }
        }
        true
    }
}
