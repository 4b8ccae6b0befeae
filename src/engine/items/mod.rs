//! Items: long-lived values of a namespace under a path and a key, stored as events of one
//! conversation.
//!
//! Each change is an event with the item's name as its event key, so that one look-up finds the
//! newest (`docs/decisions/0016-items.md`). This module executes batches of operations; names,
//! conditions and the stored form have modules of their own, searching is in `find`.

mod condition;
mod find;
mod name;
mod stored;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use bytes::Bytes;
use serde_json::Value;

pub use self::{
    condition::{Comparison, ItemCondition, PathMatch},
    name::{ItemName, NameFault},
};
use self::{
    find::{AnswerSpace, FoundItem},
    stored::{ItemContent, ItemMetadata, deleting, texts_of},
};
use super::{
    Engine, derived_id,
    error::{AppendError, ReadError, SearchError},
    meaning::SearchBy,
    work::PriorityClass,
};
use treering_domain::{
    AppendCommand, AppendOutcome, ConversationCreated, ConversationId, EventBody, EventRef,
    JsonText, Namespace, NewEvent, Position, TimestampMicros,
    limits::{ITEM_OPS_MAX, ITEM_SEARCH_DEFAULT, ITEM_SEARCH_MAX, ITEM_SEARCHES_MAX},
};
use treering_proto::json;

/// Label of the conversation that holds a namespace's items.
pub(crate) const ITEMS_LABEL: &str = "treering.items";

/// An item's current state.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberedItem {
    /// The item's name.
    pub name: ItemName,
    /// The value as JSON text, as it was put; `None` if the answer had no room for it.
    pub value: Option<JsonText>,
    /// When the item was first put, since its last deletion.
    pub created_at: TimestampMicros,
    /// When the item was last put.
    pub updated_at: TimestampMicros,
    /// When the item expires; `None` for never.
    pub expires_at: Option<TimestampMicros>,
    /// The event that holds this state.
    pub at: EventRef,
    /// The search score.
    pub score: Option<f32>,
}

/// An operation on items.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemOp {
    /// Gets one item.
    Get {
        /// Its name.
        name: ItemName,
        /// Restart the item's time to live.
        refresh: bool,
    },
    /// Puts an item, replacing an existing one.
    Put {
        /// Its name.
        name: ItemName,
        /// The value as JSON text.
        value: JsonText,
        /// Time to live; `None` for no expiry.
        ttl: Option<Duration>,
        /// The text that searches match; `None` for all texts in the value.
        text: Option<String>,
    },
    /// Deletes an item; a missing item is no error.
    Delete {
        /// Its name.
        name: ItemName,
    },
    /// Searches for items.
    Search(ItemSearch),
    /// Lists the paths that have items.
    Paths(PathsQuery),
}

impl ItemOp {
    /// Returns true when the operation may change an item.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Delete { .. } => true,
            Self::Get { refresh, .. } => *refresh,
            Self::Search(search) => search.refresh,
            Self::Paths(_) => false,
        }
    }
}

/// A search for items: newest first or, with a query, best match first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ItemSearch {
    /// Only items under this path; empty for any.
    pub under: Vec<String>,
    /// What to search for; empty for nothing.
    pub query: String,
    /// What of the query is compared.
    pub by: SearchBy,
    /// Conditions that must all hold.
    pub filter: Vec<ItemCondition>,
    /// Maximum number of items; 0 for ten.
    pub limit: usize,
    /// Number of items to skip.
    pub offset: usize,
    /// Restart the time to live of the items found.
    pub refresh: bool,
}

/// A query for paths, in sort order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathsQuery {
    /// Conditions that must all hold.
    pub matches: Vec<PathMatch>,
    /// Truncate paths to this many labels; 0 for no truncation.
    pub depth_max: usize,
    /// Maximum number of paths; 0 for a hundred.
    pub limit: usize,
    /// Number of paths to skip.
    pub offset: usize,
}

