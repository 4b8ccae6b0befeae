//! Planning and appending compactions.

mod expand;
mod tokens;
mod warnings;

use self::tokens::WindowTokens;
pub(in crate::engine) use self::warnings::compactions_of;
use super::{BuildQuery, ContextError, build::Assembled, recorded::RecordedBatch};
use crate::{
    context::{
        compaction::{self, PlannedCompaction, threshold_tokens},
        policy::{CompactionPolicy, ContextPolicy},
        provider::Provider,
        tokens::Tally,
        window::WindowInput,
    },
    domain::{
        AppendCommand, Appended, BranchName, Compacted, CompactionTrigger, ConversationId,
        EventBody, Expectation, ExpectedRevision, NewEvent, Revision,
    },
    engine::{Engine, Inner, query::BranchAddress},
};

/// Which compaction to plan.
#[derive(Clone, Debug)]
pub struct PlanQuery {
    /// The branch.
    pub address: BranchAddress,
    /// Finished turns that stay; none: the policy's.
    pub keep_turns: Option<u32>,
    /// The model whose tokens are counted; none: the conversation's.
    pub model: Option<String>,
    /// JSON object, merged over the conversation's `context` policy; or empty.
    pub policy: String,
}

impl PlanQuery {
    /// A plan for a conversation's active branch, by its policy.
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

/// Where a compaction would cut, and what it would stand for.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionPlan {
    /// Conversation.
    pub conversation: ConversationId,
    /// Branch.
    pub branch: BranchName,
    /// The branch's head that the plan was made at.
    pub head: Revision,
    /// The last revision that the summary is to stand for; none: there is nothing
    /// to cut.
    pub cut: Option<Revision>,
    /// Finished turns that stay.
    pub kept_turns: u32,
    /// Turns that the summary is to stand for.
    pub summarised_turns: u32,
    /// Events that the summary is to stand for.
    pub summarised_events: u32,
    /// Tokens of the window now.
    pub tokens_before: u64,
    /// Tokens of what stays, without the summary.
    pub tokens_kept: u64,
    /// The window has more tokens than the threshold.
    pub due: bool,
    /// Tokens above which a compaction is due.
    pub threshold_tokens: u64,
    /// System text for the model that writes the summary.
    pub instruction: String,
    /// What it is to summarise, as text.
    pub material: String,
    /// The engine's own summary of it.
    pub extract: String,
    /// Why there is nothing to cut, or empty.
    pub reason: String,
}

/// A compaction to append.
#[derive(Clone, Debug)]
pub struct CompactCommand {
    /// The branch.
    pub address: BranchAddress,
    /// The summary; empty: the engine's own extract.
    pub summary: String,
    /// Where to cut; none: where a plan would.
    pub cut: Option<Revision>,
    /// Finished turns that stay; none: the policy's.
    pub keep_turns: Option<u32>,
    /// The head that the plan was made at; none: any.
    pub expected_head: Option<Revision>,
    /// The same key again gives the first answer again.
    pub idempotency_key: Option<String>,
    /// Who compacts, or empty.
    pub actor: String,
    /// Why.
    pub trigger: CompactionTrigger,
}

impl CompactCommand {
    /// The engine's own extract for the active branch, where a plan would cut.
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

/// A compaction that was appended.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactOutcome {
    /// Where it is.
    pub event: Appended,
    /// The idempotency key was known: nothing was appended now.
    pub repeated_key: bool,
    /// The last revision that it stands for.
    pub cut: Revision,
    /// Tokens of the window before.
    pub tokens_before: u64,
    /// Tokens of the window after.
    pub tokens_after: u64,
    /// What is legal and may still be a mistake.
    pub warnings: Vec<String>,
}

impl Engine {
    /// What a branch's requests are made of: the events after its last
    /// compaction's cut, and those that its state refers to.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch is not there.
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

    /// Where a compaction would cut, what is to be summarised, and the instruction
    /// for the model that writes the summary. Changes nothing.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch is not there,
    /// [`ContextError::Policy`] when its policy cannot be used.
    pub async fn plan_compaction(&self, query: PlanQuery) -> Result<CompactionPlan, ContextError> {
        Ok(self.planned(&query, None).await?.into_plan())
    }

    /// Appends a compaction, with its tokens before and after.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] when there is nothing to cut,
    /// [`ContextError::Append`] when the cut is no turn's end or the head is not
    /// the expected one.
    pub async fn compact(&self, command: CompactCommand) -> Result<CompactOutcome, ContextError> {
        let inner = &self.inner;
        if let Some(outcome) = inner.compacted_before(&command).await? {
            return Ok(outcome);
        }
        match self.compact_now(&command).await {
            // Another call with the same key may have been faster: then there was
            // nothing left to plan, or the append came too late.
            Err(error) => match inner.compacted_before(&command).await? {
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

/// A plan with what it was made of.
struct Planned {
    window: WindowInput,
    plan: PlannedCompaction,
    tokens: WindowTokens,
    tally: Tally,
    threshold_tokens: u64,
}

impl Engine {
    /// A plan is made of the same window as a request, so that one says of a
    /// compaction what the other does.
    async fn planned(
        &self,
        query: &PlanQuery,
        cut: Option<Revision>,
    ) -> Result<Planned, ContextError> {
        let build = BuildQuery {
            model: query.model.clone(),
            policy: query.policy.clone(),
            ..BuildQuery::new(query.address.clone(), Provider::Neutral)
        };
        let keep_turns = query.keep_turns;
        let plan = move |engine: Self, build: BuildQuery| async move {
            let Assembled {
                window,
                policy,
                draft,
                tally,
                ..
            } = engine.assembled(&build).await?;
            let keep = keep_turns.unwrap_or(policy.compaction.keep_turns);
            let bounded = within_budget(&policy);
            let plan = match cut {
                Some(revision) => compaction::plan_at(&window, revision, &bounded),
                None => compaction::plan(&window, keep, &bounded),
            };
            let end = plan.cut.as_ref().map_or(0, |cut| cut.end);
            Ok(Planned {
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
    /// The compaction that this key was used for.
    async fn compacted_before(
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
        let other = || {
            invalid(
                "the idempotency key was used before for something else: use a new key".to_owned(),
            )
        };
        let [(event, EventBody::Compacted(compacted))] = &batch.events[..] else {
            return Err(other());
        };
        let named = command.address.branch.as_ref();
        let branch = self.branch(&command.address.namespace, event.conversation, named);
        let elsewhere = named.is_some() && branch.is_ok_and(|branch| branch.id != event.branch);
        let differs = elsewhere
            || event.conversation != command.address.conversation
            || (!command.summary.is_empty() && command.summary != compacted.summary)
            || command.cut.is_some_and(|cut| cut != compacted.cut_revision);
        if differs {
            return Err(other());
        }
        let warnings = self.compaction_warning(event, compacted).await;
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

impl Planned {
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
            return Err(invalid(format!(
                "there is nothing to compact: {}",
                self.plan.reason
            )));
        };
        let summary = match command.summary.trim() {
            "" => self.plan.extract.clone(),
            _ => command.summary.clone(),
        };
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

/// The policy with an extract that leaves room for what comes behind it: of a small budget
/// it would take all.
fn within_budget(policy: &ContextPolicy) -> CompactionPolicy {
    /// The extract's part of the budget: one in so many.
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
