//! An append: read to its end, checked, given its fate.

use std::future::pending;

use tokio::sync::oneshot;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Response, Status, Streaming};

use super::{Service, id_of, name, not_leader, not_ready, stream_deleted, timed_out};
use crate::fate::AppendFate;
use crate::log::{Expected, Outcome, Proposed};
use crate::wire::event_store::client::streams::append_req::options::ExpectedStreamRevision;
use crate::wire::event_store::client::streams::append_req::{Content, ProposedMessage};
use crate::wire::event_store::client::streams::append_resp::success::{
    CurrentRevisionOption, PositionOption,
};
use crate::wire::event_store::client::streams::append_resp::wrong_expected_version::{
    CurrentRevisionOption as Current, ExpectedRevisionOption,
};
use crate::wire::event_store::client::streams::append_resp::{
    Position, Result as Answer, Success, WrongExpectedVersion,
};
use crate::wire::event_store::client::streams::{AppendReq, AppendResp};
use crate::{Held, locked};

/// The server's default.
const MAX_APPEND_BYTES: usize = 1_048_576;

impl Service {
    pub(super) async fn answer_append(
        &self,
        mut request: Streaming<AppendReq>,
    ) -> Result<Response<AppendResp>, Status> {
        let options = match request.message().await?.and_then(|first| first.content) {
            Some(Content::Options(options)) => options,
            _ => return Err(Status::unknown("an append begins with its options")),
        };
        let stream = name(options.stream_identifier)?;
        let expected = expected(options.expected_stream_revision)?;
        let (mut events, mut bytes) = (Vec::new(), 0);
        // A request that breaks off before its end is an error here, and nothing of it is written.
        while let Some(next) = request.message().await? {
            let Some(Content::ProposedMessage(message)) = next.content else {
                return Err(Status::unknown("options stand at the beginning only"));
            };
            bytes += message.data.len();
            if bytes > MAX_APPEND_BYTES {
                return Err(too_large());
            }
            events.push(proposed(message)?);
        }
        if let Some(outcome) = self.taken(&stream, &events) {
            return match outcome {
                Some(conflict) => answer(conflict, expected),
                // The server drops a repeat of what it has not committed yet.
                None => pending().await,
            };
        }
        let fate = locked(&self.shared.appends).draw(&stream);
        let append = Held {
            stream,
            expected,
            events,
            is_taken: fate == AppendFate::Unreplicated,
            answer: None,
        };
        self.dispose(fate, append).await
    }

    /// What an append meets that the writer has taken and not committed: a conflict, or, if it is the same one, no answer at all.
    fn taken(&self, stream: &str, events: &[Proposed]) -> Option<Option<Outcome>> {
        let held = locked(&self.shared.held);
        let taken = held
            .iter()
            .find(|held| held.is_taken && held.stream == stream)?;
        let first = |events: &[Proposed]| events.first().map(|event| event.id);
        if first(&taken.events) == first(events) {
            return Some(None);
        }
        let before = match taken.expected {
            Expected::Revision(revision) => revision + 1,
            Expected::Any | Expected::Exists | Expected::NoStream => 0,
        };
        let current = (before + taken.events.len() as u64).checked_sub(1);
        Some(Some(Outcome::WrongExpectedVersion { current }))
    }