/// Operations that are executed as one step.
#[derive(Clone, Debug)]
pub struct ItemBatch {
    /// The tenant.
    pub namespace: Namespace,
    /// The operations, answered in this order.
    pub ops: Vec<ItemOp>,
    /// See [`AppendCommand::idempotency_key`]. Ignored when nothing changes.
    pub idempotency_key: Option<String>,
    /// See [`AppendCommand::key_life_seconds`].
    pub key_life_seconds: Option<NonZeroU32>,
    /// The actor, or empty.
    pub actor: String,
    /// Maximum size of all values in the answer, in bytes; the first value is always included.
    pub bytes_max: usize,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemAnswer {
    /// The answer to a get; `None` if the item does not exist.
    Got(Option<RememberedItem>),
    /// The answer to a search.
    Found {
        /// The items found.
        items: Vec<RememberedItem>,
        /// The scan limit was reached; there may be more items.
        is_partial: bool,
    },
    /// The answer to a list of paths.
    Paths {
        /// The paths found.
        paths: Vec<Vec<String>>,
        /// The scan limit was reached; there may be more paths.
        is_partial: bool,
    },
    /// The answer to a change.
    Changed,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemAnswers {
    /// The answers, in the order of the operations.
    pub answers: Vec<ItemAnswer>,
    /// Log position of the last appended event; `None` if nothing was appended.
    pub position: Option<Position>,
    /// The idempotency key was already known: this call changed nothing.
    pub repeated_key: bool,
}

/// Why a batch failed. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ItemsError {
    /// An operation is invalid.
    #[error("ops[{index}]: {message}")]
    Invalid {
        /// The index of the operation.
        index: usize,
        /// The fault, and what to do.
        message: String,
    },
    /// The batch has too many operations.
    #[error("{operations} operations; the maximum per batch is {ITEM_OPS_MAX}")]
    TooMany {
        /// The number of operations.
        operations: usize,
    },
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A search failed.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// An append failed.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Returns the conversation that holds the items of a namespace. The first put creates it.
#[must_use]
pub fn items_conversation(namespace: &Namespace) -> ConversationId {
    derived_id(namespace, "items", &[])
}

/// A change to an item.
enum Change<'a> {
    Put {
        name: &'a ItemName,
        value: &'a JsonText,
        ttl: Option<Duration>,
        text: Option<&'a String>,
    },
    Delete {
        name: &'a ItemName,
    },
    /// The item was read with refresh: its time to live restarts.
    Refresh {
        name: ItemName,
    },
}

impl Engine {
    /// Executes operations on items in one step. Reads see the state before the batch; either all
    /// changes are made or none; of several changes to one item, the last one counts.
    ///
    /// # Errors
    /// [`ItemsError`]; nothing was changed.
    pub async fn items(&self, batch: ItemBatch) -> Result<ItemAnswers, ItemsError> {
        check(&batch)?;
        let now = TimestampMicros::now();
        let mut room = AnswerSpace::new(batch.bytes_max);
        let (mut answers, mut refreshed) = (Vec::with_capacity(batch.ops.len()), Vec::new());
        for op in &batch.ops {
            let (answer, read) = self.answer(&batch.namespace, op, now, &mut room).await?;
            answers.push(answer);
            refreshed.extend(read);
        }
        let changes = changes(&batch.ops, refreshed);
        let mut done = ItemAnswers {
            answers,
            position: None,
            repeated_key: false,
        };
        if let Some(outcome) = self.change_items(&batch, changes, now).await? {
            done.position = outcome.events.last().map(|event| event.position);
            done.repeated_key = outcome.repeated_key;
        }
        Ok(done)
    }

