//! The handle: opens the tables, runs the runner, answers queries.

use std::sync::Arc;

use recoup::codec::Catalog;
use recoup::sql::Database;
use recoup::{AccountId, Day, EventStore, Position, Reason, Timestamp, Zone};
use tokio_util::sync::CancellationToken;

use crate::apply::Loading;
use crate::batch::{MAX_PAGE_EVENTS, PAGE_EVENTS};
use crate::catalog::{COMPONENT, MIGRATIONS, Projection};
use crate::checkpoint::{self, Checkpoint};
use crate::contradictions::ContradictionRow;
use crate::daily_usage::UsageRow;
use crate::dead_letters::{self, DeadLetterFilter, DeadLetterRow};
use crate::entries::EntryRow;
use crate::error::ProjectionError;
use crate::jobs::JobRow;
use crate::moves::LogReader;
use crate::queries::{self, JobFilter, Order, Page};
use crate::runner::{self, Progress, Runner, Seen};
use crate::standing::{self, Standing};
use crate::ways_out::{self, Decision, Reset, SkipOutcome};

/// The projections of one ledger. Clones are cheap and share the connections.
///
/// Any number of processes may open the same ledger's and run [`Self::catch_up`] or [`Self::follow`] at once. Queries answer from
/// what has been applied, which may be behind the log: [`Self::checkpoints`] says by how much.
#[derive(Debug, Clone)]
pub struct Projections {
    pub(crate) database: Database,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) page_events: usize,
    pub(crate) loading: Loading,
}

impl Projections {
    /// Makes the tables or brings them up to date, and opens them. Applies no event yet.
    pub async fn open(database: impl Into<Database>) -> Result<Self, ProjectionError> {
        let database = database.into();
        database.migrate(COMPONENT, MIGRATIONS).await?;
        let zone = database.identity().zone;
        let known = database.snapshot(checkpoint::read_all).await?;
        if known.len() < Projection::ALL.len() {
            database
                .write(move |tx| checkpoint::create_missing(tx, zone))
                .await?;
        }
        Ok(Self {
            loading: Loading::of(&database),
            database,
            catalog: Arc::new(Catalog::standard().clone()),
            page_events: PAGE_EVENTS,
        })
    }

    /// Reads `events` events at a time, at least 1 and at most 10,000. Whatever the number, the rows are the same.
    #[must_use]
    pub fn with_page_events(mut self, events: usize) -> Self {
        self.page_events = events.clamp(1, MAX_PAGE_EVENTS);
        self
    }

