//! Credit that is taken for appends on their way.
//!
//! A row for a stream and a revision of it. It is made only where the figures are not behind what this process has seen of them, the stream is folded up to the
//! revision before, and not beyond; and it is removed only in the transaction that folds the event at that revision, whatever event it is: the one it was
//! made for, another caller's, or a `Voided`. A stream has one event at a revision, so no reservation is closed too early and none twice; and since
//! its stream has come to the revision before, a `Voided` can always be appended there, so none stays.
//!
//! What is reserved is never stored but in these rows: there is no second figure that could drift.

use std::collections::HashMap;

use super::{damaged, followed_revision, read_state};
use crate::account::{AccountState, Admission, MonthState, Refusal};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::{Stream, StreamName};
use crate::credits::Cost;
use crate::ids::{AccountId, CommandId};
use crate::sql::log::stored_u64;
use crate::sql::{Row, Transaction};
use crate::store::{Append, Expected, Position, Revision, StoreError};

/// Credit for one append on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::kurrentdb) struct Reservation {
    pub(in crate::store::kurrentdb) stream: StreamName,
    /// That the append's first event gets.
    pub(in crate::store::kurrentdb) revision: Revision,
    pub(in crate::store::kurrentdb) command: String,
    account: AccountId,
    cost: i64,
    cap_month: Option<BudgetMonth>,
    /// When it was made.
    pub(in crate::store::kurrentdb) made_at: Timestamp,
}

/// What asking for a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::kurrentdb) enum Reserved {
    /// It is there: made now, or before for an append of the same content.
    Held,
    /// The stream has gone on: the append would conflict.
    Passed,
    /// The figures are behind what this process has seen of the log: they may lack what was spent.
    Behind,
    /// The stream is not folded up to the revision before: there may be no such revision.
    Ahead,
    /// Another append to the stream has one, and what became of it is not folded yet.
    Waits(Reservation),
    /// The account does not allow it.
    Refused(Refusal),
}

impl Reservation {
    /// What an append needs; none if it spends nothing.
    pub(in crate::store::kurrentdb) fn of(
        append: &Append,
        command: &CommandId,
        now: Timestamp,
    ) -> Option<Self> {
        match &append.admission {
            Some(Admission::Spend {
                account,
                cost,
                cap_month,
            }) => Some(Self {
                stream: append.stream.clone(),
                revision: append.expected.next(),
                command: command.to_string(),
                account: account.clone(),
                cost: cost.get(),
                cap_month: *cap_month,
                made_at: now,
            }),
            Some(Admission::Post { .. }) | None => None,
        }
    }

    /// Which revision an append in its place follows.
    pub(in crate::store::kurrentdb) fn expected(&self) -> Expected {
        let before = self.revision.get().checked_sub(1);
        Expected::after(before.map(Revision::new))
    }

    /// Of two appends of equal content at one revision one is stored: what is reserved for the one is reserved for both.
    fn is_like(&self, other: &Self) -> bool {
        self.revision == other.revision
            && self.account == other.account
            && self.cost == other.cost
            && self.cap_month == other.cap_month
    }

    fn add_to(&self, state: &mut AccountState) -> Result<(), StoreError> {
        self.checked_cost()?;
        let sum = |reserved: i64| {
            let sum = reserved.checked_add(self.cost);
            sum.ok_or_else(|| damaged("reservations", "their sum leaves the range of credits"))
        };
        state.reserved = sum(state.reserved)?;
        if let Some(month) = self.cap_month {
            let mut figures = state.month(month);
            figures.reserved = sum(figures.reserved)?;
            state.months.insert(month, figures);
        }
        Ok(())
    }

    /// Whose stream it is for, and which command; or what is wrong with either.
    pub(in crate::store::kurrentdb) fn parsed(&self) -> Result<(Stream, CommandId), String> {
        let stream = self.stream.parse().map_err(|error| error.to_string())?;
        let command = CommandId::new(&self.command).map_err(|error| error.to_string())?;
        Ok((stream, command))
    }

