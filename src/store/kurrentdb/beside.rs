//! The tables beside the log: account figures as far as they follow it, and the credit that is taken for appends on their way.
//!
//! **Figures** are folded from the log, a page at a time, in one transaction with everything that depends on how far they are: the place itself, the last
//! revision of each job's stream, and the reservations that the page closes. A page names the place that it begins at, so of two processes that
//! fold it one does.
//!
//! **A reservation** is a row for a stream and a revision of it. It is made only if the event at that revision is not folded yet, and removed only in the
//! transaction that folds that event, whatever event it is: the one it was made for, another caller's, or a `Voided`. Since a stream has one event at a
//! revision, and the log tells it sooner or later, no reservation is closed too early, none twice, and none stays. What is reserved is never stored but in
//! these rows: there is no second figure that could drift.
//!
//! **Hours.** An instant leads to a place in the log by the hours that were seen begin ([`read_scan_begin`]): the server's clock may go back a little when
//! another node takes the lead, so a day is not exactly a range of positions.
//!
//! Lock rule: everything that writes here runs under the lock that orders appends where an SQL store has them ([`Database::write_figures`]).

use std::collections::{BTreeMap, HashMap};

use crate::account::{AccountState, Admission, Refusal};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::{Decoded, Event, StreamName, decode};
use crate::credits::Cost;
use crate::ids::{AccountId, CommandId};
use crate::sql::log::stored_u64;
use crate::sql::{Database, Migrations, Row, Transaction};
use crate::store::{
    Append, EventId, Expected, Migration, OpenError, Position, RecordedEvent, Revision, StoreError,
};

/// What the migrations are recorded under.
const COMPONENT: &str = "kurrentdb";

const MIGRATIONS: Migrations = Migrations {
    sqlite: &[Migration {
        number: 1,
        name: "figures",
        sql: include_str!("migrations/sqlite/0001_figures.sql"),
    }],
    postgres: &[Migration {
        number: 1,
        name: "figures",
        sql: include_str!("migrations/postgres/0001_figures.sql"),
    }],
};

const MICROS_AN_HOUR: i64 = 3_600_000_000;

/// By how many hours the server's clock may go back before an event is missed by a scan that ends early.
const SKEW_HOURS: i64 = 24;

/// The least that an event takes in the server's log, in bytes of which its positions are numbers: our metadata alone is longer.
pub(crate) const LEAST_BYTES: i64 = 128;

/// Which log the tables belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) ledger: String,
    pub(super) prefix: String,
}

/// How far the figures are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) position: Position,
    pub(super) event_id: Option<String>,
    hour: i64,
    pub(super) halted: Option<(Position, String)>,
}

/// Credit for one append on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) stream: StreamName,
    /// That the append's first event gets.
    pub(super) revision: Revision,
    pub(super) command: String,
    account: AccountId,
    cost: i64,
    cap_month: Option<BudgetMonth>,
}

/// What asking for a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reserved {
    /// It is there: made now, or before for an append of the same content.
    Held,
    /// The stream has gone on: the append would conflict.
    Passed,
    /// Another append to the stream has one, and what became of it is not folded yet.
    Waits(Reservation),
    /// The account does not allow it.
    Refused(Refusal),
}

impl Reservation {
    /// What an append needs; none if it spends nothing.
    pub(super) fn of(append: &Append, command: &CommandId) -> Option<Self> {
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
            }),
            Some(Admission::Post { .. }) | None => None,
        }
    }

    /// Which revision an append in its place follows.
    pub(super) fn expected(&self) -> Expected {
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

    fn add_to(&self, state: &mut AccountState) {
        state.reserved = state.reserved.saturating_add(self.cost);
        if let Some(month) = self.cap_month {
            let mut figures = state.month(month);
            figures.reserved = figures.reserved.saturating_add(self.cost);
            state.months.insert(month, figures);
        }
    }

    fn admission(&self) -> Result<Admission, StoreError> {
        Ok(Admission::Spend {
            account: self.account.clone(),
            cost: Cost::new(self.cost).map_err(|error| damaged("reservations", error))?,
            cap_month: self.cap_month,
        })
    }
}

fn damaged(table: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged {
        why: format!("table {table}: {why}"),
    }
}

