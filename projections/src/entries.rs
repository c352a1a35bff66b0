//! `entries`: the statement. One row for every event that moves money, with the account's balance after it.
//!
//! A row is written once and never changed. The running balance goes on from the account's last row, in position order; an
//! account whose last row is at or after an event has had that event, and it is skipped. Arithmetic is checked: a balance that
//! would leave 64 bits halts the projection. Bound: one balance in memory for each account that a batch touches.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;

use recoup::account::{AccountEvent, Posting};
use recoup::ids::AccountId;
use recoup::job::JobEvent;
use recoup::store::StoreError;
use recoup::{JobId, Kind, Position, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::table_error;

/// What sort of event an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryType {
    /// A job was charged; negative.
    Charge,
    /// Its charge was credited back; positive.
    Refund,
    /// Its refund was taken back; negative.
    Reclaim,
    /// Credit was given; positive.
    Grant,
    /// A person corrected the balance; either sign.
    Adjustment,
}

impl EntryType {
    const ALL: [Self; 5] = [
        Self::Charge,
        Self::Refund,
        Self::Reclaim,
        Self::Grant,
        Self::Adjustment,
    ];

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Reclaim => "reclaim",
            Self::Grant => "grant",
            Self::Adjustment => "adjustment",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

impl fmt::Display for EntryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A line of an account's statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRow {
    /// Its event's place in the log.
    pub position: Position,
    /// Whose balance it moved.
    pub account: AccountId,
    /// What sort of event it was.
    pub entry_type: EntryType,
    /// By how much, signed, in the smallest unit.
    pub amount: i64,
    /// The account's balance after it, in the smallest unit.
    pub balance: i64,
    /// The job; of an adjustment, the job that it corrects.
    pub job: Option<JobId>,
    /// The job's kind.
    pub kind: Option<Kind>,
    /// The id of the grant or the adjustment.
    pub reference: Option<String>,
    /// Why an adjustment was made.
    pub reason: Option<String>,
    /// When the store recorded it.
    pub posted_at: Timestamp,
    /// When its job was charged.
    pub charged_at: Option<Timestamp>,
}

/// What an event adds to the statement, but for the balance.
struct Line<'a> {
    entry_type: EntryType,
    posting: &'a Posting,
    job: Option<&'a str>,
    reference: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(body: &'a Body) -> Option<Self> {
        let of_job = |entry_type, job: &'a JobId, posting| {
            Some(Self {
                entry_type,
                posting,
                job: Some(job.as_str()),
                reference: None,
                reason: None,
            })
        };
        match body {
            Body::Job(job, JobEvent::Charged(charged)) => {
                of_job(EntryType::Charge, job, &charged.posting)
            }
            Body::Job(job, JobEvent::Refunded(refunded)) => {
                of_job(EntryType::Refund, job, &refunded.posting)
            }
            Body::Job(job, JobEvent::Reclaimed(reclaimed)) => {
                of_job(EntryType::Reclaim, job, &reclaimed.posting)
            }
            Body::Account(AccountEvent::Granted(granted)) => Some(Self {
                entry_type: EntryType::Grant,
                posting: &granted.posting,
                job: None,
                reference: Some(granted.grant.as_str()),
                reason: None,
            }),
            Body::Account(AccountEvent::Adjusted(adjusted)) => Some(Self {
                entry_type: EntryType::Adjustment,
                posting: &adjusted.posting,
                job: adjusted.job.as_ref().map(JobId::as_str),
                reference: Some(adjusted.adjustment.as_str()),
                reason: Some(adjusted.reason.as_str()),
            }),
            // The rest moves the hold at the most, or nothing.
            Body::Job(..) | Body::Account(AccountEvent::LimitsSet(_)) | Body::Retired => None,
        }
    }
}

/// Where an account's statement ends.
#[derive(Clone, Copy)]
struct Last {
    position: Position,
    balance: i64,
}

pub(crate) struct Entries<'a> {
    last_of: CachedStatement<'a>,
    insert: CachedStatement<'a>,
    accounts: HashMap<AccountId, Last>,
}

pub(crate) const LAST_OF: &str =
    "SELECT position, balance FROM entries WHERE account = ?1 ORDER BY position DESC LIMIT 1";

const INSERT: &str = "INSERT INTO entries
    (position, account, type, amount, balance, job, kind, ref, reason, posted_at, charged_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

impl<'a> Entries<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Result<Self, StoreError> {
        Ok(Self {
            last_of: connection.prepare_cached(LAST_OF).map_err(table_error)?,
            insert: connection.prepare_cached(INSERT).map_err(table_error)?,
            accounts: HashMap::new(),
        })
    }

    fn last(&mut self, account: &AccountId) -> Result<&mut Last, StoreError> {
        match self.accounts.entry(account.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let last = self
                    .last_of
                    .query_row([account.as_str()], |row| {
                        Ok(Last {
                            position: Position::new(row.get(0)?),
                            balance: row.get(1)?,
                        })
                    })
                    .optional()
                    .map_err(table_error)?;
                Ok(unknown.insert(last.unwrap_or(Last {
                    position: Position::START,
                    balance: 0,
                })))
            }
        }
    }

    fn insert(&mut self, event: &BatchEvent, line: &Line<'_>, balance: i64) -> Result<(), Refused> {
        let posting = line.posting;
        let inserted = self.insert.execute(params![
            event.position.get(),
            posting.account.as_str(),
            line.entry_type.name(),
            posting.amount,
            balance,
            line.job,
            posting.kind.as_ref().map(Kind::as_str),
            line.reference,
            line.reason,
            event.posted_at.as_micros(),
            posting.charged_at.map(Timestamp::as_micros),
        ]);
        match inserted.map_err(table_error) {
            Ok(_) => Ok(()),
            Err(StoreError::Damaged { why }) => Err(Refused::Impossible(why)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Changes for Entries<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Some(line) = Line::of(&event.body) else {
            return Ok(());
        };
        let Posting {
            account, amount, ..
        } = line.posting;
        let last = *self.last(account)?;
        if event.position <= last.position {
            return Ok(());
        }
        let Some(balance) = last.balance.checked_add(*amount) else {
            let balance = last.balance;
            return Err(Refused::Impossible(format!(
                "{amount} more takes {account} out of 64 bits at balance {balance}"
            )));
        };
        self.insert(event, &line, balance)?;
        let position = event.position;
        *self.last(account)? = Last { position, balance };
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        // Each row was written with its event: none is touched twice.
        Ok(())
    }
}
