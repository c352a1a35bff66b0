//! Outcomes of commands, as answers.
//!
//! A rejection carries its stable code, and the numbers that it was decided on. An outcome that is unknown carries the command id, for
//! only a repeat under the same one is safe.

use recoup::{CommandId, LedgerError, Outcome, Rejection, Scale};
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::table::printable;
use crate::exit::{Exit, ledger_code};

/// A command as it was given.
pub(super) struct Given {
    /// What it speaks of, as keys of the document: `job`, or `account` and `grant`.
    pub(super) subject: Vec<(&'static str, String)>,
    /// Its id.
    pub(super) id: CommandId,
    /// Whether nothing was to happen.
    pub(super) is_dry_run: bool,
}

impl Given {
    pub(super) fn new(subject: Vec<(&'static str, String)>, id: Option<CommandId>) -> Self {
        Self {
            subject,
            id: id.unwrap_or_else(CommandId::random),
            is_dry_run: false,
        }
    }

    /// The answer to this command.
    pub(super) fn answer(
        &self,
        scale: Scale,
        told: Result<Outcome, LedgerError>,
    ) -> anyhow::Result<Answer> {
        let mut document = json!({
            "command_id": self.id.as_str(), "scale": scale.get(), "code": null, "revision": null,
        });
        for (key, value) in &self.subject {
            document[*key] = value.as_str().into();
        }
        if self.subject.iter().any(|(key, _)| *key == "job") {
            document["state"] = Value::Null;
            document["attempt"] = Value::Null;
        }
        if self.is_dry_run {
            document["dry_run"] = true.into();
        }
        match told {
            Ok(outcome) => Ok(self.known(scale, document, &outcome)),
            Err(error @ LedgerError::OutcomeUnknown { .. }) => {
                document["outcome"] = "unknown".into();
                document["code"] = ledger_code(&error).into();
                document["error"] = error.to_string().into();
                let text = format!(
                    "{}: outcome unknown: {error}: --command-id {}",
                    self.name(),
                    self.id
                );
                Ok(Answer::new(Exit::Unknown, document, text))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn known(&self, scale: Scale, mut document: Value, outcome: &Outcome) -> Answer {
        document["outcome"] = outcome.name().into();
        let mut text = format!("{}: {}", self.name(), self.sentence(outcome));
        if let Some(rejection) = outcome.rejection() {
            document["code"] = rejection.code().into();
            document["message"] = explain(rejection, scale).into();
            if let Value::Object(map) = &mut document {
                map.extend(numbers(rejection));
            }
            text = format!("{text}: {}", explain(rejection, scale));
        }
        if let Some(receipt) = outcome.receipt() {
            document["revision"] = receipt.revision.get().into();
            if let Some(job) = &receipt.job {
                document["state"] = job.state.into();
                document["attempt"] = job.attempt.get().into();
                text = format!(
                    "{text}; {}, attempt {}, revision {}",
                    job.state, job.attempt, receipt.revision
                );
                if let Some(result) = job.result.as_ref().filter(|_| outcome.is_done()) {
                    document["result"] = result.as_str().into();
                    text = format!("{text}, result {}", printable(result.as_str()));
                }
            }
        }
        let exit = if outcome.is_done() {
            Exit::Done
        } else {
            Exit::Refused
        };
        Answer::new(exit, document, text)
    }

    fn name(&self) -> String {
        let names: Vec<&str> = self
            .subject
            .iter()
            .map(|(_, value)| value.as_str())
            .collect();
        names.join(" ")
    }

    fn sentence(&self, outcome: &Outcome) -> &'static str {
        match (outcome, self.is_dry_run) {
            (Outcome::Applied(_), false) => "applied",
            (Outcome::Applied(_), true) => "would be applied",
            (Outcome::AlreadyApplied(_), _) => "already applied",
            (Outcome::Noted(_), false) => "noted: it contradicts what had happened; nothing moved",
            (Outcome::Noted(_), true) => "would be noted: it contradicts what had happened",
            (Outcome::Rejected { .. }, false) => "rejected",
            (Outcome::Rejected { .. }, true) => "would be rejected",
        }
    }
}

/// A rejection for people: amounts with the ledger's decimals.
pub(super) fn explain(rejection: &Rejection, scale: Scale) -> String {
    let show = |amount: i64| scale.show(amount);
    match rejection {
        Rejection::InsufficientCredit {
            available,
            needed,
            floor,
        } => format!(
            "insufficient credit: {} available, {} needed, floor {}",
            show(*available),
            show(*needed),
            show(*floor)
        ),
        Rejection::CapExceeded {
            month,
            cap,
            used,
            needed,
        } => format!(
            "cap exceeded: {} of {} used in {month}, {} needed",
            show(*used),
            show(*cap),
            show(*needed)
        ),
        Rejection::BalanceOutOfRange { balance, amount } => format!(
            "balance out of range: {} with {} more is larger than 10^18 smallest units in size",
            show(*balance),
            show(*amount)
        ),
        other => other.to_string(),
    }
}

/// The numbers that a rejection was decided on, under the names of the rejection's fields.
fn numbers(rejection: &Rejection) -> Map<String, Value> {
    let fields = match rejection {
        Rejection::InsufficientCredit {
            available,
            needed,
            floor,
        } => {
            json!({ "available": available, "needed": needed, "floor": floor })
        }
        Rejection::CapExceeded {
            month,
            cap,
            used,
            needed,
        } => {
            json!({ "month": month.to_string(), "cap": cap, "used": used, "needed": needed })
        }
        Rejection::BalanceOutOfRange { balance, amount } => {
            json!({ "balance": balance, "amount": amount })
        }
        Rejection::NotDue { due_at } => json!({ "due_at": due_at.to_string() }),
        Rejection::CommandIdReused { field } | Rejection::Differs { field } => {
            json!({ "field": field })
        }
        Rejection::StreamFull { events } => json!({ "events": events }),
        Rejection::UnknownAttempt { highest, .. } => json!({ "highest": highest }),
        Rejection::NoSuchJob
        | Rejection::AttemptRunning { .. }
        | Rejection::LeaseLost { .. }
        | Rejection::NotStarted { .. }
        | Rejection::JobEnded { .. }
        | Rejection::AlreadyDelivered { .. }
        | Rejection::NotDeadLettered { .. } => json!({}),
    };
    match fields {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use recoup::codec::StreamName;

    use super::*;

    #[test]
    fn an_unknown_outcome_is_exit_code_5_and_says_which_id_to_repeat() {
        let scale = Scale::new(2).expect("valid");
        let id = CommandId::new("c-1").expect("valid");
        let given = Given::new(vec![("job", "j".to_owned())], Some(id));
        let error = LedgerError::OutcomeUnknown {
            stream: StreamName::from_stored("job-j"),
            cause: "the connection was lost".to_owned(),
        };
        let answer = given
            .answer(scale, Err(error))
            .expect("an answer, not an error");
        let (exit, document, text) = answer.parts();
        assert_eq!(exit, Exit::Unknown);
        assert_eq!(
            (&document["outcome"], &document["command_id"]),
            (&json!("unknown"), &json!("c-1"))
        );
        assert!(text.ends_with("--command-id c-1"), "{text}");
    }

    #[test]
    fn amounts_of_a_rejection_are_shown_with_the_scale() {
        let rejection = Rejection::InsufficientCredit {
            available: 5,
            needed: 1234,
            floor: -100,
        };
        let scale = Scale::new(2).expect("valid");
        assert_eq!(
            explain(&rejection, scale),
            "insufficient credit: 0.05 available, 12.34 needed, floor -1.00"
        );
        assert_eq!(numbers(&rejection)["needed"], 1234);
    }
}
