//! Memory sizes of states, for caches that are limited in bytes.
//!
//! The sizes are estimates; a test compares them with the allocator. Counting only the structs
//! would let the caches hold several times their limit.

use std::collections::BTreeMap;

use super::{
    event::{Config, Entity},
    state::{BranchState, ConversationInfo, ConversationRow, ConversationState, WorkingMemory},
};

/// Allocator overhead of one allocation, in bytes.
const ALLOCATION_BYTES: usize = 16;
/// Capacity of a B-tree node in the standard library, and its average number of entries
/// after a split.
const NODE_ENTRIES: usize = 11;
const NODE_ENTRIES_USED: usize = 7;
/// Size of a node besides its entries, in bytes.
const NODE_BYTES: usize = 32;

fn block(bytes: usize) -> usize {
    if bytes == 0 {
        0
    } else {
        bytes + ALLOCATION_BYTES
    }
}

/// Returns the size of a map's nodes, without what the entries point to.
fn map<K, V>(map: &BTreeMap<K, V>) -> usize {
    let node = block(NODE_ENTRIES * size_of::<(K, V)>() + NODE_BYTES);
    let nodes = match map.len() {
        0 => 0,
        1..=NODE_ENTRIES => 1,
        len => len.div_ceil(NODE_ENTRIES_USED) * 9 / 8 + 1,
    };
    nodes * node
}

fn texts(of: &BTreeMap<String, String>) -> usize {
    let texts = of.iter().map(|(key, value)| text(key) + text(value));
    map(of) + texts.sum::<usize>()
}

fn text(text: &String) -> usize {
    block(text.capacity())
}

fn list(of: &Vec<String>) -> usize {
    block(of.capacity() * size_of::<String>()) + of.iter().map(text).sum::<usize>()
}

fn entity(entity: &Entity) -> usize {
    text(&entity.id) + text(&entity.kind) + text(&entity.name)
}

impl WorkingMemory {
    fn held_bytes(&self) -> usize {
        list(&self.discovered_tools)
            + list(&self.guidance_given)
            + block(self.entities.capacity() * size_of::<Entity>())
            + self.entities.iter().map(entity).sum::<usize>()
            + map(&self.tool_uses)
            + self.tool_uses.keys().map(text).sum::<usize>()
    }
}

impl Config {
    fn held_bytes(&self) -> usize {
        text(&self.model_id) + text(&self.mode) + texts(&self.parameters)
    }
}

impl BranchState {
    /// Estimates the memory that the state takes, in bytes.
    #[must_use]
    pub fn estimated_bytes(&self) -> usize {
        let calls = self.open_calls.iter();
        let calls: usize = calls.map(|(id, call)| text(id) + text(&call.tool)).sum();
        let children = self.sub_contexts.values();
        let children: usize = children.map(|child| text(&child.call_id)).sum();
        let keys: usize = self.active_context.keys().map(text).sum();
        block(size_of::<Self>())
            + block(self.name.as_str().len())
            + map(&self.open_calls)
            + calls
            + map(&self.sub_contexts)
            + children
            + self.config.held_bytes()
            + block(size_of_val(self.preamble.as_slice()))
            + map(&self.active_context)
            + keys
            + self.memory.held_bytes()
    }
}

impl ConversationInfo {
    fn estimated_bytes(&self) -> usize {
        let parent = self
            .parent
            .as_ref()
            .map_or(0, |parent| text(&parent.call_id));
        block(size_of::<Self>())
            + text(&self.title)
            + texts(&self.labels)
            + texts(&self.metadata)
            + parent
            + texts(&self.policies)
            + text(&self.source)
            + text(&self.source_id)
    }
}

impl ConversationRow {
    fn held_bytes(&self) -> usize {
        let damage = self
            .damage
            .as_ref()
            .map_or(0, |damage| size_of_val(&**damage));
        block(self.namespace.as_str().len()) + self.info.estimated_bytes() + block(damage)
    }
}

impl ConversationState {
    /// Estimates the memory that the state takes, in bytes. Memory shared by several states counts
    /// for each of them.
    #[must_use]
    pub fn estimated_bytes(&self) -> usize {
        let branches = self.branches.values();
        let branches: usize = branches.map(|branch| branch.estimated_bytes()).sum();
        // The names share memory with the branches.
        size_of::<Self>() + self.row.held_bytes() + self.map_bytes() + branches
    }

    fn map_bytes(&self) -> usize {
        map(&self.branches) + map(self.names())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use allocation_counter::measure;

    use super::*;
    use crate::{
        BranchId, BranchName, ContentHash, ConversationCreated, ConversationId, EventBody,
        EventRef, JsonText, Namespace, Position, Revision, TimestampMicros, ToolCallRequested,
    };

    /// Builds a conversation with this many branches, each with `each` keys, tools and calls.
    fn conversation(branches: u64, each: usize) -> ConversationState {
        let id = ConversationId::generate();
        let mut root = BranchState::root();
        for number in 0..each {
            let at = EventRef {
                conversation: id,
                revision: Revision(number as u64 + 1),
            };
            let text = |what: &str| format!("{what} of some length {number}");
            root.active_context.insert(text("key"), at);
            root.memory.discovered_tools.push(text("tool"));
            let call = ToolCallRequested {
                call_id: text("call"),
                tool: text("tool"),
                arguments: JsonText::default(),
                arguments_hash: ContentHash([0; 32]),
                message_revision: None,
                needs_approval: false,
                ..ToolCallRequested::default()
            };
            root.apply(at, &EventBody::ToolCallRequested(call));
        }
        let created = ConversationCreated {
            title: "What was asked for first".to_owned(),
            labels: [("project".to_owned(), "treering".to_owned())].into(),
            ..ConversationCreated::default()
        };
        let all = (0..branches).map(|number| {
            let name = BranchName::new(&format!("branch {number}")).unwrap();
            Arc::new(BranchState {
                id: BranchId(number),
                name,
                ..root.clone()
            })
        });
        let row = ConversationRow {
            namespace: Namespace::new("some-tenant").unwrap(),
            id,
            info: Arc::new(ConversationInfo::new(&created, id)),
            head: Revision(1),
            chain_hash: ContentHash([0; 32]),
            first_position: Position::default(),
            last_position: Position::default(),
            active: BranchId::MAIN,
            branch_count: branches,
            sealed: false,
            created_at: TimestampMicros(0),
            updated_at: TimestampMicros(0),
            happened_from: TimestampMicros(0),
            happened_to: TimestampMicros(0),
            damage: None,
        };
        ConversationState::new(row, all.collect::<Vec<_>>())
    }

    // A server grew without bound under a mixed load: its cache of states, which is bounded in
    // bytes, counted only a part of what it held.
    #[test]
    fn estimated_bytes_match_the_allocator() {
        for (branches, each) in [(1, 0), (1, 1), (1, 30), (3, 4), (100, 0), (40, 50)] {
            let mut kept = None;
            let taken = measure(|| kept = Some(conversation(branches, each)));
            let counted = kept.unwrap().estimated_bytes() as f64;
            let ratio = counted / taken.bytes_current as f64;
            assert!(
                (0.9..=1.7).contains(&ratio),
                "{branches} branches of {each}: counted {counted}, taken {}",
                taken.bytes_current
            );
        }
    }
}
