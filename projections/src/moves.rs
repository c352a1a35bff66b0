//! What the log moved, for whoever folds it again: a rebuild must not ask the rows that it is about to prove.
//!
//! A [`LogReader`] reads pages of the log as [`Move`]s: amounts by day and account, with what they mean for daily usage. The rules
//! are the live projection's own ([`crate::daily_usage`]): one pure fold, used twice. An event that cannot be read ends the fold
//! with an error, since nobody sums over a gap; one that the projection was told to skip is left out here too.
//!
//! Bound: one page in memory.

use std::sync::Arc;

use recoup::codec::Catalog;
use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup::{AccountId, Day, Kind, Position, Zone};

use crate::batch::{Batch, BatchEvent, Body};
use crate::catalog::Projection;
use crate::daily_usage::{Usage, UsageSums};
use crate::error::ProjectionError;
use crate::ways_out;

/// The most events that one page may have.
pub const MAX_MOVES_EVENTS: usize = crate::batch::MAX_PAGE_EVENTS;

/// What one event moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Its place in the log.
    pub position: Position,
    /// The day of `posted_at` in the ledger's zone.
    pub day: Day,
    /// Whose balance.
    pub account: AccountId,
    /// By how much, signed.
    pub amount: i64,
    /// What it adds to the day's usage of its kind, if it is a job's.
    pub usage: Option<(Kind, UsageSums)>,
}

/// Consecutive events, as far as they moved anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovePage {
    /// In the order of the log.
    pub moves: Vec<Move>,
    /// The last event that was read, whether or not it moved anything.
    pub last: Option<Position>,
    /// How many events were read.
    pub events: u64,
}

/// Reads the log as moves.
#[derive(Debug, Clone)]
pub struct LogReader {
    catalog: Arc<Catalog>,
    zone: Zone,
    /// Events that the projection was told to skip, from one to another.
    skipped: Arc<[(Position, Position)]>,
}

impl LogReader {
    pub(crate) fn new(catalog: Arc<Catalog>, zone: Zone) -> Self {
        Self {
            catalog,
            zone,
            skipped: Arc::default(),
        }
    }

    /// Leaves out what `projection` was told to skip, so that what is folded is what its rows should be. Reads it from the ledger.
    pub fn as_skipped_by(
        mut self,
        tx: &Transaction<'_>,
        projection: Projection,
    ) -> Result<Self, StoreError> {
        let skips = ways_out::in_force(tx, projection)?;
        let spans = skips.iter().map(|skip| (skip.position, skip.last_position));
        self.skipped = spans.collect();
        Ok(self)
    }

    /// The last event of the skip that `position` is in.
    fn skipped_to(&self, position: Position) -> Option<Position> {
        let mut spans = self.skipped.iter();
        let span = spans.find(|(first, last)| (*first..=*last).contains(&position));
        span.map(|(_, last)| *last)
    }

    /// At most `limit` events after `after`, none behind `until`.
    pub fn read(
        &self,
        tx: &Transaction<'_>,
        after: Position,
        until: Position,
        limit: usize,
    ) -> Result<MovePage, ProjectionError> {
        let limit = limit.min(MAX_MOVES_EVENTS);
        let mut page = MovePage {
            moves: Vec::new(),
            last: None,
            events: 0,
        };
        if limit == 0 || until <= after {
            return Ok(page);
        }
        let span = (after, until);
        let batch = Batch::read(tx, (&self.catalog, self.zone), span, limit)?;
        for event in &batch.events {
            page.last = Some(event.position);
            page.events += 1;
            if self.skipped_to(event.position).is_none() {
                page.moves.extend(moved(event)?);
            }
        }
        if let Some(halt) = batch.unreadable.filter(|halt| halt.position <= until) {
            let Some(last) = self.skipped_to(halt.position) else {
                let (position, why) = (halt.position, halt.reason);
                return Err(StoreError::Corrupt { position, why }.into());
            };
            page.last = Some(last.min(until));
            page.events += 1;
        }
        Ok(page)
    }
}

fn moved(event: &BatchEvent) -> Result<Option<Move>, ProjectionError> {
    let posting = match &event.body {
        Body::Job(_, job) => job.posting(),
        Body::Account(account) => account.posting(),
        Body::Retired => None,
    };
    let Some(posting) = posting else {
        return Ok(None);
    };
    let usage = match Usage::of(&event.body) {
        None => None,
        Some(usage) => {
            let (kind, delta) = usage.delta(event.position).map_err(|why| {
                let position = event.position;
                ProjectionError::from(StoreError::Corrupt { position, why })
            })?;
            Some((kind.clone(), delta))
        }
    };
    // The hold alone moves no balance.
    if posting.amount == 0 && usage.is_none() {
        return Ok(None);
    }
    Ok(Some(Move {
        position: event.position,
        day: event.day,
        account: posting.account.clone(),
        amount: posting.amount,
        usage,
    }))
}