    /// Reads events by `catalog` instead of the standard one.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Catalog) -> Self {
        self.catalog = Arc::new(catalog);
        self
    }

    /// Brings every projection to the head of the log as of this call.
    ///
    /// A projection that an event stands in the way of is brought up to it; [`Progress::halted`] says so. Fails before anything is
    /// applied if a checkpoint is of another log or definition.
    pub async fn catch_up(&self) -> Result<Progress, ProjectionError> {
        Runner::start(self).await?.catch_up().await
    }

    /// Keeps every projection at the head of the log until `stop` is cancelled, then returns.
    ///
    /// Waits out times in which the store is unavailable or full. Any other error ends it.
    pub async fn follow(&self, stop: CancellationToken) -> Result<(), ProjectionError> {
        runner::follow(self, &stop, &|_| {}).await
    }

    /// As [`Self::follow`], and tells `observer` of every batch, every run and every error that is waited out. It must not block.
    pub async fn follow_watched(
        &self,
        stop: CancellationToken,
        observer: impl Fn(Seen<'_>) + Send + Sync,
    ) -> Result<(), ProjectionError> {
        runner::follow(self, &stop, &observer).await
    }

    /// How far every projection is, and how far behind the head that is, all of one moment.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, ProjectionError> {
        Ok(self.database.snapshot(checkpoint::read_all).await?)
    }

    /// Where every projection stands: head, lag, halts, skips, all of one moment. A short read, which waits for no scan.
    pub async fn standing(&self) -> Result<Standing, ProjectionError> {
        let zone = self.zone();
        self.database
            .glance(move |tx| standing::read(tx, zone))
            .await
    }

    /// The store's clock, by which lag is counted.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.database.now()
    }

    /// Moves `projection` past the event at `position`, if that is the one that it is halted at, and records who decided so and why.
    ///
    /// Applies nothing: what comes after is applied by the next run. Refuses rows of another definition or log.
    pub async fn skip(
        &self,
        projection: Projection,
        position: Position,
        (reason, by): (Reason, String),
    ) -> Result<SkipOutcome, ProjectionError> {
        let (zone, decision) = (self.zone(), self.decision(Some(reason), by));
        self.database
            .write(move |tx| ways_out::skip(tx, zone, (projection, position), decision))
            .await
    }

    /// Empties the table of `projection` and puts its checkpoint to the start of the log, with this build's definition.
    ///
    /// Applies nothing: the next run makes the rows anew. No other projection is touched.
    pub async fn reset(
        &self,
        projection: Projection,
        (reason, by): (Option<Reason>, String),
    ) -> Result<Reset, ProjectionError> {
        let (zone, decision) = (self.zone(), self.decision(reason, by));
        self.database
            .write(move |tx| ways_out::reset(tx, zone, projection, &decision))
            .await
    }

    fn decision(&self, reason: Option<Reason>, by: String) -> Decision {
        Decision {
            reason,
            by,
            at: self.database.now(),
        }
    }

    /// An account's statement from the beginning: at most `limit` entries after `after`.
    pub async fn entries(
        &self,
        account: &AccountId,
        after: Option<Position>,
        limit: u32,
    ) -> Result<Page<EntryRow>, ProjectionError> {
        queries::entries(&self.database, account, Order::OldestFirst, after, limit).await
    }

    /// An account's statement from its end: at most `limit` entries before `before`, the latest first.
    pub async fn latest_entries(
        &self,
        account: &AccountId,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<EntryRow>, ProjectionError> {
        queries::entries(&self.database, account, Order::NewestFirst, before, limit).await
    }

    /// An account's usage by day and kind, both days included; by day, then kind.
    pub async fn usage(
        &self,
        account: &AccountId,
        from: Option<Day>,
        to: Option<Day>,
    ) -> Result<Vec<UsageRow>, ProjectionError> {
        queries::usage(&self.database, account, from, to).await
    }

    /// Jobs in the order in which they were charged: at most `limit` after `after`, which is the last one's
    /// [`opened`](JobRow::opened).
    pub async fn jobs(
        &self,
        filter: JobFilter,
        after: Option<Position>,
        limit: u32,
    ) -> Result<Page<JobRow>, ProjectionError> {
        queries::jobs(&self.database, filter, after, limit).await
    }

    /// Contradictions as they happened: at most `limit` after `after`.
    pub async fn contradictions(
        &self,
        after: Option<Position>,
        limit: u32,
    ) -> Result<Page<ContradictionRow>, ProjectionError> {
        queries::contradictions(&self.database, after, limit).await
    }

    /// Reads the log as what it moved, for a fold that does not ask the rows.
    #[must_use]
    pub fn log_reader(&self) -> LogReader {
        LogReader::new(Arc::clone(&self.catalog), self.zone())
    }

    /// The database beneath.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Jobs that wait for a person, in the order in which they became dead letters: at most `limit` after `after`.
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<Position>,
        limit: u32,
    ) -> Result<Page<DeadLetterRow>, ProjectionError> {
        dead_letters::dead_letters(&self.database, filter, after, limit).await
    }

    /// How many jobs wait for a person.
    pub async fn open_dead_letters(&self) -> Result<u64, ProjectionError> {
        dead_letters::count(&self.database).await
    }

    pub(crate) fn zone(&self) -> Zone {
        self.database.identity().zone
    }
}