    /// What is wrong with it as a row.
    pub(super) fn check(&self) -> Result<(), String> {
        let (stream, _) = self.parsed()?;
        if !matches!(stream, Stream::Job(_)) {
            return Err(format!("stream {}, which is no job's", self.stream));
        }
        Cost::new(self.cost).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn checked_cost(&self) -> Result<Cost, StoreError> {
        Cost::new(self.cost).map_err(|error| damaged("reservations", error))
    }

    fn admission(&self) -> Result<Admission, StoreError> {
        Ok(Admission::Spend {
            account: self.account.clone(),
            cost: self.checked_cost()?,
            cap_month: self.cap_month,
        })
    }
}

const COLUMNS: &str = "stream, revision, command, account, cost, cap_month, made_at";

fn reservation_of(row: &Row<'_>) -> Result<Reservation, StoreError> {
    let wrong = |why: String| damaged("reservations", why);
    let month: Option<String> = row.get(5)?;
    let month = month.map(|month| BudgetMonth::parse(&month)).transpose();
    Ok(Reservation {
        stream: StreamName::from_stored(row.text(0)?),
        revision: Revision::new(row.get::<i64>(1)?.unsigned_abs()),
        command: row.get(2)?,
        account: AccountId::new(row.text(3)?).map_err(|error| wrong(error.to_string()))?,
        cost: row.get(4)?,
        cap_month: month.map_err(|error| wrong(error.to_string()))?,
        made_at: Timestamp::from_micros(row.get(6)?),
    })
}

/// What is reserved of an account.
fn read_of_account(
    tx: &Transaction<'_>,
    account: &AccountId,
) -> Result<Vec<Reservation>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM reservations WHERE account = ?1");
    tx.rows(&sql, crate::values![account.as_str()], reservation_of)
}

/// The account's figures, with what is reserved, and with those of `month`.
pub(crate) fn read_account(
    tx: &Transaction<'_>,
    account: &AccountId,
    month: BudgetMonth,
) -> Result<AccountState, StoreError> {
    let mut state = tx.read_account_rows(account, month)?;
    for reservation in read_of_account(tx, account)? {
        reservation.add_to(&mut state)?;
    }
    state.months.retain(|&of, _| of == month);
    Ok(state)
}

/// Adds what is reserved to a page of accounts.
pub(in crate::store::kurrentdb) fn add_reserved(
    tx: &Transaction<'_>,
    accounts: &mut [(AccountId, AccountState)],
) -> Result<(), StoreError> {
    for (account, state) in accounts {
        for reservation in read_of_account(tx, account)? {
            reservation.add_to(state)?;
        }
    }
    Ok(())
}

/// Which reservations are old: made before or after these instants. One from the future was made by a clock that was set back since.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::kurrentdb) struct Old {
    pub(in crate::store::kurrentdb) before: Timestamp,
    pub(in crate::store::kurrentdb) after: Timestamp,
}

/// At most `limit` old reservations behind `last`, in the order of their making.
pub(in crate::store::kurrentdb) fn read_old(
    tx: &Transaction<'_>,
    old: Old,
    last: Option<&Reservation>,
    limit: u32,
) -> Result<Vec<Reservation>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM reservations WHERE (made_at < ?1 OR made_at > ?2)
        AND (made_at > ?3 OR (made_at = ?3 AND stream > ?4)) ORDER BY made_at, stream LIMIT ?5"
    );
    let values = crate::values![
        old.before.as_micros(),
        old.after.as_micros(),
        last.map_or(i64::MIN, |last| last.made_at.as_micros()),
        last.map_or("", |last| last.stream.as_str()),
        limit,
    ];
    tx.rows(&sql, values, reservation_of)
}

/// The name of a stream, and its reservation or why it cannot be read.
pub(super) type Read = (String, Result<Reservation, StoreError>);

/// At most `limit` reservations behind a stream, by streams; one that cannot be read says why.
pub(super) fn read_after(
    tx: &Transaction<'_>,
    after: &str,
    limit: i64,
) -> Result<Vec<Read>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM reservations WHERE stream > ?1 ORDER BY stream LIMIT ?2");
    tx.rows(&sql, crate::values![after, limit], |row| {
        Ok((row.get(0)?, reservation_of(row)))
    })
}

