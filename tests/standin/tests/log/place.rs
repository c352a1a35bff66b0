//! Where a test keeps its ledgers: on a stand-in of its own, or on the server that the tests are given.
//!
//! `RECOUP_TEST_KURRENTDB_URL` is the connection string of that server. Without it, what would run there is passed over aloud, and fails where
//! `RECOUP_TEST_REQUIRE` names `kurrentdb`.
//!
//! On a given server every test has a stream prefix of its own and touches no stream that does not begin with it. When it has passed, it deletes its streams (softly:
//! the server drops the events at its next scavenge); when it has failed, it leaves them and says what they begin with.

use std::collections::BTreeSet;
use std::io::Write as _;

use bytes::Bytes;
use kurrentdb::{
    AppendToStreamOptions, Client, DeleteStreamOptions, EventData, Position, ReadAllOptions,
    ReadStreamOptions, RecordedEvent, StreamPosition, StreamState, SubscriptionFilter,
};
use recoup::store::kurrentdb::{Options, StreamPrefix};
use recoup_kurrentdb_standin::Standin;
use uuid::Uuid;

use crate::events::{charge, settle};
use crate::world::{bounded, open, options, options_at, standin};

/// A server, and what the test's streams begin with.
#[derive(Debug)]
pub(crate) struct Place {
    prefix: String,
    server: Server,
}

#[derive(Debug)]
enum Server {
    Standin(Standin),
    /// Where it is, and the end of its log before the test.
    Given {
        url: String,
        before: Position,
    },
}

