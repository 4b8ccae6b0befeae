//! What is legal about a compaction and may still be a mistake.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    codec::body::EncodedBody,
    context::{compaction::tool_names_in, summary::is_extract},
    domain::{
        AppendOutcome, Appended, BranchId, BranchState, Compacted, CompactionTrigger,
        ConversationId, EventBody, NewEvent, Revision, with_causes,
    },
    engine::{
        Inner,
        error::ReadError,
        history::{ENTRIES_PAGE, first_own},
    },
};

/// Names that are told in a warning; of the rest there is a number.
const NAMES_TOLD_MAX: usize = 10;

/// A batch's compactions, each with its place in the batch.
pub(in crate::engine) fn compactions_of(
    events: &[NewEvent<EncodedBody>],
) -> Vec<(usize, Compacted)> {
    let compaction = |(index, event): (usize, &NewEvent<EncodedBody>)| match event.body.body() {
        EventBody::Compacted(compacted) => Some((index, compacted.clone())),
        _ => None,
    };
    events.iter().enumerate().filter_map(compaction).collect()
}

impl Inner {
    /// Adds what there is to say about a batch's compactions to its outcome.
    pub(in crate::engine) async fn warn_of_compactions(
        &self,
        compactions: &[(usize, Compacted)],
        outcome: &mut AppendOutcome,
    ) {
        for (index, compacted) in compactions {
            if let Some(event) = outcome.events.get(*index) {
                let warnings = self.compaction_warning(event, compacted).await;
                outcome.warnings.extend(warnings);
            }
        }
    }

    /// What there is to say about one compaction.
    pub(super) async fn compaction_warning(
        &self,
        event: &Appended,
        compacted: &Compacted,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        let at = event.revision;
        let imported = compacted.trigger == CompactionTrigger::Imported;
        if !imported && compacted.summary.trim().is_empty() {
            warnings.push(format!(
                "the compaction at revision {at} has no summary: what came before revision {} is \
                 out of sight for the model",
                compacted.cut_revision.next()
            ));
        }
        if !imported && (compacted.tokens_before == 0 || compacted.tokens_after == 0) {
            warnings.push(format!(
                "the compaction at revision {at} does not say its tokens before and after: \
                 Compact counts them"
            ));
        }
        match self.tools_before(event).await {
            Ok(tools) => warnings.extend(naming(at, &compacted.summary, &tools)),
            // It was appended: a warning more or less is no reason to say otherwise.
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "a compaction could not be looked through")
            }
        }
        warnings
    }

    /// The tools that a branch knew before one of its events.
    async fn tools_before(&self, event: &Appended) -> Result<BTreeSet<String>, ReadError> {
        let before = self
            .branch_before(event.conversation, event.branch, event.revision)
            .await?;
        let Some(before) = before else {
            return Ok(BTreeSet::new());
        };
        let memory = &before.memory;
        let mut tools: BTreeSet<String> = memory.tool_uses.keys().cloned().collect();
        tools.extend(memory.discovered_tools.iter().cloned());
        if let Some(at) = before.tools_defined
            && let EventBody::ToolsDefined { tools: defined } =
                &self.window_event(None, at).await?.body
        {
            tools.extend(defined.iter().map(|tool| tool.name.clone()));
        }
        Ok(tools)
    }

    /// A branch as it was just before one of its own events; none before the
    /// first event of all.
    pub(super) async fn branch_before(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<Arc<BranchState>>, ReadError> {
        let history = self.history();
        let first = first_own(branch);
        let mut last = Revision(revision.0.saturating_sub(1));
        while first <= last {
            let page = history
                .views
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
            .branch_at(fork.conversation, fork.branch, fork.revision)
            .await?;
        Ok(past.map(|past| past.state))
    }
}

fn naming(at: Revision, summary: &str, tools: &BTreeSet<String>) -> Option<String> {
    // What the engine quotes was said so.
    if is_extract(summary) {
        return None;
    }
    let names = tool_names_in(summary, tools);
    let told = names[..names.len().min(NAMES_TOLD_MAX)].join(", ");
    let more = match names.len().saturating_sub(NAMES_TOLD_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "the summary of the compaction at revision {at} names tools ({told}{more}): discovered \
             tools are cleared by it, so a summary should tell outcomes instead"
        )
    })
}
