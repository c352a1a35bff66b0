//! The log in KurrentDB (once EventStoreDB), through its official client.
//!
//! [`Log`] is a log and no more: the account figures that guard an append cannot share its transaction, so it has the methods of
//! [`EventStore`](super::EventStore) that concern events, and no admission. [`KurrentStore`] is a ledger: the log, and an SQL database beside it with everything
//! else (`ledger`, `beside`).
//!
//! **What is stored.** A stream is the ledger's [`StreamPrefix`] and the name of ours. An event's bytes are ours, as `application/octet-stream`, under
//! its type's name. Its metadata is ours too, JSON with `$correlationId` and `$causationId`, and in front of them one key more,
//! `recoup`: the version of the type's struct, and a random number of the sending (`stored`). The identity of the ledger is the one event of the
//! stream `<prefix>ledger`, which no reader of the log is given (`identity`); `<prefix>figures` is another such stream (`keeper`).
//!
//! **The guard** is the server's expected revision. Where a stream is further on, the server looks at ids alone and calls an append with the ids that it
//! has a success. Whether it is *this* append that was stored is therefore read back after every success: the number of the sending decides, and what
//! was there before is [`Appended::Conflict`](super::Appended::Conflict), as in every store. The same read gives position and instant, which the answer lacks
//! or may lack (`append`).
//!
//! **Three-valued.** The client's errors do not say whether a request went out. The events themselves do: they are handed over by an iterator
//! that remembers whether it was asked, and that can be withdrawn as long as it was not. Never asked: surely nothing written, tried again or
//! [`StoreError::Unavailable`](super::StoreError::Unavailable). Asked, and no clear answer: [`Appended::Unknown`](super::Appended::Unknown) (`gate`).
//!
//! **Order.** A position is the server's commit position; they increase and have holes. Within the ledger's prefix no reader passes one that is not
//! committed: the server has one writer, and every read asks the leader. (A leader that is cut off from the others answers reads until it notices; it commits nothing meanwhile.) `posted_at` is the server's clock: unlike on other stores it may go back
//! by the difference of two machines' clocks when another node takes the lead.
//!
//! **Bounds.** A call waits [`Options::connect_within`] for a client and [`Options::answer_within`] for each answer. The client, whose connection may end for
//! good, is built anew behind the callers' backs (`link`). No call is made through a subscription: its clean end would cost a core.
//!
//! Server: 22.6 or newer, which tells positions in reads of a stream. One [`Log`] per process and ledger is enough; clones share it.

mod append;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod beside;
mod error;
mod gate;
mod identity;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod keeper;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod ledger;
mod link;
mod read;
mod stored;
mod tasks;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use self::link::Link;
use self::tasks::keep_going;
use super::parameters::parameters;
use super::{Identity, Position, RecordedEvent};
use crate::clock::{Clock, SystemClock, Timestamp, Zone};
use crate::credits::Scale;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use beside::{
    Check, LEAST_BYTES, is_skipped, read_account, read_followed, read_reserved, read_scan_begin,
    read_scan_end, read_state,
};
pub use error::{OpenError, StreamPrefixError};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use ledger::{KurrentStore, Recovery};

/// How many appends a process has under way at once. The server's single writer takes them one by one.
const CONCURRENCY: usize = 64;

/// What may stand behind the `?` of a connection string: the prefix, and what the client knows.
const PARAMETERS: [&str; 14] = [
    "prefix",
    "maxDiscoverAttempts",
    "discoveryInterval",
    "gossipTimeout",
    "tls",
    "tlsVerifyCert",
    "nodePreference",
    "keepAliveInterval",
    "keepAliveTimeout",
    "defaultDeadline",
    "connectionName",
    "userCertFile",
    "userKeyFile",
    "tlsCaFile",
];

/// What the names of a ledger's streams begin with: 1 to 50 bytes of `[A-Za-z0-9._:@]`.
///
/// Without a `-`, which begins the rest of every name, so no ledger's streams are another's, whatever the two prefixes are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamPrefix(Arc<str>);

