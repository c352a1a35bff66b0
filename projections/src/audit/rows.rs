//! What the rows of `entries` and `contradictions` should be, from the events alone.

use recoup::account::{AccountEvent, Posting};
use recoup::codec::Event;
use recoup::job::{Contradicted, JobEvent};
use recoup::sql::Row;
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, JobId, Position};

use super::alongside::LogRow;
use super::report::{Area, Fields};

/// A row of `entries`, as it is stored.
#[derive(PartialEq)]
pub(super) struct EntryRecord {
    position: i64,
    account: String,
    entry_type: String,
    amount: i64,
    balance: i64,
    job: Option<String>,
    kind: Option<String>,
    reference: Option<String>,
    reason: Option<String>,
    posted_at: i64,
    charged_at: Option<i64>,
}

/// What an event adds to a statement.
pub(super) struct Entry<'a> {
    pub(super) posting: &'a Posting,
    entry_type: &'static str,
    job: Option<&'a JobId>,
    reference: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> Entry<'a> {
    /// The entry of `event`, of the stream of `job` where it is a job's; none if it moves no money.
    pub(super) fn of(event: &'a Event, job: Option<&'a JobId>) -> Option<Self> {
        let entry_type = match event {
            Event::Job(JobEvent::Charged(_)) => "charge",
            Event::Job(JobEvent::Refunded(_)) => "refund",
            Event::Job(JobEvent::Reclaimed(_)) => "reclaim",
            Event::Account(AccountEvent::Granted(_)) => "grant",
            Event::Account(AccountEvent::Adjusted(_)) => "adjustment",
            Event::Job(_) | Event::Account(AccountEvent::LimitsSet(_)) => return None,
        };
        let (job, reference, reason) = match event {
            Event::Account(AccountEvent::Granted(granted)) => {
                (None, Some(granted.grant.as_str()), None)
            }
            Event::Account(AccountEvent::Adjusted(adjusted)) => (
                adjusted.job.as_ref(),
                Some(adjusted.adjustment.as_str()),
                Some(adjusted.reason.as_str()),
            ),
            Event::Job(_) | Event::Account(AccountEvent::LimitsSet(_)) => (job, None, None),
        };
        Some(Self {
            posting: event.posting()?,
            entry_type,
            job,
            reference,
            reason,
        })
    }

    /// Its row, given the balance that it leads to.
    pub(super) fn record(&self, recorded: &RecordedEvent, balance: i64) -> EntryRecord {
        let text = |text: Option<&str>| text.map(str::to_owned);
        EntryRecord {
            position: recorded.position.get(),
            account: self.posting.account.to_string(),
            entry_type: self.entry_type.to_owned(),
            amount: self.posting.amount,
            balance,
            job: text(self.job.map(JobId::as_str)),
            kind: self.posting.kind.as_ref().map(ToString::to_string),
            reference: text(self.reference),
            reason: text(self.reason),
            posted_at: recorded.posted_at.as_micros(),
            charged_at: self.posting.charged_at.map(|at| at.as_micros()),
        }
    }
}

/// An optional value, as findings show it.
pub(super) fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

impl LogRow for EntryRecord {
    const AREA: Area = Area::Entries;
    const SQL: &'static str = "SELECT position, account, type, amount, balance, job, kind, ref,
        reason, posted_at, charged_at FROM entries WHERE position > ?1 ORDER BY position LIMIT ?2";

    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            position: row.get(0)?,
            account: row.get(1)?,
            entry_type: row.get(2)?,
            amount: row.get(3)?,
            balance: row.get(4)?,
            job: row.get(5)?,
            kind: row.get(6)?,
            reference: row.get(7)?,
            reason: row.get(8)?,
            posted_at: row.get(9)?,
            charged_at: row.get(10)?,
        })
    }

    fn position(&self) -> i64 {
        self.position
    }

    fn fields(&self) -> Fields {
        vec![
            ("account", self.account.clone()),
            ("type", self.entry_type.clone()),
            ("amount", self.amount.to_string()),
            ("balance", self.balance.to_string()),
            ("job", or_none(self.job.as_ref())),
            ("kind", or_none(self.kind.as_ref())),
            ("ref", or_none(self.reference.as_ref())),
            ("reason", or_none(self.reason.as_ref())),
            ("posted_at", self.posted_at.to_string()),
            ("charged_at", or_none(self.charged_at)),
        ]
    }
}

/// A row of `contradictions`, as it is stored.
#[derive(PartialEq)]
pub(super) struct ContradictionRecord {
    position: i64,
    job: String,
    account: String,
    signal: String,
    attempt: i64,
    reason: Option<String>,
    result: Option<String>,
    posted_at: i64,
}

impl ContradictionRecord {
    /// The row of a contradiction of `job`, for which `account` pays.
    pub(super) fn of(
        recorded: &RecordedEvent,
        said: &Contradicted,
        (job, account): (&JobId, &AccountId),
    ) -> Self {
        Self {
            position: recorded.position.get(),
            job: job.to_string(),
            account: account.to_string(),
            signal: said.signal.name().to_owned(),
            attempt: i64::from(said.attempt.get()),
            reason: said.reason.as_ref().map(ToString::to_string),
            result: said.result.as_ref().map(ToString::to_string),
            posted_at: recorded.posted_at.as_micros(),
        }
    }
}

impl LogRow for ContradictionRecord {
    const AREA: Area = Area::Contradictions;
    const SQL: &'static str = "SELECT position, job, account, signal, attempt, reason, result,
        posted_at FROM contradictions WHERE position > ?1 ORDER BY position LIMIT ?2";

    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            position: row.get(0)?,
            job: row.get(1)?,
            account: row.get(2)?,
            signal: row.get(3)?,
            attempt: row.get(4)?,
            reason: row.get(5)?,
            result: row.get(6)?,
            posted_at: row.get(7)?,
        })
    }

    fn position(&self) -> i64 {
        self.position
    }

    fn fields(&self) -> Fields {
        vec![
            ("job", self.job.clone()),
            ("account", self.account.clone()),
            ("signal", self.signal.clone()),
            ("attempt", self.attempt.to_string()),
            ("reason", or_none(self.reason.as_ref())),
            ("result", or_none(self.result.as_ref())),
            ("posted_at", self.posted_at.to_string()),
        ]
    }
}

/// Where a table is compared: at its checkpoint, or not at all.
pub(super) type Until = Option<Position>;