/// Makes the tables, or brings them up to date, and binds them to the log; refuses a database that is another log's or has one of its own.
pub(super) async fn bind(database: &Database, owner: Owner) -> Result<(), OpenError> {
    let path = database.place_name();
    let foreign = move |why: &str| OpenError::Foreign {
        path: path.clone(),
        why: why.to_owned(),
    };
    let is_a_ledger = database
        .glance(|tx| {
            let sql = "SELECT 1 FROM appends LIMIT 1";
            tx.row(sql, &[], |_| Ok(()))
        })
        .await?;
    if is_a_ledger.is_some() {
        return Err(foreign(
            "it has a log of its own; a log in KurrentDB needs another database beside it",
        ));
    }
    database.migrate(COMPONENT, MIGRATIONS).await?;
    let (ledger, prefix) = (owner.ledger.clone(), owner.prefix.clone());
    let bound = database
        .write_figures(move |tx| {
            let sql = "INSERT INTO followed_log (one, ledger, prefix, position, hour)
                VALUES (1, ?1, ?2, 0, 0) ON CONFLICT (one) DO NOTHING";
            tx.execute(sql, crate::values![&ledger, &prefix])?;
            read_owner(tx)
        })
        .await?;
    if bound.as_ref() == Some(&owner) {
        return Ok(());
    }
    Err(foreign(
        "it has the account figures of another log in KurrentDB",
    ))
}

fn read_owner(tx: &Transaction<'_>) -> Result<Option<Owner>, StoreError> {
    tx.row("SELECT ledger, prefix FROM followed_log", &[], |row| {
        Ok(Owner {
            ledger: row.get(0)?,
            prefix: row.get(1)?,
        })
    })
}

/// How far the figures are.
pub(super) fn read_state(tx: &Transaction<'_>) -> Result<Followed, StoreError> {
    let sql = "SELECT position, event_id, hour, halted_at, halted_reason FROM followed_log";
    let found = tx.row(sql, &[], |row| {
        let halted_at: Option<i64> = row.get(3)?;
        let reason: Option<String> = row.get(4)?;
        Ok(Followed {
            position: Position::new(row.get(0)?),
            event_id: row.get(1)?,
            hour: row.get(2)?,
            halted: halted_at.map(Position::new).zip(reason),
        })
    })?;
    found.ok_or_else(|| damaged("followed_log", "it has no row"))
}

/// The last event that the figures have.
pub(crate) fn read_followed(tx: &Transaction<'_>) -> Result<Position, StoreError> {
    Ok(read_state(tx)?.position)
}

fn hour_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(MICROS_AN_HOUR)
}

/// A place that no event posted at `at` or later stands at or before.
pub(crate) fn read_scan_begin(tx: &Transaction<'_>, at: Timestamp) -> Result<Position, StoreError> {
    let sql = "SELECT position FROM followed_hours WHERE hour >= ?1 ORDER BY hour LIMIT 1";
    let found = tx.row(sql, crate::values![hour_of(at)], |row| row.get(0))?;
    // What has not been folded may be of any hour.
    found.map_or_else(|| read_followed(tx), |position| Ok(Position::new(position)))
}

/// A place that no event posted before `at` stands after; none as long as one may still come.
pub(crate) fn read_scan_end(
    tx: &Transaction<'_>,
    at: Timestamp,
) -> Result<Option<Position>, StoreError> {
    let sql = "SELECT position FROM followed_hours WHERE hour > ?1 ORDER BY hour LIMIT 1";
    let late = hour_of(at).saturating_add(SKEW_HOURS);
    let found = tx.row(sql, crate::values![late], |row| row.get(0))?;
    Ok(found.map(Position::new))
}

/// What is wrong with reservations: those whose event is folded, so that nothing would ever close them.
pub(crate) fn reservation_faults(
    tx: &Transaction<'_>,
) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT r.stream, r.command, r.revision, f.revision FROM reservations r
        JOIN followed_streams f ON f.stream = r.stream WHERE r.revision <= f.revision ORDER BY r.stream";
    tx.rows(sql, &[], |row| {
        let (command, reserved, folded): (String, i64, i64) =
            (row.get(1)?, row.get(2)?, row.get(3)?);
        let what = format!(
            "credit is taken for command {command} at revision {reserved}, and revision {folded} is folded"
        );
        Ok((row.get(0)?, what))
    })
}

/// Where a person had the figures skip an event, and why: their sums lack it.
pub(crate) fn skipped(tx: &Transaction<'_>) -> Result<Vec<(Position, String)>, StoreError> {
    let sql = "SELECT position, reason, decided_by FROM followed_skips ORDER BY position";
    tx.rows(sql, &[], |row| {
        let (reason, by): (String, String) = (row.get(1)?, row.get(2)?);
        Ok((
            Position::new(row.get(0)?),
            format!("account figures skip it: {reason} ({by})"),
        ))
    })
}

const COLUMNS: &str = "stream, revision, command, account, cost, cap_month";

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
        reservation.add_to(&mut state);
    }
    state.months.retain(|&of, _| of == month);
    Ok(state)
}

