//! A stand-in for KurrentDB: speaks the server's wire protocol as its client sees it, and fails on command.
//!
//! The server itself is not free software and is not in a package registry, so the tests of the ledger's log run against this. It is
//! exact in what a client sees, as far as the server's sources and documentation say it:
//!
//! - **Append** checks the expected revision; a conflict is an OK answer. Where the stream is further on than expected, the ids of the events decide
//!   whether this is a repeat, and nothing but the ids; at the expected revision the same id is written again. A repeat may be answered
//!   without a position.
//! - **Read** of a stream, and of the whole log by a prefix of streams or types: inclusive forwards, exclusive backwards; a position at which no event
//!   begins is refused; the server's own events stand between the callers'. `created` is in units of 100 ns.
//! - **Gossip** and `requires-leader`: a node that does not lead answers `NotFound` with the leader's place in the trailers, or `Unknown` where no majority
//!   lives.
//!
//! - **Deletion**: a stream that is deleted is not found, and goes on with its numbers when somebody writes to it again; one with a tombstone is gone for good.
//! - **Subscriptions**: confirmed, caught up event by event with checkpoints between them, told that they have, and then fed.
//! - **The wire**: a connection breaks at the frame or the byte that a test names ([`Standin::cut_after`]).
//!
//! What it leaves out: regular expressions, batches, persistent subscriptions, metadata of streams, users, scavenges, TLS. Replication takes no time unless a test says so: the nodes
//! share one log, which outlives them, as a disk does.
//!
//! ```no_run
//! # async fn example() {
//! use recoup_kurrentdb_standin::{AppendFate, Standin};
//!
//! let standin = Standin::start().await;
//! standin.fail_appends([AppendFate::CommittedThenCut]);
//! let settings = standin.connection_string();
//! # }
//! ```
//!
//! Locks: one for the log, one for each kind of fate, one for the members; none is held while another is taken, and none across an `await`.

mod fate;
mod kept;
mod log;
mod node;
mod services;
mod traffic;
pub mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use fate::Fates;
pub use fate::{AppendFate, Leader, ReadFate, SubscriptionFate};
pub use kept::keep_logs;
pub use log::Record;
use log::{Expected, Log, Outcome, Proposed};
use node::Node;
use services::Service;
use tokio::sync::{oneshot, watch};
pub use traffic::{Direction, Traffic, Unit};

/// Where the stand-in reads the time: units of 100 ns since 1970.
pub type Ticks = Arc<dyn Fn() -> u64 + Send + Sync>;

/// One or more nodes that share a log. Dropping it ends them.
#[derive(Debug)]
pub struct Standin {
    shared: Arc<Shared>,
    nodes: Vec<Arc<Node>>,
}

/// How many requests the nodes were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Appends.
    pub appends: u64,
    /// Reads of a stream.
    pub streams: u64,
    /// Reads of the whole log.
    pub all: u64,
    /// Questions about the members.
    pub gossip: u64,
    /// Questions about what the server can do: one for each connection that a client settles on.
    pub features: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Deletions.
    pub deletions: u64,
}

/// What the nodes share.
struct Shared {
    now: Ticks,
    log: Mutex<Log>,
    held: Mutex<Vec<Held>>,
    appends: Mutex<Fates<AppendFate>>,
    streams: Mutex<Fates<ReadFate>>,
    all: Mutex<Fates<ReadFate>>,
    subscriptions: Mutex<Fates<SubscriptionFate>>,
    /// Changes when something was written.
    written: watch::Sender<()>,
    members: Mutex<Members>,
    requests: Mutex<Requests>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("members", &self.members)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn write(&self, append: &Held) -> Outcome {
        let now = (self.now)();
        let mut log = locked(&self.log);
        let outcome = log.append(&append.stream, append.expected, &append.events, now);
        drop(log);
        self.written.send_replace(());
        outcome
    }
}

/// An append that is written later than its caller waits.
struct Held {
    stream: String,
    expected: Expected,
    events: Vec<Proposed>,
    /// Whether the writer has it.
    is_taken: bool,
    /// Who waits for the answer.
    answer: Option<oneshot::Sender<Outcome>>,
}

#[derive(Debug, Default)]
struct Members {
    all: Vec<Member>,
    leader: Option<usize>,
}

#[derive(Debug)]
struct Member {
    id: Uuid,
    port: u16,
    is_alive: bool,
}

