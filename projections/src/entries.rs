//! `entries`: the statement. One row for every event that moves money, with the account's balance after it.
//!
//! A row is written once and never changed. The running balance goes on from the account's last row, in position order; an
//! account whose last row is at or after an event has had that event, and it is skipped. Arithmetic is checked: a balance that
//! would leave 64 bits halts the projection, and so does a row that stands where one is to be written. Bound: one balance in memory for
//! each account that a batch touches, and beside them its rows where they are not written one by one.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use recoup::account::{AccountEvent, Posting};
use recoup::ids::AccountId;
use recoup::job::JobEvent;
use recoup::sql::{Transaction, Value};
use recoup::store::StoreError;
use recoup::{JobId, Kind, Position, Timestamp, values};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::damaged;
use crate::keys;

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

impl Last {
    /// Of an account without entries.
    const NONE: Self = Self {
        position: Position::START,
        balance: 0,
    };
}

/// How rows are written.
enum Writes<'a> {
    /// Each with its event: the database says which one has no room.
    OneByOne,
    /// All at the end: which ones have no room was asked before, since a statement that fails would take the transaction with it.
    AtOnce {
        taken: HashSet<i64>,
        rows: Vec<Vec<Value<'a>>>,
    },
}

pub(crate) struct Entries<'a, 'c> {
    tx: &'a Transaction<'c>,
    accounts: HashMap<AccountId, Last>,
    writes: Writes<'a>,
}

pub(crate) const LAST_OF: &str =
    "SELECT position, balance FROM entries WHERE account = ?1 ORDER BY position DESC LIMIT 1";

// Each account's last row by the index, however many there are before it.
pub(crate) const LAST_OF_EACH: &str = "SELECT column1,
    (SELECT position FROM entries WHERE account = column1 ORDER BY position DESC LIMIT 1),
    (SELECT balance FROM entries WHERE account = column1 ORDER BY position DESC LIMIT 1)
    FROM (VALUES :keys) AS touched";

pub(crate) const TAKEN: &str = "SELECT position FROM entries WHERE position BETWEEN ?1 AND ?2";

const INSERT: &str = "INSERT INTO entries
    (position, account, type, amount, balance, job, kind, ref, reason, posted_at, charged_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

impl<'a, 'c> Entries<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>) -> Self {
        Self {
            tx,
            accounts: HashMap::new(),
            writes: Writes::OneByOne,
        }
    }

    fn last(&mut self, account: &AccountId) -> Result<&mut Last, StoreError> {
        match self.accounts.entry(account.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let last = self.tx.row(LAST_OF, values![account.as_str()], |row| {
                    Ok(Last {
                        position: Position::new(row.get(0)?),
                        balance: row.get(1)?,
                    })
                })?;
                Ok(unknown.insert(last.unwrap_or(Last::NONE)))
            }
        }
    }

    fn insert(
        &mut self,
        event: &'a BatchEvent,
        line: Line<'a>,
        balance: i64,
    ) -> Result<(), Refused> {
        let posting = line.posting;
        let values: [Value<'a>; 11] = [
            event.position.get().into(),
            posting.account.as_str().into(),
            line.entry_type.name().into(),
            posting.amount.into(),
            balance.into(),
            line.job.into(),
            posting.kind.as_ref().map(Kind::as_str).into(),
            line.reference.into(),
            line.reason.into(),
            event.posted_at.as_micros().into(),
            posting.charged_at.map(Timestamp::as_micros).into(),
        ];
        match &mut self.writes {
            Writes::OneByOne => match self.tx.execute(INSERT, &values) {
                Ok(_) => Ok(()),
                Err(StoreError::Damaged { why }) => Err(Refused::Impossible(why)),
                Err(error) => Err(error.into()),
            },
            Writes::AtOnce { taken, .. } if taken.contains(&event.position.get()) => {
                // What SQLite says of it.
                let why =
                    "a row does not fit its table: UNIQUE constraint failed: entries.position";
                Err(Refused::Impossible(why.to_owned()))
            }
            Writes::AtOnce { rows, .. } => {
                rows.push(values.into());
                Ok(())
            }
        }
    }
}

impl<'a> Changes<'a> for Entries<'a, '_> {
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            return Ok(());
        };
        let span = values![first.position.get(), last.position.get()];
        let taken = self.tx.rows(TAKEN, span, |row| row.get(0))?;
        self.writes = Writes::AtOnce {
            taken: taken.into_iter().collect(),
            rows: Vec::new(),
        };
        let lines = events.iter().filter_map(|event| Line::of(&event.body));
        let accounts: BTreeSet<&AccountId> = lines.map(|line| &line.posting.account).collect();
        let accounts: Vec<_> = accounts
            .into_iter()
            .map(|account| [account.as_str().into()])
            .collect();
        let last_of_each = keys::rows(self.tx, LAST_OF_EACH, &accounts, |row| {
            let account: String = row.get(0)?;
            let account = AccountId::new(account).map_err(|error| damaged("entries", error))?;
            let (position, balance): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
            let last = position.zip(balance).map(|(position, balance)| Last {
                position: Position::new(position),
                balance,
            });
            Ok((account, last.unwrap_or(Last::NONE)))
        })?;
        self.accounts.extend(last_of_each);
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
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
        self.insert(event, line, balance)?;
        let position = event.position;
        *self.last(account)? = Last { position, balance };
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        match self.writes {
            Writes::OneByOne => Ok(()),
            Writes::AtOnce { rows, .. } => self.tx.execute_many(INSERT, &rows),
        }
    }
}
