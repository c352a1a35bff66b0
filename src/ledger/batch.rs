//! Many commands in one call: an outcome each, the order kept per job.
//!
//! One pass decides every command on the state that the earlier ones of its stream will have led to, and collects the appends;
//! the store commits them in few transactions. What that pass cannot answer goes the ordinary way afterwards, in order: an
//! answer that appends nothing needs a freshly read stream, and behind a refused or conflicting append its stream has to be
//! decided anew. From the first such command on, the rest of its stream goes that way too, so no order is lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Command, Ledger, LedgerError, Outcome, Receipt, Settled, accounts, job_append, load};
use crate::clock::Timestamp;
use crate::codec::{Stream, StreamName};
use crate::ids::{CommandId, JobId};
use crate::job::{Decision, Job, JobCommand, JobEvent, decide};
use crate::store::{Append, Appended, Expected, Revision, StoreError};

type Answer = Result<Outcome, LedgerError>;

/// A command's append, decided on a state that earlier members of the batch may still have to lead to.
struct Member {
    index: usize,
    id: CommandId,
    append: Append,
    /// The answer, should it be committed.
    outcome: Outcome,
    /// A job's decided events, to fold with the instant that the store gives them. Other streams have no state.
    events: Option<(JobId, Vec<JobEvent>)>,
}

