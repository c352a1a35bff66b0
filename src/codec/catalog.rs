//! The catalog of event types: which names and versions are written, which are read, which are retired.
//!
//! Checklist for a change is in CONTRIBUTING.md. In short: never edit a struct that has landed; add a struct, a version
//! and an upcaster, and pin the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CodecError, Decoded, Event};
use crate::account::AccountEvent;
use crate::job::JobEvent;
use crate::store::RecordedEvent;

/// What an event is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType {
    /// The stable name, such as `recoup.job.charged`.
    pub name: &'static str,
    /// The version of its struct, from 1.
    pub version: u16,
}

/// Reads one version's bytes into the event of today: the decoder of the newest version, an upcaster for any older one.
pub type Upcast = fn(&[u8]) -> Result<Event, postcard::Error>;

/// Which types are read, and how.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    readers: BTreeMap<&'static str, BTreeMap<u16, Upcast>>,
    retired: BTreeSet<&'static str>,
}

macro_rules! catalog {
    ($($name:literal, $version:literal => $outer:ident($inner:ident::$variant:ident);)*) => {
        /// The type that an event is written as.
        const fn type_of(event: &Event) -> EventType {
            match event {
                $(Event::$outer($inner::$variant(_)) => EventType { name: $name, version: $version },)*
            }
        }

        fn encode(event: &Event) -> Vec<u8> {
            match event {
                $(Event::$outer($inner::$variant(body)) => to_bytes(body),)*
            }
        }

        fn standard() -> Catalog {
            Catalog::default()
                $(.with(EventType { name: $name, version: $version }, |bytes| {
                    from_bytes(bytes).map(|body| Event::$outer($inner::$variant(body)))
                }))*
        }
    };
}

catalog! {
    "recoup.job.charged", 1 => Job(JobEvent::Charged);
    "recoup.job.attempt_started", 1 => Job(JobEvent::AttemptStarted);
    "recoup.job.lease_extended", 1 => Job(JobEvent::LeaseExtended);
    "recoup.job.attempt_failed", 1 => Job(JobEvent::AttemptFailed);
    "recoup.job.refunded", 1 => Job(JobEvent::Refunded);
    "recoup.job.retry_scheduled", 1 => Job(JobEvent::RetryScheduled);
    "recoup.job.failed", 1 => Job(JobEvent::Failed);
    "recoup.job.dead_lettered", 1 => Job(JobEvent::DeadLettered);
    "recoup.job.delivered", 1 => Job(JobEvent::Delivered);
    "recoup.job.reclaimed", 1 => Job(JobEvent::Reclaimed);
    "recoup.job.redriven", 1 => Job(JobEvent::Redriven);
    "recoup.job.cancelled", 1 => Job(JobEvent::Cancelled);
    "recoup.job.discarded", 1 => Job(JobEvent::Discarded);
    "recoup.job.contradicted", 1 => Job(JobEvent::Contradicted);
    "recoup.job.voided", 1 => Job(JobEvent::Voided);
    "recoup.account.granted", 1 => Account(AccountEvent::Granted);
    "recoup.account.adjusted", 1 => Account(AccountEvent::Adjusted);
    "recoup.account.limits_set", 1 => Account(AccountEvent::LimitsSet);
}

/// Types that are no longer written and that mean nothing any more. None yet.
const RETIRED: [&str; 0] = [];

fn to_bytes<T: Serialize>(body: &T) -> Vec<u8> {
    postcard::to_stdvec(body).expect("an event of plain data always serializes")
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    let (body, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() {
        Ok(body)
    } else {
        Err(postcard::Error::DeserializeBadEncoding)
    }
}

impl Event {
    /// The type that the event is written as.
    #[must_use]
    pub const fn event_type(&self) -> EventType {
        type_of(self)
    }

    /// The event's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl Catalog {
    /// The types of this build.
    #[must_use]
    pub fn standard() -> &'static Self {
        static STANDARD: OnceLock<Catalog> = OnceLock::new();
        STANDARD.get_or_init(|| RETIRED.into_iter().fold(standard(), Self::retire))
    }

    /// Reads a version of a type with `upcast`.
    #[must_use]
    pub fn with(mut self, event_type: EventType, upcast: Upcast) -> Self {
        self.readers
            .entry(event_type.name)
            .or_default()
            .insert(event_type.version, upcast);
        self
    }

    /// Skips and counts events of the type `name`, whatever their version.
    #[must_use]
    pub fn retire(mut self, name: &'static str) -> Self {
        self.readers.remove(name);
        self.retired.insert(name);
        self
    }

    /// The catalog's own copy of a type's name, if it is read or retired.
    #[must_use]
    pub fn known_name(&self, name: &str) -> Option<&'static str> {
        let read = self.readers.get_key_value(name).map(|(known, _)| *known);
        read.or_else(|| self.retired.get(name).copied())
    }

    /// Every type and version that is read.
    pub fn types(&self) -> impl Iterator<Item = EventType> + '_ {
        self.readers.iter().flat_map(|(&name, versions)| {
            versions
                .keys()
                .map(move |&version| EventType { name, version })
        })
    }

    /// Reads a recorded event.
    pub fn decode(&self, recorded: &RecordedEvent) -> Result<Decoded, CodecError> {
        let RecordedEvent {
            position,
            type_name,
            version,
            data,
            ..
        } = recorded;
        if self.retired.contains(&**type_name) {
            return Ok(Decoded::Retired);
        }
        let reader = self
            .readers
            .get(&**type_name)
            .and_then(|versions| versions.get(version));
        let Some(upcast) = reader else {
            let newest = self
                .readers
                .get(&**type_name)
                .and_then(|versions| versions.keys().next_back());
            if newest.is_some_and(|newest| version < newest) {
                return Err(CodecError::Corrupt {
                    position: *position,
                    why: format!("{type_name} has never had a version {version}"),
                });
            }
            return Err(CodecError::TooNew {
                position: *position,
                name: type_name.to_string(),
                version: *version,
            });
        };
        upcast(data)
            .map(Decoded::Event)
            .map_err(|error| CodecError::Corrupt {
                position: *position,
                why: format!("{type_name} version {version}: {error}"),
            })
    }
}
