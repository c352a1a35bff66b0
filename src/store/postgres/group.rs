//! One transaction of PostgreSQL's for many appends: see [`crate::store::group`].
//!
//! Four round trips, however many members it has:
//!
//! 1. *Begin*: the transaction, its bounds, and the lock that orders appends; then, in a statement of its own and so behind the lock, the server's clock, the log's
//!    end and the backfill's state. What has come meanwhile joins the group.
//! 2. *Fetch*: the last revision of every stream and the figures of every account that a member touches.
//! 3. *Write*, after the check in memory: rows and figures in one statement.
//! 4. *Commit*, which releases the lock once everybody sees what was written: so positions are in the order of commits and have no holes.
//!
//! Each is sent only after the one before it was answered. That makes an answer after an `Unknown` mean something: where a COMMIT is still on its way, its transaction
//! holds the lock, so a repeat of the append waits for it and sees what it led to. An error before COMMIT was sent wrote nothing, and COMMIT is never sent behind a statement
//! that failed.

use std::collections::{BTreeSet, HashMap};

use sqlx::{AssertSqlSafe, Executor, PgConnection, Row as _};

use super::error::{self, answered_within, is_lost, is_unknown_after_commit, store_error};
use super::writer::Context;
use crate::account::{AccountState, Admission, Floor, MonthState};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::StreamName;
use crate::ids::AccountId;
use crate::sql::Row;
use crate::sql::accounts::{account_of, month_of};
use crate::sql::log::{Tail, body_of, stored_u64};
use crate::store::backfill::Backfill;
use crate::store::figures::{Changes, Stored};
use crate::store::group::{Answer, Broken, Check, Member, Start, after_failed_commit};
use crate::store::{Append, Appended, Position, Revision, StoreError};

/// What a group came to.
pub(super) struct Done {
    pub(super) answers: Vec<Answer>,
    /// Where the log ends, if anything was committed.
    pub(super) head: Option<Position>,
    /// Whether the connection is of further use.
    pub(super) is_lost: bool,
}

/// Why a group has no answers yet: nothing of it was written.
pub(super) enum Stop {
    /// The connection was lost before the transaction was begun: another one may do.
    Lost(StoreError),
    /// The lock was not to be had in time, or the server does not take a transaction.
    Busy(StoreError),
}

/// Checks and writes `members` in the transaction that was begun, and ends it.
pub(super) async fn commit(
    connection: &mut PgConnection,
    (context, start): (&Context, Start),
    members: &[Member],
    broken: &mut Broken,
) -> Done {
    let written = write(connection, context, start, (members, broken)).await;
    let (answers, head) = match written {
        Ok(written) => written,
        Err(Failed { error, is_lost }) => {
            let is_lost = is_lost || roll_back(connection, context).await.is_err();
            let answers = vec![Err(error); members.len()];
            broken.note_all(members, &answers);
            return Done {
                answers,
                head: None,
                is_lost,
            };
        }
    };
    if head.is_none() {
        // Every member was refused: there is nothing to commit.
        let is_lost = roll_back(connection, context).await.is_err();
        return Done {
            answers,
            head,
            is_lost,
        };
    }
    let done = match error::commit(connection, context.answer_within).await {
        Ok(()) => {
            context.clock.saw(start.posted_at);
            Done {
                answers,
                head,
                is_lost: false,
            }
        }
        Err(error) => {
            let is_unknown = is_unknown_after_commit(&error);
            Done {
                answers: after_failed_commit(answers, &store_error(&error), is_unknown),
                head: None,
                is_lost: true,
            }
        }
    };
    broken.note_all(members, &done.answers);
    done
}

/// Ends a transaction that nothing was written in. Gives the connection, if it is of further use.
pub(super) async fn give_up(
    mut connection: PgConnection,
    context: &Context,
) -> Option<PgConnection> {
    let ended = roll_back(&mut connection, context).await;
    ended.is_ok().then_some(connection)
}

async fn roll_back(connection: &mut PgConnection, context: &Context) -> Result<(), sqlx::Error> {
    answered_within(context.answer_within, connection.execute("ROLLBACK"))
        .await
        .map(|_| ())
}

