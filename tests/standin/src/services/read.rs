//! A read: answered from one look at the log, event by event, as its fate has it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::{Answers, Service, name, not_leader, not_ready, stream_deleted, timed_out};
use crate::fate::ReadFate;
use crate::locked;
use crate::log::{Filter, From, Record};
use crate::wire::event_store::client::streams::read_req::Options;
use crate::wire::event_store::client::streams::read_req::options::all_options::AllOption;
use crate::wire::event_store::client::streams::read_req::options::filter_options::{
    Expression, Filter as FilterOn,
};
use crate::wire::event_store::client::streams::read_req::options::stream_options::RevisionOption;
use crate::wire::event_store::client::streams::read_req::options::{
    CountOption, FilterOption, FilterOptions, ReadDirection, StreamOption,
};
use crate::wire::event_store::client::streams::read_resp::read_event::{Position, RecordedEvent};
use crate::wire::event_store::client::streams::read_resp::{Content, ReadEvent, StreamNotFound};
use crate::wire::event_store::client::streams::{ReadReq, ReadResp};
use crate::wire::event_store::client::uuid::Value;
use crate::wire::event_store::client::{StreamIdentifier, Uuid};

/// How an answer goes out, once it is known.
#[derive(Debug, Clone, Copy, Default)]
struct Manner {
    pause: Option<Duration>,
    /// So many messages go out.
    limit: Option<usize>,
    /// What follows them is a cut, or else silence.
    is_cut: bool,
}

