//! Assigns messages to branches by `x.parent`.

use serde_json::Value;

use super::is_compaction;
use crate::tree::{MessageRole, Parent, Tree};

/// A message without `x.parent` follows the previous one. So does one whose parent is missing or
/// null: lists are cut and joined, and a missing message must not drop the earlier history.
///
/// If a message has two children, the later child begins a branch, unless it has no children of its
/// own and cannot be a branch ([`LeafPlacement::of`]).
pub(super) fn places<'a>(messages: impl Iterator<Item = &'a Value>) -> Tree {
    let messages: Vec<&Value> = messages.collect();
    let last_child = last_children(&messages);
    let mut tree = Tree::default();
    for (index, message) in messages.iter().enumerate() {
        let earlier = parent_of(message, index);
        let link = match message.get("x").and_then(|x| x.get("parent")) {
            _ if earlier.is_some() => Parent::Fits,
            None => Parent::Fits,
            Some(Value::Null) if index == 0 || is_compaction(message) => Parent::Fits,
            Some(Value::Null) => Parent::Denied,
            Some(_) => Parent::NotFound,
        };
        let Some(parent) = earlier.filter(|_| index > 0) else {
            tree.continues(tree.current(), link);
            continue;
        };
        let branch = tree.nodes[parent].branch;
        let tip = tree.tip(branch).unwrap_or(parent);
        let is_passed = last_child[index].is_none() && last_child[tip] > Some(index);
        let this = told(message);
        let goes_on = tip == parent || tree.goes_on(parent, this, |at| told(messages[at]));
        // Local commands always stay on the branch. Otherwise, a later message could show that they
        // have no children and so move them, and a session that grew would contain them twice.
        if goes_on && (this == MessageRole::Local || !is_passed) {
            tree.continues(branch, link);
            continue;
        }
        // A result of the last batch of calls belongs to the branch whatever follows, and so does a
        // message of the user before all results are present.
        let is_inside = tip != parent
            && match message["role"].as_str() {
                Some("tool") => true,
                Some("user") => message["x"]["meta"] != true && is_open(&messages[..index], parent),
                _ => false,
            }
            && !tree.is_answered(parent, |at| messages[at]["role"] == "assistant");
        let telling =
            (is_passed || is_inside).then(|| LeafPlacement::of(&messages, &tree, index, parent));
        match telling.flatten() {
            Some(LeafPlacement::Inside) => tree.joins(branch),
            Some(LeafPlacement::Beside) => tree.beside(branch),
            None if goes_on => tree.continues(branch, link),
            None => tree.forks(Some(parent)),
        }
    }
    tree
}

/// Classifies a message for the tree.
fn told(message: &Value) -> MessageRole {
    if is_compaction(message) {
        return MessageRole::Compaction;
    }
    if message["role"] != "user" {
        return MessageRole::Said;
    }
    // This runs for every message, so nothing is copied.
    let content = &message["content"];
    let in_parts = || {
        let mut parts = content.as_array()?.iter();
        parts.find_map(|part| part["text"].as_str())
    };
    let first = content.as_str().or_else(in_parts);
    first.map_or(MessageRole::Said, MessageRole::of_user)
}

/// Returns the earlier message that a message names as its parent.
fn parent_of(message: &Value, index: usize) -> Option<usize> {
    let parent = message.get("x")?.get("parent")?.as_u64()?;
    usize::try_from(parent)
        .ok()
        .filter(|parent| *parent < index)
}

/// Returns true when a call of the message has no result so far.
fn is_open(messages: &[&Value], parent: usize) -> bool {
    asked(messages[parent]).any(|id| {
        let mut behind = messages[parent..].iter();
        !behind.any(|message| message["tool_call_id"] == id)
    })
}

/// Returns the last child of each message.
fn last_children(messages: &[&Value]) -> Vec<Option<usize>> {
    let mut last = vec![None; messages.len()];
    for (index, message) in messages.iter().enumerate() {
        if let Some(parent) = parent_of(message, index) {
            last[parent] = Some(index);
        }
    }
    last
}

/// How to treat a message without children when its branch continues without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafPlacement {
    /// A part of the branch: the only result of a call, or what the user said while calls ran. The
    /// model saw both, and nobody forks inside a batch of calls.
    Inside,
    /// A notice of a harness that the model never saw.
    Beside,
}