/// Adds what is reserved to a page of accounts.
pub(super) fn add_reserved(
    tx: &Transaction<'_>,
    accounts: &mut [(AccountId, AccountState)],
) -> Result<(), StoreError> {
    for (account, state) in accounts {
        for reservation in read_of_account(tx, account)? {
            reservation.add_to(state);
        }
    }
    Ok(())
}

/// At most `limit` reservations made before `before`, the oldest first.
pub(super) fn read_older(
    tx: &Transaction<'_>,
    before: Timestamp,
    limit: u32,
) -> Result<Vec<Reservation>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM reservations WHERE made_at < ?1 ORDER BY made_at LIMIT ?2");
    tx.rows(
        &sql,
        crate::values![before.as_micros(), limit],
        reservation_of,
    )
}

/// The reservation of a stream.
fn read_of_stream(
    tx: &Transaction<'_>,
    stream: &StreamName,
) -> Result<Option<Reservation>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM reservations WHERE stream = ?1");
    tx.row(&sql, crate::values![stream.as_str()], reservation_of)
}

fn followed_revision(
    tx: &Transaction<'_>,
    stream: &StreamName,
) -> Result<Option<Revision>, StoreError> {
    let sql = "SELECT revision FROM followed_streams WHERE stream = ?1";
    tx.row(sql, crate::values![stream.as_str()], |row| {
        Ok(Revision::new(row.get::<i64>(0)?.unsigned_abs()))
    })
}

/// Reserves for many appends, in order: each is checked against what those before it took. An answer each.
pub(super) fn reserve(
    tx: &Transaction<'_>,
    wanted: &[Reservation],
    now: Timestamp,
) -> Result<Vec<Reserved>, StoreError> {
    let followed = read_state(tx)?;
    if let Some((position, why)) = followed.halted {
        // Nobody decides over figures that cannot go on.
        return Err(StoreError::Corrupt { position, why });
    }
    let mut states = HashMap::new();
    let mut answers = Vec::with_capacity(wanted.len());
    for one in wanted {
        answers.push(reserve_one(tx, one, &mut states, now)?);
    }
    Ok(answers)
}

fn reserve_one(
    tx: &Transaction<'_>,
    wanted: &Reservation,
    states: &mut HashMap<AccountId, AccountState>,
    now: Timestamp,
) -> Result<Reserved, StoreError> {
    if followed_revision(tx, &wanted.stream)?.is_some_and(|last| last >= wanted.revision) {
        return Ok(Reserved::Passed);
    }
    match read_of_stream(tx, &wanted.stream)? {
        Some(other) if other.is_like(wanted) => return Ok(Reserved::Held),
        // Whoever made it has seen the stream farther on.
        Some(other) if other.revision > wanted.revision => return Ok(Reserved::Passed),
        Some(other) => return Ok(Reserved::Waits(other)),
        None => {}
    }
    let account = &wanted.account;
    if !states.contains_key(account) {
        let mut state = tx.read_account_row(account)?;
        for reservation in read_of_account(tx, account)? {
            reservation.add_to(&mut state);
        }
        states.insert(account.clone(), state);
    }
    let state = states.get_mut(account).expect("it was inserted above");
    if let Some(month) = wanted.cap_month {
        let stored = tx.read_month(account, month)?.unwrap_or_default();
        let reserved = state.month(month).reserved;
        let figures = crate::account::MonthState { reserved, ..stored };
        state.months.insert(month, figures);
    }
    if let Err(refusal) = state.admit(&wanted.admission()?) {
        return Ok(Reserved::Refused(refusal));
    }
    wanted.add_to(state);
    let sql = format!(
        "INSERT INTO reservations ({COLUMNS}, made_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    );
    let values = crate::values![
        wanted.stream.as_str(),
        stored_u64(wanted.revision.get()),
        &wanted.command,
        account.as_str(),
        wanted.cost,
        wanted.cap_month.map(|month| month.to_string()),
        now.as_micros(),
    ];
    tx.execute(&sql, values)?;
    Ok(Reserved::Held)
}

/// Says whether a posting that spends nothing may pass.
pub(super) fn admit_post(
    tx: &Transaction<'_>,
    admission: &Admission,
) -> Result<Result<(), Refusal>, StoreError> {
    Ok(tx.read_account_row(admission.account())?.admit(admission))
}

/// Folds a page that begins behind `from`, if that is where the figures are; says where they are then.
pub(super) fn fold(
    tx: &Transaction<'_>,
    from: Position,
    page: &[RecordedEvent],
    halt: Option<&(Position, String)>,
) -> Result<Followed, StoreError> {
    let state = read_state(tx)?;
    if state.position != from {
        return Ok(state);
    }
    let mut events: Vec<(Position, Event)> = Vec::with_capacity(page.len());
    for recorded in page {
        match decode(recorded) {
            Ok(Decoded::Event(event)) => events.push((recorded.position, event)),
            Ok(Decoded::Retired) => {}
            Err(error) => {
                return Err(StoreError::Corrupt {
                    position: recorded.position,
                    why: error.to_string(),
                });
            }
        }
    }
    let events = events.iter().map(|(position, event)| (*position, event));
    tx.fold_accounts(events)?
        .map_err(|(position, overflow)| StoreError::Corrupt {
            position,
            why: overflow.to_string(),
        })?;
    let places = page
        .iter()
        .map(|event| (event.stream.clone(), event.revision));
    pass(tx, places)?;
    let hour = note_hours(tx, &state, page)?;
    let last = page.last();
    let next = Followed {
        position: last.map_or(state.position, |last| last.position),
        event_id: last.map_or(state.event_id, |last| Some(last.id.to_string())),
        hour,
        halted: halt.cloned(),
    };
    write_state(tx, &next)?;
    Ok(next)
}

fn write_state(tx: &Transaction<'_>, state: &Followed) -> Result<(), StoreError> {
    let sql = "UPDATE followed_log SET position = ?1, event_id = ?2, hour = ?3,
        halted_at = ?4, halted_reason = ?5";
    let halted = state.halted.as_ref();
    let values = crate::values![
        state.position.get(),
        state.event_id.as_ref(),
        state.hour,
        halted.map(|(position, _)| position.get()),
        halted.map(|(_, why)| why),
    ];
    tx.execute(sql, values).map(|_| ())
}

/// The events at these places are folded: closes the reservations that waited for them.
fn pass(
    tx: &Transaction<'_>,
    places: impl Iterator<Item = (StreamName, Revision)>,
) -> Result<(), StoreError> {
    let mut last: BTreeMap<StreamName, Revision> = BTreeMap::new();
    for (stream, revision) in places.filter(|(stream, _)| stream.is_job()) {
        let known = last.entry(stream).or_insert(revision);
        *known = revision.max(*known);
    }
    let rows: Vec<_> = last
        .iter()
        .map(|(stream, revision)| vec![stream.as_str().into(), stored_u64(revision.get()).into()])
        .collect();
    let sql = "INSERT INTO followed_streams (stream, revision) VALUES (?1, ?2)
        ON CONFLICT (stream) DO UPDATE SET revision = excluded.revision";
    tx.execute_many(sql, &rows)?;
    let sql = "DELETE FROM reservations WHERE revision <= (
        SELECT revision FROM followed_streams WHERE followed_streams.stream = reservations.stream)";
    tx.execute(sql, &[]).map(|_| ())
}

