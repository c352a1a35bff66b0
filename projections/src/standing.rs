//! Where every projection stands, for who watches over them: metrics, readiness, people.
//!
//! Head, checkpoints and the age of what waits are read in one snapshot, from the store and never from what a loop remembers: if the
//! loop is dead, the lag grows. It is one short read by indexes, whatever the size of the log, and it waits for no scan.

use recoup::sql::Transaction;
use recoup::sql::log::FollowedFigures;
use recoup::{Position, Timestamp, values};

use crate::catalog::Projection;
use crate::checkpoint::{self, Checkpoint};
use crate::error::{ProjectionError, damaged};
use crate::ways_out;

/// All projections at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The log's last position.
    pub head: Position,
    /// One for each projection, in the order of [`Projection::ALL`].
    pub projections: Vec<Stand>,
    /// Account figures, where they follow a log elsewhere; none where the append's own transaction writes them.
    pub figures: Option<Figures>,
    /// How many jobs wait for a person; 100,000 stands for more, too.
    pub dead_letters_open: u64,
    /// When the last scheduled rebuild ended well, in whatever process; none if none has.
    pub last_rebuild: Option<Timestamp>,
    /// When the first timer runs out, or ran out; none if none runs.
    pub first_deadline: Option<Timestamp>,
}

/// Account figures beside a log elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// How far they are, and what is on its way.
    pub followed: FollowedFigures,
    /// When the oldest event that they lack was posted; none if they are at the head.
    pub waiting_since: Option<Timestamp>,
}

/// One projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    /// How far it is.
    pub checkpoint: Checkpoint,
    /// When the oldest event that it has not applied was posted; none if it is at the head.
    pub waiting_since: Option<Timestamp>,
    /// Why this build does not touch its rows: they are of another definition, or of another log.
    pub refused: Option<String>,
    /// How many events its rows lack because a person had them skipped.
    pub skips: u64,
}

// No more are counted: a look must not take longer the more there is to look at.
pub(crate) const DEAD_LETTERS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM dead_letters LIMIT 100000) AS waiting";

pub(crate) const LAST_REBUILD: &str = "SELECT finished_at FROM rebuild_runs
    WHERE origin = 'hourly' AND state = 'done' ORDER BY run DESC LIMIT 1";

pub(crate) const FIRST_DEADLINE: &str = "SELECT min(deadline) FROM due";

pub(crate) fn read(tx: &Transaction<'_>, zone: recoup::Zone) -> Result<Standing, ProjectionError> {
    let head = tx.read_head()?;
    let mut projections = Vec::with_capacity(Projection::ALL.len());
    for projection in Projection::ALL {
        let Some(checkpoint) = checkpoint::read(tx, projection)? else {
            return Err(damaged("checkpoints", format_args!("{projection} has no row")).into());
        };
        projections.push(stand(tx, checkpoint, zone)?);
    }
    let figures = match tx.read_followed_figures()? {
        Some(followed) => Some(Figures {
            waiting_since: tx.read_next_instant(followed.position)?,
            followed,
        }),
        None => None,
    };
    let number = |sql: &str| {
        let found = tx.row(sql, values![], |row| row.get::<Option<i64>>(0));
        found.map(Option::flatten)
    };
    let dead_letters = number(DEAD_LETTERS)?.unwrap_or(0);
    let last_rebuild = number(LAST_REBUILD)?.map(Timestamp::from_micros);
    let first_deadline = number(FIRST_DEADLINE)?.map(Timestamp::from_micros);
    Ok(Standing {
        head,
        projections,
        figures,
        dead_letters_open: dead_letters.unsigned_abs(),
        first_deadline,
        last_rebuild,
    })
}

fn stand(
    tx: &Transaction<'_>,
    checkpoint: Checkpoint,
    zone: recoup::Zone,
) -> Result<Stand, ProjectionError> {
    let checked = checkpoint
        .check_definition(zone)
        .and_then(|()| checkpoint.check_event(tx));
    let refused = match checked {
        Ok(()) => None,
        Err(
            wrong @ (ProjectionError::OtherDefinition { .. } | ProjectionError::OtherLog { .. }),
        ) => Some(wrong.to_string()),
        Err(error) => return Err(error),
    };
    Ok(Stand {
        waiting_since: tx.read_next_instant(checkpoint.position)?,
        refused,
        skips: ways_out::in_force(tx, checkpoint.projection)?.len() as u64,
        checkpoint,
    })
}
