//! Reads a store through a connection for a backup.

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use tonic::{Code, Status};

use treering_backup::{BackupError, BackupSource};
use treering_client::connect::Connection;
use treering_domain::{BranchId, Cause, ContentHash, Namespace, Revision, TimestampMicros};
use treering_engine::{
    BackupNote, LogIdentity, ShipMark, ShipQuery, ShipmentItem, ShippedBlock, ShippedErasure,
};
use treering_proto::{
    envelope::{timestamp_from_pb, timestamp_to_pb},
    pb,
};

/// A store that is reached through a connection.
pub(crate) struct Remote<'a>(pub(crate) &'a Connection);

/// The store refused to send its log.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ShipRefusal {
    /// Status code of the refusal.
    pub(crate) code: Code,
    message: String,
}

#[async_trait]
impl BackupSource for Remote<'_> {
    async fn ship(
        &self,
        query: ShipQuery,
    ) -> Result<BoxStream<'static, Result<ShipmentItem, BackupError>>, BackupError> {
        let request = pb::ShipLogRequest {
            from_offset: query.from,
            to_offset: query.to.unwrap_or(0),
            follow: query.follow,
        };
        let answers = self.0.backups().ship_log(request).await.map_err(failed)?;
        let items = answers.into_inner().filter_map(|answer| async {
            match answer {
                Ok(pb::ShipLogResponse { item: Some(item) }) => Some(shipped(item)),
                // An item that only a newer server knows.
                Ok(pb::ShipLogResponse { item: None }) => None,
                Err(status) => Some(Err(failed(status))),
            }
        });
        Ok(items.boxed())
    }

    async fn note(&self, note: BackupNote) -> Result<(), BackupError> {
        let request = pb::NoteBackupRequest {
            target: note.target,
            generation: note.generation,
            head_offset: note.head,
            made_at: Some(timestamp_to_pb(TimestampMicros(note.made_at))),
            clean_to_offset: note.clean_to,
        };
        self.0
            .backups()
            .note_backup(request)
            .await
            .map_err(failed)?;
        Ok(())
    }
}

fn failed(status: Status) -> BackupError {
    BackupError::Source {
        passes: matches!(status.code(), Code::Unavailable | Code::ResourceExhausted),
        source: Cause::of(ShipRefusal {
            code: status.code(),
            message: status.message().to_owned(),
        }),
    }
}

fn shipped(item: pb::ship_log_response::Item) -> Result<ShipmentItem, BackupError> {
    read(item).ok_or_else(|| BackupError::Source {
        passes: false,
        source: Cause::of("the server's answer to ShipLog cannot be read"),
    })
}

fn read(item: pb::ship_log_response::Item) -> Option<ShipmentItem> {
    use pb::ship_log_response::Item;
    Some(match item {
        Item::Start(start) => ShipmentItem::Start {
            identity: LogIdentity {
                store: start.store.parse().ok()?,
                timeline: start.timeline.parse().ok()?,
            },
            head: start.head,
            before: match start.before {
                Some(before) => Some(mark(&before)?),
                None => None,
            },
        },
        Item::Block(block) => ShipmentItem::Block(ShippedBlock {
            first: block.first_offset,
            count: block.count,
            bytes: block.block,
            needs: block.needs,
        }),
        Item::Blob(blob) => ShipmentItem::Blob {
            home: blob.home_offset,
            bytes: blob.content,
        },
        Item::Erasure(erasure) => ShipmentItem::Erasure(ShippedErasure {
            position: erasure.offset,
            recorded_at: timestamp_from_pb(&erasure.recorded_at?)?,
            namespace: Namespace::new(&erasure.namespace).ok()?,
            conversation: erasure.conversation_id.parse().ok()?,
            branch: BranchId(erasure.branch_id),
            revisions: erasure.revisions.into_iter().map(Revision).collect(),
            offsets: erasure.offsets,
            reason: erasure.reason,
            actor: erasure.actor,
        }),
        Item::Reached(reached) => ShipmentItem::Reached {
            mark: mark(&reached.mark?)?,
            recorded_at: timestamp_from_pb(&reached.recorded_at?)?,
            is_all: reached.is_all,
        },
    })
}

fn mark(mark: &pb::ShipMark) -> Option<ShipMark> {
    Some(ShipMark {
        offset: mark.offset,
        chain: ContentHash(mark.chain_hash.as_ref().try_into().ok()?),
    })
}
