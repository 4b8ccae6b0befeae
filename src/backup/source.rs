//! The source of a backup: a store in this process, or one of a server.

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};

use super::error::BackupError;
use treering_domain::Cause;
use treering_engine::{BackupNote, Engine, ReadError, ShipQuery, ShipmentItem};

/// A store that provides its log.
#[async_trait]
pub trait BackupSource: Send + Sync {
    /// Ships the log: see [`Engine::ship`].
    ///
    /// # Errors
    /// [`BackupError::Source`].
    async fn ship(
        &self,
        query: ShipQuery,
    ) -> Result<BoxStream<'static, Result<ShipmentItem, BackupError>>, BackupError>;

    /// Notes a backup in the store: see [`Engine::note_backup`].
    ///
    /// # Errors
    /// [`BackupError::Source`].
    async fn note(&self, note: BackupNote) -> Result<(), BackupError>;

    /// Returns true if the store was backed up to this target address before, and false if it was
    /// not or that is unknown.
    async fn was_backed_up_to(&self, _target: &str) -> bool {
        false
    }
}

fn failed(error: ReadError) -> BackupError {
    BackupError::Source {
        passes: matches!(error, ReadError::Busy { .. }),
        source: Cause::of(error),
    }
}

#[async_trait]
impl BackupSource for Engine {
    async fn ship(
        &self,
        query: ShipQuery,
    ) -> Result<BoxStream<'static, Result<ShipmentItem, BackupError>>, BackupError> {
        let items = Engine::ship(self, query);
        Ok(items.map(|item| item.map_err(failed)).boxed())
    }

    async fn note(&self, note: BackupNote) -> Result<(), BackupError> {
        self.note_backup(note).await.map_err(failed)
    }

    async fn was_backed_up_to(&self, target: &str) -> bool {
        let mut notes = self.backups().into_iter();
        notes.any(|note| note.target == target)
    }
}