impl Members {
    /// A majority has a leader: the one it has, while that lives, or else the first that does.
    fn elect(&mut self) {
        let alive = self.all.iter().filter(|member| member.is_alive).count();
        let lives = |leader: &usize| self.all[*leader].is_alive;
        self.leader = if alive * 2 <= self.all.len() {
            None
        } else {
            self.leader
                .filter(lives)
                .or_else(|| self.all.iter().position(|member| member.is_alive))
        };
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A failed assertion in one test's task is that test's affair; the lists are whole after every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standin {
    /// One node, on the machine's clock.
    pub async fn start() -> Self {
        Self::with(1, system_ticks()).await
    }

    /// So many nodes; the first leads.
    pub async fn cluster(nodes: usize) -> Self {
        Self::with(nodes, system_ticks()).await
    }

    /// So many nodes on a clock of the test's.
    pub async fn with(nodes: usize, now: Ticks) -> Self {
        let log = Log::new(now());
        let shared = Arc::new(Shared {
            now,
            log: Mutex::new(log),
            held: Mutex::default(),
            appends: Mutex::new(Fates::new(|_| AppendFate::Fine)),
            streams: Mutex::new(Fates::new(|_| ReadFate::Fine)),
            all: Mutex::new(Fates::new(|_| ReadFate::Fine)),
            subscriptions: Mutex::new(Fates::new(|_| SubscriptionFate::Fine)),
            written: watch::Sender::default(),
            members: Mutex::default(),
            requests: Mutex::default(),
        });
        let mut standin = Self {
            shared,
            nodes: Vec::new(),
        };
        let mut listeners = Vec::new();
        for _ in 0..nodes {
            let (node, listener) = Node::reserve().await;
            let mut members = locked(&standin.shared.members);
            members.all.push(Member {
                id: Uuid::new_v4(),
                port: node.port(),
                is_alive: true,
            });
            drop(members);
            listeners.push(listener);
            standin.nodes.push(Arc::new(node));
        }
        locked(&standin.shared.members).elect();
        for (index, listener) in listeners.into_iter().enumerate() {
            standin.open(index, Some(listener)).await;
        }
        standin
    }

    async fn open(&self, index: usize, listener: Option<tokio::net::TcpListener>) {
        let node = &self.nodes[index];
        let service = Service::new(Arc::clone(&self.shared), index, Arc::clone(node));
        node.open(listener, service.router()).await;
    }

    /// What a client connects with: every node, short waits.
    #[must_use]
    pub fn connection_string(&self) -> String {
        let nodes: Vec<_> = (0..self.nodes.len()).collect();
        self.connection_string_of(&nodes)
    }

    /// The same, of these nodes only.
    #[must_use]
    pub fn connection_string_of(&self, nodes: &[usize]) -> String {
        let hosts = nodes.iter().map(|&node| self.address(node));
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("kurrentdb://{hosts}?tls=false&discoveryInterval=10&gossipTimeout=2000")
    }

    /// Host and port of a node.
    #[must_use]
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port())
    }

    /// The same, as another node would name it.
    #[must_use]
    pub fn leader_at(&self, node: usize) -> Leader {
        Leader::At {
            host: "127.0.0.1".to_owned(),
            port: self.nodes[node].port(),
        }
    }

