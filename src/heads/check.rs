//! Checks a store against a signed head.

use super::{error::HeadError, file::SignedHead, survey::survey};
use treering_backup::BackupSource;
use treering_domain::PublicKey;

/// The outcome of a successful check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCheck {
    /// The last log position now.
    pub ends: u64,
    /// Number of events whose content was erased, as the log records it.
    pub erased: u64,
}

/// Reads a store's log and compares it with a head. `signer` must have signed the head. A store
/// that was restored from a backup has another id than the head; `is_restored` accepts that.
///
/// # Errors
/// Errors if the store differs from the head.
pub async fn check(
    source: &dyn BackupSource,
    head: &SignedHead,
    signer: PublicKey,
    is_restored: bool,
    report: impl FnMut(u64, u64),
) -> Result<HeadCheck, HeadError> {
    if head.signed_by != signer {
        return Err(HeadError::ForeignSigner {
            by: head.signed_by,
            wanted: signer,
        });
    }
    let found = survey(source, Some(head.position), report).await?;
    if found.log.store != head.log.store && !is_restored {
        return Err(HeadError::OtherStore {
            of: head.log.store,
            this: found.log.store,
        });
    }
    let Some((root, conversations)) = found.root else {
        return Err(HeadError::Shorter {
            ends: found.ends,
            position: head.position,
        });
    };
    if (root, conversations) != (head.root, head.conversations) {
        let is_after_loss = found.log.timeline != head.log.timeline && !is_restored;
        return Err(HeadError::Changed {
            position: head.position,
            conversations,
            root: root.to_string(),
            signed_conversations: head.conversations,
            signed_root: head.root.to_string(),
            after_loss: match is_after_loss {
                true => ". A loss was accepted since then (`treering repair --accept-loss`)",
                false => "",
            },
        });
    }
    if let Some((key, revision)) = found.unsaid.first() {
        return Err(HeadError::NotErased {
            count: found.unsaid.len() as u64,
            conversation: key.id,
            revision: *revision,
        });
    }
    Ok(HeadCheck {
        ends: found.ends,
        erased: found.erased,
    })
}
