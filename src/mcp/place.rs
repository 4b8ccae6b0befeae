//! What a model means by a conversation, and by an event of it: the same names that people type.

use super::failure::Failure;
use crate::cli::{
    CliError, Connection,
    names::{self, FoundConversation},
};

/// One event.
#[derive(Clone, Debug)]
pub struct EventPlace {
    /// The conversation, as every call takes it.
    pub id: String,
    /// The conversation, as it is shown.
    pub called: String,
    /// The branch that has the event; empty: the active one.
    pub branch: String,
    /// The event.
    pub revision: u64,
}

impl EventPlace {
    /// As every tool takes it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}#{}", self.called, self.revision)
    }
}

/// The event that a reference names.
///
/// # Errors
/// When there is none, or several may be meant.
pub async fn event(
    store: &Connection,
    reference: &str,
    branch: Option<&str>,
) -> Result<EventPlace, Failure> {
    let found = names::find(store, reference).await?;
    let Some(revision) = found.revision else {
        return Err(Failure::new(
            format!(
                "`{}` is a whole conversation, not one event of it",
                found.called()
            ),
            "give CONVERSATION#REVISION, as `search` and `around` print it; \
             `search` with `conversation` finds places in it",
        ));
    };
    let branch = branch_of(store, &found, branch, revision).await?;
    Ok(EventPlace {
        called: found.called(),
        id: found.id,
        branch,
        revision,
    })
}

/// The branch that has a revision; empty: the active one.
///
/// # Errors
/// When it has not, or there is no such branch.
pub async fn branch_of(
    store: &Connection,
    found: &FoundConversation,
    branch: Option<&str>,
    revision: u64,
) -> Result<String, Failure> {
    check_branch(found, branch)?;
    let given = branch.is_some();
    let branch = names::branch_of(store, found, branch, revision).await;
    branch
        .map(Option::unwrap_or_default)
        .map_err(|error| match error {
            CliError::NotFound { what, .. } => {
                let hint = match given {
                    true => "leave `branch` out, or look at the tool `branches`",
                    false => "the tool `branches` says how far each branch is",
                };
                Failure::new(what, hint)
            }
            error => error.into(),
        })
}

/// The conversation that a text means, whatever event of it is named with it.
///
/// # Errors
/// When there is none, or several may be meant.
pub async fn conversation(store: &Connection, text: &str) -> Result<FoundConversation, Failure> {
    Ok(names::find(store, text).await?)
}

/// That a branch is there, if one is named.
///
/// # Errors
/// When it is not.
pub fn check_branch(found: &FoundConversation, branch: Option<&str>) -> Result<(), Failure> {
    let Some(branch) = branch else { return Ok(()) };
    names::check_branch(found, branch)
        .map_err(|error| Failure::new(error.to_string(), "the tool `branches` lists them"))
}
