//! A store whose answers get lost, for tests: wraps any other one.
//!
//! Each append draws its fate from a seeded generator. What is lost is the *answer*, before or after the inner store has
//! committed: exactly what a caller cannot tell apart.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    Append, Appended, EventStore, Identity, Position, RecordedEvent, Revision, StoreError,
};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::StreamName;
use crate::ids::AccountId;

/// How often each fault happens, out of 1,000 appends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Committed (or refused, or in conflict), and the answer is lost.
    pub lost_after: u64,
    /// Never sent, and the caller cannot know.
    pub lost_before: u64,
    /// Refused as unavailable: surely nothing written.
    pub unavailable: u64,
}

/// Loses answers of `S`.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn EventStore>,
    faults: Faults,
    state: AtomicU64,
    met: AtomicU64,
}

enum Fate {
    Fine,
    LostAfter,
    LostBefore,
    Unavailable,
}

impl FaultyStore {
    /// Wraps `inner`; the same seed and order of appends give the same faults.
    #[must_use]
    pub fn new(inner: Arc<dyn EventStore>, faults: Faults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            state: AtomicU64::new(seed),
            met: AtomicU64::new(0),
        }
    }

    /// How many appends met a fault.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    fn draw(&self) -> Fate {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let mut z = self
            .state
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let draw = (z ^ (z >> 31)) % 1000;
        let Faults {
            lost_after,
            lost_before,
            unavailable,
        } = self.faults;
        if draw < lost_after + lost_before + unavailable {
            self.met.fetch_add(1, Ordering::Relaxed);
        }
        if draw < lost_after {
            Fate::LostAfter
        } else if draw < lost_after + lost_before {
            Fate::LostBefore
        } else if draw < lost_after + lost_before + unavailable {
            Fate::Unavailable
        } else {
            Fate::Fine
        }
    }
}

fn lost() -> Appended {
    Appended::Unknown {
        cause: "injected: the answer was lost".to_owned(),
    }
}

#[async_trait]
impl EventStore for FaultyStore {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn clock_skew(&self) -> Duration {
        self.inner.clock_skew()
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        match self.draw() {
            Fate::Fine => self.inner.append(append).await,
            Fate::LostAfter => self.inner.append(append).await.map(|_| lost()),
            Fate::LostBefore => Ok(lost()),
            Fate::Unavailable => Err(StoreError::Unavailable {
                cause: "injected".to_owned(),
            }),
        }
    }

    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>> {
        let mut answers = Vec::with_capacity(appends.len());
        let mut broken = HashSet::new();
        for append in appends {
            let stream = append.stream.clone();
            let answer = if broken.contains(&stream) {
                let stored = self.inner.read_stream(&stream, Revision::FIRST).await;
                stored.map(|events| Appended::Conflict {
                    current: events.last().map(|last| last.revision),
                })
            } else {
                self.append(append).await
            };
            if !matches!(answer, Ok(Appended::Committed { .. })) {
                broken.insert(stream);
            }
            answers.push(answer);
        }
        answers
    }

    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.inner.read_stream(stream, from).await
    }

    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        self.inner.read_streams(streams).await
    }

    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.inner.read_all(after, limit).await
    }

    async fn head(&self) -> Result<Position, StoreError> {
        self.inner.head().await
    }

    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        self.inner.account(account, month).await
    }

    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        self.inner.accounts(after, limit).await
    }

    fn appended(&self) -> watch::Receiver<Position> {
        self.inner.appended()
    }
}