/// How many there are, and when the oldest was made.
pub(crate) fn read_reserved(tx: &Transaction<'_>) -> Result<(u64, Option<Timestamp>), StoreError> {
    let sql = "SELECT count(*), min(made_at) FROM reservations";
    let found = tx.row(sql, &[], |row| {
        let (count, oldest): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        Ok((count.unsigned_abs(), oldest.map(Timestamp::from_micros)))
    })?;
    Ok(found.unwrap_or_default())
}

/// The reservation of a stream.
fn read_of_stream(
    tx: &Transaction<'_>,
    stream: &StreamName,
) -> Result<Option<Reservation>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM reservations WHERE stream = ?1");
    tx.row(&sql, crate::values![stream.as_str()], reservation_of)
}

/// One that asks.
#[derive(Debug, Clone)]
pub(in crate::store::kurrentdb) struct Wanted {
    pub(in crate::store::kurrentdb) reservation: Reservation,
    /// The caller has looked for its revision in the log: it is the stream's next, whatever is folded.
    pub(in crate::store::kurrentdb) is_next: bool,
}

/// Reserves for many appends, in order: each is checked against what those before it took. An answer each; an error only where the database fails, which then has
/// reserved for none of them.
///
/// `floor` is how far the figures have been, as this process knows: figures that are behind it were lost and are being made anew, or were put back.
pub(in crate::store::kurrentdb) fn reserve(
    tx: &Transaction<'_>,
    wanted: &[Wanted],
    floor: Position,
) -> Result<Vec<Result<Reserved, StoreError>>, StoreError> {
    let followed = read_state(tx)?;
    if let Some((position, why)) = followed.halted {
        // Nobody decides over figures that cannot go on.
        return Err(StoreError::Corrupt { position, why });
    }
    if followed.position < floor {
        return Ok(wanted.iter().map(|_| Ok(Reserved::Behind)).collect());
    }
    let mut states = HashMap::new();
    let mut answers = Vec::with_capacity(wanted.len());
    for one in wanted {
        answers.push(match reserve_one(tx, one, &mut states) {
            // A row that cannot be read is its account's affair, and nobody else's.
            Err(error @ StoreError::Damaged { .. }) => Err(error),
            answer => Ok(answer?),
        });
    }
    Ok(answers)
}

fn reserve_one(
    tx: &Transaction<'_>,
    wanted: &Wanted,
    states: &mut HashMap<AccountId, AccountState>,
) -> Result<Reserved, StoreError> {
    let Wanted {
        reservation: wanted,
        is_next,
    } = wanted;
    let folded = followed_revision(tx, &wanted.stream)?;
    if folded.is_some_and(|last| last >= wanted.revision) {
        return Ok(Reserved::Passed);
    }
    match read_of_stream(tx, &wanted.stream)? {
        Some(other) if other.is_like(wanted) => return Ok(Reserved::Held),
        // Whoever made it has seen the stream farther on.
        Some(other) if other.revision > wanted.revision => return Ok(Reserved::Passed),
        Some(other) => return Ok(Reserved::Waits(other)),
        None => {}
    }
    if !is_next && Expected::after(folded) != wanted.expected() {
        return Ok(Reserved::Ahead);
    }
    let account = &wanted.account;
    if !states.contains_key(account) {
        let mut state = tx.read_account_row(account)?;
        for reservation in read_of_account(tx, account)? {
            reservation.add_to(&mut state)?;
        }
        states.insert(account.clone(), state);
    }
    let state = states.get_mut(account).expect("it was inserted above");
    if let Some(month) = wanted.cap_month {
        let stored = tx.read_month(account, month)?.unwrap_or_default();
        let reserved = state.month(month).reserved;
        let figures = MonthState { reserved, ..stored };
        state.months.insert(month, figures);
    }
    if let Err(refusal) = state.admit(&wanted.admission()?) {
        return Ok(Reserved::Refused(refusal));
    }
    wanted.add_to(state)?;
    let sql = format!("INSERT INTO reservations ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
    let values = crate::values![
        wanted.stream.as_str(),
        stored_u64(wanted.revision.get()),
        &wanted.command,
        account.as_str(),
        wanted.cost,
        wanted.cap_month.map(|month| month.to_string()),
        wanted.made_at.as_micros(),
    ];
    tx.execute(&sql, values)?;
    Ok(Reserved::Held)
}
