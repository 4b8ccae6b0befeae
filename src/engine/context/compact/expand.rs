//! Reads the events that a compaction's summary replaces.

use futures::{StreamExt, TryStreamExt, stream::BoxStream};

use super::{ContextError, invalid};
use crate::{
    Engine, ReadPath,
    error::ReadError,
    query::{BranchAddress, EventSource, NamedEvent, ReadQuery},
};
use treering_domain::{BranchState, ConversationId, EventBody, EventRef, Namespace, Revision};

/// The end of the range that an earlier compaction replaces.
#[derive(Clone, Copy, Debug)]
struct EarlierCut {
    conversation: ConversationId,
    until: Revision,
}

impl Engine {
    /// Returns the events that a compaction's summary replaces, oldest first: those after the
    /// previous compaction's range, up to the compaction's cut or, if it is imported, up to the
    /// compaction itself. `None` means the branch's last compaction.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] when the branch has no compaction, or none at that revision.
    pub async fn expand(
        &self,
        address: &BranchAddress,
        compaction: Option<Revision>,
    ) -> Result<BoxStream<'static, Result<Vec<NamedEvent>, ReadError>>, ContextError> {
        let inner = &self.inner;
        let (namespace, conversation) = (&address.namespace, address.conversation);
        let now = inner.reads.branch_at(address)?;
        let then = match compaction {
            Some(revision) => inner.reads.as_of(address.key(), &now, revision).await?,
            None => now.clone(),
        };
        let at = compaction_of(conversation, &then, compaction)?;
        let segments = inner.reads.history().lineage(address.key(), &now)?;
        let inside = segments.iter().find(|segment| {
            segment.conversation.id == at.conversation
                && (segment.first..=segment.last).contains(&at.revision)
        });
        let Some(segment) = inside else {
            return Err(invalid(format!(
                "the compaction at revision {} is not in the branch's history",
                at.revision
            )));
        };
        let before = inner
            .reads
            .branch_before(segment.conversation, segment.branch, at.revision)
            .await?;
        let earlier = match before.and_then(|before| before.compaction) {
            Some(earlier) => Some(EarlierCut {
                conversation: earlier.conversation,
                until: inner.reads.stands_until(namespace, earlier).await?,
            }),
            None => None,
        };
        let source = EventSource::Branch {
            conversation: segment.conversation.id,
            branch: Some(segment.name.clone()),
        };
        let mut query = ReadQuery::all(namespace.clone(), source);
        query.to = inner.reads.stands_until(namespace, at).await?.0;
        match earlier {
            Some(earlier) if earlier.conversation == segment.conversation.id => {
                query.from = earlier.until.next().0;
                Ok(self.read(query))
            }
            Some(earlier) => Ok(after(self.read(query), earlier)),
            None => Ok(self.read(query)),
        }
    }
}

impl ReadPath {
    /// Returns the last revision that a compaction's summary replaces.
    async fn stands_until(
        &self,
        namespace: &Namespace,
        compaction: EventRef,
    ) -> Result<Revision, ReadError> {
        let event = self.window_event(namespace, compaction).await?;
        Ok(match &event.body {
            EventBody::Compacted(compacted) => compacted.stands_until(compaction.revision),
            _ => Revision::NONE,
        })
    }
}

/// Returns the requested compaction.
fn compaction_of(
    conversation: ConversationId,
    branch: &BranchState,
    asked: Option<Revision>,
) -> Result<EventRef, ContextError> {
    let name = &branch.name;
    match (branch.compaction, asked) {
        (Some(at), None) => Ok(at),
        (Some(at), Some(revision))
            if at.conversation == conversation && at.revision == revision =>
        {
            Ok(at)
        }
        (_, Some(revision)) => Err(invalid(format!(
            "revision {revision} of branch {name} is not a compaction"
        ))),
        (None, None) => Err(invalid(format!(
            "branch {name} has no compaction, so there is nothing to expand"
        ))),
    }
}

/// Skips events up to a cut in an ancestor conversation: a conversation forked from a compacted one
/// continues from there.
fn after(
    batches: BoxStream<'static, Result<Vec<NamedEvent>, ReadError>>,
    earlier: EarlierCut,
) -> BoxStream<'static, Result<Vec<NamedEvent>, ReadError>> {
    let mut reached = false;
    batches
        .map_ok(move |mut batch| {
            batch.retain(|event| {
                let header = &event.event.header;
                if header.conversation == earlier.conversation {
                    reached = true;
                    return header.revision > earlier.until;
                }
                reached
            });
            batch
        })
        .try_filter(|batch| futures::future::ready(!batch.is_empty()))
        .boxed()
}
