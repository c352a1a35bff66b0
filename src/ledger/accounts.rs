//! Commands on accounts. A grant or an adjustment has a stream of its own, guarded by `NoStream`; no account stream is hot.

use super::{Ledger, LedgerError, MAX_DECISIONS, Outcome, Receipt, Settled, pause_before};
use crate::account::{
    AccountEvent, Adjust, Adjusted, Admission, Grant, Granted, Limit, Limits, LimitsSet, Posting,
};
use crate::codec::{Decoded, Event, Metadata, Stream, decode};
use crate::ids::{AccountId, CommandId};
use crate::job::Rejection;
use crate::store::{Append, Expected, RecordedEvent, Revision, StoreError};

/// One decoded event of an account's stream.
struct Stored {
    revision: Revision,
    command: CommandId,
    event: AccountEvent,
}

impl Ledger {
    /// Gives credit. The same grant id with the same amount is `AlreadyApplied`; with another, `Differs`.
    pub async fn grant(&self, id: CommandId, grant: Grant) -> Result<Outcome, LedgerError> {
        self.once(grant_append(&id, &grant), &id, |stored| match stored {
            AccountEvent::Granted(granted) => grant.compare(granted),
            AccountEvent::Adjusted(_) | AccountEvent::LimitsSet(_) => {
                Err(Rejection::Differs { field: "type" })
            }
        })
        .await
    }

    /// Corrects a balance, whatever the floor. The same adjustment id with the same content is `AlreadyApplied`; with other content, `Differs`.
    pub async fn adjust(&self, id: CommandId, adjust: Adjust) -> Result<Outcome, LedgerError> {
        self.once(adjust_append(&id, &adjust), &id, |stored| match stored {
            AccountEvent::Adjusted(adjusted) => adjust.compare(adjusted),
            AccountEvent::Granted(_) | AccountEvent::LimitsSet(_) => {
                Err(Rejection::Differs { field: "type" })
            }
        })
        .await
    }

    /// Sets limits. What is absent stays; equal limits are `AlreadyApplied`.
    pub async fn limit(&self, id: CommandId, limit: Limit) -> Result<Outcome, LedgerError> {
        let stream = Stream::Limits(limit.account.clone());
        for decision in 0..MAX_DECISIONS {
            pause_before(decision).await;
            let stored = self.account_stream(&stream).await?;
            let revision = stored.last().map(|last| last.revision);
            let at = Receipt::at(revision.unwrap_or(Revision::FIRST));
            let before = stored
                .last()
                .map_or_else(Limits::default, |last| limits_of(&last.event));
            if let Some(index) = stored.iter().position(|stored| stored.command == id) {
                let earlier = index
                    .checked_sub(1)
                    .map_or_else(Limits::default, |index| limits_of(&stored[index].event));
                let same = limit.apply(earlier) == limits_of(&stored[index].event);
                return Ok(if same {
                    Outcome::AlreadyApplied(at)
                } else {
                    reused(at)
                });
            }
            let limits = limit.apply(before);
            if limits == before {
                return Ok(Outcome::AlreadyApplied(at));
            }
            let event = AccountEvent::LimitsSet(LimitsSet {
                account: limit.account.clone(),
                limits,
            });
            let append = Append::new(
                &stream,
                Expected::after(revision),
                &id,
                vec![Event::Account(event)],
                None,
            );
            let last = append.last_revision();
            match self.settle(append).await? {
                Settled::Committed(_) => return Ok(Outcome::Applied(Receipt::at(last))),
                Settled::Refused(refusal) => {
                    return Ok(Outcome::Rejected {
                        rejection: refusal.into(),
                        at: None,
                    });
                }
                Settled::Conflict => {}
            }
        }
        let cause = format!("{} kept changing: {MAX_DECISIONS} conflicts", stream.name());
        Err(StoreError::Unavailable { cause }.into())
    }

