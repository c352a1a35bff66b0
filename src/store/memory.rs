//! A store in memory, for tests and examples. One mutex is the transaction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use super::{
    Append, Appended, EventStore, Identity, Position, RecordedEvent, Revision, StoreError,
};
use crate::account::AccountEvent;
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Clock, SystemClock, Timestamp, Zone};
use crate::codec::{Event, StreamName};
use crate::credits::Scale;
use crate::ids::AccountId;

/// A log in memory. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    identity: Identity,
    clock: Arc<dyn Clock>,
    log: Arc<Mutex<Log>>,
    head: watch::Sender<Position>,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<RecordedEvent>,
    streams: HashMap<StreamName, Vec<usize>>,
    accounts: BTreeMap<AccountId, AccountState>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Zone::UTC, Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty log with days in `zone`.
    #[must_use]
    pub fn new(zone: Zone, clock: Arc<dyn Clock>) -> Self {
        let scale = Scale::new(0).expect("0 is a scale");
        Self {
            identity: Identity {
                ledger: Uuid::new_v4(),
                zone,
                scale,
            },
            clock,
            log: Arc::default(),
            head: watch::Sender::new(Position::START),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // The log is changed in one step at the end of `Log::append`: a panic elsewhere leaves it whole.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn append(
        &mut self,
        append: Append,
        now: Timestamp,
        zone: Zone,
    ) -> Result<Appended, StoreError> {
        let current = self.last_revision(&append.stream);
        let is_stale = self
            .events
            .last()
            .is_some_and(|last| append.is_charged_before_month_of(last.posted_at, zone));
        if super::Expected::after(current) != append.expected || is_stale {
            return Ok(Appended::Conflict { current });
        }
        let posted_at = self
            .events
            .last()
            .map_or(now, |last| last.posted_at.max(now));
        let mut changed: HashMap<AccountId, AccountState> = HashMap::new();
        if let Some(admission) = &append.admission {
            let state = self
                .accounts
                .get(admission.account())
                .cloned()
                .unwrap_or_default();
            if let Err(refusal) = state.admit(admission) {
                return Ok(Appended::Refused(refusal));
            }
        }
        let first = self.events.len();
        for (offset, new) in append.events.iter().enumerate() {
            let position = position_of(first + offset);
            let mut state = |account: &AccountId| {
                changed
                    .remove(account)
                    .or_else(|| self.accounts.get(account).cloned())
                    .unwrap_or_default()
            };
            if let Some(posting) = new.event.posting() {
                let mut figures = state(&posting.account);
                figures
                    .apply(posting, position)
                    .map_err(|why| StoreError::Corrupt {
                        position,
                        why: why.to_string(),
                    })?;
                changed.insert(posting.account.clone(), figures);
            } else if let Event::Account(AccountEvent::LimitsSet(set)) = &new.event {
                let mut figures = state(&set.account);
                figures.set_limits(set.limits, position);
                changed.insert(set.account.clone(), figures);
            }
        }
        self.accounts.extend(changed);
        let metadata = Bytes::from(append.metadata.into_bytes());
        let next = append.expected.next();
        for (offset, new) in (0..).zip(append.events) {
            let index = self.events.len();
            self.streams
                .entry(append.stream.clone())
                .or_default()
                .push(index);
            self.events.push(RecordedEvent {
                position: position_of(index),
                stream: append.stream.clone(),
                revision: next.plus(offset),
                id: new.id,
                type_name: new.event_type.name.into(),
                version: new.event_type.version,
                posted_at,
                metadata: metadata.clone(),
                data: Bytes::from(new.data),
            });
        }
        Ok(Appended::Committed {
            position: self.head(),
            posted_at,
        })
    }

    fn last_revision(&self, stream: &StreamName) -> Option<Revision> {
        let last = self.streams.get(stream)?.last()?;
        Some(self.events[*last].revision)
    }

    fn head(&self) -> Position {
        self.events
            .last()
            .map_or(Position::START, |last| last.position)
    }

    fn stream(&self, stream: &StreamName, from: Revision) -> Vec<RecordedEvent> {
        let indexes = self
            .streams
            .get(stream)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let events = indexes.iter().map(|&index| &self.events[index]);
        events
            .filter(|event| event.revision >= from)
            .cloned()
            .collect()
    }
}

fn position_of(index: usize) -> Position {
    Position::new(i64::try_from(index).map_or(i64::MAX, |index| index.saturating_add(1)))
}

#[async_trait]
impl EventStore for MemoryStore {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn now(&self) -> Timestamp {
        let last = self.lock().events.last().map(|last| last.posted_at);
        last.map_or(self.clock.now(), |last| last.max(self.clock.now()))
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        let mut log = self.lock();
        let now = self.clock.now();
        let appended = log.append(append, now, self.identity.zone);
        let head = log.head();
        // Under the lock: a slower caller must not set an older head.
        self.head.send_replace(head);
        drop(log);
        appended
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        let mut log = self.lock();
        let now = self.clock.now();
        let mut broken = HashSet::new();
        let mut appended = Vec::with_capacity(appends.len());
        for append in appends {
            let stream = append.stream.clone();
            let answer = if broken.contains(&stream) {
                let current = log.last_revision(&stream);
                Ok(Appended::Conflict { current })
            } else {
                log.append(append, now, self.identity.zone)
            };
            if !matches!(answer, Ok(Appended::Committed { .. })) {
                broken.insert(stream);
            }
            appended.push(answer);
        }
        let head = log.head();
        // Under the lock: a slower caller must not set an older head.
        self.head.send_replace(head);
        drop(log);
        appended
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        Ok(self.lock().stream(stream, from))
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        let log = self.lock();
        Ok(streams
            .iter()
            .map(|stream| log.stream(stream, Revision::FIRST))
            .collect())
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let from = usize::try_from(after.get()).unwrap_or(0);
        Ok(self
            .lock()
            .events
            .iter()
            .skip(from)
            .take(limit)
            .cloned()
            .collect())
    }

    async fn head(&self) -> Result<Position, StoreError> {
        Ok(self.lock().head())
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        let mut state = self
            .lock()
            .accounts
            .get(account)
            .cloned()
            .unwrap_or_default();
        state.months.retain(|&of, _| of == month);
        Ok(state)
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let log = self.lock();
        let rest = log
            .accounts
            .iter()
            .filter(|(account, _)| after.is_none_or(|after| *account > after));
        Ok(rest
            .take(limit)
            .map(|(account, state)| (account.clone(), state.clone()))
            .collect())
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }
}
