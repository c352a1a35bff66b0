//! What an import came to: counts, rejections by line, and what stopped it.

use recoup::codec::{CodecError, Decoded, Event, decode};
use recoup::job::JobEvent;
use recoup::ledger::LedgerError;
use recoup::store::RecordedEvent;
use recoup::{Outcome, Rejection, Scale};
use serde_json::{Value, json};

use super::Stop;
use super::input::FileDigest;
use crate::cli::answer::Answer;
use crate::cli::outcome::explain;
use crate::cli::table::counted;
use crate::exit::{Exit, ledger_code};

/// What one line came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Applied,
    AlreadyApplied,
    Noted,
    Rejected(Rejection),
}

impl Told {
    /// What a command comes to again whose first event is on record.
    pub(super) fn of_repeat(first: &RecordedEvent) -> Result<Self, CodecError> {
        Ok(match decode(first)? {
            Decoded::Event(Event::Job(JobEvent::Contradicted(_))) => Self::Noted,
            Decoded::Event(_) | Decoded::Retired => Self::AlreadyApplied,
        })
    }
}

impl From<Outcome> for Told {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Applied(_) => Self::Applied,
            Outcome::AlreadyApplied(_) => Self::AlreadyApplied,
            Outcome::Noted(_) => Self::Noted,
            Outcome::Rejected { rejection, .. } => Self::Rejected(rejection),
        }
    }
}

/// Counts of outcomes, and the lines that a rule rejected.
#[derive(Debug, Default)]
pub(super) struct Tally {
    applied: u64,
    already_applied: u64,
    noted: u64,
    rejections: Vec<(u64, Rejection)>,
    /// Every answer in its place, for tests that compare two ways.
    #[cfg(test)]
    pub(super) told: std::collections::BTreeMap<u64, Told>,
}

impl Tally {
    pub(super) fn count(&mut self, number: u64, told: Told) {
        #[cfg(test)]
        self.told.insert(number, told.clone());
        match told {
            Told::Applied => self.applied += 1,
            Told::AlreadyApplied => self.already_applied += 1,
            Told::Noted => self.noted += 1,
            Told::Rejected(rejection) => self.rejections.push((number, rejection)),
        }
    }

    /// The answer of an import that ended, or that `stopped` ended.
    pub(super) fn answer(
        mut self,
        scale: Scale,
        digest: FileDigest,
        stopped: Option<&Stop>,
    ) -> Answer {
        // Behind a line that has no answer a rejection says nothing: it may be owed to that very line.
        if let Some(stop) = stopped {
            self.rejections
                .retain(|(number, _)| *number < stop.number());
        }
        // What the plan answers is told before its chunk is.
        self.rejections.sort_by_key(|(number, _)| *number);
        let rejected = self.rejections.len() as u64;
        let lines = self.applied + self.already_applied + self.noted + rejected;
        let rejections: Vec<Value> = self
            .rejections
            .iter()
            .map(|(line, rejection)| {
                let message = explain(rejection, scale);
                json!({ "line": line, "code": rejection.code(), "message": message })
            })
            .collect();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let document = json!({
            "lines": lines,
            "applied": self.applied,
            "already_applied": self.already_applied,
            "noted": self.noted,
            "rejected": rejected,
            "rejections": rejections,
            "error": stopped.map(stop_document),
            "sha256": digest,
        });
        let exit = match stopped {
            Some(Stop::Ledger {
                error: LedgerError::OutcomeUnknown { .. },
                ..
            }) => Exit::Unknown,
            Some(_) => Exit::Failed,
            None if rejected + self.noted > 0 => Exit::Refused,
            None => Exit::Done,
        };
        let mut text: Vec<String> = self
            .rejections
            .iter()
            .map(|(line, rejection)| {
                format!(
                    "line {line}: {}: {}",
                    rejection.code(),
                    explain(rejection, scale)
                )
            })
            .collect();
        text.push(format!(
            "{}: {} applied, {} already applied, {} noted, {rejected} rejected",
            counted(lines, "command"),
            self.applied,
            self.already_applied,
            self.noted
        ));
        Answer::new(exit, document, text.join("\n"))
    }
}

fn stop_document(stop: &Stop) -> Value {
    match stop {
        Stop::Line { number, cause } => json!({ "line": number, "cause": cause }),
        Stop::Ledger { number, error } => {
            json!({ "line": number, "cause": error.to_string(), "code": ledger_code(error) })
        }
    }
}

/// What stopped an import, and what to do about it.
pub(super) fn explain_stop(stop: &Stop) -> String {
    match stop {
        Stop::Line { number, cause } => {
            format!(
                "line {number}: {cause}; the import stopped there, and the lines before it hold"
            )
        }
        Stop::Ledger {
            number,
            error: error @ LedgerError::OutcomeUnknown { .. },
        } => {
            format!(
                "line {number}: {error}: import the same file again, its command ids are the same"
            )
        }
        Stop::Ledger { number, error } => {
            format!(
                "line {number}: {error}; the import stopped there: import the same file again to go on"
            )
        }
    }
}