    async fn dispose(
        &self,
        fate: AppendFate,
        mut append: Held,
    ) -> Result<Response<AppendResp>, Status> {
        let expected = append.expected;
        let write = || self.shared.write(&append);
        match fate {
            AppendFate::Fine => answer(write(), expected),
            AppendFate::CommittedThenCut => {
                write();
                self.node.cut();
                pending().await
            }
            AppendFate::CommittedThenSilent => {
                write();
                pending().await
            }
            AppendFate::CommittedThenAborted => {
                write();
                Err(timed_out())
            }
            AppendFate::CommittedWithoutPosition => {
                let outcome = match write() {
                    Outcome::Success { revision, .. } => Outcome::Success {
                        revision,
                        position: None,
                    },
                    other @ (Outcome::WrongExpectedVersion { .. } | Outcome::Deleted) => other,
                };
                answer(outcome, expected)
            }
            AppendFate::Delayed => {
                let (sender, receiver) = oneshot::channel();
                append.answer = Some(sender);
                locked(&self.shared.held).push(append);
                match receiver.await {
                    Ok(outcome) => answer(outcome, expected),
                    // It was lost.
                    Err(_) => pending().await,
                }
            }
            AppendFate::Held | AppendFate::Unreplicated => {
                locked(&self.shared.held).push(append);
                pending().await
            }
            AppendFate::HeldThenAborted => {
                locked(&self.shared.held).push(append);
                Err(timed_out())
            }
            AppendFate::Aborted => Err(timed_out()),
            AppendFate::Cut => {
                self.node.cut();
                pending().await
            }
            AppendFate::NotLeader(leader) => Err(not_leader(&leader)),
            AppendFate::NotReady => Err(not_ready()),
            AppendFate::Denied => Err(Status::permission_denied("Access Denied")),
        }
    }
}

pub(super) fn expected(option: Option<ExpectedStreamRevision>) -> Result<Expected, Status> {
    match option {
        Some(ExpectedStreamRevision::Any(())) => Ok(Expected::Any),
        Some(ExpectedStreamRevision::StreamExists(())) => Ok(Expected::Exists),
        Some(ExpectedStreamRevision::NoStream(())) => Ok(Expected::NoStream),
        // The server keeps revisions as signed numbers.
        Some(ExpectedStreamRevision::Revision(revision)) if i64::try_from(revision).is_ok() => {
            Ok(Expected::Revision(revision))
        }
        Some(ExpectedStreamRevision::Revision(_)) | None => Err(Status::unknown(
            "no revision is expected, or one that cannot be",
        )),
    }
}

fn too_large() -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(
        "exception",
        MetadataValue::from_static("maximum-append-size-exceeded"),
    );
    metadata.insert("maximum-append-size", MetadataValue::from(MAX_APPEND_BYTES));
    let text = format!("Maximum Append Size of {MAX_APPEND_BYTES} Exceeded.");
    Status::with_metadata(tonic::Code::InvalidArgument, text, metadata)
}

fn proposed(message: ProposedMessage) -> Result<Proposed, Status> {
    let ProposedMessage {
        id,
        mut metadata,
        custom_metadata,
        data,
    } = message;
    let mut required = |name: &str| {
        metadata.remove(name).ok_or_else(|| {
            Status::invalid_argument(format!("Required Metadata Property '{name}' is missing"))
        })
    };
    Ok(Proposed {
        id: id_of(id)?,
        event_type: required("type")?,
        content_type: required("content-type")?,
        data,
        metadata: custom_metadata,
    })
}

fn answer(outcome: Outcome, expected: Expected) -> Result<Response<AppendResp>, Status> {
    let result = match outcome {
        Outcome::Success { revision, position } => Answer::Success(Success {
            current_revision_option: Some(revision.map_or(
                CurrentRevisionOption::NoStream(()),
                CurrentRevisionOption::CurrentRevision,
            )),
            position_option: Some(position.map_or(PositionOption::NoPosition(()), |position| {
                PositionOption::Position(Position {
                    commit_position: position,
                    prepare_position: position,
                })
            })),
        }),
        Outcome::WrongExpectedVersion { current } => {
            Answer::WrongExpectedVersion(WrongExpectedVersion {
                current_revision_option: Some(
                    current.map_or(Current::CurrentNoStream(()), Current::CurrentRevision),
                ),
                expected_revision_option: Some(match expected {
                    Expected::Any => ExpectedRevisionOption::ExpectedAny(()),
                    Expected::Exists => ExpectedRevisionOption::ExpectedStreamExists(()),
                    Expected::NoStream => ExpectedRevisionOption::ExpectedNoStream(()),
                    Expected::Revision(at) => ExpectedRevisionOption::ExpectedRevision(at),
                }),
                ..WrongExpectedVersion::default()
            })
        }
        Outcome::Deleted => return Err(stream_deleted()),
    };
    Ok(Response::new(AppendResp {
        result: Some(result),
    }))
}