impl StreamPrefix {
    /// Parses a prefix.
    pub fn new(text: impl AsRef<str>) -> Result<Self, StreamPrefixError> {
        let text = text.as_ref();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@".contains(&byte);
        if (1..=50).contains(&text.len()) && text.bytes().all(is_plain) {
            Ok(Self(Arc::from(text)))
        } else {
            Err(StreamPrefixError {
                text: text.to_owned(),
            })
        }
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for StreamPrefix {
    fn default() -> Self {
        Self(Arc::from("recoup."))
    }
}

impl fmt::Display for StreamPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How to open a ledger's log.
#[derive(Clone)]
pub struct Options {
    /// A connection string of KurrentDB's, such as `kurrentdb://localhost:2113?tls=false` or `esdb+discover://cluster.example:2113`.
    pub connection: String,
    /// What the ledger's streams begin with.
    pub prefix: StreamPrefix,
    /// The zone to create the ledger with; if it exists, the zone it must have.
    pub zone: Option<Zone>,
    /// The scale to create the ledger with; if it exists, the scale it must have.
    pub scale: Option<Scale>,
    /// This machine's clock. Events are stamped by the server's.
    pub clock: Arc<dyn Clock>,
    /// How long a call waits for a server that can be asked.
    pub connect_within: Duration,
    /// How long a call waits for an answer, or for the next event of one.
    pub answer_within: Duration,
    /// How often the end of the log is looked at while somebody waits for a signal.
    pub poll_every: Duration,
    /// By how much the clocks of the server's nodes, and of the machines that ask them, may differ: a deadline is over only that much later.
    pub clock_skew: Duration,
}

impl Options {
    /// The server at `connection`, the prefix `recoup.`, the machine's clock, 5 s of patience with each step and of difference between clocks, five looks a second.
    #[must_use]
    pub fn at(connection: impl Into<String>) -> Self {
        Self {
            connection: connection.into(),
            prefix: StreamPrefix::default(),
            zone: None,
            scale: None,
            clock: Arc::new(SystemClock),
            connect_within: Duration::from_secs(5),
            answer_within: Duration::from_secs(5),
            poll_every: Duration::from_millis(200),
            clock_skew: Duration::from_secs(5),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the connection string, which may hold a password.
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .field("connect_within", &self.connect_within)
            .field("answer_within", &self.answer_within)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The ledger whose streams a URL names: a connection string, with one parameter more, `prefix=NAME`. An error says what is wrong without repeating it: it may
    /// hold a password.
    pub fn parse(url: &str) -> Result<Self, OpenError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut prefix = StreamPrefix::default();
        let mut rest = Vec::new();
        let wrong = |why: String| OpenError::Connection {
            why: format!("is wrong: {why}"),
        };
        for (name, value) in parameters(query, &PARAMETERS).map_err(wrong)? {
            if name == "prefix" {
                let parsed = StreamPrefix::new(value);
                prefix = parsed.map_err(|error| wrong(error.to_string()))?;
            } else {
                rest.push(format!("{name}={value}"));
            }
        }
        let mark = if rest.is_empty() { "" } else { "?" };
        let options = Self {
            prefix,
            ..Self::at(format!("{base}{mark}{}", rest.join("&")))
        };
        Link::new(&options)?;
        Ok(options)
    }

    /// Where the ledger is, for people: the servers and what its streams begin with, without user and password.
    #[must_use]
    pub fn place_name(&self) -> String {
        let (_, rest) = self.connection.split_once("://").unwrap_or_default();
        let hosts = rest.split(['/', '?']).next().unwrap_or_default();
        let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
        format!("{hosts}, streams {}", self.prefix)
    }
}

/// A URL that leads to the same place, without user and password.
pub fn without_password(url: &str) -> Result<String, OpenError> {
    Options::parse(url)?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("kurrentdb", url));
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let hosts = authority
        .rsplit_once('@')
        .map_or(authority, |(_, hosts)| hosts);
    Ok(format!("{scheme}://{hosts}{path}"))
}

/// Whether there is a ledger; an error if the server cannot be asked.
pub async fn exists(options: &Options) -> Result<bool, OpenError> {
    let link = Link::new(options)?;
    identity::exists(&link, options).await
}

/// A ledger's log in KurrentDB. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    identity: Identity,
    link: Link,
    /// The latest `posted_at` that was seen, in microseconds; 1970 before the first.
    seen: AtomicI64,
    head: watch::Sender<Position>,
    under_way: Semaphore,
}

impl Log {
    /// Opens the ledger's log; creates it if there is none.
    ///
    /// Of several processes that create one ledger at once, one does, and the others open what it made. Needs a tokio runtime, which the connection lives on.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let link = Link::new(&options)?;
        let identity = identity::open(&link, &options).await?;
        let shared = Arc::new(Shared {
            identity,
            link,
            seen: AtomicI64::new(0),
            head: watch::Sender::new(Position::START),
            under_way: Semaphore::new(CONCURRENCY),
            options,
        });
        wake::start(&shared);
        Ok(Self { shared })
    }

