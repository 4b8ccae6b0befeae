//! Reading events from a store: requests that several commands make.

use clap::builder::PossibleValue;
use tonic::Streaming;

use super::{connect::Connection, error::CliError, pb};
use crate::domain::EventKind;

/// A kind of event on the command line, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindArg(pub EventKind);

impl clap::ValueEnum for KindArg {
    fn value_variants<'a>() -> &'a [Self] {
        static KINDS: std::sync::LazyLock<Vec<KindArg>> =
            std::sync::LazyLock::new(|| EventKind::ALL.iter().copied().map(KindArg).collect());
        &KINDS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.as_str()))
    }
}

impl KindArg {
    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> i32 {
        i32::from(self.0.number())
    }
}

/// Everything that happened on a branch, its inherited history first.
#[must_use]
pub fn of_branch(conversation: &str, branch: &str) -> pb::ReadRequest {
    let source = pb::BranchSource {
        conversation_id: conversation.to_owned(),
        branch: branch.to_owned(),
    };
    pb::ReadRequest {
        source: Some(pb::read_request::Source::Branch(source)),
        ..Default::default()
    }
}

/// Everything that happened in a conversation, on any branch.
#[must_use]
pub fn of_conversation(conversation: &str) -> pb::ReadRequest {
    let source = pb::ConversationSource {
        conversation_id: conversation.to_owned(),
    };
    pb::ReadRequest {
        source: Some(pb::read_request::Source::Conversation(source)),
        ..Default::default()
    }
}

/// Starts reading.
///
/// # Errors
/// What the store says.
pub async fn start(
    store: &Connection,
    request: pb::ReadRequest,
) -> Result<Streaming<pb::ReadResponse>, CliError> {
    Ok(store.events().read(request).await?.into_inner())
}

/// A conversation and one branch; empty: the active one. Revision 0: now.
///
/// # Errors
/// What the store says.
pub async fn state(
    store: &Connection,
    conversation: &str,
    branch: &str,
    as_of_revision: u64,
) -> Result<pb::ConversationState, CliError> {
    let request = pb::GetConversationRequest {
        conversation_id: conversation.to_owned(),
        branch: branch.to_owned(),
        as_of_revision,
        ..Default::default()
    };
    let mut state = store.conversations().get(request).await?.into_inner();
    if state.more_branches {
        state.branches = branches(store, conversation).await?;
        state.more_branches = false;
    }
    Ok(state)
}

/// Appends a batch.
///
/// # Errors
/// What the store says.
pub async fn append(
    store: &Connection,
    request: pb::AppendRequest,
) -> Result<pb::AppendResponse, CliError> {
    Ok(store.events().append(request).await?.into_inner())
}

/// All branches of a conversation.
///
/// # Errors
/// What the store says.
pub async fn branches(
    store: &Connection,
    conversation_id: &str,
) -> Result<Vec<pb::Branch>, CliError> {
    let mut all = Vec::new();
    let mut request = pb::ListBranchesRequest {
        conversation_id: conversation_id.to_owned(),
        page_size: u32::MAX,
        ..Default::default()
    };
    loop {
        let page = store.conversations().list_branches(request.clone()).await?;
        let page = page.into_inner();
        all.extend(page.branches);
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}
