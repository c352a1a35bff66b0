//! Repairing what differs, some keys at a time, under the lock of the live appliers.
//!
//! That lock is the one of every writing transaction: whoever applies a batch, in whatever process, holds it. On SQLite it is the file's write lock, which
//! appends take as well; elsewhere a repair that is about account figures keeps out besides who writes those
//! ([`Transaction::hold_log`]), since they are compared where they stand. Before the lock is taken the shadow is
//! brought to the checkpoint; under it the checkpoint is read again, and the few events between are folded. What a key should be is then
//! known at exactly the place that the live applier goes on from, so that nothing is counted twice and nothing is lost.
//!
//! Each key is looked at again under the lock: one that is right by now is left alone. Rows, their record and nothing else are
//! in the transaction. Bounds: [`KEYS`] keys and [`MAX_LOCKED_EVENTS`] events a transaction.

use std::time::Instant;

use recoup::Zone;
use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup_projections::{Projections, load_usage, write_usage};
use rusqlite::params;

use super::compare::image;
use super::figures::{self, Figures};
use super::run::{SIGN_EVERY, Watch};
use super::runs::{Record, add_difference};
use super::shadow::Shadow;
use super::{Mode, RebuildError, Relation};

/// How many keys one transaction repairs: few, since appends wait for it.
pub(crate) const KEYS: usize = 32;

/// How many events may be folded under the lock. If more have come, the shadow goes after them without the lock first.
const MAX_LOCKED_EVENTS: i64 = 2_000;

/// How often the shadow goes after a log that grows faster than it folds, for one transaction.
const MAX_CHASES: u32 = 64;

/// A key that differs, with the images that were compared.
#[derive(Debug, Clone)]
struct Differing {
    relation: Relation,
    account: String,
    day: String,
    kind: String,
    before: Option<String>,
    after: Option<String>,
}

/// What a transaction came to.
enum Turn {
    Done,
    /// The checkpoint is far ahead of the shadow.
    TooFar,
}

/// Records every difference that the comparison found and, in [`Mode::Repair`], repairs it.
pub(crate) async fn settle(
    projections: &Projections,
    mut shadow: Shadow,
    (record, mode, zone): (&Record, Mode, Zone),
    watch: &Watch<'_>,
) -> Result<Shadow, RebuildError> {
    let mut after: Option<Differing> = None;
    let mut told = Instant::now();
    loop {
        let keys = next_keys(&shadow, after.as_ref())?;
        let Some(last) = keys.last() else {
            return Ok(shadow);
        };
        after = Some(last.clone());
        if watch.control.stop.is_cancelled() {
            return Err(RebuildError::Cancelled);
        }
        shadow = match mode {
            Mode::Verify => write_down(projections, shadow, (record.run, keys)).await?,
            Mode::Repair => repair(projections, shadow, (record.run, zone), keys).await?,
        };
        if told.elapsed() >= SIGN_EVERY {
            told = Instant::now();
            watch.tell("repair", shadow.mark()).await;
        }
        // Appends that queued behind this transaction come first.
        tokio::task::yield_now().await;
    }
}

fn next_keys(shadow: &Shadow, after: Option<&Differing>) -> Result<Vec<Differing>, RebuildError> {
    let sql = "SELECT relation, account, day, kind, before, after FROM differing
        WHERE (relation, account, day, kind) > (?1, ?2, ?3, ?4)
        ORDER BY relation, account, day, kind LIMIT ?5";
    let mut statement = shadow
        .connection()
        .prepare_cached(sql)
        .map_err(RebuildError::Shadow)?;
    let (relation, account, day, kind) = after.map_or(("", "", "", ""), |after| {
        (
            after.relation.name(),
            &*after.account,
            &*after.day,
            &*after.kind,
        )
    });
    let limit = i64::try_from(KEYS).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![relation, account, day, kind, limit], |row| {
        let relation: String = row.get(0)?;
        let relation = [
            Relation::DailyUsage,
            Relation::AccountState,
            Relation::Balance,
        ]
        .into_iter()
        .find(|known| known.name() == relation)
        .expect("the comparison wrote the name of a relation");
        Ok(Differing {
            relation,
            account: row.get(1)?,
            day: row.get(2)?,
            kind: row.get(3)?,
            before: row.get(4)?,
            after: row.get(5)?,
        })
    });
    rows.map_err(RebuildError::Shadow)?
        .collect::<Result<_, _>>()
        .map_err(RebuildError::Shadow)
}