    /// Executes the read part of an operation; also returns the items to be refreshed.
    async fn answer(
        &self,
        namespace: &Namespace,
        op: &ItemOp,
        now: TimestampMicros,
        room: &mut AnswerSpace,
    ) -> Result<(ItemAnswer, Vec<ItemName>), ItemsError> {
        let (answer, found, refresh) = match op {
            ItemOp::Get { name, refresh } => {
                let found = self.item(namespace, name, now).await?.map(|mut found| {
                    found.value = found.value.filter(|value| room.takes(value.len()));
                    (name.clone(), found)
                });
                let item = found.as_ref().map(|(name, found)| found.item(name));
                (ItemAnswer::Got(item), found.into_iter().collect(), *refresh)
            }
            ItemOp::Search(search) => {
                let found = self.search_items(namespace, search, now, room).await;
                let (found, is_partial) = found?;
                let items = found.iter().map(|(name, found)| found.item(name));
                let items = items.collect();
                (
                    ItemAnswer::Found { items, is_partial },
                    found,
                    search.refresh,
                )
            }
            ItemOp::Paths(query) => {
                let (paths, is_partial) = self.paths_of_items(namespace, query, now).await?;
                (ItemAnswer::Paths { paths, is_partial }, Vec::new(), false)
            }
            ItemOp::Put { .. } | ItemOp::Delete { .. } => (ItemAnswer::Changed, Vec::new(), false),
        };
        let lives_on = |(_, found): &(ItemName, FoundItem)| refresh && found.kept.ttl.is_some();
        let names = found.into_iter().filter(lives_on).map(|(name, _)| name);
        Ok((answer, names.collect()))
    }

    async fn change_items(
        &self,
        batch: &ItemBatch,
        changes: BTreeMap<String, Change<'_>>,
        now: TimestampMicros,
    ) -> Result<Option<AppendOutcome>, ItemsError> {
        let namespace = &batch.namespace;
        if changes.is_empty() {
            return Ok(None);
        }
        if let Some(key) = &batch.idempotency_key
            && let Some(outcome) = self.appended_with_key(namespace, key).await?
        {
            return Ok(Some(outcome));
        }
        let id = items_conversation(namespace);
        let branch = self.first_branch(namespace, id).await?;
        let (mut events, mut bytes) = (Vec::with_capacity(changes.len()), 0);
        let max = self.limits().batch_bytes_max;
        for (event_key, change) in &changes {
            let event = self.change_event(namespace, event_key, change, now).await?;
            if let Some(mut event) = event {
                bytes += stored::size_of(&event);
                if bytes > max {
                    // Stop before all of it is in memory: refreshing loads the values.
                    let (what, limit) = ("the batch, in bytes,", "batch_bytes_max");
                    let actual = bytes;
                    return Err(ItemsError::Append(AppendError::TooLarge {
                        what,
                        actual,
                        max,
                        limit,
                    }));
                }
                event.actor.clone_from(&batch.actor);
                event.branch.clone_from(&branch);
                events.push(event);
            }
        }
        if events.is_empty() {
            return Ok(None);
        }
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: "Items".to_owned(),
            labels: [(ITEMS_LABEL.to_owned(), "true".to_owned())].into(),
            ..ConversationCreated::default()
        });
        let mut created = NewEvent::new(id, created);
        created.actor.clone_from(&batch.actor);
        let mut command = AppendCommand::new(namespace.clone(), events);
        command.create_if_missing = Some(Box::new(created));
        command.idempotency_key.clone_from(&batch.idempotency_key);
        command.key_life_seconds = batch.key_life_seconds;
        Ok(Some(self.append(command).await?))
    }

    /// Returns the event for a change; `None` if nothing changes.
    async fn change_event(
        &self,
        namespace: &Namespace,
        event_key: &str,
        change: &Change<'_>,
        now: TimestampMicros,
    ) -> Result<Option<NewEvent>, ItemsError> {
        let conversation = items_conversation(namespace);
        match change {
            Change::Put {
                name,
                value,
                ttl,
                text,
            } => {
                let there = self.item_metadata(namespace, name, now).await?;
                let text = match text {
                    Some(text) => (*text).clone(),
                    None => json_of(value.as_bytes()).map_or_else(String::new, |v| texts_of(&v)),
                };
                let putting = ItemContent {
                    event_key,
                    value: value.as_bytes().clone(),
                    text,
                    ttl: *ttl,
                    created_at: there.map(|kept| kept.created_at),
                    updated_at: None,
                };
                Ok(Some(putting.event(conversation)))
            }
            Change::Delete { name } => {
                let there = self.item_metadata(namespace, name, now).await?;
                Ok(there.map(|_| deleting(conversation, event_key)))
            }
            Change::Refresh { name } => {
                let Some(found) = self.item(namespace, name, now).await? else {
                    return Ok(None);
                };
                let putting = ItemContent {
                    event_key,
                    value: found.value.unwrap_or_default(),
                    text: found.text,
                    ttl: found.kept.ttl,
                    created_at: Some(found.kept.created_at),
                    updated_at: Some(found.kept.updated_at),
                };
                Ok(Some(putting.event(conversation)))
            }
        }
    }

    /// Returns an existing item's metadata without its value.
    async fn item_metadata(
        &self,
        namespace: &Namespace,
        name: &ItemName,
        now: TimestampMicros,
    ) -> Result<Option<ItemMetadata>, ItemsError> {
        let (namespace, name) = (namespace.clone(), name.clone());
        let read = |engine: Self| async move {
            let found = engine.inner.reads.newest_of_item(&namespace, &name).await?;
            Ok::<_, ReadError>(found.map(|(_, kept)| kept).filter(|kept| kept.is_live(now)))
        };
        Ok(self.on(PriorityClass::Short, read).await?)
    }

    /// Returns the log position up to which everything is published.
    fn published(&self) -> Position {
        self.head()
    }
}

