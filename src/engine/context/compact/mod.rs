//! Plans and appends compactions.

mod expand;
mod tokens;
mod warnings;

use self::tokens::WindowTokens;
pub(crate) use self::warnings::compactions_of;
use super::{BuildQuery, ContextError, build::AssembledDraft, recorded::RecordedBatch};
use crate::{Engine, Inner, error::AppendError, query::BranchAddress};
use treering_context::{
    compaction::{self, PlannedCompaction, threshold_tokens},
    policy::{CompactionPolicy, ContextPolicy},
    provider::Provider,
    tokens::Tally,
    window::WindowInput,
};
use treering_domain::{
    AppendCommand, AppendedEvent, BranchName, Compacted, CompactionTrigger, ConversationId,
    EventBody, Expectation, ExpectedRevision, NewEvent, Rejection, Revision, Rule,
};

/// A query for a compaction plan.
#[derive(Clone, Debug)]
pub struct PlanQuery {
    /// The branch.
    pub address: BranchAddress,
    /// Number of finished turns to keep; `None` for the policy's.
    pub keep_turns: Option<u32>,
    /// The model whose tokens are counted; `None` for the conversation's.
    pub model: Option<String>,
    /// A JSON object merged over the conversation's `context` policy; or empty.
    pub policy: String,
}

impl PlanQuery {
    /// Creates a query for a branch, using its policy.
    #[must_use]
    pub fn new(address: BranchAddress) -> Self {
        Self {
            address,
            keep_turns: None,
            model: None,
            policy: String::new(),
        }
    }
}

/// The planned cut of a compaction, and what its summary would replace.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionPlan {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchName,
    /// The branch's head at the time of the plan.
    pub head: Revision,
    /// The last revision that the summary would replace; `None` if there is nothing to cut.
    pub cut: Option<Revision>,
    /// Number of finished turns that are kept.
    pub kept_turns: u32,
    /// Number of turns that the summary would replace.
    pub summarised_turns: u32,
    /// Number of events that the summary would replace.
    pub summarised_events: u32,
    /// Tokens of the current window.
    pub tokens_before: u64,
    /// Tokens of the kept part, without the summary.
    pub tokens_kept: u64,
    /// The window exceeds the threshold.
    pub due: bool,
    /// Tokens above which a compaction is due.
    pub threshold_tokens: u64,
    /// System prompt for the model that writes the summary.
    pub instruction: String,
    /// The text to be summarised.
    pub material: String,
    /// The engine's own extract of `material`.
    pub extract: String,
    /// Why there is nothing to cut, or empty.
    pub reason: String,
}

/// A command to append a compaction.
#[derive(Clone, Debug)]
pub struct CompactCommand {
    /// The branch.
    pub address: BranchAddress,
    /// The summary; empty for the engine's own extract.
    pub summary: String,
    /// The cut; `None` for the cut of a plan.
    pub cut: Option<Revision>,
    /// Number of finished turns to keep; `None` for the policy's.
    pub keep_turns: Option<u32>,
    /// The head that the branch must have; `None` for any.
    pub expected_head: Option<Revision>,
    /// Idempotency key: a retry with the same key returns the first answer.
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
    /// What caused it.
    pub trigger: CompactionTrigger,
}

impl CompactCommand {
    /// Creates a command with the engine's extract and the cut of a plan.
    #[must_use]
    pub fn new(address: BranchAddress) -> Self {
        Self {
            address,
            summary: String::new(),
            cut: None,
            keep_turns: None,
            expected_head: None,
            idempotency_key: None,
            actor: String::new(),
            trigger: CompactionTrigger::Manual,
        }
    }

    fn plan_query(&self) -> PlanQuery {
        PlanQuery {
            keep_turns: self.keep_turns,
            ..PlanQuery::new(self.address.clone())
        }
    }
}

/// The result of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactOutcome {
    /// The appended event.
    pub event: AppendedEvent,
    /// The idempotency key was already known: this call appended nothing.
    pub repeated_key: bool,
    /// The last revision before the cut.
    pub cut: Revision,
    /// Tokens of the window before the compaction.
    pub tokens_before: u64,
    /// Tokens of the window after the compaction.
    pub tokens_after: u64,
    /// Warnings about accepted content that may be a mistake.
    pub warnings: Vec<String>,
}

