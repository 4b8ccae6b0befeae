//! Assigns lines to branches by `parentUuid`.
//!
//! The tool's tree has more forks than its user made: the results of parallel calls are children of
//! different lines of one assistant message, a message that the user wrote while the calls ran is a
//! sibling, and progress lines are children too. All of these continue the branch. A branch is
//! opened only where a prompt was repeated or an answer retried.

use std::collections::{HashMap, HashSet};

use super::line::SessionLine;
use crate::tree::{MessageRole, Parent, Tree};

#[derive(Clone, Copy)]
struct Step {
    index: usize,
    /// The first line of the assistant message that the step belongs to or answers.
    group: usize,
    is_results: bool,
    /// A message of the user or of a skill that was written while the calls of the group ran.
    is_aside: bool,
}

/// Assigns each line to a branch: one node per line.
pub(super) fn places(lines: &[SessionLine]) -> Tree {
    let mut tree = Tree::default();
    // A line that is not a step maps to the step that it follows.
    let mut known: HashMap<&str, Option<Step>> = HashMap::new();
    let mut steps: HashMap<usize, Step> = HashMap::new();
    let mut groups: HashMap<String, usize> = HashMap::new();
    // Groups whose lines name a stop reason.
    let mut finished: HashSet<usize> = HashSet::new();
    let mut last: Option<Step> = None;
    for (index, line) in lines.iter().enumerate() {
        let uuid = line.text_of("uuid");
        let parent = parent_of(line);
        let found = parent.and_then(|parent| known.get(parent).copied());
        // A line without a parent, or with an unknown one, follows the previous line.
        let is_lost = found.is_none() && (parent.is_some() || !line.names_parent());
        let step = if is_lost { last } else { found.flatten() };
        if !line.is_step() || (!uuid.is_empty() && known.contains_key(uuid)) {
            let branch = step.map_or(tree.current(), |step| tree.nodes[step.index].branch);
            tree.beside(branch);
            if !uuid.is_empty() {
                known.entry(uuid).or_insert(step);
            }
            continue;
        }
        let is_results = line.is_results();
        let is_aside = !is_results
            && line.is_user()
            && step.is_some_and(|step| asks_for_calls(&lines[step.index]));
        let group = match step {
            Some(step) if is_results || is_aside => step.group,
            _ if line.is_assistant() => {
                // Message ids may repeat: some servers have only a thousand. So a line joins an
                // answer with the same id only if it directly follows that answer. A result may
                // come between two calls of one answer, because a call is recorded and run as soon
                // as it is complete. So after a result, a line joins only if it has nothing but
                // calls.
                let id = line.message_id();
                let of_it = groups.get(&id).copied().filter(|group| {
                    step.is_some_and(|step| step.group == *group)
                        && (step.is_some_and(|step| lines[step.index].is_assistant())
                            || only_asks(line) && !finished.contains(group))
                });
                let group = of_it.unwrap_or(index);
                groups.insert(id, group);
                if line.said()["message"]["stop_reason"].is_string() {
                    finished.insert(group);
                }
                group
            }
            _ => index,
        };
        let this = Step {
            index,
            group,
            is_results,
            is_aside,
        };
        // It is normal that the parent of the first line is missing.
        let link = match last {
            Some(_) if is_lost && line.names_parent() && !line.is_boundary() => Parent::NotFound,
            _ => Parent::Fits,
        };
        match step {
            Some(step) => {
                let branch = tree.nodes[step.index].branch;
                let tip = tree.tip(branch).and_then(|tip| steps.get(&tip)).copied();
                let follows = |tip: Step| {
                    goes_on(&this, line, &step, &tip)
                        || tree.goes_on(step.index, told(line), |at| told(&lines[at]))
                };
                if is_lost || tip.is_some_and(follows) {
                    tree.continues(branch, link);
                } else {
                    tree.forks(Some(step.index));
                }
            }
            None if steps.is_empty() || told(line) != MessageRole::Said => {
                tree.continues(tree.current(), link);
            }
            None => tree.forks(None),
        }
        steps.insert(index, this);
        last = Some(this);
        if !uuid.is_empty() {
            known.insert(uuid, Some(this));
        }
    }
    tree
}

/// Returns the parent of a line. A compact boundary names it in `logicalParentUuid`, not in
/// `parentUuid`.
pub(super) fn parent_of(line: &SessionLine) -> Option<&str> {
    let fields = ["parentUuid", "logicalParentUuid"];
    fields
        .iter()
        .map(|field| line.text_of(field))
        .find(|parent| !parent.is_empty())
}

/// Classifies a line for the tree.
fn told(line: &SessionLine) -> MessageRole {
    if line.is_boundary() || line.flag("isCompactSummary") {
        return MessageRole::Compaction;
    }
    match line.prompt() {
        Some(text) if line.is_user() => MessageRole::of_user(text),
        _ => MessageRole::Said,
    }
}

/// Returns true for an answer, or a piece of one, that has only calls.
fn only_asks(line: &SessionLine) -> bool {
    let blocks = line.blocks();
    !blocks.is_empty() && blocks.iter().all(|block| block["type"] == "tool_use")
}

fn asks_for_calls(line: &SessionLine) -> bool {
    let mut blocks = line.blocks().iter();
    line.is_assistant() && blocks.any(|block| block["type"] == "tool_use")
}

/// Returns true when a step follows the tip of its branch although it names `parent`.
fn goes_on(this: &Step, line: &SessionLine, parent: &Step, tip: &Step) -> bool {
    if parent.index == tip.index {
        return true;
    }
    let same_round = parent.group == tip.group;
    let of_the_round = this.is_results || this.group == tip.group;
    let answers = |step: &Step| step.is_results || step.is_aside;
    let after_the_round = answers(parent) && answers(tip) && line.is_assistant();
    same_round && (of_the_round || after_the_round)
}