impl LeafPlacement {
    fn of(messages: &[&Value], tree: &Tree, index: usize, parent: usize) -> Option<Self> {
        /// Maximum number of messages between a call and its result.
        const BACK: usize = 64;
        let message = messages[index];
        let branch = tree.nodes[parent].branch;
        let before = (0..index).rev().take(BACK);
        let mut before = before.filter(|at| tree.nodes[*at].branch == branch);
        match message["role"].as_str()? {
            "tool" => {
                let id = message["tool_call_id"].as_str()?;
                let tells = before.find_map(|at| {
                    let asks = asked(messages[at]).any(|asked| asked == id);
                    let answers = messages[at]["tool_call_id"] == id;
                    (asks || answers).then_some(asks)
                });
                // Of two results of a call, the branch continues with the first.
                let mut after = messages.iter().enumerate().skip(index + 1).take(BACK);
                let is_next = tree.tip(branch) == Some(parent);
                let is_first = is_next
                    && after.any(|(at, other)| {
                        other["tool_call_id"] == id && parent_of(other, at) == Some(parent)
                    });
                (tells == Some(true) && !is_first).then_some(Self::Inside)
            }
            "user" if message["x"]["meta"] == true => Some(Self::Beside),
            "user" => {
                let mut results = before.take_while(|at| *at > parent);
                let in_batch = asked(messages[parent]).next().is_some()
                    && results.all(|at| messages[at]["role"] == "tool");
                in_batch.then_some(Self::Inside)
            }
            _ => None,
        }
    }
}

