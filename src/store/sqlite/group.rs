//! One transaction of SQLite's for many appends: see [`crate::store::group`].

use rusqlite::Connection;

use super::error::{is_unknown_after_commit, store_error};
use super::place::Place;
use super::writer::{Busy, begin, roll_back};
use crate::clock::Zone;
use crate::sql::Transaction;
use crate::store::backfill::IsBackfill;
use crate::store::clock::StoreClock;
use crate::store::group::{Answer, Broken, Check, Checked, Member, Start, after_failed_commit};
use crate::store::{Position, StoreError};

/// What every transaction needs to know.
pub(super) struct Context {
    pub(super) clock: StoreClock,
    pub(super) zone: Zone,
    pub(super) place: Place,
    pub(super) is_backfill: IsBackfill,
}

/// Checks and writes `members` in one transaction. Gives an answer each, and the new head if anything was committed.
pub(super) fn commit(
    connection: &Connection,
    context: &Context,
    members: &[Member],
    broken: &mut Broken,
) -> Result<(Vec<Answer>, Option<Position>), Busy> {
    begin(connection).map_err(Busy)?;
    let (answers, head) = match check_and_write(connection, context, members, broken) {
        Ok((checked, start)) => end(connection, context, checked, start),
        Err(error) => {
            roll_back(connection);
            (vec![Err(error); members.len()], None)
        }
    };
    broken.note_all(members, &answers);
    Ok((answers, head))
}

fn check_and_write(
    connection: &Connection,
    context: &Context,
    members: &[Member],
    broken: &mut Broken,
) -> Result<(Checked, Start), StoreError> {
    let tx = Transaction::on_sqlite(connection);
    let tail = tx.read_tail()?;
    let clock = &context.clock;
    let standing = (tx.read_backfill()?, clock.injected(), tail.posted_at);
    context.is_backfill.check(standing)?;
    if let Some(posted_at) = tail.posted_at {
        clock.saw(posted_at);
    }
    let start = Start {
        tail,
        posted_at: clock.now(),
        zone: context.zone,
    };
    let checked = Check::new(start, &tx).run(members, broken, |first, append| {
        tx.insert_append(first, append, start.posted_at)
    })?;
    tx.write_figures(&checked.changes)?;
    context.place.check()?;
    Ok((checked, start))
}

fn end(
    connection: &Connection,
    context: &Context,
    checked: Checked,
    start: Start,
) -> (Vec<Answer>, Option<Position>) {
    let Checked { answers, head, .. } = checked;
    if head.is_none() {
        // Every member was refused: there is nothing to commit.
        roll_back(connection);
        return (answers, None);
    }
    match connection.execute_batch("COMMIT") {
        Ok(()) => {
            context.clock.saw(start.posted_at);
            (answers, head)
        }
        Err(error) => {
            roll_back(connection);
            let is_unknown = is_unknown_after_commit(&error);
            let answers = after_failed_commit(answers, &store_error(error), is_unknown);
            (answers, None)
        }
    }
}