    /// Appends the one event of a stream; if something is there, compares it.
    async fn once(
        &self,
        (stream, append): (Stream, Append),
        id: &CommandId,
        compare: impl Fn(&AccountEvent) -> Result<(), Rejection>,
    ) -> Result<Outcome, LedgerError> {
        match self.settle(append).await? {
            Settled::Committed(_) => return Ok(Outcome::Applied(Receipt::at(Revision::FIRST))),
            Settled::Refused(refusal) => {
                return Ok(Outcome::Rejected {
                    rejection: refusal.into(),
                    at: None,
                });
            }
            Settled::Conflict => {}
        }
        let stored = self.account_stream(&stream).await?;
        let first = stored.first().ok_or_else(|| StoreError::Unavailable {
            cause: format!("{} is in conflict and empty", stream.name()),
        })?;
        let at = Receipt::at(first.revision);
        Ok(match compare(&first.event) {
            Ok(()) => Outcome::AlreadyApplied(at),
            Err(Rejection::Differs { field }) if first.command == *id => Outcome::Rejected {
                rejection: Rejection::CommandIdReused { field },
                at: Some(at),
            },
            Err(rejection) => Outcome::Rejected {
                rejection,
                at: Some(at),
            },
        })
    }

    async fn account_stream(&self, stream: &Stream) -> Result<Vec<Stored>, LedgerError> {
        let name = stream.name();
        let recorded = self.store.read_stream(&name, Revision::FIRST).await?;
        let stored = |recorded: &RecordedEvent| {
            let unreadable = |error| LedgerError::unreadable(&name, error);
            let command = Metadata::parse(&recorded.metadata, recorded.position)
                .map_err(unreadable)?
                .command;
            match decode(recorded).map_err(unreadable)? {
                Decoded::Event(Event::Account(event)) => Ok(Some(Stored {
                    revision: recorded.revision,
                    command,
                    event,
                })),
                Decoded::Retired => Ok(None),
                Decoded::Event(Event::Job(_)) => Err(LedgerError::Corrupt {
                    stream: name.clone(),
                    position: recorded.position,
                    why: "a job's event in an account's stream".to_owned(),
                }),
            }
        };
        recorded
            .iter()
            .filter_map(|event| stored(event).transpose())
            .collect()
    }
}

fn reused(at: Receipt) -> Outcome {
    Outcome::Rejected {
        rejection: Rejection::CommandIdReused { field: "limits" },
        at: Some(at),
    }
}

fn limits_of(event: &AccountEvent) -> Limits {
    match event {
        AccountEvent::LimitsSet(set) => set.limits,
        AccountEvent::Granted(_) | AccountEvent::Adjusted(_) => Limits::default(),
    }
}

fn posting(account: &AccountId, amount: i64) -> Posting {
    Posting {
        account: account.clone(),
        kind: None,
        amount,
        held: 0,
        charged_at: None,
        budget_month: None,
    }
}

pub(super) fn grant_append(id: &CommandId, grant: &Grant) -> (Stream, Append) {
    let amount = grant.amount.get();
    let stream = Stream::Grant(grant.account.clone(), grant.grant.clone());
    let event = AccountEvent::Granted(Granted {
        grant: grant.grant.clone(),
        posting: posting(&grant.account, amount),
    });
    let admission = Admission::Post {
        account: grant.account.clone(),
        amount,
    };
    let append = Append::new(
        &stream,
        Expected::NoStream,
        id,
        vec![Event::Account(event)],
        Some(admission),
    );
    (stream, append)
}

pub(super) fn adjust_append(id: &CommandId, adjust: &Adjust) -> (Stream, Append) {
    let amount = adjust.amount.get();
    let stream = Stream::Adjustment(adjust.account.clone(), adjust.adjustment.clone());
    let event = AccountEvent::Adjusted(Adjusted {
        adjustment: adjust.adjustment.clone(),
        posting: posting(&adjust.account, amount),
        reason: adjust.reason.clone(),
        job: adjust.job.clone(),
    });
    let admission = Admission::Post {
        account: adjust.account.clone(),
        amount,
    };
    let append = Append::new(
        &stream,
        Expected::NoStream,
        id,
        vec![Event::Account(event)],
        Some(admission),
    );
    (stream, append)
}
