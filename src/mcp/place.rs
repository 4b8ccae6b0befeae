//! Resolves the names of conversations and events that a model uses: the same as on the command
//! line.

use super::failure::Failure;
use treering_client::{
    ClientError, Connection,
    names::{self, FoundConversation},
};

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct EventPlace {
    /// The conversation's id, for calls.
    pub(crate) id: String,
    /// The conversation's name, for output.
    pub(crate) called: String,
    /// The branch of the event; empty: the active one.
    pub(crate) branch: String,
    /// The revision of the event.
    pub(crate) revision: u64,
}

impl EventPlace {
    /// Returns the address that tools accept.
    #[must_use]
    pub(crate) fn address(&self) -> String {
        format!("{}#{}", self.called, self.revision)
    }
}

/// Finds the event that a reference names.
///
/// # Errors
/// When there is none, or the reference is ambiguous.
pub(crate) async fn event(
    store: &Connection,
    reference: &str,
    branch: Option<&str>,
) -> Result<EventPlace, Failure> {
    let found = names::find(store, reference).await?;
    let Some(revision) = found.revision else {
        return Err(Failure::new(
            format!("`{}` is a conversation, not an event", found.called()),
            "use CONVERSATION#REVISION, as `search` and `around` print it; `search` with \
             `conversation` finds events in it",
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

/// Returns the branch of a revision; empty: the active one.
///
/// # Errors
/// When the branch does not exist or does not have the revision.
pub(crate) async fn branch_of(
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
            ClientError::NotFound { what, .. } => {
                let hint = match given {
                    true => "omit `branch`, or see the tool `branches`",
                    false => "the tool `branches` shows the head of each branch",
                };
                Failure::new(what, hint)
            }
            error => error.into(),
        })
}

/// Finds the conversation that a text names; an event in it is ignored.
///
/// # Errors
/// When there is none, or the text is ambiguous.
pub(crate) async fn conversation(
    store: &Connection,
    text: &str,
) -> Result<FoundConversation, Failure> {
    Ok(names::find(store, text).await?)
}

/// Checks that a branch exists, if one is named.
///
/// # Errors
/// When it does not exist.
pub(crate) fn check_branch(found: &FoundConversation, branch: Option<&str>) -> Result<(), Failure> {
    let Some(branch) = branch else { return Ok(()) };
    names::check_branch(found, branch)
        .map_err(|error| Failure::new(error.to_string(), "the tool `branches` lists them"))
}
