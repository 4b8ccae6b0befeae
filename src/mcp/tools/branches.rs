//! `branches` and `fork`: list the branches of a conversation, and fork one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::to_value;

use super::{ToolAnswer, given};
use crate::{bounds::BRANCHES_MAX, failure::Failure, place};
use treering_client::{Connection, names, read};
use treering_present::text::printable;
use treering_proto::pb;

/// Input of `branches`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BranchesInput {
    /// The conversation: id, its beginning, "@last", or words of its title
    conversation: String,
}

/// Output of `branches`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BranchesOutput {
    conversation: String,
    branches: Vec<Listed>,
}

/// A branch.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    name: String,
    /// Its newest revision
    head: u64,
    /// The last revision that it shares with the branch it was forked from
    #[serde(skip_serializing_if = "Option::is_none")]
    forked_after: Option<u64>,
    active: bool,
    archived: bool,
}

impl From<&pb::Branch> for Listed {
    fn from(branch: &pb::Branch) -> Self {
        Self {
            name: printable(&branch.name),
            head: branch.head,
            forked_after: (branch.branch_id > 0).then_some(branch.fork_revision),
            active: branch.active,
            archived: branch.archived,
        }
    }
}

/// Returns the branches.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn call(input: &BranchesInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let found = place::conversation(store, &input.conversation).await?;
    let state = read::state(store, &found.id, "", 0).await?;
    let all = state.branches.len();
    let branches: Vec<Listed> = state
        .branches
        .iter()
        .take(BRANCHES_MAX)
        .map(Listed::from)
        .collect();
    let mut text = format!("Branches of {}; * marks the active one:\n", found.called());
    for branch in &branches {
        let mark = if branch.active { "*" } else { " " };
        text.push_str(&format!("{mark} {}  head #{}", branch.name, branch.head));
        if let Some(after) = branch.forked_after {
            text.push_str(&format!(", forked after #{after}"));
        }
        if branch.archived {
            text.push_str(", archived");
        }
        text.push('\n');
    }
    if all > BRANCHES_MAX {
        text.push_str(&format!("and {} more\n", all - BRANCHES_MAX));
    }
    let output = BranchesOutput {
        conversation: found.called(),
        branches,
    };
    Ok(ToolAnswer::text(text).with(to_value(output).unwrap_or_default()))
}

/// Input of `fork`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkInput {
    /// CONVERSATION#REVISION: the last event that both share; without #REVISION, the end
    #[serde(alias = "reference")]
    address: String,
    /// The new branch's name
    name: String,
    /// The branch to fork, if not the one that has the event
    branch: Option<String>,
    /// Make the new branch the active one
    activate: Option<bool>,
}

/// The new branch.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ForkOutput {
    conversation: String,
    branch: String,
    forked_after: u64,
    head: u64,
}

/// Forks a branch.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn fork(
    input: ForkInput,
    store: &Connection,
    actor: &str,
) -> Result<ToolAnswer, Failure> {
    let found = place::conversation(store, &input.address).await?;
    let summary = found
        .state
        .as_ref()
        .and_then(|state| state.summary.as_ref());
    if summary.is_some_and(names::is_long_term) {
        return Err(Failure::new(
            "this conversation holds what is remembered for all sessions; a fork would hide that",
            "fork another session; use `remember` to change what is remembered",
        ));
    }
    let branch = given(input.branch.as_deref());
    place::check_branch(&found, branch)?;
    let branch = match found.revision {
        Some(revision) => place::branch_of(store, &found, branch, revision).await?,
        None => branch.unwrap_or_default().to_owned(),
    };
    let request = pb::ForkRequest {
        conversation_id: found.id.clone(),
        branch,
        at_revision: found.revision.unwrap_or(0),
        name: input.name,
        activate: input.activate.unwrap_or(false),
        actor: actor.to_owned(),
        ..Default::default()
    };
    let answer = store.conversations().fork(request).await?.into_inner();
    let branch = answer.branch.unwrap_or_default();
    let output = ForkOutput {
        conversation: found.called(),
        branch: printable(&branch.name),
        forked_after: branch.fork_revision,
        head: branch.head,
    };
    let text = format!(
        "Forked after #{} into the branch {} of {} (head #{}).",
        output.forked_after, output.branch, output.conversation, output.head
    );
    Ok(ToolAnswer::text(text).with(to_value(output).unwrap_or_default()))
}
