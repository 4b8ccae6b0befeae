//! The Admin service: statistics, verification and rebuilds of the store.

use futures::{StreamExt, stream::BoxStream};
use tonic::{Request, Response, Status};

use super::status::OrStatus;
use super::{
    call::{Call, ServiceContext},
    from_proto::InvalidField,
    metrics::process,
    shutdown::Phase,
    to_proto,
};
use treering_proto::pb::{self, admin_server::Admin};

/// Removes the store's location and the numbers that other namespaces change: from sizes, one
/// tenant could tell whether another had just stored the same text.
fn of_namespace(stats: pb::StatsResponse) -> pb::StatsResponse {
    pb::StatsResponse {
        data_dir: String::new(),
        log_bytes: 0,
        views_bytes: 0,
        index_bytes: 0,
        log_segments: 0,
        indexed_documents: 0,
        damaged_reads: 0,
        first_damage: String::new(),
        unreadable_positions: 0,
        vectors: None,
        ..stats
    }
}

/// A thin layer over the engine.
pub(super) struct AdminService(pub(crate) ServiceContext);

#[tonic::async_trait]
impl Admin for AdminService {
    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;
    type RebuildStream = BoxStream<'static, Result<pb::RebuildResponse, Status>>;

    async fn stats(
        &self,
        request: Request<pb::StatsRequest>,
    ) -> Result<Response<pb::StatsResponse>, Status> {
        let call = Call::of(&request)?;
        let stats = self.0.engine.stats(&call.namespace).await.or_status()?;
        let met = self.0.engine.damage_met();
        let stats = to_proto::stats(stats, met);
        Ok(Response::new(if call.caller.may_see_store() {
            let process = process::read();
            pb::StatsResponse {
                resident_bytes: process.resident_bytes,
                mapped_bytes: process.mapped_bytes,
                ..stats
            }
        } else {
            of_namespace(stats)
        }))
    }

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let call = Call::of(&request)?;
        let deep = request.into_inner().deep;
        let items = self.0.engine.verify(&call.namespace, deep);
        let items = items.map(|item| Ok(to_proto::verify_response(item.or_status()?)));
        let bound = call.bound(items, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }

    async fn rebuild(
        &self,
        request: Request<pb::RebuildRequest>,
    ) -> Result<Response<Self::RebuildStream>, Status> {
        let call = Call::of(&request)?;
        let pb::RebuildRequest { views, index } = request.into_inner();
        if !views && !index {
            let message = "neither views nor index is set: set at least one of them";
            return Err(InvalidField::new("views", message).into());
        }
        let items = self.0.engine.rebuild(views, index);
        let items = items.map(|item| Ok(to_proto::rebuild_response(&item.or_status()?)));
        let bound = call.bound(items, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }
}