/// Begins, takes the lock, and reads what has to be read behind it.
pub(super) async fn begin(connection: &mut PgConnection, context: &Context) -> Result<Start, Stop> {
    let script = sqlx::raw_sql(AssertSqlSafe(context.begin.clone()));
    let rows = match answered_within(context.answer_within, connection.fetch_all(script)).await {
        Ok(rows) => rows,
        Err(error) if is_lost(&error) => return Err(Stop::Lost(store_error(&error))),
        Err(error) => {
            let busy = Stop::Busy(store_error(&error));
            return match roll_back(connection, context).await {
                Ok(()) => Err(busy),
                Err(error) => Err(Stop::Lost(store_error(&error))),
            };
        }
    };
    let read = || -> Result<_, sqlx::Error> {
        // The lock's own answer stands before it.
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let now: i64 = row.try_get("now")?;
        let head: Option<i64> = row.try_get("head")?;
        let posted_at: Option<i64> = row.try_get("posted_at")?;
        let sha256: Option<String> = row.try_get("sha256")?;
        let state: Option<String> = row.try_get("state")?;
        Ok((now, head.zip(posted_at), sha256.zip(state)))
    };
    let (now, last, backfill) = read().map_err(|error| Stop::Lost(store_error(&error)))?;
    let tail = match last {
        None => Tail {
            head: Position::START,
            posted_at: None,
        },
        Some((head, posted_at)) => Tail {
            head: Position::new(head),
            posted_at: Some(Timestamp::from_micros(posted_at)),
        },
    };
    context.database_clock.set(Timestamp::from_micros(now));
    let found = match backfill {
        None => Backfill::None,
        Some((sha256, state)) if state == "closed" => Backfill::Closed { sha256 },
        Some((sha256, _)) => Backfill::Open { sha256 },
    };
    let standing = (found, context.clock.injected(), tail.posted_at);
    if let Err(error) = context.is_backfill.check(standing) {
        return match roll_back(connection, context).await {
            Ok(()) => Err(Stop::Busy(error)),
            Err(_) => Err(Stop::Lost(error)),
        };
    }
    if let Some(posted_at) = tail.posted_at {
        context.clock.saw(posted_at);
    }
    Ok(Start {
        tail,
        posted_at: context.clock.now(),
        zone: context.zone,
    })
}

/// A statement before COMMIT failed: nothing is written.
struct Failed {
    error: StoreError,
    is_lost: bool,
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self {
            is_lost: is_lost(&error),
            error: store_error(&error),
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            is_lost: false,
        }
    }
}

async fn write(
    connection: &mut PgConnection,
    context: &Context,
    start: Start,
    (members, broken): (&[Member], &mut Broken),
) -> Result<(Vec<Answer>, Option<Position>), Failed> {
    let fetched = fetch(connection, context, members).await?;
    let checked = Check::new(start, fetched).run(members, broken, |_, _| Ok(()))?;
    let mut rows = Rows::default();
    for (Member { append, .. }, answer) in members.iter().zip(&checked.answers) {
        if let Ok(Appended::Committed { position, .. }) = answer {
            let others = stored_u64(append.events.len() as u64) - 1;
            let first = Position::new(position.get() - others);
            rows.push(first, append, start.posted_at);
        }
    }
    if checked.head.is_some() {
        insert(connection, context, &rows, &checked.changes).await?;
    }
    Ok((checked.answers, checked.head))
}

/// What is stored of what the members touch.
#[derive(Default)]
struct Fetched {
    revisions: HashMap<StreamName, Revision>,
    accounts: HashMap<AccountId, AccountState>,
    months: HashMap<(AccountId, BudgetMonth), MonthState>,
}

impl Stored for Fetched {
    fn last_revision(&self, stream: &StreamName) -> Result<Option<Revision>, StoreError> {
        Ok(self.revisions.get(stream).copied())
    }

    fn account(&self, account: &AccountId) -> Result<AccountState, StoreError> {
        Ok(self.accounts.get(account).cloned().unwrap_or_default())
    }

    fn month(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<Option<MonthState>, StoreError> {
        Ok(self.months.get(&(account.clone(), month)).copied())
    }
}

/// Everything that the check of `members` may ask for, in one statement.
const FETCH: &str = "
    SELECT 0::bigint, s.stream, NULL::text, (SELECT a.revision + a.events - 1 FROM appends a
            WHERE a.stream = s.stream ORDER BY a.revision DESC LIMIT 1),
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
    FROM unnest($1::text[]) AS s (stream)
    UNION ALL
    SELECT 1, account, NULL, balance, held, reserved, floor, monthly_cap, last_position
    FROM account_state WHERE account = ANY ($2::text[])
    UNION ALL
    SELECT 2, m.account, m.month, m.spent, m.held, m.reserved, NULL, NULL, NULL
    FROM unnest($3::text[], $4::text[]) AS k (account, month)
    JOIN account_month m ON m.account = k.account AND m.month = k.month";

async fn fetch(
    connection: &mut PgConnection,
    context: &Context,
    members: &[Member],
) -> Result<Fetched, Failed> {
    let mut streams = BTreeSet::new();
    let mut accounts = BTreeSet::new();
    let mut months = BTreeSet::new();
    for Member { append, .. } in members {
        streams.insert(append.stream.as_str());
        if let Some(admission) = &append.admission {
            accounts.insert(admission.account().as_str());
            if let Admission::Spend {
                cap_month: Some(month),
                ..
            } = admission
            {
                months.insert((admission.account().as_str(), *month));
            }
        }
        for new in &append.events {
            accounts.extend(new.event.account().map(AccountId::as_str));
            let posting = new.event.posting();
            let month = posting.and_then(|posting| {
                let month = posting.budget_month?;
                Some((posting.account.as_str(), month))
            });
            months.extend(month);
        }
    }
    let streams: Vec<&str> = streams.into_iter().collect();
    let accounts: Vec<&str> = accounts.into_iter().collect();
    let (of, months): (Vec<&str>, Vec<String>) = months
        .into_iter()
        .map(|(account, month)| (account, month.to_string()))
        .unzip();
    let query = sqlx::query(FETCH)
        .bind(streams)
        .bind(accounts)
        .bind(of)
        .bind(months);
    let rows = answered_within(context.answer_within, connection.fetch_all(query)).await?;
    let mut fetched = Fetched::default();
    for row in &rows {
        let row = &Row::of_postgres(row);
        let damaged = |why: String| StoreError::Damaged { why };
        let account = || {
            let text = row.text(1)?;
            AccountId::new(text)
                .map_err(|error| damaged(format!("account_state has {text:?}: {error}")))
        };
        match row.get::<i64>(0)? {
            0 => {
                if let Some(last) = row.get::<Option<i64>>(3)? {
                    let stream = StreamName::from_stored(row.text(1)?);
                    let last = Revision::new(last.unsigned_abs());
                    fetched.revisions.insert(stream, last);
                }
            }
            1 => {
                fetched.accounts.insert(account()?, account_of(row, 3)?);
            }
            _ => {
                let month = BudgetMonth::parse(row.text(2)?)
                    .map_err(|error| damaged(format!("account_month: {error}")))?;
                fetched
                    .months
                    .insert((account()?, month), month_of(row, 3)?);
            }
        }
    }
    Ok(fetched)
}

/// Rows of appends, a column each.
#[derive(Default)]
struct Rows<'a> {
    positions: Vec<i64>,
    streams: Vec<&'a str>,
    revisions: Vec<i64>,
    events: Vec<i64>,
    posted_at: Vec<i64>,
    metadata: Vec<&'a str>,
    bodies: Vec<Vec<u8>>,
}