/// Merges the changes of a batch: the last change of an item counts, and a changed item is not
/// refreshed.
fn changes(ops: &[ItemOp], refreshed: Vec<ItemName>) -> BTreeMap<String, Change<'_>> {
    let mut changes = BTreeMap::new();
    for name in refreshed {
        if let Ok(key) = name.event_key() {
            changes.insert(key, Change::Refresh { name });
        }
    }
    for op in ops {
        let (name, change) = match op {
            ItemOp::Put {
                name,
                value,
                ttl,
                text,
            } => {
                let (ttl, text) = (*ttl, text.as_ref());
                let put = Change::Put {
                    name,
                    value,
                    ttl,
                    text,
                };
                (name, put)
            }
            ItemOp::Delete { name } => (name, Change::Delete { name }),
            ItemOp::Get { .. } | ItemOp::Search(_) | ItemOp::Paths(_) => continue,
        };
        if let Ok(key) = name.event_key() {
            changes.insert(key, change);
        }
    }
    changes
}

fn check(batch: &ItemBatch) -> Result<(), ItemsError> {
    let operations = batch.ops.len();
    if operations > ITEM_OPS_MAX {
        return Err(ItemsError::TooMany { operations });
    }
    let mut searches = 0;
    for (index, op) in batch.ops.iter().enumerate() {
        let invalid = |message: String| ItemsError::Invalid { index, message };
        let named = |name: &ItemName| name.event_key().map_err(|fault| invalid(fault.to_string()));
        match op {
            ItemOp::Get { name, .. } | ItemOp::Delete { name } => {
                named(name)?;
            }
            ItemOp::Put {
                name, value, ttl, ..
            } => {
                named(name)?;
                json::check_bytes(value.as_bytes().clone())
                    .map_err(|fault| invalid(format!("invalid value: {fault}")))?;
                if *ttl == Some(Duration::ZERO) {
                    let message = "the ttl is zero: omit it or set a longer one";
                    return Err(invalid(message.to_owned()));
                }
            }
            ItemOp::Search(_) | ItemOp::Paths(_) if searches == ITEM_SEARCHES_MAX => {
                let message = format!(
                    "the batch has more than {ITEM_SEARCHES_MAX} searches and lists of paths"
                );
                return Err(invalid(message));
            }
            ItemOp::Search(search) => {
                searches += 1;
                name::beginning(&search.under).map_err(|fault| invalid(fault.to_string()))?;
                check_page(search.limit, search.offset).map_err(invalid)?;
            }
            ItemOp::Paths(query) => {
                searches += 1;
                check_page(query.limit, query.offset).map_err(invalid)?;
            }
        }
    }
    Ok(())
}

fn check_page(limit: usize, offset: usize) -> Result<(), String> {
    let end = limit.max(ITEM_SEARCH_DEFAULT).saturating_add(offset);
    match end > ITEM_SEARCH_MAX {
        true => Err(format!(
            "limit plus offset is {end}; the maximum is {ITEM_SEARCH_MAX}"
        )),
        false => Ok(()),
    }
}

fn json_of(bytes: &Bytes) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}
