//! Streams that are no job's: a grant's and an adjustment's hold one event each, an account's limits any number; each what its name
//! says. Two events at one revision cannot be: the log's own index forbids it.
//!
//! Bound: one number in memory for each account that has limits.

use std::collections::HashMap;

use recoup::account::AccountEvent;
use recoup::codec::{Event, Stream};
use recoup::store::RecordedEvent;
use recoup::{AccountId, Revision};

#[derive(Default)]
pub(super) struct Streams {
    /// The next revision of each account's limits.
    limits: HashMap<AccountId, Revision>,
}

impl Streams {
    /// Checks the place of an event in a stream that is no job's, and, if it can be read, what it says.
    pub(super) fn check(
        &mut self,
        stream: &Stream,
        recorded: &RecordedEvent,
        event: Option<&Event>,
    ) -> Result<(), String> {
        let expected = match stream {
            Stream::Limits(account) => {
                let next = self
                    .limits
                    .entry(account.clone())
                    .or_insert(Revision::FIRST);
                let expected = *next;
                *next = recorded.revision.plus(1);
                expected
            }
            Stream::Job(_) | Stream::Grant(..) | Stream::Adjustment(..) => Revision::FIRST,
        };
        if recorded.revision != expected {
            let (position, found) = (recorded.position, recorded.revision);
            return Err(format!(
                "event {position}: revision {found} stands where revision {expected} should"
            ));
        }
        match event {
            Some(event) if !belongs(stream, event) => Err(format!(
                "event {}: {} is none of this stream's",
                recorded.position,
                event.name()
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether the event is of the account, grant or adjustment that the stream is named after.
fn belongs(stream: &Stream, event: &Event) -> bool {
    match (stream, event) {
        (Stream::Grant(account, grant), Event::Account(AccountEvent::Granted(granted))) => {
            granted.posting.account == *account && granted.grant == *grant
        }
        (
            Stream::Adjustment(account, adjustment),
            Event::Account(AccountEvent::Adjusted(adjusted)),
        ) => adjusted.posting.account == *account && adjusted.adjustment == *adjustment,
        (Stream::Limits(account), Event::Account(AccountEvent::LimitsSet(set))) => {
            set.account == *account
        }
        (Stream::Job(_), Event::Job(_)) => true,
        (
            Stream::Job(_) | Stream::Grant(..) | Stream::Adjustment(..) | Stream::Limits(_),
            Event::Job(_) | Event::Account(_),
        ) => false,
    }
}
