//! A subscription: confirmed, caught up with checkpoints between events, told so, and fed.
//!
//! It begins behind the position or the revision that it is given, unlike a read. A clean end, which is on command only, is one that the official client of 1.2 takes for
//! silence and waits on without ever giving the thread away: no test may follow one with that client.

use tokio::sync::mpsc;
use tonic::{Response, Status};

use super::read::{event, filter};
use super::{Answers, Service, name};
use crate::fate::SubscriptionFate;
use crate::locked;
use crate::log::{Filter, From, Record};
use crate::wire::event_store::client::streams::ReadResp;
use crate::wire::event_store::client::streams::read_req::Options;
use crate::wire::event_store::client::streams::read_req::options::all_options::AllOption;
use crate::wire::event_store::client::streams::read_req::options::filter_options::Window;
use crate::wire::event_store::client::streams::read_req::options::stream_options::RevisionOption;
use crate::wire::event_store::client::streams::read_req::options::{FilterOption, StreamOption};
use crate::wire::event_store::client::streams::read_resp::{
    CaughtUp, Checkpoint, Content, SubscriptionConfirmation,
};

/// The server's default.
const WINDOW: u32 = 32;

/// What a subscriber is given, and how far it is.
struct Subscriber {
    stream: Option<String>,
    filter: Option<Filter>,
    /// A checkpoint after so many events that were looked at.
    every: usize,
    /// The first index in the log that was not looked at.
    next: usize,
    /// Of a stream: only what is behind this revision.
    after: Option<u64>,
    looked_at: usize,
}

impl Subscriber {
    fn passes(&self, record: &Record) -> bool {
        match &self.stream {
            Some(stream) => {
                record.stream == *stream && self.after.is_none_or(|after| record.revision > after)
            }
            None => self.filter.as_ref().is_none_or(|it| it.passes(record)),
        }
    }

    /// What has been written since the last look.
    fn look(&mut self, records: &[Record]) -> Vec<Content> {
        let mut contents = Vec::new();
        for record in &records[self.next..] {
            self.looked_at += 1;
            if self.passes(record) {
                contents.push(event(record.clone()));
            }
            if self.filter.is_some() && self.looked_at.is_multiple_of(self.every) {
                contents.push(Content::Checkpoint(Checkpoint {
                    commit_position: record.commit_position,
                    prepare_position: record.prepare_position,
                    timestamp: None,
                }));
            }
        }
        self.next = records.len();
        contents
    }
}

impl Service {
    pub(super) fn answer_subscription(
        &self,
        options: Options,
    ) -> Result<Response<Answers<ReadResp>>, Status> {
        self.count(|requests| requests.subscriptions += 1);
        let mut subscriber = self.subscriber(options)?;
        let fate = locked(&self.shared.subscriptions).draw("");
        let limit = match fate {
            SubscriptionFate::Fine => None,
            SubscriptionFate::EndedAfter(messages) | SubscriptionFate::CutAfter(messages) => {
                Some(messages)
            }
        };
        let (sender, receiver) = mpsc::channel(32);
        let (shared, node) = (self.shared.clone(), self.node.clone());
        let mut written = shared.written.subscribe();
        tokio::spawn(async move {
            let confirmed = Content::Confirmation(SubscriptionConfirmation {
                subscription_id: uuid::Uuid::new_v4().to_string(),
            });
            let mut contents = vec![confirmed];
            contents.extend(subscriber.look(locked(&shared.log).records()));
            contents.push(Content::CaughtUp(CaughtUp::default()));
            let mut sent = 0;
            loop {
                for content in contents {
                    if limit == Some(sent) {
                        if matches!(fate, SubscriptionFate::CutAfter(_)) {
                            node.cut();
                        }
                        return;
                    }
                    let content = Some(content);
                    if sender.send(Ok(ReadResp { content })).await.is_err() {
                        return;
                    }
                    sent += 1;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    changed = written.changed() => if changed.is_err() { return },
                }
                contents = subscriber.look(locked(&shared.log).records());
            }
        });
        Ok(Response::new(Answers::new(receiver)))
    }

    fn subscriber(&self, options: Options) -> Result<Subscriber, Status> {
        let mut subscriber = Subscriber {
            stream: None,
            filter: None,
            every: WINDOW as usize,
            next: 0,
            after: None,
            looked_at: 0,
        };
        let log = locked(&self.shared.log);
        let end = log.records().len();
        match options.stream_option {
            Some(StreamOption::Stream(stream)) => {
                subscriber.stream = Some(name(stream.stream_identifier)?);
                match stream.revision_option {
                    Some(RevisionOption::Revision(revision)) => subscriber.after = Some(revision),
                    Some(RevisionOption::End(())) => subscriber.next = end,
                    Some(RevisionOption::Start(())) | None => {}
                }
            }
            Some(StreamOption::All(all)) => match all.all_option {
                Some(AllOption::Position(at)) => {
                    let from = From::At(at.commit_position);
                    let rest = log.all(from, false, None, usize::MAX, usize::MAX);
                    let rest = rest.ok_or_else(|| Status::unknown("Invalid position"))?;
                    subscriber.next = (end - rest.len() + 1).min(end);
                }
                Some(AllOption::End(())) => subscriber.next = end,
                Some(AllOption::Start(())) | None => {}
            },
            None => {
                return Err(Status::invalid_argument(
                    "a subscription has a stream, or all",
                ));
            }
        }
        drop(log);
        if let Some(FilterOption::Filter(options)) = options.filter_option {
            let window = match options.window {
                Some(Window::Max(window)) => window,
                Some(Window::Count(())) | None => WINDOW,
            };
            let every = window.saturating_mul(options.checkpoint_interval_multiplier.max(1));
            subscriber.every = every.max(1) as usize;
            subscriber.filter = Some(filter(options)?);
        }
        Ok(subscriber)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::Standin;
    use crate::wire::event_store::client::streams::read_req::options::{
        AllOptions, CountOption, SubscriptionOptions,
    };

    /// Not with the official client, which would never come back from it.
    #[tokio::test]
    async fn a_subscription_ends_cleanly_on_command() {
        let standin = Standin::start().await;
        standin.fail_subscriptions([SubscriptionFate::EndedAfter(3)]);
        let node = standin.nodes[0].clone();
        let service = Service::new(standin.shared.clone(), 0, node);
        let answer = service.answer_subscription(Options {
            stream_option: Some(StreamOption::All(AllOptions {
                all_option: Some(AllOption::Start(())),
            })),
            count_option: Some(CountOption::Subscription(SubscriptionOptions {})),
            ..Options::default()
        });
        let answers = answer.expect("it begins").into_inner();
        let answers: Vec<_> = answers.collect().await;
        assert_eq!(
            answers.len(),
            3,
            "a confirmation and two events, then the end"
        );
        assert!(answers.iter().all(Result::is_ok), "and no error");
        assert_eq!(standin.requests().subscriptions, 1);
    }
}
