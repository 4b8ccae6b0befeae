//! Shipping the log to who keeps a backup, as messages.

use super::from_proto::{self, Malformed};
use crate::{
    codec::{
        envelope::{timestamp_from_pb, timestamp_to_pb},
        pb,
    },
    domain::Revision,
    engine::{BackupNote, ShipMark, Shipped, ShippedErasure},
};

pub(super) fn response(item: Shipped) -> pb::ShipLogResponse {
    use pb::ship_log_response::Item;
    let item = match item {
        Shipped::Start {
            identity,
            head,
            before,
        } => Item::Start(pb::ShipStart {
            store: identity.store.to_string(),
            timeline: identity.timeline.to_string(),
            head,
            before: before.map(mark),
        }),
        Shipped::Block(block) => Item::Block(pb::ShippedBlock {
            first_offset: block.first,
            count: block.count,
            block: block.bytes,
            needs: block.needs,
        }),
        Shipped::Blob { home, bytes } => Item::Blob(pb::ShippedBlob {
            home_offset: home,
            content: bytes,
        }),
        Shipped::Erasure(erasure) => Item::Erasure(erased(erasure)),
        Shipped::Reached {
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

pub(super) fn note(request: pb::NoteBackupRequest) -> Result<BackupNote, Malformed> {
    from_proto::required("target", &request.target)?;
    from_proto::check_short("target", &request.target)?;
    let made_at = request.made_at.as_ref().and_then(timestamp_from_pb);
    let made_at = made_at.ok_or_else(|| Malformed::new("made_at", "is not a time"))?;
    Ok(BackupNote {
        target: request.target,
        generation: request.generation,
        head: request.head_offset,
        made_at: made_at.0,
        clean_to: request.clean_to_offset,
    })
}