impl<'a> Rows<'a> {
    fn push(&mut self, first: Position, append: &'a Append, posted_at: Timestamp) {
        self.positions.push(first.get());
        self.streams.push(append.stream.as_str());
        self.revisions
            .push(stored_u64(append.expected.next().get()));
        self.events.push(stored_u64(append.events.len() as u64));
        self.posted_at.push(posted_at.as_micros());
        self.metadata.push(&append.metadata);
        self.bodies.push(body_of(append));
    }
}

/// The rows of the log and of the figures, in one statement.
const INSERT: &str = "
    WITH log AS (
        INSERT INTO appends (position, stream, revision, events, posted_at, metadata, body)
        SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bytea[])
    ), state AS (
        INSERT INTO account_state (account, balance, held, reserved, floor, monthly_cap, last_position)
        SELECT * FROM unnest($8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[])
        ON CONFLICT (account) DO UPDATE SET balance = excluded.balance, held = excluded.held,
        reserved = excluded.reserved, floor = excluded.floor, monthly_cap = excluded.monthly_cap,
        last_position = excluded.last_position
    )
    INSERT INTO account_month (account, month, spent, held, reserved)
    SELECT * FROM unnest($15::text[], $16::text[], $17::bigint[], $18::bigint[], $19::bigint[])
    ON CONFLICT (account, month) DO UPDATE SET spent = excluded.spent, held = excluded.held,
    reserved = excluded.reserved";

async fn insert(
    connection: &mut PgConnection,
    context: &Context,
    rows: &Rows<'_>,
    changes: &Changes,
) -> Result<(), sqlx::Error> {
    let accounts = &changes.accounts;
    let of_accounts = |value: fn(&AccountState) -> i64| -> Vec<i64> {
        accounts.iter().map(|(_, state)| value(state)).collect()
    };
    let floors: Vec<Option<i64>> = accounts
        .iter()
        .map(|(_, state)| match state.limits.floor {
            Floor::At(floor) => Some(floor),
            Floor::None => None,
        })
        .collect();
    let caps: Vec<Option<i64>> = accounts
        .iter()
        .map(|(_, state)| state.limits.monthly_cap)
        .collect();
    let names: Vec<&str> = accounts.iter().map(|(of, _)| of.as_str()).collect();
    let months = &changes.months;
    let of_months = |value: fn(&MonthState) -> i64| -> Vec<i64> {
        months.iter().map(|(_, _, state)| value(state)).collect()
    };
    let month_accounts: Vec<&str> = months.iter().map(|(of, _, _)| of.as_str()).collect();
    let month_names: Vec<String> = months.iter().map(|(_, of, _)| of.to_string()).collect();
    let query = sqlx::query(INSERT)
        .bind(&rows.positions)
        .bind(&rows.streams)
        .bind(&rows.revisions)
        .bind(&rows.events)
        .bind(&rows.posted_at)
        .bind(&rows.metadata)
        .bind(&rows.bodies)
        .bind(names)
        .bind(of_accounts(|state| state.balance))
        .bind(of_accounts(|state| state.held))
        .bind(of_accounts(|state| state.reserved))
        .bind(floors)
        .bind(caps)
        .bind(of_accounts(|state| {
            state.last_position.map_or(0, Position::get)
        }))
        .bind(month_accounts)
        .bind(month_names)
        .bind(of_months(|month| month.spent))
        .bind(of_months(|month| month.held))
        .bind(of_months(|month| month.reserved));
    answered_within(context.answer_within, connection.execute(query)).await?;
    Ok(())
}