impl Engine {
    /// Returns the window of a branch: the events after its last compaction's cut, and those that
    /// its state refers to.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch does not exist.
    pub async fn dialogue_window(
        &self,
        address: &BranchAddress,
    ) -> Result<WindowInput, ContextError> {
        let query = BuildQuery::new(address.clone(), Provider::Neutral);
        let read = |engine: Self, query: BuildQuery| async move {
            Ok(engine.inner.window(&query.address, None).await?)
        };
        self.on_window(query, read).await
    }

    /// Plans a compaction: where to cut, what to summarise, and the instruction for the model that
    /// writes the summary. Changes nothing.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch does not exist, [`ContextError::Policy`] when its
    /// policy is invalid.
    pub async fn plan_compaction(&self, query: PlanQuery) -> Result<CompactionPlan, ContextError> {
        Ok(self.planned(&query, None).await?.into_plan())
    }

    /// Appends a compaction, with the token counts before and after.
    ///
    /// # Errors
    /// [`ContextError::NothingToCompact`]; [`ContextError::Append`] when the cut is not the end of a
    /// turn or the head is not the expected one.
    pub async fn compact(&self, command: CompactCommand) -> Result<CompactOutcome, ContextError> {
        let inner = &self.inner;
        if let Some(outcome) = inner.find_repeated(&command).await? {
            return Ok(outcome);
        }
        match self.compact_now(&command).await {
            // A concurrent call with the same key may have won: then nothing was left to plan, or
            // the append came too late.
            Err(error) => match inner.find_repeated(&command).await? {
                Some(outcome) => Ok(outcome),
                None => Err(error),
            },
            done => done,
        }
    }

    async fn compact_now(&self, command: &CompactCommand) -> Result<CompactOutcome, ContextError> {
        let planned = self.planned(&command.plan_query(), command.cut).await?;
        let compacted = planned.compacted(command)?;
        let (cut, before, after) = (
            compacted.cut_revision,
            compacted.tokens_before,
            compacted.tokens_after,
        );
        let batch = planned.batch(command, compacted);
        let outcome = self.append(batch).await?;
        let [event] = &outcome.events[..] else {
            return Err(invalid("a compaction is one event".to_owned()));
        };
        Ok(CompactOutcome {
            event: event.clone(),
            repeated_key: outcome.repeated_key,
            cut,
            tokens_before: before,
            tokens_after: after,
            warnings: outcome.warnings,
        })
    }
}

/// A plan with its inputs.
struct PlanContext {
    window: WindowInput,
    plan: PlannedCompaction,
    tokens: WindowTokens,
    tally: Tally,
    threshold_tokens: u64,
}

impl Engine {
    /// Plans a compaction from the same window as a request, so that both agree on whether it is
    /// due.
    async fn planned(
        &self,
        query: &PlanQuery,
        cut: Option<Revision>,
    ) -> Result<PlanContext, ContextError> {
        let build = BuildQuery {
            model: query.model.clone(),
            policy: query.policy.clone(),
            ..BuildQuery::new(query.address.clone(), Provider::Neutral)
        };
        let keep_turns = query.keep_turns;
        let plan = move |engine: Self, build: BuildQuery| async move {
            let AssembledDraft {
                window,
                policy,
                draft,
                tally,
                ..
            } = engine.assemble_draft(&build).await?;
            let keep = keep_turns.unwrap_or(policy.compaction.keep_turns);
            let bounded = within_budget(&policy);
            let plan = match cut {
                Some(revision) => compaction::plan_at(&window, revision, &bounded),
                None => compaction::plan(&window, keep, &bounded),
            };
            let end = plan.cut.as_ref().map_or(0, |cut| cut.end);
            Ok(PlanContext {
                tokens: WindowTokens::of(&window, &draft, end),
                threshold_tokens: threshold_tokens(&policy),
                tally,
                plan,
                window,
            })
        };
        self.on_window(build, plan).await
    }
}

impl Inner {
    /// Returns the compaction that this key was used for.
    async fn find_repeated(
        &self,
        command: &CompactCommand,
    ) -> Result<Option<CompactOutcome>, ContextError> {
        let key = command.idempotency_key.as_ref();
        let Some(batch) = self.recorded_batch(&command.address.namespace, key).await? else {
            return Ok(None);
        };
        self.same_compaction(command, batch).await.map(Some)
    }

