//! The Backups service: sends the log to clients that keep a copy.

use futures::{StreamExt, stream::BoxStream};
use tonic::{Request, Response, Status};

use super::status::OrStatus;
use super::{
    call::{Call, ServiceContext},
    from_proto::{self, InvalidField},
    shutdown::Phase,
};
use treering_domain::Revision;
use treering_engine::{BackupNote, ShipMark, ShipQuery, ShipmentItem, ShippedErasure};
use treering_proto::{
    envelope::{timestamp_from_pb, timestamp_to_pb},
    pb::{self, backups_server::Backups},
};

/// A thin layer over the engine.
pub(super) struct BackupsService(pub(crate) ServiceContext);

#[tonic::async_trait]
impl Backups for BackupsService {
    type ShipLogStream = BoxStream<'static, Result<pb::ShipLogResponse, Status>>;

    async fn ship_log(
        &self,
        request: Request<pb::ShipLogRequest>,
    ) -> Result<Response<Self::ShipLogStream>, Status> {
        let call = Call::of(&request)?;
        self.0.audit.backs_up(&call.caller).await;
        let pb::ShipLogRequest {
            from_offset,
            to_offset,
            follow,
        } = request.into_inner();
        let items = self.0.engine.ship(ShipQuery {
            from: from_offset.max(1),
            to: (to_offset > 0).then_some(to_offset),
            follow,
        });
        let items = items.map(|item| Ok(response(item.or_status()?)));
        let phase = if follow { Phase::Draining } else { Phase::Cut };
        let bound = call.bound(items, self.0.stop.clone(), phase);
        Ok(Response::new(bound))
    }

    async fn note_backup(
        &self,
        request: Request<pb::NoteBackupRequest>,
    ) -> Result<Response<pb::NoteBackupResponse>, Status> {
        Call::of(&request)?;
        let note = note(request.into_inner())?;
        self.0.engine.note_backup(note).await.or_status()?;
        Ok(Response::new(pb::NoteBackupResponse {}))
    }
}

fn response(item: ShipmentItem) -> pb::ShipLogResponse {
    use pb::ship_log_response::Item;
    let item = match item {
        ShipmentItem::Start {
            identity,
            head,
            before,
        } => Item::Start(pb::ShipStart {
            store: identity.store.to_string(),
            timeline: identity.timeline.to_string(),
            head,
            before: before.map(mark),
        }),
        ShipmentItem::Block(block) => Item::Block(pb::ShippedBlock {
            first_offset: block.first,
            count: block.count,
            block: block.bytes,
            needs: block.needs,
        }),
        ShipmentItem::Blob { home, bytes } => Item::Blob(pb::ShippedBlob {
            home_offset: home,
            content: bytes,
        }),
        ShipmentItem::Erasure(erasure) => Item::Erasure(erased(erasure)),
        ShipmentItem::Reached {
            mark: reached,
            recorded_at,
            is_all,
        } => Item::Reached(pb::ShipReached {
            mark: Some(mark(reached)),
            recorded_at: Some(timestamp_to_pb(recorded_at)),
            is_all,
        }),
    };
    pb::ShipLogResponse { item: Some(item) }
}

fn mark(mark: ShipMark) -> pb::ShipMark {
    pb::ShipMark {
        offset: mark.offset,
        chain_hash: mark.chain.0.to_vec().into(),
    }
}

fn erased(erasure: ShippedErasure) -> pb::ShippedErasure {
    pb::ShippedErasure {
        offset: erasure.position,
        recorded_at: Some(timestamp_to_pb(erasure.recorded_at)),
        namespace: erasure.namespace.to_string(),
        conversation_id: erasure.conversation.to_string(),
        branch_id: erasure.branch.0,
        revisions: erasure
            .revisions
            .into_iter()
            .map(|Revision(number)| number)
            .collect(),
        offsets: erasure.offsets,
        reason: erasure.reason,
        actor: erasure.actor,
    }
}

fn note(request: pb::NoteBackupRequest) -> Result<BackupNote, InvalidField> {
    from_proto::required("target", &request.target)?;
    from_proto::check_short("target", &request.target)?;
    let made_at = request.made_at.as_ref().and_then(timestamp_from_pb);
    let made_at = made_at.ok_or_else(|| InvalidField::new("made_at", "is not a valid time"))?;
    Ok(BackupNote {
        target: request.target,
        generation: request.generation,
        head: request.head_offset,
        made_at: made_at.0,
        clean_to: request.clean_to_offset,
    })
}
