//! The standard health service, asked of the engine itself: serving while the
//! engine is sound and the server takes calls.

use futures::{StreamExt, stream::BoxStream};
use tonic::{Request, Response, Status, server::NamedService};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use super::{
    admin::AdminService,
    bounds::HEALTH_LOOK_EVERY,
    call::{Shared, shutting_down},
    conversations::ConversationsService,
    events::EventsService,
    search::SearchService,
    shutdown::Phase,
    tools::ToolsService,
};
use crate::codec::pb::{
    admin_server::AdminServer, conversations_server::ConversationsServer,
    events_server::EventsServer, search_server::SearchServer, tools_server::ToolsServer,
};

/// The services that have a health; the empty name is the server's.
const SERVICES: [&str; 6] = [
    "",
    EventsServer::<EventsService>::NAME,
    ConversationsServer::<ConversationsService>::NAME,
    ToolsServer::<ToolsService>::NAME,
    SearchServer::<SearchService>::NAME,
    AdminServer::<AdminService>::NAME,
];

/// Health of the engine, by service name. All share one engine, so one health.
pub(super) struct HealthService(pub Shared);

impl HealthService {
    fn status(shared: &Shared, service: &str) -> ServingStatus {
        if !SERVICES.contains(&service) {
            return ServingStatus::ServiceUnknown;
        }
        let serving = shared.stop.phase() == Phase::Serving && shared.engine.healthy().is_ok();
        if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
    }
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
        match Self::status(&self.0, &request.get_ref().service) {
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
        let shared = self.0.clone();
        let service = request.into_inner().service;
        let changes = async_stream::stream! {
            let mut last = None;
            loop {
                let status = Self::status(&shared, &service);
                if last != Some(status) {
                    last = Some(status);
                    yield Ok(response(status));
                }
                if shared.stop.phase() > Phase::Serving {
                    yield Err(shutting_down());
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(HEALTH_LOOK_EVERY) => {}
                    () = shared.stop.reached(Phase::Draining) => {}
                }
            }
        };
        Ok(Response::new(changes.boxed()))
    }
}