impl Service {
    pub(super) async fn answer_read(
        &self,
        request: Request<ReadReq>,
    ) -> Result<Response<Answers<ReadResp>>, Status> {
        let (metadata, _, request) = request.into_parts();
        let options = request
            .options
            .ok_or_else(|| Status::invalid_argument("a read has options"))?;
        let limit = match options.count_option {
            Some(CountOption::Count(limit)) => limit,
            Some(CountOption::Subscription(_)) => {
                self.check_leader(&metadata, false)?;
                return self.answer_subscription(options);
            }
            None => return Err(Status::invalid_argument("a read has a count")),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_backwards = options.read_direction == i32::from(ReadDirection::Backwards);
        let direction = if is_backwards {
            "backwards"
        } else {
            "forwards"
        };
        let (stream, fate) = match &options.stream_option {
            Some(StreamOption::Stream(stream)) => {
                self.count(|requests| requests.streams += 1);
                let stream = name(stream.stream_identifier.clone())?;
                let fate = locked(&self.shared.streams).draw(&stream);
                (Some(stream), fate)
            }
            Some(StreamOption::All(_)) => {
                self.count(|requests| requests.all += 1);
                (None, locked(&self.shared.all).draw(direction))
            }
            None => return Err(Status::invalid_argument("a read has a stream, or all")),
        };
        self.check_leader(&metadata, false)?;
        let mut scanned = usize::MAX;
        let manner = match fate {
            ReadFate::Fine => Manner::default(),
            ReadFate::Slow(pause) => Manner {
                pause: Some(pause),
                ..Manner::default()
            },
            ReadFate::Stalled(after) => Manner {
                limit: Some(after),
                ..Manner::default()
            },
            ReadFate::CutAfter(after) => Manner {
                limit: Some(after),
                is_cut: true,
                pause: None,
            },
            ReadFate::ShortOf(records) => {
                scanned = records;
                Manner::default()
            }
            ReadFate::Aborted => return Err(timed_out()),
            ReadFate::NotLeader(leader) => return Err(not_leader(&leader)),
            ReadFate::NotReady => return Err(not_ready()),
        };
        let answers = match stream {
            Some(stream) if locked(&self.shared.log).is_tombstone(&stream) => {
                return Err(stream_deleted());
            }
            Some(stream) => self.of_stream(&options, &stream, is_backwards, limit.min(scanned)),
            None => self.of_all(options, is_backwards, limit, scanned)?,
        };
        Ok(Response::new(self.send(answers, manner)))
    }

    fn of_stream(
        &self,
        options: &Options,
        stream: &str,
        is_backwards: bool,
        limit: usize,
    ) -> Vec<Content> {
        let from = match &options.stream_option {
            Some(StreamOption::Stream(stream)) => match stream.revision_option {
                Some(RevisionOption::Revision(revision)) => From::At(revision),
                Some(RevisionOption::End(())) => From::End,
                Some(RevisionOption::Start(())) | None => From::Start,
            },
            _ => From::Start,
        };
        let log = locked(&self.shared.log);
        let Some(records) = log.stream(stream, from, is_backwards, limit) else {
            let stream_identifier = identifier(stream);
            return vec![Content::StreamNotFound(StreamNotFound {
                stream_identifier,
            })];
        };
        let last = log.stream(stream, From::End, true, 1);
        let last = last.and_then(|last| last.first().map(|record| record.revision));
        drop(log);
        let mut answers: Vec<_> = records.into_iter().map(event).collect();
        if options
            .control_option
            .is_some_and(|control| control.compatibility > 0)
        {
            answers.extend(last.map(Content::LastStreamPosition));
        }
        answers
    }

    fn of_all(
        &self,
        options: Options,
        is_backwards: bool,
        limit: usize,
        scanned: usize,
    ) -> Result<Vec<Content>, Status> {
        let from = match options.stream_option {
            Some(StreamOption::All(all)) => match all.all_option {
                Some(AllOption::Position(at)) if at.commit_position == u64::MAX => From::End,
                Some(AllOption::Position(at)) => From::At(at.commit_position),
                Some(AllOption::End(())) => From::End,
                Some(AllOption::Start(())) | None => From::Start,
            },
            _ => From::Start,
        };
        let filter = match options.filter_option {
            Some(FilterOption::Filter(options)) => Some(filter(options)?),
            Some(FilterOption::NoFilter(())) | None => None,
        };
        let log = locked(&self.shared.log);
        let records = log.all(from, is_backwards, filter.as_ref(), limit, scanned);
        let records = records.ok_or_else(|| Status::unknown("Invalid position"))?;
        Ok(records.into_iter().map(event).collect())
    }

    fn send(&self, answers: Vec<Content>, manner: Manner) -> Answers<ReadResp> {
        // As many as the server keeps ready: a slow reader holds it up.
        let (sender, receiver) = mpsc::channel(32);
        let node = self.node.clone();
        tokio::spawn(async move {
            for (sent, content) in answers.into_iter().enumerate() {
                if manner.limit == Some(sent) {
                    break;
                }
                if let Some(pause) = manner.pause {
                    tokio::time::sleep(pause).await;
                }
                let content = Some(content);
                if sender.send(Ok(ReadResp { content })).await.is_err() {
                    return;
                }
            }
            if manner.limit.is_some() {
                if manner.is_cut {
                    node.cut();
                }
                // Neither an event nor an end, until the reader goes away.
                sender.closed().await;
            }
        });
        Answers::new(receiver)
    }
}

pub(super) fn filter(options: FilterOptions) -> Result<Filter, Status> {
    let prefixes = |expression: Expression| {
        if expression.regex.is_empty() {
            Ok(expression.prefix)
        } else {
            Err(Status::unimplemented(
                "the stand-in has no regular expressions",
            ))
        }
    };
    match options.filter {
        Some(FilterOn::StreamIdentifier(expression)) => Ok(Filter::Streams(prefixes(expression)?)),
        Some(FilterOn::EventType(expression)) => Ok(Filter::Types(prefixes(expression)?)),
        None => Err(Status::invalid_argument(
            "a filter is on streams or on types",
        )),
    }
}

fn identifier(stream: &str) -> Option<StreamIdentifier> {
    Some(StreamIdentifier {
        stream_name: stream.as_bytes().to_vec(),
    })
}

pub(super) fn event(record: Record) -> Content {
    let Record {
        commit_position,
        prepare_position,
        stream,
        revision,
        id,
        event_type,
        content_type,
        created,
        data,
        metadata,
    } = record;
    let mut system = HashMap::from([
        ("type".to_owned(), event_type),
        ("content-type".to_owned(), content_type),
    ]);
    system.extend(created.map(|created| ("created".to_owned(), created.to_string())));
    Content::Event(ReadEvent {
        event: Some(RecordedEvent {
            id: Some(Uuid {
                value: Some(Value::String(id.to_string())),
            }),
            stream_identifier: identifier(&stream),
            stream_revision: revision,
            prepare_position,
            commit_position,
            metadata: system,
            custom_metadata: metadata,
            data,
        }),
        link: None,
        position: Some(Position::CommitPosition(commit_position)),
    })
}
