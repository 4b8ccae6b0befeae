//! The events that a compaction's summary stands for.

use futures::{StreamExt, TryStreamExt, stream::BoxStream};

use super::{ContextError, invalid};
use crate::{
    domain::{BranchState, ConversationId, EventBody, EventRef, Revision},
    engine::{
        Engine, Inner,
        error::ReadError,
        query::{BranchAddress, NamedEvent, ReadQuery, Source},
    },
};

/// Where what an earlier compaction stands for ends.
#[derive(Clone, Copy, Debug)]
struct EarlierCut {
    conversation: ConversationId,
    until: Revision,
}

impl Engine {
    /// The events that a compaction's summary stands for, oldest first: those after
    /// what the compaction before it stands for, up to its own cut, or, of one that
    /// an import brought, up to itself. None: the branch's last compaction.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] when the branch was not compacted (there).
    pub async fn expand(
        &self,
        address: &BranchAddress,
        compaction: Option<Revision>,
    ) -> Result<BoxStream<'static, Result<Vec<NamedEvent>, ReadError>>, ContextError> {
        let inner = &self.inner;
        let (namespace, conversation) = (&address.namespace, address.conversation);
        let now = inner.branch_at(address)?;
        let then = match compaction {
            Some(revision) => inner.as_of(conversation, &now, revision).await?,
            None => now.clone(),
        };
        let at = compaction_of(conversation, &then, compaction)?;
        let segments = inner.history().lineage(conversation, &now)?;
        let inside = segments.iter().find(|segment| {
            segment.conversation == at.conversation
                && (segment.first..=segment.last).contains(&at.revision)
        });
        let Some(segment) = inside else {
            return Err(invalid(format!(
                "the compaction at revision {} is not in the branch's history",
                at.revision
            )));
        };
        let before = inner
            .branch_before(segment.conversation, segment.branch, at.revision)
            .await?;
        let earlier = match before.and_then(|before| before.compaction) {
            Some(earlier) => Some(EarlierCut {
                conversation: earlier.conversation,
                until: inner.stands_until(earlier).await?,
            }),
            None => None,
        };
        let source = Source::Branch {
            conversation: segment.conversation,
            branch: Some(segment.name.clone()),
        };
        let mut query = ReadQuery::all(namespace.clone(), source);
        query.to = inner.stands_until(at).await?.0;
        match earlier {
            Some(earlier) if earlier.conversation == segment.conversation => {
                query.from = earlier.until.next().0;
                Ok(self.read(query))
            }
            Some(earlier) => Ok(after(self.read(query), earlier)),
            None => Ok(self.read(query)),
        }
    }
}

impl Inner {
    /// The last revision that the summary of a compaction stands for.
    async fn stands_until(&self, compaction: EventRef) -> Result<Revision, ReadError> {
        let event = self.window_event(None, compaction).await?;
        Ok(match &event.body {
            EventBody::Compacted(compacted) => compacted.stands_until(compaction.revision),
            _ => Revision::NONE,
        })
    }
}

/// The compaction that is meant.
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
            "revision {revision} of branch {name} is no compaction"
        ))),
        (None, None) => Err(invalid(format!(
            "branch {name} was never compacted, so there is nothing to expand"
        ))),
    }
}

/// What comes after a cut in a conversation further up: a conversation that was
/// forked from a compacted one goes on from there.
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
