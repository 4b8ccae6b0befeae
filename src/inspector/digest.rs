//! Statistics shown for each conversation in the list. They are counted in the index and cached
//! until the conversation grows.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use prost::Message;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use super::{
    bounds::{DIGESTS_AT_ONCE, DIGESTS_KEPT, TITLE_CHARS},
    failure::PageFailure,
    parts::escape::first,
};
use treering_client::Connection;
use treering_present::text::parts_text;
use treering_proto::pb::{self, event::Body};

/// Messages that are searched for the first question.
const FIRST_MESSAGES: u64 = 4;

/// Statistics of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    /// Messages of the user.
    pub(crate) turns: u64,
    /// Tool calls.
    pub(crate) calls: u64,
    /// Tool calls that failed.
    pub(crate) failures: u64,
    /// The first question, when there is no title.
    pub(crate) question: String,
}

/// Namespace, conversation id and head.
type Key = (String, String, u64);

/// A cache of statistics.
#[derive(Debug)]
pub(crate) struct Digests {
    known: Cache<Key, Digest>,
    counting: Arc<Semaphore>,
}

impl Default for Digests {
    fn default() -> Self {
        Self {
            known: Cache::new(DIGESTS_KEPT),
            counting: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Digests {
    /// Returns the statistics of the conversations on a page, by conversation id. Statistics that
    /// are not cached are counted; those not ready within `wait` are left out until a later
    /// request.
    pub(crate) async fn of(
        self: &Arc<Self>,
        store: &Connection,
        summaries: &[pb::ConversationSummary],
        wait: Duration,
    ) -> HashMap<String, Digest> {
        let namespace = store.namespace().as_str().to_owned();
        let key = |summary: &pb::ConversationSummary| {
            let id = summary.conversation_id.clone();
            (namespace.clone(), id, summary.head)
        };
        let is_missing =
            |summary: &&pb::ConversationSummary| self.known.peek(&key(summary)).is_none();
        let missing: Vec<_> = summaries.iter().filter(is_missing).cloned().collect();
        if !missing.is_empty() {
            let (digests, store) = (Arc::clone(self), store.share());
            let counting = tokio::spawn(async move { digests.count(&store, missing).await });
            // Counting continues in the background after the timeout.
            let _late = tokio::time::timeout(wait, counting).await;
        }
        let known = summaries.iter().filter_map(|summary| {
            let digest = self.known.get(&key(summary))?;
            Some((summary.conversation_id.clone(), digest))
        });
        known.collect()
    }

    async fn count(&self, store: &Connection, missing: Vec<pb::ConversationSummary>) {
        // One page at a time: two requests for the same conversations count them once.
        let Ok(_turn) = self.counting.acquire().await else {
            return;
        };
        let namespace = store.namespace().as_str();
        let counted = stream::iter(missing).map(|summary| async move {
            let key = (
                namespace.to_owned(),
                summary.conversation_id.clone(),
                summary.head,
            );
            if self.known.peek(&key).is_some() {
                return;
            }
            match digest(store, &summary).await {
                Ok(digest) => self.known.insert(key, digest),
                Err(error) => tracing::debug!(?error, "a conversation could not be counted"),
            }
        });
        counted
            .buffer_unordered(DIGESTS_AT_ONCE)
            .collect::<()>()
            .await;
    }
}

async fn digest(
    store: &Connection,
    summary: &pb::ConversationSummary,
) -> Result<Digest, PageFailure> {
    let id = &summary.conversation_id;
    let of = |kind: pb::EventKind| pb::SearchRequest {
        conversation_id: id.clone(),
        kinds: vec![kind.into()],
        ..Default::default()
    };
    let asked = pb::SearchRequest {
        roles: vec![pb::Role::User.into()],
        ..of(pb::EventKind::MessageAppended)
    };
    let failed = pb::SearchRequest {
        success: Some(false),
        ..of(pb::EventKind::ToolResultRecorded)
    };
    let calls = of(pb::EventKind::ToolCallRequested);
    let (turns, calls, failures, question) = tokio::try_join!(
        count(store, asked),
        count(store, calls),
        count(store, failed),
        question(store, summary),
    )?;
    Ok(Digest {
        turns,
        calls,
        failures,
        question,
    })
}

async fn count(store: &Connection, request: pb::SearchRequest) -> Result<u64, PageFailure> {
    let request = pb::SearchRequest {
        limit: 1,
        every_copy: true,
        count_all: true,
        ..request
    };
    Ok(store.search().search(request).await?.into_inner().total)
}

async fn question(
    store: &Connection,
    summary: &pb::ConversationSummary,
) -> Result<String, PageFailure> {
    if !summary.title.trim().is_empty() || summary.damage.is_some() {
        return Ok(String::new());
    }
    let source = pb::read_request::Source::Conversation(pb::ConversationSource {
        conversation_id: summary.conversation_id.clone(),
    });
    let request = pb::ReadRequest {
        source: Some(source),
        kinds: vec![pb::EventKind::MessageAppended.into()],
        limit: FIRST_MESSAGES,
        ..Default::default()
    };
    let mut answers = store.events().read(request).await?.into_inner();
    while let Some(answer) = answers.next().await {
        for event in answer?.events {
            if let Some(Body::MessageAppended(bytes)) = &event.body
                && let Ok(message) = pb::MessageAppended::decode(bytes.as_ref())
                && message.role() == pb::Role::User
            {
                let text = parts_text(&message.parts);
                return Ok(first(&text, TITLE_CHARS));
            }
        }
    }
    Ok(String::new())
}
