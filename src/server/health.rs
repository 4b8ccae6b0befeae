//! The standard health service: what can be done now, by name.
//!
//! | name | serving means |
//! |---|---|
//! | `treering.live` | the threads that write and publish move; if not, restart the process |
//! | `treering.ready`, and the empty name | calls are taken, appends too, and the disk is above its floor |
//! | `treering.v1.Events` | the same: appends are what it is for |
//! | any other service | calls are taken; their reads go on while appends cannot be |
//!
//! Damaged data is not told here but by `Admin.Stats` and `Admin.Verify`: all that
//! is whole is served. The services are those of the descriptors, so that none can
//! be forgotten.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream::BoxStream};
use prost::Message;
use tonic::{Request, Response, Status, server::NamedService};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use super::{
    DESCRIPTORS,
    bounds::HEALTH_LOOK_EVERY,
    call::{Shared, shutting_down},
    events::EventsService,
    shutdown::Phase,
};
use crate::codec::pb::events_server::EventsServer;

/// Whether the process is worth to be kept.
pub const LIVE: &str = "treering.live";
/// Whether everything can be asked of it now.
pub const READY: &str = "treering.ready";

/// Health of the engine, by name.
#[derive(Clone)]
pub(super) struct HealthService {
    shared: Shared,
    services: Arc<BTreeSet<String>>,
}

impl HealthService {
    /// # Errors
    /// When the descriptors cannot be read.
    pub(super) fn new(shared: Shared) -> Result<Self, prost::DecodeError> {
        Ok(Self {
            shared,
            services: Arc::new(described_services()?),
        })
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

/// Full names of the services of `proto/treering/v1`.
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
            ServingStatus::ServiceUnknown => {
                Err(Status::not_found("this server has no such service"))
            }
            status => Ok(Response::new(response(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let health = self.clone();
        let service = request.into_inner().service;
        let changes = async_stream::stream! {
            let mut last = None;
            loop {
                let status = health.status(&service);
                if last != Some(status) {
                    last = Some(status);
                    yield Ok(response(status));
                }
                if health.shared.stop.phase() > Phase::Serving {
                    yield Err(shutting_down());
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(HEALTH_LOOK_EVERY) => {}
                    () = health.shared.stop.reached(Phase::Draining) => {}
                }
            }
        };
        Ok(Response::new(changes.boxed()))
    }
}

#[cfg(test)]
mod tests;