impl Ledger {
    /// Carries out many commands; the answers stand in the order of the commands. Commands of one job keep their order, and a
    /// change of limits takes effect where it stands.
    pub async fn batch(
        &self,
        commands: Vec<(CommandId, Command)>,
    ) -> Vec<Result<Outcome, LedgerError>> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut waiting = Vec::with_capacity(commands.len());
        for (id, command) in commands {
            // Limits are read from their stream before they are changed: no append can be decided ahead of that.
            if matches!(command, Command::Limit(_)) {
                answers.append(&mut self.without_limits(std::mem::take(&mut waiting)).await);
                answers.push(self.execute(id, command).await);
            } else {
                waiting.push((id, command));
            }
        }
        answers.append(&mut self.without_limits(waiting).await);
        answers
    }

    async fn without_limits(&self, commands: Vec<(CommandId, Command)>) -> Vec<Answer> {
        let mut states = self.prefetch(&commands).await;
        let mut members = Vec::with_capacity(commands.len());
        let mut deferred: HashSet<StreamName> = HashSet::new();
        for (index, (id, command)) in commands.iter().enumerate() {
            let name = command.stream().name();
            if deferred.contains(&name) {
                continue;
            }
            match self.plan(index, id, command, &mut states) {
                Some(member) => members.push(member),
                None => {
                    deferred.insert(name);
                }
            }
        }
        let first_pass = self.append_members(members, commands.len()).await;
        let mut failed: HashMap<StreamName, LedgerError> = HashMap::new();
        let mut answers = Vec::with_capacity(commands.len());
        for ((id, command), answer) in commands.into_iter().zip(first_pass) {
            let name = command.stream().name();
            let answer = match (answer, failed.get(&name)) {
                (Some(answer), _) => answer,
                // Not "no such job" because its charge found the disk full: nobody knows yet.
                (None, Some(error)) => Err(behind(error)),
                (None, None) => self.execute(id, command).await,
            };
            if let Err(error) = &answer {
                failed.entry(name).or_insert_with(|| error.clone());
            }
            answers.push(answer);
        }
        answers
    }

    /// The states that the batch begins with: cached, guessed for a charge, else read in one go.
    async fn prefetch(&self, commands: &[(CommandId, Command)]) -> HashMap<StreamName, Arc<Job>> {
        let mut states = HashMap::new();
        let mut missing: Vec<(StreamName, JobId)> = Vec::new();
        let mut asked = HashSet::new();
        for (_, command) in commands {
            let Command::Job(job, command) = command else {
                continue;
            };
            let name = Stream::Job(job.clone()).name();
            if states.contains_key(&name) || !asked.insert(name.clone()) {
                continue;
            }
            match self.guess(&name, job, command) {
                Some(state) => {
                    states.insert(name, state);
                }
                None => missing.push((name, job.clone())),
            }
        }
        if missing.is_empty() {
            return states;
        }
        let names = missing.iter().map(|(name, _)| name.clone()).collect();
        // A stream that cannot be read is left out: its commands go the ordinary way and say why.
        let Ok(streams) = self.store().read_streams(names).await else {
            return states;
        };
        for ((name, job), recorded) in missing.into_iter().zip(streams) {
            if let Ok(state) = load::fold(&job, &name, &recorded) {
                let state = Arc::new(state);
                self.remember(name.clone(), Arc::clone(&state));
                states.insert(name, state);
            }
        }
        states
    }

    /// The append of one command; none if the ordinary way has to answer it.
    fn plan(
        &self,
        index: usize,
        id: &CommandId,
        command: &Command,
        states: &mut HashMap<StreamName, Arc<Job>>,
    ) -> Option<Member> {
        let of_account = |append| {
            let outcome = Outcome::Applied(Receipt::at(Revision::FIRST));
            Some(Member {
                index,
                id: id.clone(),
                append,
                outcome,
                events: None,
            })
        };
        match command {
            Command::Grant(grant) => of_account(accounts::grant_append(id, grant).1),
            Command::Adjust(adjust) => of_account(accounts::adjust_append(id, adjust).1),
            Command::Limit(_) => None,
            Command::Job(job, command) => self.plan_job(index, job, id, command, states),
        }
    }

    fn plan_job(
        &self,
        index: usize,
        job: &JobId,
        id: &CommandId,
        command: &JobCommand,
        states: &mut HashMap<StreamName, Arc<Job>>,
    ) -> Option<Member> {
        let stream = Stream::Job(job.clone());
        let name = stream.name();
        let state = states.get(&name)?;
        let now = self.now();
        let (events, admission, noted) = match decide(state, id, command, now) {
            Ok(Decision::Append { events, admission }) => (events, admission, false),
            Ok(Decision::Noted { event: Some(event) }) => (vec![event], None, true),
            Ok(Decision::AlreadyApplied | Decision::Noted { event: None }) | Err(_) => return None,
        };
        let append = job_append(&stream, state, id, &events, admission);
        let next = load::advance(state, &name, &events, now.at, id).ok()?;
        let receipt = Receipt::of_job(&next);
        states.insert(name, Arc::new(next));
        let outcome = if noted {
            Outcome::Noted(receipt)
        } else {
            Outcome::Applied(receipt)
        };
        Some(Member {
            index,
            id: id.clone(),
            append,
            outcome,
            events: Some((job.clone(), events)),
        })
    }

    async fn append_members(&self, members: Vec<Member>, commands: usize) -> Vec<Option<Answer>> {
        let mut answers: Vec<Option<Answer>> = (0..commands).map(|_| None).collect();
        let appends = members.iter().map(|member| member.append.clone()).collect();
        let results = self.store().append_many(appends).await;
        // Where a chain broke, and whether its outcome is unknown from there on.
        let mut broken: HashMap<StreamName, bool> = HashMap::new();
        for (member, result) in members.into_iter().zip(results) {
            let name = member.append.stream.clone();
            // Behind a broken link the rest of the chain was decided on what never came to be: it goes the ordinary way, which finds by its
            // command id what an unknown outcome has left behind.
            if let Some(is_unknown) = broken.get(&name) {
                // A link of the same commit as one that nobody could settle is as unknown as that one.
                if *is_unknown && let Ok(Appended::Unknown { cause }) = result {
                    let stream = name;
                    answers[member.index] =
                        Some(Err(LedgerError::OutcomeUnknown { stream, cause }));
                }
                continue;
            }
            let settled = self.settle_answer(&member.append, result).await;
            let answer = match settled {
                Ok(Settled::Committed(posted_at)) => {
                    let advanced = self.advance_recent(&member, posted_at);
                    Ok(advanced.unwrap_or(member.outcome))
                }
                Ok(Settled::Conflict) => {
                    broken.insert(name, false);
                    continue;
                }
                Ok(Settled::Refused(refusal)) => {
                    broken.insert(name, false);
                    Ok(Outcome::Rejected {
                        rejection: refusal.into(),
                        at: None,
                    })
                }
                Err(error) => {
                    let is_unknown = matches!(error, LedgerError::OutcomeUnknown { .. });
                    broken.insert(name, is_unknown);
                    Err(error)
                }
            };
            answers[member.index] = Some(answer);
        }
        answers
    }

    /// Brings the cached state forward with the instant that the store gave the events, and gives the answer with the deadline that
    /// follows from it. A state that is not the one before is left: it costs a conflict.
    fn advance_recent(&self, member: &Member, posted_at: Timestamp) -> Option<Outcome> {
        let (job, events) = member.events.as_ref()?;
        let name = &member.append.stream;
        let before = self
            .recent
            .get(name)
            .unwrap_or_else(|| Arc::new(Job::empty(job.clone())));
        if Expected::after(before.revision) != member.append.expected {
            return None;
        }
        let state = load::advance(&before, name, events, posted_at, &member.id).ok()?;
        let receipt = Receipt::of_job(&state);
        self.remember(name.clone(), state);
        Some(match member.outcome {
            Outcome::Noted(_) => Outcome::Noted(receipt),
            _ => Outcome::Applied(receipt),
        })
    }
}

/// The answer to a command behind one of its stream that has none: it was not tried.
fn behind(error: &LedgerError) -> LedgerError {
    match error {
        LedgerError::OutcomeUnknown { stream, cause } => {
            let cause =
                format!("the outcome of an earlier command on {stream} is unknown: {cause}");
            LedgerError::Store(StoreError::Unavailable { cause })
        }
        LedgerError::Store(_) | LedgerError::StreamTooNew { .. } | LedgerError::Corrupt { .. } => {
            error.clone()
        }
    }
}
