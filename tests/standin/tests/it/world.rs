//! A client, events, and waits that end.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use kurrentdb::{
    AppendToStreamOptions, Client, EventData, ReadAllOptions, ReadStream, ReadStreamOptions,
    RecordedEvent, StreamPosition, StreamState, SubscriptionFilter, WriteResult,
};
use recoup_kurrentdb_standin::Standin;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: no answer within {PATIENCE:?}"),
    }
}

pub(crate) fn client(connection: &str) -> Client {
    let settings = connection.parse().expect("the stand-in's own words");
    Client::new(settings).expect("no files are needed")
}

pub(crate) fn client_of(standin: &Standin) -> Client {
    client(&standin.connection_string())
}

pub(crate) fn event(id: u128) -> EventData {
    EventData::binary("t", Bytes::from_static(b"\x00\xff"))
        .id(Uuid::from_u128(id))
        .metadata(Bytes::from_static(b"{\"a\":1}"))
}

pub(crate) async fn append(
    client: &Client,
    stream: &str,
    state: StreamState,
    ids: &[u128],
) -> kurrentdb::Result<WriteResult> {
    let events: Vec<_> = ids.iter().copied().map(event).collect();
    let options = AppendToStreamOptions::default().stream_state(state);
    bounded(
        "an append",
        client.append_to_stream(stream, &options, events),
    )
    .await
}

pub(crate) async fn rest(mut read: ReadStream) -> kurrentdb::Result<Vec<RecordedEvent>> {
    let mut events = Vec::new();
    while let Some(next) = bounded("the next event", read.next()).await? {
        events.push(next.event.expect("no links are read"));
    }
    Ok(events)
}

pub(crate) async fn stream(
    client: &Client,
    stream: &str,
    from: u64,
) -> kurrentdb::Result<Vec<RecordedEvent>> {
    let options = ReadStreamOptions::default().position(StreamPosition::Position(from));
    rest(bounded("a read", client.read_stream(stream, &options)).await?).await
}

pub(crate) fn all() -> ReadAllOptions {
    ReadAllOptions::default()
}

pub(crate) fn of(prefix: &str) -> SubscriptionFilter {
    SubscriptionFilter::on_stream_name().add_prefix(prefix)
}

pub(crate) async fn log(
    client: &Client,
    options: &ReadAllOptions,
) -> kurrentdb::Result<Vec<RecordedEvent>> {
    rest(bounded("a read", client.read_all(options)).await?).await
}
