//! The services of a node: requests as the log's, answers as the server's.
#![expect(
    clippy::result_large_err,
    reason = "the error is the protocol's own, and once in a test nobody counts its bytes"
)]

mod append;
mod delete;
mod read;
mod subscribe;

use std::sync::Arc;

use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};

use crate::fate::Leader;
use crate::node::Node;
use crate::wire::event_store::client::gossip::gossip_server::{Gossip, GossipServer};
use crate::wire::event_store::client::gossip::member_info::VNodeState;
use crate::wire::event_store::client::gossip::{ClusterInfo, EndPoint, MemberInfo};
use crate::wire::event_store::client::server_features::server_features_server::{
    ServerFeatures, ServerFeaturesServer,
};
use crate::wire::event_store::client::server_features::{SupportedMethod, SupportedMethods};
use crate::wire::event_store::client::streams::streams_server::{Streams, StreamsServer};
use crate::wire::event_store::client::streams::{
    AppendReq, AppendResp, BatchAppendReq, BatchAppendResp, DeleteReq, DeleteResp, ReadReq,
    ReadResp, TombstoneReq, TombstoneResp,
};
use crate::wire::event_store::client::uuid::{Structured, Value};
use crate::wire::event_store::client::{StreamIdentifier, Uuid};
use crate::{Requests, Shared, locked};

/// What one node answers with.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    index: usize,
    node: Arc<Node>,
}

type Answers<T> = tokio_stream::wrappers::ReceiverStream<Result<T, Status>>;

impl Service {
    pub(crate) const fn new(shared: Arc<Shared>, index: usize, node: Arc<Node>) -> Self {
        Self {
            shared,
            index,
            node,
        }
    }

    pub(crate) fn router(&self) -> Router {
        tonic::transport::Server::builder()
            .add_service(StreamsServer::new(self.clone()))
            .add_service(GossipServer::new(self.clone()))
            .add_service(ServerFeaturesServer::new(self.clone()))
    }

    fn count(&self, count: impl FnOnce(&mut Requests)) {
        count(&mut locked(&self.shared.requests));
    }

    /// Refuses what only the leader may do. A write that does not ask for the leader is passed on to it.
    fn check_leader(&self, metadata: &MetadataMap, is_write: bool) -> Result<(), Status> {
        let wants_leader = metadata
            .get("requires-leader")
            .is_some_and(|value| value == "true");
        let members = locked(&self.shared.members);
        let leader = members.leader;
        if leader == Some(self.index) || (!wants_leader && !is_write) {
            return Ok(());
        }
        match leader {
            Some(_) if !wants_leader => Ok(()),
            Some(leader) => Err(not_leader(&Leader::At {
                host: "127.0.0.1".to_owned(),
                port: members.all[leader].port,
            })),
            None => Err(Status::unknown("No leader info available in response")),
        }
    }
}

fn not_leader(leader: &Leader) -> Status {
    let mut metadata = MetadataMap::new();
    let value = |text: &str| text.parse().expect("a host and a port are ASCII");
    metadata.insert("exception", value("not-leader"));
    if let Leader::At { host, port } = leader {
        metadata.insert("leader-endpoint-host", value(host));
        metadata.insert("leader-endpoint-port", value(&port.to_string()));
    }
    Status::with_metadata(tonic::Code::NotFound, "Leader info available", metadata)
}

fn not_ready() -> Status {
    Status::unavailable("Server Is Not Ready")
}

fn timed_out() -> Status {
    Status::aborted("Operation timed out: the commit took too long")
}

fn stream_deleted() -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("exception", MetadataValue::from_static("stream-deleted"));
    Status::with_metadata(
        tonic::Code::FailedPrecondition,
        "the stream is deleted",
        metadata,
    )
}

fn name(identifier: Option<StreamIdentifier>) -> Result<String, Status> {
    let identifier = identifier.ok_or_else(|| Status::invalid_argument("no stream is named"))?;
    String::from_utf8(identifier.stream_name)
        .map_err(|_| Status::invalid_argument("the name of a stream is UTF-8"))
}

fn id_of(id: Option<Uuid>) -> Result<uuid::Uuid, Status> {
    let invalid = || Status::invalid_argument("an event has no id, or one that is no UUID");
    match id.and_then(|id| id.value).ok_or_else(invalid)? {
        Value::String(text) => text.parse().map_err(|_| invalid()),
        Value::Structured(Structured {
            most_significant_bits,
            least_significant_bits,
        }) => Ok(uuid::Uuid::from_u64_pair(
            most_significant_bits.cast_unsigned(),
            least_significant_bits.cast_unsigned(),
        )),
    }
}

#[tonic::async_trait]
impl Streams for Service {
    type ReadStream = Answers<ReadResp>;
    type BatchAppendStream = Answers<BatchAppendResp>;

    async fn read(&self, request: Request<ReadReq>) -> Result<Response<Self::ReadStream>, Status> {
        self.answer_read(request).await
    }

    async fn append(
        &self,
        request: Request<Streaming<AppendReq>>,
    ) -> Result<Response<AppendResp>, Status> {
        self.count(|requests| requests.appends += 1);
        self.check_leader(request.metadata(), true)?;
        self.answer_append(request.into_inner()).await
    }

    async fn delete(&self, request: Request<DeleteReq>) -> Result<Response<DeleteResp>, Status> {
        self.check_leader(request.metadata(), true)?;
        self.answer_delete(request.into_inner())
    }

    async fn tombstone(
        &self,
        request: Request<TombstoneReq>,
    ) -> Result<Response<TombstoneResp>, Status> {
        self.check_leader(request.metadata(), true)?;
        self.answer_tombstone(request.into_inner())
    }

    async fn batch_append(
        &self,
        _: Request<Streaming<BatchAppendReq>>,
    ) -> Result<Response<Self::BatchAppendStream>, Status> {
        Err(Status::unimplemented("the stand-in takes no batches"))
    }
}

#[tonic::async_trait]
impl Gossip for Service {
    async fn read(&self, _: Request<()>) -> Result<Response<ClusterInfo>, Status> {
        self.count(|requests| requests.gossip += 1);
        let members = locked(&self.shared.members);
        let state = |index: usize| match members.leader {
            Some(leader) if leader == index => VNodeState::Leader,
            Some(_) => VNodeState::Follower,
            None => VNodeState::Unknown,
        };
        let told = members.all.iter().enumerate().map(|(index, member)| {
            let (most, least) = member.id.as_u64_pair();
            MemberInfo {
                instance_id: Some(Uuid {
                    value: Some(Value::Structured(Structured {
                        most_significant_bits: most.cast_signed(),
                        least_significant_bits: least.cast_signed(),
                    })),
                }),
                time_stamp: 0,
                state: state(index).into(),
                is_alive: member.is_alive,
                http_end_point: Some(EndPoint {
                    address: "127.0.0.1".to_owned(),
                    port: u32::from(member.port),
                }),
            }
        });
        Ok(Response::new(ClusterInfo {
            members: told.collect(),
        }))
    }
}

#[tonic::async_trait]
impl ServerFeatures for Service {
    async fn get_supported_methods(
        &self,
        _: Request<()>,
    ) -> Result<Response<SupportedMethods>, Status> {
        self.count(|requests| requests.features += 1);
        let methods = ["append", "read"].map(|method| SupportedMethod {
            method_name: method.to_owned(),
            service_name: "event_store.client.streams.streams".to_owned(),
            features: Vec::new(),
        });
        Ok(Response::new(SupportedMethods {
            methods: methods.into(),
            event_store_server_version: "26.1.0".to_owned(),
        }))
    }
}
