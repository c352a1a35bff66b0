//! The shadow: what the rows should be, in a temporary database that SQLite removes by itself, whatever the ledger's database is.
//!
//! Daily usage gathers in memory, up to [`BUFFERED_KEYS`] keys, and goes to the database in the order of its keys: so neighbours share a page, and
//! memory stays within the buffer and the database's cache ([`CACHE_KIB`]) whatever the number of keys. Account figures are folded by the
//! ledger's own arithmetic into tables of the ledger's form.
//!
//! A shadow has a position: exactly the events up to there are in it, as far as they are of its days. Account figures have a position of
//! their own: daily usage is compared at its checkpoint, they where the ledger's figures stand. That is the head of the log where the append writes them, and
//! may be before the checkpoint where they follow a log elsewhere, so a shadow of them never goes beyond it.

use std::collections::{BTreeMap, BTreeSet};

use recoup::codec::{Decoded, Event, decode};
use recoup::sql::Transaction;
use recoup::store::sqlite::ACCOUNT_TABLES;
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, Day, Position, Zone};
use recoup_projections::{LogReader, MovePage, Projection, UsageSums, read_checked};
use rusqlite::{Connection, OptionalExtension, params};

use super::figures::{self, Figures};
use super::{RebuildError, Relation};

/// How many keys gather in memory before they are written.
const BUFFERED_KEYS: usize = 100_000;

/// How much of the temporary database stays in memory, in KiB.
const CACHE_KIB: i64 = 32_768;

/// How many events are read at a time.
pub(crate) const PAGE_EVENTS: usize = 10_000;

const TABLES: &str = "
    CREATE TABLE usage (day TEXT NOT NULL, account TEXT NOT NULL, kind TEXT NOT NULL, charged INTEGER NOT NULL,
        refunded INTEGER NOT NULL, reclaimed INTEGER NOT NULL, jobs INTEGER NOT NULL, last_position INTEGER NOT NULL,
        PRIMARY KEY (day, account, kind)) STRICT, WITHOUT ROWID;
    CREATE TABLE touched (account TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
    CREATE TABLE differing (relation TEXT NOT NULL, account TEXT NOT NULL, day TEXT NOT NULL, kind TEXT NOT NULL,
        before TEXT, after TEXT, PRIMARY KEY (relation, account, day, kind)) STRICT, WITHOUT ROWID;";

/// A row of daily usage, by day, account and kind, as they are stored.
pub(crate) type UsageKey = (String, String, String);

/// What is folded.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    /// The first and the last day. None is every day, and account figures too: then the fold begins with the log.
    pub(crate) days: Option<(Day, Day)>,
    pub(crate) account: Option<AccountId>,
}

pub(crate) struct Shadow {
    connection: Connection,
    reader: LogReader,
    extent: Extent,
    /// Before this position no event is of these days.
    from: Position,
    position: Position,
    accounts_position: Position,
    /// Behind this position no event is of these days; none where account figures go on.
    until: Position,
    buffer: BTreeMap<UsageKey, UsageSums>,
    touched: BTreeSet<String>,
    pub(crate) events_read: u64,
}