    /// Which node leads; none without a majority.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        locked(&self.shared.members).leader
    }

    /// Ends a node at once, with its connections. Its port is closed when this returns. If it led, another one does, if a majority lives.
    pub async fn kill(&self, node: usize) {
        self.set_alive(node, false);
        self.nodes[node].close().await;
    }

    /// Starts a node that was ended, on its old port.
    pub async fn revive(&self, node: usize) {
        self.open(node, None).await;
        self.set_alive(node, true);
    }

    fn set_alive(&self, node: usize, is_alive: bool) {
        self.change(|members| {
            members.all[node].is_alive = is_alive;
            members.elect();
        });
    }

    /// Makes another node lead, and lets the old leader live.
    pub fn elect(&self, node: usize) {
        self.change(|members| members.leader = Some(node));
    }

    fn change(&self, change: impl FnOnce(&mut Members)) {
        let mut members = locked(&self.shared.members);
        let before = members.leader;
        change(&mut members);
        let is_other = members.leader != before;
        drop(members);
        if is_other {
            locked(&self.shared.log).forget_recent();
        }
    }

    /// Cuts every connection to a node, which goes on.
    pub fn cut(&self, node: usize) {
        self.nodes[node].cut();
    }

    /// Cuts every connection to a node when so much more has gone in this direction, counted over all of them. The next connection is welcome.
    pub fn cut_after(&self, node: usize, direction: Direction, unit: Unit, count: u64) {
        self.nodes[node].arm(direction, unit, count);
    }

    /// Takes back what [`Self::cut_after`] asked for; says whether it had not come to that yet.
    pub fn defuse(&self, node: usize) -> bool {
        self.nodes[node].defuse()
    }

    /// What has gone to a node and from it.
    #[must_use]
    pub fn traffic(&self, node: usize) -> Traffic {
        self.nodes[node].traffic()
    }

    /// The fates of the next appends, in order of arrival; after them the script's.
    pub fn fail_appends(&self, fates: impl IntoIterator<Item = AppendFate>) {
        locked(&self.shared.appends).queue(fates);
    }

    /// The fate of every append from now on, by its stream.
    pub fn script_appends(&self, script: impl FnMut(&str) -> AppendFate + Send + 'static) {
        *locked(&self.shared.appends) = Fates::new(script);
    }

    /// The fates of the next reads of streams.
    pub fn fail_stream_reads(&self, fates: impl IntoIterator<Item = ReadFate>) {
        locked(&self.shared.streams).queue(fates);
    }

    /// The fate of every read of a stream from now on, by the stream.
    pub fn script_stream_reads(&self, script: impl FnMut(&str) -> ReadFate + Send + 'static) {
        *locked(&self.shared.streams) = Fates::new(script);
    }

    /// The fates of the next reads of the whole log.
    pub fn fail_log_reads(&self, fates: impl IntoIterator<Item = ReadFate>) {
        locked(&self.shared.all).queue(fates);
    }

    /// The fate of every read of the whole log from now on; it is given `forwards` or `backwards`.
    pub fn script_log_reads(&self, script: impl FnMut(&str) -> ReadFate + Send + 'static) {
        *locked(&self.shared.all) = Fates::new(script);
    }

    /// The fates of the next subscriptions.
    pub fn fail_subscriptions(&self, fates: impl IntoIterator<Item = SubscriptionFate>) {
        locked(&self.shared.subscriptions).queue(fates);
    }

    /// Writes the appends that are held, in order of arrival, as far as their streams still are where they expect them; says how many were held.
    pub fn release(&self) -> usize {
        let held = std::mem::take(&mut *locked(&self.shared.held));
        let count = held.len();
        for append in held {
            let outcome = self.shared.write(&append);
            // Who waits may have gone away.
            append.answer.map(|answer| answer.send(outcome));
        }
        count
    }

    /// Loses the appends that are held, as a new leader does that never had them; says how many were held.
    pub fn lose(&self) -> usize {
        std::mem::take(&mut *locked(&self.shared.held)).len()
    }

    /// How many appends are held.
    #[must_use]
    pub fn held(&self) -> usize {
        locked(&self.shared.held).len()
    }

    /// Writes an event that no client sent.
    pub fn put(&self, stream: &str, event_type: &str, data: &[u8]) {
        let now = (self.shared.now)();
        locked(&self.shared.log).put(stream, event_type, data, now);
        self.shared.written.send_replace(());
    }

    /// Hides what is before `revision` from reads of the stream, as somebody does who sets `$tb` or `$maxCount` in its metadata.
    pub fn truncate(&self, stream: &str, revision: u64) {
        let now = (self.shared.now)();
        locked(&self.shared.log).truncate(stream, revision, now);
    }

    /// Changes what is stored, as no server does.
    ///
    /// # Panics
    ///
    /// If there is no such event.
    pub fn edit(&self, stream: &str, revision: u64, edit: impl FnOnce(&mut Record)) {
        locked(&self.shared.log).edit(stream, revision, edit);
    }

    /// Everything that is stored, in order.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        locked(&self.shared.log).records().to_vec()
    }

    /// How many requests there were.
    #[must_use]
    pub fn requests(&self) -> Requests {
        *locked(&self.shared.requests)
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.abandon();
        }
    }
}

fn system_ticks() -> Ticks {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let ticks = since.unwrap_or_default().as_nanos() / 100;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    })
}
