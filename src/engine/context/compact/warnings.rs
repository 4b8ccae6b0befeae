//! Warnings about accepted compactions that may be a mistake.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    Inner, ReadPath,
    error::ReadError,
    history::{ENTRIES_PAGE, first_own},
};
use treering_context::names::tool_names_in;
use treering_domain::{
    AppendOutcome, AppendedEvent, BranchId, BranchState, Compacted, CompactionTrigger,
    ConversationKey, EventBody, Namespace, NewEvent, Revision, with_causes,
};
use treering_proto::body::EncodedBody;

/// Maximum number of names in a warning; the others are only counted.
const NAMES_TOLD_MAX: usize = 10;

/// Returns a batch's compactions, each with its index in the batch.
pub(crate) fn compactions_of(events: &[NewEvent<EncodedBody>]) -> Vec<(usize, Compacted)> {
    let compaction = |(index, event): (usize, &NewEvent<EncodedBody>)| match event.body.body() {
        EventBody::Compacted(compacted) => Some((index, compacted.clone())),
        _ => None,
    };
    events.iter().enumerate().filter_map(compaction).collect()
}

impl Inner {
    /// Adds warnings about a batch's compactions to its outcome.
    pub(crate) async fn warn_of_compactions(
        &self,
        namespace: &Namespace,
        compactions: &[(usize, Compacted)],
        outcome: &mut AppendOutcome,
    ) {
        for (index, compacted) in compactions {
            if let Some(event) = outcome.events.get(*index) {
                let warnings = self.compaction_warning(namespace, event, compacted).await;
                outcome.warnings.extend(warnings);
            }
        }
    }

    /// Returns the warnings about one compaction.
    pub(super) async fn compaction_warning(
        &self,
        namespace: &Namespace,
        event: &AppendedEvent,
        compacted: &Compacted,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        let at = event.revision;
        let imported = compacted.trigger == CompactionTrigger::Imported;
        if !imported && compacted.summary.trim().is_empty() {
            warnings.push(format!(
                "the compaction at revision {at} has no summary: the model does not see events \
                 before revision {}",
                compacted.cut_revision.next()
            ));
        }
        if !imported && (compacted.tokens_before == 0 || compacted.tokens_after == 0) {
            warnings.push(format!(
                "the compaction at revision {at} has no token counts before and after: Compact \
                 sets them"
            ));
        }
        match self.reads.tools_before(namespace, event).await {
            // An extract quotes the conversation, so tool names in it are expected.
            Ok(_) if self.options.heuristics.is_extract(&compacted.summary) => {}
            Ok(tools) => warnings.extend(naming(at, &compacted.summary, &tools)),
            // The compaction was appended; a failed check must not turn that into an error.
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "a compaction could not be checked")
            }
        }
        warnings
    }
}

impl ReadPath {
    /// Returns the tools that a branch knew before one of its events.
    async fn tools_before(
        &self,
        namespace: &Namespace,
        event: &AppendedEvent,
    ) -> Result<BTreeSet<String>, ReadError> {
        let before = self
            .branch_before(
                namespace.key(event.conversation),
                event.branch,
                event.revision,
            )
            .await?;
        let Some(before) = before else {
            return Ok(BTreeSet::new());
        };
        let memory = &before.memory;
        let mut tools: BTreeSet<String> = memory.tool_uses.keys().cloned().collect();
        tools.extend(memory.discovered_tools.iter().cloned());
        if let Some(at) = before.tools_defined
            && let EventBody::ToolsDefined { tools: defined } =
                &self.window_event(namespace, at).await?.body
        {
            tools.extend(defined.iter().map(|tool| tool.name.clone()));
        }
        Ok(tools)
    }

    /// Returns a branch's state just before one of its own events; `None` if there is no earlier
    /// event.
    pub(super) async fn branch_before(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<Arc<BranchState>>, ReadError> {
        let history = self.history();
        let first = first_own(branch);
        let mut last = Revision(revision.0.saturating_sub(1));
        while first <= last {
            let page =
                history
                    .projections
                    .entries(conversation, first, last, ENTRIES_PAGE, true)?;
            if let Some(own) = page.iter().find(|entry| entry.branch == branch) {
                let past = history
                    .branch_at(conversation, branch, own.revision)
                    .await?;
                return Ok(past.map(|past| past.state));
            }
            let Some(end) = page.last() else { break };
            last = Revision(end.revision.0.saturating_sub(1));
        }
        let Some(fork) = history.branch(conversation, branch)?.fork else {
            return Ok(None);
        };
        let past = history
            .branch_at(
                conversation.sibling(fork.conversation),
                fork.branch,
                fork.revision,
            )
            .await?;
        Ok(past.map(|past| past.state))
    }
}

fn naming(at: Revision, summary: &str, tools: &BTreeSet<String>) -> Option<String> {
    let names = tool_names_in(summary, tools);
    let told = names[..names.len().min(NAMES_TOLD_MAX)].join(", ");
    let more = match names.len().saturating_sub(NAMES_TOLD_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "the summary of the compaction at revision {at} names tools ({told}{more}): a \
             compaction clears discovered tools, so a summary should state outcomes instead"
        )
    })
}
