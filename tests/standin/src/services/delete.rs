//! A deletion: until somebody writes to the stream again, or for good.

use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Response, Status};

use super::append::expected;
use super::{Service, name, stream_deleted};
use crate::locked;
use crate::log::{Expected, Outcome};
use crate::wire::event_store::client::StreamIdentifier;
use crate::wire::event_store::client::streams::append_req::options::ExpectedStreamRevision;
use crate::wire::event_store::client::streams::delete_req::options::ExpectedStreamRevision as OfDelete;
use crate::wire::event_store::client::streams::delete_resp::PositionOption;
use crate::wire::event_store::client::streams::tombstone_req::options::ExpectedStreamRevision as OfTombstone;
use crate::wire::event_store::client::streams::tombstone_resp::PositionOption as PositionOfTombstone;
use crate::wire::event_store::client::streams::{
    DeleteReq, DeleteResp, TombstoneReq, TombstoneResp, delete_resp, tombstone_resp,
};

impl Service {
    pub(super) fn answer_delete(&self, request: DeleteReq) -> Result<Response<DeleteResp>, Status> {
        let options = request
            .options
            .ok_or_else(|| Status::invalid_argument("a deletion has options"))?;
        let expects = options.expected_stream_revision.map(|it| match it {
            OfDelete::Revision(revision) => ExpectedStreamRevision::Revision(revision),
            OfDelete::NoStream(()) => ExpectedStreamRevision::NoStream(()),
            OfDelete::Any(()) => ExpectedStreamRevision::Any(()),
            OfDelete::StreamExists(()) => ExpectedStreamRevision::StreamExists(()),
        });
        let position = self.delete(options.stream_identifier, expected(expects)?, false)?;
        let position_option = PositionOption::Position(delete_resp::Position {
            commit_position: position,
            prepare_position: position,
        });
        Ok(Response::new(DeleteResp {
            position_option: Some(position_option),
        }))
    }

    pub(super) fn answer_tombstone(
        &self,
        request: TombstoneReq,
    ) -> Result<Response<TombstoneResp>, Status> {
        let options = request
            .options
            .ok_or_else(|| Status::invalid_argument("a deletion has options"))?;
        let expects = options.expected_stream_revision.map(|it| match it {
            OfTombstone::Revision(revision) => ExpectedStreamRevision::Revision(revision),
            OfTombstone::NoStream(()) => ExpectedStreamRevision::NoStream(()),
            OfTombstone::Any(()) => ExpectedStreamRevision::Any(()),
            OfTombstone::StreamExists(()) => ExpectedStreamRevision::StreamExists(()),
        });
        let position = self.delete(options.stream_identifier, expected(expects)?, true)?;
        let position_option = PositionOfTombstone::Position(tombstone_resp::Position {
            commit_position: position,
            prepare_position: position,
        });
        Ok(Response::new(TombstoneResp {
            position_option: Some(position_option),
        }))
    }

    fn delete(
        &self,
        stream: Option<StreamIdentifier>,
        expected: Expected,
        is_for_good: bool,
    ) -> Result<u64, Status> {
        self.count(|requests| requests.deletions += 1);
        let (stream, now) = (name(stream)?, (self.shared.now)());
        let outcome = locked(&self.shared.log).delete(&stream, expected, is_for_good, now);
        self.shared.written.send_replace(());
        match outcome {
            Outcome::Success { position, .. } => Ok(position.unwrap_or(u64::MAX)),
            Outcome::WrongExpectedVersion { .. } => {
                let mut metadata = MetadataMap::new();
                let exception = MetadataValue::from_static("wrong-expected-version");
                metadata.insert("exception", exception);
                Err(Status::with_metadata(
                    tonic::Code::FailedPrecondition,
                    "the stream is elsewhere",
                    metadata,
                ))
            }
            Outcome::Deleted => Err(stream_deleted()),
        }
    }
}
