//! The log, read by the test itself: what is really there.

use std::collections::HashMap;

use recoup::codec::{Decoded, Event, Stream, decode};
use recoup::job::JobEvent;
use recoup::store::fresh::open;
use recoup::{EventStore, Position};

/// How often something happened to a job.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) charged: u32,
    pub(crate) failed: u32,
    pub(crate) refunded: u32,
    pub(crate) delivered: u32,
    pub(crate) reclaimed: u32,
}

/// What happened to each job, by its id.
pub(crate) fn lives(store: &str) -> HashMap<String, Life> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let store = open(store).await.expect("it can be opened");
        let (mut lives, mut after): (HashMap<String, Life>, _) = (HashMap::new(), Position::START);
        loop {
            let page = store.read_all(after, 5_000).await.expect("it can be read");
            let Some(last) = page.last() else {
                return lives;
            };
            after = last.position;
            for recorded in &page {
                let Ok(Stream::Job(job)) = recorded.stream.parse() else {
                    continue;
                };
                let life = lives.entry(job.to_string()).or_default();
                match decode(recorded).expect("it can be read") {
                    Decoded::Event(Event::Job(JobEvent::Charged(_))) => life.charged += 1,
                    Decoded::Event(Event::Job(JobEvent::AttemptFailed(_))) => life.failed += 1,
                    Decoded::Event(Event::Job(JobEvent::Refunded(_))) => life.refunded += 1,
                    Decoded::Event(Event::Job(JobEvent::Delivered(_))) => life.delivered += 1,
                    Decoded::Event(Event::Job(JobEvent::Reclaimed(_))) => life.reclaimed += 1,
                    Decoded::Event(_) | Decoded::Retired => {}
                }
            }
        }
    })
}