    /// What the ledger was created with.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// This machine's clock, but not earlier than any `posted_at` that this process has seen.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let seen = Timestamp::from_micros(self.shared.seen.load(Ordering::Acquire));
        seen.max(self.shared.options.clock.now())
    }

    /// By how much clocks may differ: [`Options::clock_skew`].
    #[must_use]
    pub fn clock_skew(&self) -> Duration {
        self.shared.options.clock_skew
    }

    /// The latest position that this process knows of.
    #[must_use]
    pub fn known_head(&self) -> Position {
        *self.shared.head.borrow()
    }

    /// Changes when this process has appended, and, while somebody holds a receiver, soon after others have.
    #[must_use]
    pub fn appended(&self) -> watch::Receiver<Position> {
        self.shared.head.subscribe()
    }
}

impl Shared {
    /// Takes note of an event that is stored.
    fn saw(&self, event: &RecordedEvent) {
        self.seen
            .fetch_max(event.posted_at.as_micros(), Ordering::AcqRel);
        self.reached(event.position);
    }

    /// Moves the signal on, never back.
    fn reached(&self, position: Position) {
        self.head.send_if_modified(|head| {
            let is_later = position > *head;
            if is_later {
                *head = position;
            }
            is_later
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_by_its_url() {
        let url = "kurrentdb+discover://u:secret@h1:2113,h2:2113?tls=false&prefix=shop.";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.place_name(), "h1:2113,h2:2113, streams shop.");
        assert!(!options.connection.contains("prefix"));
        assert!(!format!("{options:?}").contains("secret"));
        let options = Options::parse("esdb://h:2113").unwrap();
        assert_eq!(options.place_name(), "h:2113, streams recoup.");
        for (url, why) in [
            ("kurrentdb://u:secret@h:2113?prefix=a-b", "stream prefix"),
            (
                "kurrentdb://u:secret@h:2113?nodePreference=follower",
                "leader",
            ),
            ("kurrentdb://u:secret@h:port", "cannot be read"),
            ("kurrentdb://h:2113?Prefixes=a", "no parameter"),
            ("kurrentdb://h:2113?prefix=a&Prefix=b", "twice"),
        ] {
            let error = Options::parse(url).expect_err(url).to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_prefix_is_checked_where_it_enters() {
        for good in ["recoup.", "a", "A.b_c:d@9", &"x".repeat(50)] {
            assert!(StreamPrefix::new(good).is_ok(), "{good}");
        }
        // A `-` inside would let one ledger's streams begin like another's; a `$` is the server's own.
        for bad in ["", "recoup-", "$x", "a b", "é", &"x".repeat(51)] {
            assert!(StreamPrefix::new(bad).is_err(), "{bad}");
        }
    }
}
