//! Streams of jobs, for what a projection has to know and the event does not say.
//!
//! Read before a batch's transaction begins. Bound: [`STREAMS`] of them in memory at a time.

use recoup::codec::Stream;
use recoup::sql::Database;
use recoup::store::{RecordedEvent, StoreError};
use recoup::{EventStore, JobId, Revision};

/// How many streams are read at a time: each has up to about a thousand events.
pub(crate) const STREAMS: usize = 64;

/// The streams of `jobs`, in their order; an empty one for what cannot be read: it halts its projection at that job's own event, and nowhere else.
pub(crate) async fn read_what_can_be(
    database: &Database,
    jobs: &[JobId],
) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
    let names = jobs.iter().map(|job| Stream::Job(job.clone()).name());
    let names: Vec<_> = names.collect();
    match database.read_streams(names.clone()).await {
        Err(StoreError::Corrupt { .. }) => {}
        read => return read,
    }
    let mut streams = Vec::with_capacity(names.len());
    for name in names {
        streams.push(match database.read_stream(&name, Revision::FIRST).await {
            Err(StoreError::Corrupt { .. }) => Vec::new(),
            read => read?,
        });
    }
    Ok(streams)
}
