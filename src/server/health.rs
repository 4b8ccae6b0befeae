//! The standard health service: what the server can do now, by name.
//!
//! | name | serving means |
//! |---|---|
//! | `treering.live` | the threads that write and publish make progress; if not, restart the process |
//! | `treering.ready`, and the empty name | calls and appends are accepted, and the disk is above its floor |
//! | `treering.v1.Events` | the same, since appends are its purpose |
//! | any other service | calls are accepted; reads continue while appends cannot |
//!
//! This service does not report damaged data, because everything undamaged is still served: see
//! `Admin.Stats` and `Admin.Verify`. The service names come from the descriptors, so that none is
//! missing.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream::BoxStream};
use prost::Message;
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
    server::NamedService,
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use super::{
    bounds::HEALTH_LOOK_EVERY,
    call::{ServiceContext, shutting_down},
    events::EventsService,
    router::ShardDirectory,
    shutdown::{Phase, StopSignal},
};
use treering_domain::{hex, unhex};
use treering_proto::{DESCRIPTORS, pb::events_server::EventsServer};

/// The name for liveness: whether to keep the process running.
pub(crate) const LIVE: &str = "treering.live";
/// The name for readiness: whether the server accepts everything now.
pub(crate) const READY: &str = "treering.ready";

/// Metadata key of a challenge, in hex, by which a client checks that this server holds a data
/// folder.
pub const FOLDER_QUESTION: &str = "treering-folder-question";
/// Metadata key of its answer, made with the secret in the folder's lock file.
pub const FOLDER_PROOF: &str = "treering-folder-proof";

/// Health of the engine, by name.
#[derive(Clone)]
pub(super) struct HealthService {
    shared: ServiceContext,
    services: Arc<BTreeSet<String>>,
}

impl HealthService {
    /// Returns the service for the described services.
    ///
    /// # Errors
    /// When the descriptors cannot be read.
    pub(super) fn new(shared: ServiceContext) -> Result<Self, prost::DecodeError> {
        Ok(Self {
            shared,
            services: Arc::new(described_services()?),
        })
    }

    /// Returns the answer to a folder challenge. It needs no key, like this whole service: the
    /// client has a key, and sends it only to the folder's server.
    fn proof(&self, metadata: &MetadataMap) -> Option<MetadataValue<Ascii>> {
        let question = unhex(metadata.get(FOLDER_QUESTION)?.as_bytes())?;
        let proof = self.shared.engine.proves_folder(&question)?;
        hex(&proof).parse().ok()
    }

    fn status(&self, name: &str) -> ServingStatus {
        let taken = self.shared.stop.phase() == Phase::Serving;
        let serving = match name {
            LIVE => self.shared.engine.health().live.is_ok(),
            "" | READY | EventsServer::<EventsService>::NAME => {
                taken && self.shared.engine.health().ready.is_ok()
            }
            service if self.services.contains(service) => taken,
            _ => return ServingStatus::ServiceUnknown,
        };
        if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
    }
}

/// Health of a node of a cluster, by name. A node takes calls of all shards, so it is ready as long
/// as it takes calls: if it serves no shard, it forwards them. It takes none before it has joined its
/// cluster.
#[derive(Clone)]
pub(super) struct NodeHealth {
    directory: Arc<dyn ShardDirectory>,
    stop: StopSignal,
    services: Arc<BTreeSet<String>>,
}

impl NodeHealth {
    /// Returns the service for the described services.
    ///
    /// # Errors
    /// When the descriptors cannot be read.
    pub(super) fn new(
        directory: Arc<dyn ShardDirectory>,
        stop: StopSignal,
    ) -> Result<Self, prost::DecodeError> {
        Ok(Self {
            directory,
            stop,
            services: Arc::new(described_services()?),
        })
    }

    fn status(&self, name: &str) -> ServingStatus {
        let serving = match name {
            // A shard whose threads are stuck is not healed by forwarding.
            LIVE => self.open_shards_live(),
            "" | READY => self.is_ready(),
            service if self.services.contains(service) => self.is_ready(),
            _ => return ServingStatus::ServiceUnknown,
        };
        match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        }
    }

    fn is_ready(&self) -> bool {
        self.stop.phase() == Phase::Serving && self.directory.is_ready()
    }

    fn open_shards_live(&self) -> bool {
        let served = self.directory.served().into_iter();
        let mut open = served.filter_map(|shard| self.directory.shard(shard).ok());
        open.all(|shard| shard.engine().health().live.is_ok())
    }
}

#[tonic::async_trait]
impl Health for NodeHealth {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => Ok(Response::new(response(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let health = self.clone();
        let service = request.into_inner().service;
        let status = move || health.status(&service);
        Ok(Response::new(changes(status, self.stop.clone())))
    }
}

/// Sends a status when it changes, until the server stops.
fn changes(
    status: impl Fn() -> ServingStatus + Send + 'static,
    stop: StopSignal,
) -> BoxStream<'static, Result<HealthCheckResponse, Status>> {
    async_stream::stream! {
        let mut last = None;
        loop {
            let now = status();
            if last != Some(now) {
                last = Some(now);
                yield Ok(response(now));
            }
            if stop.phase() > Phase::Serving {
                yield Err(shutting_down());
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(HEALTH_LOOK_EVERY) => {}
                () = stop.reached(Phase::Draining) => {}
            }
        }
    }
    .boxed()
}

/// Returns the full names of the services of `proto/treering/v1`.
fn described_services() -> Result<BTreeSet<String>, prost::DecodeError> {
    let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS)?.file;
    let names = files.iter().flat_map(|file| {
        let named = |service: &prost_types::ServiceDescriptorProto| {
            format!("{}.{}", file.package(), service.name())
        };
        file.service.iter().map(named)
    });
    Ok(names.collect())
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => {
                let mut answer = Response::new(response(status));
                if let Some(proof) = self.proof(request.metadata()) {
                    answer.metadata_mut().insert(FOLDER_PROOF, proof);
                }
                Ok(answer)
            }
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let health = self.clone();
        let service = request.into_inner().service;
        let stop = health.shared.stop.clone();
        let status = move || health.status(&service);
        Ok(Response::new(changes(status, stop)))
    }
}

#[cfg(test)]
mod tests;