impl Differing {
    fn key(&self) -> [&str; 3] {
        [&self.account, &self.day, &self.kind]
    }
}

/// Records differences without repairing them.
async fn write_down(
    projections: &Projections,
    shadow: Shadow,
    (run, keys): (i64, Vec<Differing>),
) -> Result<Shadow, RebuildError> {
    projections
        .database()
        .write(move |ledger| {
            for key in &keys {
                let images = (key.before.as_deref(), key.after.as_deref());
                add_difference(ledger, run, key.relation, key.key(), images)?;
            }
            Ok::<_, RebuildError>(shadow)
        })
        .await
}

async fn repair(
    projections: &Projections,
    mut shadow: Shadow,
    (run, zone): (i64, Zone),
    keys: Vec<Differing>,
) -> Result<Shadow, RebuildError> {
    for _ in 0..MAX_CHASES {
        shadow = projections
            .database()
            .snapshot(move |ledger| {
                let (usage, accounts) = shadow.places(ledger, zone)?;
                shadow.follow(ledger, usage)?;
                shadow.follow_accounts(ledger, accounts)?;
                Ok::<_, RebuildError>(shadow)
            })
            .await?;
        let keys = keys.clone();
        let turn = projections.database().write(move |ledger| {
            if shadow.extent().days.is_none() {
                // First of all, so that their place is read when it stands still.
                ledger.hold_log()?;
            }
            let (usage, accounts) = shadow.places(ledger, zone)?;
            let distance = |from, to| ledger.most_events_between(from, to);
            let is_far = distance(shadow.position(), usage) > MAX_LOCKED_EVENTS
                || distance(shadow.accounts_position(), accounts) > MAX_LOCKED_EVENTS;
            if is_far {
                return Ok((shadow, Turn::TooFar));
            }
            shadow.follow(ledger, usage)?;
            shadow.follow_accounts(ledger, accounts)?;
            for key in &keys {
                repair_key(ledger, &shadow, run, key)?;
            }
            Ok::<_, RebuildError>((shadow, Turn::Done))
        });
        let (followed, turn) = turn.await?;
        shadow = followed;
        match turn {
            Turn::Done => return Ok(shadow),
            Turn::TooFar => {}
        }
    }
    Err(RebuildError::TooBusy)
}

fn repair_key(
    ledger: &Transaction<'_>,
    shadow: &Shadow,
    run: i64,
    key: &Differing,
) -> Result<(), RebuildError> {
    let (before, after) = match key.relation {
        Relation::DailyUsage => {
            let truth = shadow.usage(&(key.day.clone(), key.account.clone(), key.kind.clone()))?;
            let stored = (&*key.account, &*key.day, &*key.kind);
            let shown = load_usage(ledger, stored)?;
            if shown == truth {
                return Ok(());
            }
            write_usage(ledger, stored, truth)?;
            (shown.map(image), truth.map(image))
        }
        Relation::AccountState => {
            let truth = shadow.figures(&key.account)?;
            let shown = figures::read(ledger, &key.account)?;
            if shown == truth {
                return Ok(());
            }
            figures::write(ledger, &key.account, truth.as_ref())?;
            let image = |figures: Option<Figures>| figures.as_ref().map(Figures::image);
            (image(shown), image(truth))
        }
        // Which of the two is wrong only the whole log tells.
        Relation::Balance => (key.before.clone(), key.after.clone()),
    };
    let images = (before.as_deref(), after.as_deref());
    let added: Result<(), StoreError> =
        add_difference(ledger, run, key.relation, key.key(), images);
    Ok(added?)
}