/// Notes which hours begin in the page. Gives the latest one that was seen.
fn note_hours(
    tx: &Transaction<'_>,
    state: &Followed,
    page: &[RecordedEvent],
) -> Result<i64, StoreError> {
    let (mut hour, mut before) = (state.hour, state.position);
    let mut rows = Vec::new();
    for event in page {
        let posted_in = hour_of(event.posted_at);
        if posted_in > hour {
            hour = posted_in;
            rows.push(vec![hour.into(), before.get().into()]);
        }
        before = event.position;
    }
    let sql = "INSERT INTO followed_hours (hour, position) VALUES (?1, ?2)";
    tx.execute_many(sql, &rows)?;
    Ok(hour)
}

/// A person's decision that the figures go on without an event.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    pub(super) position: Position,
    pub(super) reason: String,
    pub(super) by: String,
    pub(super) at: Timestamp,
    /// The event, as far as the server tells.
    pub(super) event: Option<(StreamName, Revision, EventId)>,
}

/// Moves the figures past the event that they are halted at. False if they are not halted there.
pub(super) fn skip(tx: &Transaction<'_>, skip: &Skip) -> Result<bool, StoreError> {
    let state = read_state(tx)?;
    let Some((position, found)) = state.halted.clone() else {
        return Ok(false);
    };
    if position != skip.position {
        return Ok(false);
    }
    let sql = "INSERT INTO followed_skips (position, found, reason, decided_by, decided_at)
        VALUES (?1, ?2, ?3, ?4, ?5)";
    let values = crate::values![
        position.get(),
        &found,
        &skip.reason,
        &skip.by,
        skip.at.as_micros(),
    ];
    tx.execute(sql, values)?;
    if let Some((stream, revision, _)) = &skip.event {
        pass(tx, std::iter::once((stream.clone(), *revision)))?;
    }
    let id = skip.event.as_ref().map(|(_, _, id)| id.to_string());
    let next = Followed {
        position,
        event_id: Some(id.unwrap_or_else(|| uuid::Uuid::nil().to_string())),
        hour: state.hour,
        halted: None,
    };
    write_state(tx, &next)?;
    Ok(true)
}