    async fn same_compaction(
        &self,
        command: &CompactCommand,
        batch: RecordedBatch,
    ) -> Result<CompactOutcome, ContextError> {
        let other = || AppendError::from(Rejection::batch(Rule::IdempotencyConflict));
        let [(event, EventBody::Compacted(compacted))] = &batch.events[..] else {
            return Err(other().into());
        };
        let named = command.address.branch.as_ref();
        let branch = self
            .reads
            .branch(&command.address.namespace, event.conversation, named);
        let elsewhere = named.is_some() && branch.is_ok_and(|branch| branch.id != event.branch);
        let differs = elsewhere
            || event.conversation != command.address.conversation
            || (!command.summary.is_empty()
                && !compaction::is_completed(&compacted.summary, &command.summary))
            || command.cut.is_some_and(|cut| cut != compacted.cut_revision);
        if differs {
            return Err(other().into());
        }
        let warning = self.compaction_warning(&command.address.namespace, event, compacted);
        let warnings = warning.await;
        Ok(CompactOutcome {
            event: event.clone(),
            repeated_key: true,
            cut: compacted.cut_revision,
            tokens_before: compacted.tokens_before,
            tokens_after: compacted.tokens_after,
            warnings,
        })
    }
}

impl PlanContext {
    fn into_plan(self) -> CompactionPlan {
        let cut = self.plan.cut.as_ref();
        let tokens_before = self.tokens.before;
        CompactionPlan {
            conversation: self.window.conversation,
            branch: self.window.branch.name.clone(),
            head: self.window.revision,
            cut: cut.map(|cut| cut.revision),
            kept_turns: cut.map_or(0, |cut| cut.kept_turns),
            summarised_turns: cut.map_or(0, |cut| cut.summarised_turns),
            summarised_events: cut.map_or(0, |cut| u32::try_from(cut.end).unwrap_or(u32::MAX)),
            tokens_before,
            tokens_kept: self.tokens.kept,
            due: tokens_before > self.threshold_tokens,
            threshold_tokens: self.threshold_tokens,
            instruction: compaction::INSTRUCTION.to_owned(),
            material: self.plan.material,
            extract: self.plan.extract,
            reason: self.plan.reason,
        }
    }

    fn compacted(&self, command: &CompactCommand) -> Result<Compacted, ContextError> {
        let Some(cut) = &self.plan.cut else {
            let reason = self.plan.reason.clone();
            return Err(ContextError::NothingToCompact { reason });
        };
        let summary = match command.summary.trim() {
            "" => self.plan.extract.clone(),
            _ => command.summary.clone(),
        };
        let summary = compaction::with_entities(summary, &self.window);
        let tokens_after = self.tokens.kept + self.tally.text(&summary);
        Ok(Compacted {
            summary,
            cut_revision: cut.revision,
            kept_turns: cut.kept_turns,
            tokens_before: self.tokens.before,
            tokens_after,
            trigger: command.trigger,
            raw: None,
        })
    }

    fn batch(&self, command: &CompactCommand, compacted: Compacted) -> AppendCommand {
        let branch = self.window.branch.name.clone();
        let mut event = NewEvent::new(
            command.address.conversation,
            EventBody::Compacted(compacted),
        )
        .on_branch(branch.clone());
        event.actor = command.actor.clone();
        let expectations = command.expected_head.map(|head| Expectation {
            conversation: command.address.conversation,
            branch: Some(branch),
            expected: ExpectedRevision::Exact(head),
        });
        AppendCommand {
            create_if_missing: None,
            expected_keys: Vec::new(),
            skip_known: false,
            namespace: command.address.namespace.clone(),
            expectations: expectations.into_iter().collect(),
            idempotency_key: command.idempotency_key.clone(),
            key_life_seconds: None,
            events: vec![event],
        }
    }
}

/// Limits the extract to a part of the budget; otherwise it could use up a small budget.
fn within_budget(policy: &ContextPolicy) -> CompactionPolicy {
    /// The extract's share of the budget: 1/4.
    const EXTRACT_PART: u64 = 4;
    let mut bounded = policy.compaction;
    if policy.budget_tokens > 0 {
        let most = policy.budget_tokens / EXTRACT_PART;
        bounded.extract_tokens = bounded.extract_tokens.min(most);
    }
    bounded
}

fn invalid(message: String) -> ContextError {
    ContextError::Invalid { message }
}