impl Shadow {
    /// An empty one, for events after `from`, as far as `until`.
    pub(crate) fn new(
        reader: LogReader,
        extent: Extent,
        (from, until): (Position, Position),
    ) -> Result<Self, RebuildError> {
        // A file of its own that has no name: SQLite removes it, also when the process is killed.
        let connection = Connection::open("").map_err(RebuildError::Shadow)?;
        let set = |name: &str, value: &dyn rusqlite::ToSql| {
            connection
                .pragma_update(None, name, value)
                .map_err(RebuildError::Shadow)
        };
        set("cache_size", &-CACHE_KIB)?;
        set("synchronous", &"OFF")?;
        connection
            .pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))
            .map_err(RebuildError::Shadow)?;
        connection.set_prepared_statement_cache_capacity(64);
        let tables = [TABLES, ACCOUNT_TABLES].concat();
        connection
            .execute_batch(&tables)
            .map_err(RebuildError::Shadow)?;
        Ok(Self {
            connection,
            reader,
            extent,
            from,
            position: from,
            accounts_position: from,
            until,
            buffer: BTreeMap::new(),
            touched: BTreeSet::new(),
            events_read: 0,
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) const fn extent(&self) -> &Extent {
        &self.extent
    }

    pub(crate) const fn position(&self) -> Position {
        self.position
    }

    /// How far it is, and how many events it has read.
    pub(crate) const fn mark(&self) -> (Position, u64) {
        (self.position, self.events_read)
    }

    pub(crate) const fn accounts_position(&self) -> Position {
        self.accounts_position
    }

    /// Where daily usage and, if they are folded, account figures stand. An error if that is before what is folded already.
    pub(crate) fn places(
        &self,
        ledger: &Transaction<'_>,
        zone: Zone,
    ) -> Result<(Position, Position), RebuildError> {
        let set_back = |relation, folded: Position, stands: Position| {
            if folded > self.from && folded > stands {
                return Err(RebuildError::SetBack {
                    relation,
                    folded,
                    stands,
                });
            }
            Ok(stands)
        };
        let checkpoint = read_checked(ledger, Projection::DailyUsage, zone)?.position;
        let checkpoint = set_back(Relation::DailyUsage, self.position, checkpoint)?;
        let figures = match self.extent.days {
            None => ledger.read_figures_position()?,
            Some(_) => Position::START,
        };
        let figures = set_back(Relation::AccountState, self.accounts_position, figures)?;
        Ok((checkpoint, figures))
    }

    /// Reads one page towards `target` and folds it. Gives false once the shadow is there.
    pub(crate) fn step(
        &mut self,
        ledger: &Transaction<'_>,
        target: Position,
    ) -> Result<bool, RebuildError> {
        if self.position >= target {
            return Ok(false);
        }
        let reachable = target.min(self.until);
        if self.position >= reachable {
            // What is between is of later days.
            self.position = target;
            return Ok(false);
        }
        let page = self
            .reader
            .read(ledger, self.position, reachable, PAGE_EVENTS)?;
        let Some(last) = page.last else {
            let why = format!("table appends: no event after position {}", self.position);
            return Err(StoreError::Damaged { why }.into());
        };
        if self.extent.days.is_none() {
            // Figures that follow a log elsewhere may be behind daily usage.
            let figures = ledger.read_figures_position()?;
            self.follow_accounts(ledger, last.min(figures))?;
        }
        self.events_read += page.events;
        self.fold_usage(page)?;
        self.position = last;
        if self.buffer.len() >= BUFFERED_KEYS {
            self.flush()?;
        }
        Ok(true)
    }

    /// Folds everything up to `target`, and writes it.
    pub(crate) fn follow(
        &mut self,
        ledger: &Transaction<'_>,
        target: Position,
    ) -> Result<(), RebuildError> {
        while self.step(ledger, target)? {}
        self.flush()
    }

    fn is_wanted(&self, account: &AccountId) -> bool {
        self.extent
            .account
            .as_ref()
            .is_none_or(|wanted| wanted == account)
    }

    fn fold_usage(&mut self, page: MovePage) -> Result<(), RebuildError> {
        // Events of one moment share their day.
        let mut last_day: Option<(Day, String)> = None;
        for moved in page.moves {
            let is_of_window = |(from, to)| from <= moved.day && moved.day <= to;
            if !self.extent.days.is_none_or(is_of_window) || !self.is_wanted(&moved.account) {
                continue;
            }
            let account = moved.account.as_str();
            if !self.touched.contains(account) {
                self.touched.insert(account.to_owned());
            }
            let Some((kind, delta)) = moved.usage else {
                continue;
            };
            let day = match &last_day {
                Some((day, text)) if *day == moved.day => text.clone(),
                _ => last_day
                    .insert((moved.day, moved.day.to_string()))
                    .1
                    .clone(),
            };
            let key = (day, account.to_owned(), kind.as_str().to_owned());
            let sums = self.buffer.entry(key).or_insert(UsageSums::ZERO);
            *sums = sums.plus(delta).ok_or_else(|| RebuildError::Overflow {
                account: moved.account.to_string(),
                day: moved.day.to_string(),
            })?;
        }
        if self.touched.len() >= BUFFERED_KEYS {
            self.flush()?;
        }
        Ok(())
    }

    /// Folds account figures up to `target`, without what a person had the ledger's figures skip.
    pub(crate) fn follow_accounts(
        &mut self,
        ledger: &Transaction<'_>,
        target: Position,
    ) -> Result<(), RebuildError> {
        while self.accounts_position < target {
            let from = self.accounts_position;
            let recorded = match ledger.read_page_until(from, target, PAGE_EVENTS) {
                Err(StoreError::Corrupt { position, .. })
                    if ledger.is_skipped_by_figures(position)? =>
                {
                    self.accounts_position = position;
                    continue;
                }
                read => read?,
            };
            let Some(last) = recorded.last().map(|last| last.position) else {
                let why = format!(
                    "table appends: no event after position {}",
                    self.accounts_position
                );
                return Err(StoreError::Damaged { why }.into());
            };
            self.fold_accounts(ledger, &recorded)?;
            self.accounts_position = last;
        }
        Ok(())
    }

    fn fold_accounts(
        &self,
        ledger: &Transaction<'_>,
        recorded: &[RecordedEvent],
    ) -> Result<(), RebuildError> {
        let mut events: Vec<(Position, Event)> = Vec::with_capacity(recorded.len());
        for recorded in recorded {
            let position = recorded.position;
            let decoded = match decode(recorded) {
                Ok(decoded) => decoded,
                Err(_) if ledger.is_skipped_by_figures(position)? => continue,
                Err(error) => {
                    let why = error.to_string();
                    return Err(StoreError::Corrupt { position, why }.into());
                }
            };
            if let Decoded::Event(event) = decoded
                && event
                    .account()
                    .is_some_and(|account| self.is_wanted(account))
            {
                events.push((position, event));
            }
        }
        let events = events.iter().map(|(position, event)| (*position, event));
        self.begin()?;
        let shadow = Transaction::on_sqlite(&self.connection);
        shadow
            .fold_accounts(events)?
            .map_err(|(position, overflow)| {
                let why = overflow.to_string();
                StoreError::Corrupt { position, why }
            })?;
        self.commit()
    }

    fn begin(&self) -> Result<(), RebuildError> {
        self.connection
            .execute_batch("BEGIN")
            .map_err(RebuildError::Shadow)
    }

    fn commit(&self) -> Result<(), RebuildError> {
        self.connection
            .execute_batch("COMMIT")
            .map_err(RebuildError::Shadow)
    }

    /// Writes what has gathered in memory.
    pub(crate) fn flush(&mut self) -> Result<(), RebuildError> {
        if self.buffer.is_empty() && self.touched.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let written = self.write_buffer();
        written.map_err(RebuildError::Shadow)?;
        self.commit()
    }

    fn write_buffer(&mut self) -> rusqlite::Result<()> {
        // An addition that leaves 64 bits becomes a float in SQLite, which a STRICT table refuses.
        let add = "INSERT INTO usage (day, account, kind, charged, refunded, reclaimed, jobs, last_position)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
            ON CONFLICT (day, account, kind) DO UPDATE SET charged = charged + excluded.charged,
            refunded = refunded + excluded.refunded, reclaimed = reclaimed + excluded.reclaimed,
            jobs = jobs + excluded.jobs, last_position = max(last_position, excluded.last_position)";
        let mut add = self.connection.prepare_cached(add)?;
        for ((day, account, kind), sums) in std::mem::take(&mut self.buffer) {
            let values = params![
                day,
                account,
                kind,
                sums.charged,
                sums.refunded,
                sums.reclaimed,
                sums.jobs,
                sums.last_position.get(),
            ];
            add.execute(values)?;
        }
        let touch = "INSERT INTO touched (account) VALUES (?1) ON CONFLICT (account) DO NOTHING";
        let mut touch = self.connection.prepare_cached(touch)?;
        for account in std::mem::take(&mut self.touched) {
            touch.execute([account])?;
        }
        Ok(())
    }

    /// What a row should be. Everything folded must have been written.
    pub(crate) fn usage(&self, key: &UsageKey) -> Result<Option<UsageSums>, RebuildError> {
        let sql = "SELECT charged, refunded, reclaimed, jobs, last_position FROM usage
            WHERE day = ?1 AND account = ?2 AND kind = ?3";
        let mut statement = self
            .connection
            .prepare_cached(sql)
            .map_err(RebuildError::Shadow)?;
        let (day, account, kind) = key;
        statement
            .query_row([day, account, kind], |row| sums_of(row, 0))
            .optional()
            .map_err(RebuildError::Shadow)
    }

    /// What an account's figures should be.
    pub(crate) fn figures(&self, account: &str) -> Result<Option<Figures>, RebuildError> {
        let tx = Transaction::on_sqlite(&self.connection);
        figures::read(&tx, account).map_err(RebuildError::ShadowFigures)
    }
}

/// The sums that stand in a row from the column `first` on.
pub(crate) fn sums_of(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<UsageSums> {
    Ok(UsageSums {
        charged: row.get(first)?,
        refunded: row.get(first + 1)?,
        reclaimed: row.get(first + 2)?,
        jobs: row.get(first + 3)?,
        last_position: Position::new(row.get(first + 4)?),
    })
}