/// A module with each test over a stand-in, and one with the same over the server that is given.
macro_rules! on_each_server {
    ($($test:ident)*) => {
        mod over_a_standin {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(&$crate::place::Place::standin().await).await;
                }
            )*
        }

        mod over_a_server {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(place) = $crate::place::Place::given().await {
                        super::$test(&place).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_each_server;

/// Past the harness, which keeps what a passed test prints to itself.
fn aloud(text: &str) {
    let thread = std::thread::current();
    let line = format!("{text} ({})\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).ok();
}

impl Place {
    /// One node at noon.
    pub(crate) async fn standin() -> Self {
        Self {
            prefix: StreamPrefix::default().to_string(),
            server: Server::Standin(standin(1).await),
        }
    }

    /// The server that the tests are given, if they are.
    pub(crate) async fn given() -> Option<Self> {
        let Ok(url) = std::env::var("RECOUP_TEST_KURRENTDB_URL") else {
            let required = std::env::var("RECOUP_TEST_REQUIRE").unwrap_or_default();
            let is_required = required.split([' ', ',']).any(|it| it == "kurrentdb");
            assert!(!is_required, "RECOUP_TEST_KURRENTDB_URL is to be set");
            aloud("SKIPPED: RECOUP_TEST_KURRENTDB_URL is not set");
            return None;
        };
        Some(Self::at(url).await)
    }

    /// A prefix on the server at `url`.
    async fn at(url: String) -> Self {
        let last = ReadAllOptions::default()
            .backwards()
            .position(StreamPosition::End)
            .max_count(1);
        let last = read_all(&client(&url), &last).await;
        let before = last.first().expect("no server's log is empty").position;
        Self {
            prefix: format!("test.{}.", Uuid::new_v4().simple()),
            server: Server::Given { url, before },
        }
    }

    /// How to open the test's ledger.
    pub(crate) fn options(&self) -> Options {
        self.prefixed("")
    }

    /// How to open a ledger whose streams begin with the test's prefix and `more`.
    pub(crate) fn prefixed(&self, more: &str) -> Options {
        let prefix = format!("{}{more}", self.prefix);
        let options = match &self.server {
            Server::Standin(standin) => options(standin),
            Server::Given { url, .. } => options_at(url.clone()),
        };
        Options {
            prefix: StreamPrefix::new(prefix).expect("a short one"),
            ..options
        }
    }

    fn client(&self) -> Client {
        match &self.server {
            Server::Standin(standin) => client(&standin.connection_string()),
            Server::Given { url, .. } => client(url),
        }
    }

    /// Writes an event as another program does, into the stream of this name behind the prefix.
    pub(crate) async fn write(&self, stream: &str, event_type: &str, data: &'static [u8]) {
        let stream = format!("{}{stream}", self.prefix);
        let options = AppendToStreamOptions::default().stream_state(StreamState::Any);
        let event = EventData::binary(event_type, Bytes::from_static(data)).id(Uuid::new_v4());
        let client = self.client();
        let written = client.append_to_stream(stream, &options, event);
        bounded("a foreign event", written)
            .await
            .expect("nothing speaks against it");
    }

    /// The events of the stream of this name behind the prefix, as another program sees them.
    pub(crate) async fn events(&self, stream: &str) -> Vec<RecordedEvent> {
        let stream = format!("{}{stream}", self.prefix);
        let options = ReadStreamOptions::default().position(StreamPosition::Start);
        let client = self.client();
        bounded("a read", async {
            let mut read = client.read_stream(stream, &options).await?;
            let mut events = Vec::new();
            while let Some(next) = read.next().await? {
                events.extend(next.event);
            }
            Ok::<_, kurrentdb::Error>(events)
        })
        .await
        .expect("the stream is readable")
    }
}

fn client(url: &str) -> Client {
    let settings = url.parse().expect("a connection string of KurrentDB's");
    Client::new(settings).expect("its files are there")
}

async fn read_all(client: &Client, options: &ReadAllOptions) -> Vec<RecordedEvent> {
    bounded("a read of the log", async {
        let mut read = client.read_all(options).await?;
        let mut events = Vec::new();
        while let Some(next) = read.next().await? {
            events.extend(next.event);
        }
        Ok::<_, kurrentdb::Error>(events)
    })
    .await
    .expect("the log is readable: by default only by administrators")
}

/// Deletes the streams that begin with `prefix`, of which nothing was there at `before`.
async fn sweep(url: String, before: Position, prefix: String) {
    let client = client(&url);
    let ours = ReadAllOptions::default()
        .forwards()
        .position(StreamPosition::Position(before))
        .filter(SubscriptionFilter::on_stream_name().add_prefix(&prefix))
        .max_count(usize::MAX);
    let written = read_all(&client, &ours).await;
    let streams: BTreeSet<_> = written.iter().map(RecordedEvent::stream_id).collect();
    for stream in streams {
        // The filter is the server's; what it lets through is looked at before anything is deleted.
        assert!(stream.starts_with(&prefix), "{stream} is not ours");
        let options = DeleteStreamOptions::default().stream_state(StreamState::StreamExists);
        let deleted = bounded("a deletion", client.delete_stream(stream, &options)).await;
        deleted.expect("the test's own stream can be deleted");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Server::Given { url, before } = &self.server else {
            return;
        };
        let (url, before, prefix) = (url.clone(), *before, self.prefix.clone());
        if std::thread::panicking() {
            aloud(&format!("LEFT: streams that begin with {prefix}"));
            return;
        }
        // The test's own runtime may have one thread, which waits here.
        let swept = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .expect("a runtime")
                .block_on(sweep(url, before, prefix));
        });
        if swept.join().is_err() {
            aloud(&format!("LEFT: streams that begin with {}", self.prefix));
        }
    }
}

/// What was given, somebody else's streams, comes back as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_deletes_its_streams_and_no_others() {
    let standin = standin(1).await;
    let place = Place::at(standin.connection_string()).await;
    let neighbour = Place::at(standin.connection_string()).await;
    standin.put("job-j", "t", b"x");
    for place in [&place, &neighbour] {
        let log = open(place.options()).await;
        settle(&log, charge("j")).await;
        place.write("somebody", "t", b"x").await;
    }
    drop(place);
    assert_eq!(standin.requests().deletions, 3);
    assert_eq!(neighbour.events("job-j").await.len(), 1);
    assert_eq!(neighbour.events("ledger").await.len(), 1);
    let is_marked = |stream: &str| standin.records().iter().any(|it| it.stream == stream);
    assert!(!is_marked("$$job-j"));
    assert!(!is_marked(&format!("$${}job-j", neighbour.prefix)));
}
