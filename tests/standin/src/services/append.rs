//! An append: read to its end, checked, given its fate.

use std::future::pending;

use tonic::{Response, Status, Streaming};

use super::{Service, id_of, name, not_leader, not_ready, timed_out};
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
                let text = format!("Maximum Append Size of {MAX_APPEND_BYTES} Exceeded.");
                return Err(Status::invalid_argument(text));
            }
            events.push(proposed(message)?);
        }
        let fate = locked(&self.shared.appends).draw(&stream);
        let append = Held {
            stream,
            expected,
            events,
        };
        self.dispose(fate, append).await
    }

    async fn dispose(
        &self,
        fate: AppendFate,
        append: Held,
    ) -> Result<Response<AppendResp>, Status> {
        let write = || {
            let now = (self.shared.now)();
            let mut log = locked(&self.shared.log);
            log.append(&append.stream, append.expected, &append.events, now)
        };
        let expected = append.expected;
        match fate {
            AppendFate::Fine => Ok(answer(write(), expected)),
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
                    wrong @ Outcome::WrongExpectedVersion { .. } => wrong,
                };
                Ok(answer(outcome, expected))
            }
            AppendFate::Held => {
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
        }
    }
}

fn expected(option: Option<ExpectedStreamRevision>) -> Result<Expected, Status> {
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

fn answer(outcome: Outcome, expected: Expected) -> Response<AppendResp> {
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
    };
    Response::new(AppendResp {
        result: Some(result),
    })
}