/// Returns the ids of a message's calls.
fn asked(message: &Value) -> impl Iterator<Item = &str> {
    let calls = message["tool_calls"].as_array();
    let calls = calls.map_or(&[][..], Vec::as_slice).iter();
    calls.filter_map(|call| call["id"].as_str())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{
        source::LineSource,
        transcript::BranchIndex,
        tree::{Attachment, Node},
    };

    fn drawn(parents: &[Value]) -> Vec<(usize, Attachment)> {
        let messages: Vec<_> = parents
            .iter()
            .map(|parent| match parent {
                Value::String(_) => json!({"role": "user"}),
                parent => json!({"role": "user", "x": {"parent": parent}}),
            })
            .collect();
        let tree = places(messages.iter());
        let places = tree.nodes.iter().map(|node| (node.branch.0, node.place));
        places.collect()
    }

    // The first child continues the branch, others fork. A parent that comes later must not be
    // followed. A null parent in the middle (its message was cut off) must not fork at the
    // beginning, or the model loses all history before it.
    #[test]
    fn first_child_continues_and_others_fork() {
        use Attachment::*;
        let none = json!("none");
        assert_eq!(
            drawn(&[
                json!(null),
                json!(0),
                json!(0),
                json!(1),
                json!(2),
                json!(1)
            ]),
            [
                (0, Continues),
                (0, Continues),
                (1, Forks { parent: 0 }),
                (0, Continues),
                (1, Continues),
                (2, Forks { parent: 1 }),
            ]
        );
        assert_eq!(
            drawn(&[json!(null), json!(null), json!(0), none.clone(), none]),
            [
                (0, Continues),
                (0, Continues),
                (1, Forks { parent: 0 }),
                (1, Continues),
                (1, Continues),
            ]
        );
        let odd = places([json!({"x": {"parent": 7}}), json!({"x": {"parent": -1}})].iter());
        assert!(odd.nodes.iter().all(|node| node.parent == Parent::NotFound));
        assert!(
            odd.nodes
                .iter()
                .all(|node| node.branch == BranchIndex::MAIN)
        );
    }

    // A compaction starts a new root in the source, but the conversation continues.
    #[test]
    fn compaction_continues_its_branch() {
        let boundary = json!({"role": "system", "x": {"parent": null, "compact_boundary": {}}});
        let first = json!({"role": "user", "x": {"parent": null}});
        let tree = places([first, boundary].iter());
        assert_eq!(tree.nodes[1].place, Attachment::Continues);
    }

    fn asks(parent: Option<usize>, ids: &[&str]) -> Value {
        let calls = ids.iter().map(|id| json!({"id": id}));
        let calls: Vec<_> = calls.collect();
        json!({"role": "assistant", "tool_calls": calls, "x": {"parent": parent}})
    }

    fn says(role: &str, parent: usize, id: &str) -> Value {
        json!({"role": role, "tool_call_id": id, "x": {"parent": parent}})
    }

    fn branches(messages: &[Value]) -> Vec<usize> {
        let tree = places(messages.iter());
        tree.nodes.iter().map(|node| node.branch.0).collect()
    }

    // The result of a call may be a sibling of a skill's text that came with it. It must stay on
    // the branch, or the model sees the call as failed. Messages that users wrote while calls ran
    // must stay too, because the model answered them. A repeated result is another branch, and so
    // is anything that has children or may yet have some.
    #[test]
    fn messages_between_calls_and_results_open_no_branch() {
        let skill = json!({"role": "user", "x": {"parent": null, "meta": true}});
        let launched = [
            asks(None, &["a"]),
            skill,
            says("tool", 0, "a"),
            says("assistant", 1, ""),
        ];
        assert_eq!(branches(&launched), [0, 0, 0, 0]);
        assert_eq!(branches(&launched[..3]), [0, 0, 0]);
        let again = says("tool", 0, "a");
        let end = says("assistant", 3, "");
        let [asked, skill, result, next] = launched;
        assert_eq!(
            branches(&[asked, skill, result, next, again, end]),
            [0, 0, 0, 0, 1, 0]
        );
        let batch = |said: Value, next: usize| {
            let mut all = vec![asks(None, &["a", "b"]), says("tool", 0, "a")];
            all.extend([says("tool", 1, "b"), said, says("assistant", next, "")]);
            all
        };
        assert_eq!(branches(&batch(says("user", 0, ""), 2)), [0; 5]);
        assert_eq!(branches(&batch(says("user", 0, ""), 3)), [0, 0, 0, 1, 1]);
        let mut later = vec![asks(None, &["a"]), says("user", 0, "")];
        later.extend([says("tool", 0, "a"), says("assistant", 2, "")]);
        assert_eq!(branches(&later), [0; 4]);
    }

    // The output of `/compact` is a child of the command, but the compaction is a child of the
    // message before the command. The compaction must continue the branch. Otherwise, everything
    // that the user says next is on a branch that has the full history instead of the summary.
    #[test]
    fn output_of_a_user_command_opens_no_branch() {
        let user = |parent: Value, content: &str| json!({"role": "user", "content": content, "x": {"parent": parent}});
        let mut messages = vec![
            user(json!(null), "go on"),
            json!({"role": "assistant", "x": {"parent": 0}}),
            user(json!(null), "<local-command-caveat>Caveat"),
            user(json!(2), "<command-name>/compact</command-name>"),
            json!({"role": "system", "x": {"parent": 1, "compact_boundary": {}}}),
            json!({"role": "user", "x": {"parent": 4, "compact_summary": true}}),
            user(json!(3), "<local-command-stdout>Compacted"),
            user(json!(6), "and the tests?"),
        ];
        assert_eq!(branches(&messages), [0; 8]);
        // An answer after a command is not a retry of an earlier one.
        messages.truncate(4);
        messages.push(json!({"role": "assistant", "x": {"parent": 1}}));
        assert_eq!(branches(&messages), [0; 5]);
        // A message that continues from before the compaction, or from before an answer, is a
        // branch.
        messages.truncate(4);
        messages.push(json!({"role": "system", "x": {"parent": 1, "compact_boundary": {}}}));
        messages.push(user(json!(3), "not like this"));
        assert_eq!(branches(&messages), [0, 0, 0, 0, 0, 1]);
        assert_eq!(
            branches(&[
                messages[0].clone(),
                messages[1].clone(),
                user(json!(0), "x")
            ])[2],
            1
        );
    }

    // Notices about commands that the user ran must not become branches.
    #[test]
    fn notices_of_user_commands_are_not_branches() {
        let notice = json!({"role": "user", "x": {"parent": 0, "meta": true}});
        let mut messages = vec![json!({"role": "assistant"}), says("user", 0, "")];
        messages.extend([notice, says("assistant", 1, "")]);
        let tree = places(messages.iter());
        assert!(tree.nodes[2].is_beside && tree.nodes[3].branch == BranchIndex::MAIN);
        // The last message may be where the conversation continues.
        assert!(!places(messages[..3].iter()).nodes[2].is_beside);
    }

    // A session may be imported at any moment while it grows. A later message must not change the
    // place of an earlier one, or that one is stored twice, on a false branch.
    #[test]
    fn later_messages_do_not_move_earlier_ones() {
        let Some(folder) = std::env::var_os("TREERING_TEST_DATA") else {
            println!("skipped: TREERING_TEST_DATA does not name the data folder");
            return;
        };
        let file = Path::new(&folder).join("trajectories/claude-code-entire.jsonl.zst");
        let mut moved = Vec::new();
        let mut cuts = 0;
        for (_, line) in LineSource::open(&file, |_| {}).unwrap() {
            let session: Value = serde_json::from_slice(&line.unwrap()).unwrap();
            let messages = session["messages"].as_array().unwrap();
            let place = |node: &Node| (node.branch, node.place, node.is_beside);
            let whole: Vec<_> = places(messages.iter()).nodes.iter().map(place).collect();
            let ends = (1..messages.len()).step_by(1 + messages.len() / 64);
            // Sessions often end with commands.
            let local =
                (1..messages.len()).filter(|at| told(&messages[at - 1]) == MessageRole::Local);
            for end in ends.chain(local) {
                cuts += 1;
                let early: Vec<_> = places(messages[..end].iter())
                    .nodes
                    .iter()
                    .map(place)
                    .collect();
                let at = early
                    .iter()
                    .zip(&whole)
                    .position(|(early, late)| early != late);
                moved.extend(at.map(|at| format!("{} {at} at {end}", session["id"])));
            }
        }
        assert!(cuts > 1_000, "{cuts}");
        assert!(moved.is_empty(), "{} of {cuts}: {moved:#?}", moved.len());
    }
}
