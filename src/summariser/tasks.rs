//! The tasks on a branch after a turn has ended.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    config::{Fallback, SummariserConfig},
    endpoint::{Endpoint, EndpointError},
    queue::BranchKey,
};
use treering_context::{
    compaction::{self, DIALOGUE_INSTRUCTION, INSTRUCTION, SNAPSHOT_INSTRUCTION, tool_names_in},
    due::{DIALOGUE_SUMMARY_CHARS_MAX, DialogueDue, ResultDigestDue, dialogue_due, snapshots_due},
    window::WindowInput,
};
use treering_domain::{
    AppendCommand, BranchName, BranchState, CompactionTrigger, ContentPart, ConversationId,
    EventBody, Namespace, NewEvent, Revision, Rule, SummaryRecorded, ToolResultRecorded,
    ToolSnapshotRecorded, with_causes,
};
use treering_engine::{
    AppendError, BranchAddress, CompactCommand, CompactionPlan, ContextError, Engine, PlanQuery,
    ReadError,
};

/// Actor of events that the model wrote.
pub(super) const ACTOR_MODEL: &str = "treering/summariser";
/// Actor of events that the engine wrote because the model was not available.
pub(super) const ACTOR_EXTRACT: &str = "treering/extract";

/// Maximum number of snapshots on a branch before another branch gets its turn.
const SNAPSHOTS_A_PASS: usize = 8;
/// How many times a compaction is planned again because of new events.
const PLANS_MAX: usize = 5;
/// Longest part of a result in a question to the model, in characters.
const RESULT_SHOWN_CHARS_MAX: usize = 40_000;
/// Longest transcript for a dialogue summary, in characters.
const DIALOGUE_SHOWN_CHARS_MAX: usize = 120_000;
/// Longest recorded snapshot, in characters.
const SNAPSHOT_CHARS_MAX: usize = 1_000;
/// Longest recorded summary, in characters.
const SUMMARY_CHARS_MAX: usize = 24_000;
/// Maximum number of answers that are kept for compactions that must be planned again.
const ANSWERS_MAX: usize = 64;

/// Why work on a branch stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    /// The model did not answer.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The engine cannot do it now.
    #[error("{0}")]
    Later(String),
    /// It cannot be done, or is not needed.
    #[error("{0}")]
    Needless(String),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Closing,
    /// A test stops the worker here, like a crash.
    #[cfg(test)]
    #[error("died")]
    Died,
}

impl From<ReadError> for WorkError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConversationNotFound { .. }
            | ReadError::BranchNotFound { .. }
            | ReadError::RevisionNotFound { .. } => Self::Needless(with_causes(&error).to_string()),
            _ => Self::Later(with_causes(&error).to_string()),
        }
    }
}

impl From<AppendError> for WorkError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Rejected(_)
            | AppendError::Invalid { .. }
            | AppendError::TooLarge { .. } => Self::Needless(with_causes(&error).to_string()),
            AppendError::Closing => Self::Closing,
            AppendError::Read(error) => error.into(),
            _ => Self::Later(with_causes(&error).to_string()),
        }
    }
}

impl From<ContextError> for WorkError {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Read(error) => error.into(),
            ContextError::Append(error) => error.into(),
            _ => Self::Needless(with_causes(&error).to_string()),
        }
    }
}

/// The result of work on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkOutcome {
    /// Nothing to do until there are new events.
    All,
    /// There is more to do.
    More,
}

/// Points at which a test can stop the worker.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// The model has answered; nothing was appended.
    Answered,
    /// The event was appended; the mark was not moved.
    Appended,
}

/// Does the tasks of a branch.
pub(super) struct Worker {
    pub(crate) engine: Engine,
    pub(crate) namespace: Namespace,
    pub(crate) config: SummariserConfig,
    pub(crate) endpoint: Endpoint,
    /// Answers by key, for compactions that had to be planned again.
    pub(crate) answers: HashMap<String, Answer>,
    #[cfg(test)]
    pub(crate) dies_at: Option<Point>,
}

/// A summary and its actor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    text: String,
    actor: &'static str,
}

/// A question to the model.
struct Question<'a> {
    instruction: &'static str,
    material: String,
    /// Tools that the answer should not name.
    tools: &'a BTreeSet<String>,
    chars_max: usize,
}

impl Worker {
    /// Does the tasks that are due on a branch: snapshots, the dialogue summary, a compaction.
    /// `failures` is how many times the branch's next task has failed.
    pub(crate) async fn work(
        &mut self,
        place: BranchKey,
        failures: u32,
    ) -> Result<WorkOutcome, WorkError> {
        let Some(branch) = self.ready(place).await? else {
            return Ok(WorkOutcome::All);
        };
        let tasks = self.config.tasks;
        if tasks.snapshots || tasks.dialogue {
            let window = self
                .engine
                .dialogue_window(&self.address(place.conversation, &branch.name))
                .await?;
            if tasks.snapshots
                && self.snapshots(place, &window, failures).await? == WorkOutcome::More
            {
                return Ok(WorkOutcome::More);
            }
            if tasks.dialogue
                && let Some(due) = dialogue_due(&window, self.config.dialogue_every_turns)
            {
                self.dialogue(place, &window, due, failures).await?;
            }
        }
        if tasks.compaction {
            self.compaction(place, &branch, failures).await?;
        }
        Ok(WorkOutcome::All)
    }

    fn address(&self, conversation: ConversationId, branch: &BranchName) -> BranchAddress {
        BranchAddress::active(self.namespace.clone(), conversation).on(branch.clone())
    }

    /// Returns the branch if its last turn has ended and it accepts events.
    async fn ready(&self, place: BranchKey) -> Result<Option<Arc<BranchState>>, WorkError> {
        let view = self
            .engine
            .conversation(
                &BranchAddress::active(self.namespace.clone(), place.conversation),
                None,
            )
            .await?;
        // Branches are listed after a given one, so this starts after the previous id.
        let before = place.branch.0.checked_sub(1).map(treering_domain::BranchId);
        let page = self
            .engine
            .branches(&self.namespace, place.conversation, before, 1)
            .await?;
        let branch = page
            .branches
            .into_iter()
            .find(|branch| branch.id == place.branch);
        Ok(branch.filter(|branch| {
            let between = branch.at_turn_boundary() && branch.turn.open_since.is_some();
            between && !branch.archived && !view.summary.sealed
        }))
    }

    async fn snapshots(
        &self,
        place: BranchKey,
        window: &WindowInput,
        failures: u32,
    ) -> Result<WorkOutcome, WorkError> {
        let no_tools = BTreeSet::new();
        let due = snapshots_due(window, self.config.snapshot_bytes_min);
        let (mut failures, mut made) = (failures, 0);
        for ResultDigestDue {
            request,
            call,
            result,
        } in due
        {
            let key = key("snapshot", place, request.revision);
            if self.is_done(&key).await? {
                continue;
            }
            if made == SNAPSHOTS_A_PASS {
                return Ok(WorkOutcome::More);
            }
            let question = Question {
                instruction: SNAPSHOT_INSTRUCTION,
                material: shown(result),
                tools: &no_tools,
                chars_max: SNAPSHOT_CHARS_MAX,
            };
            let extract = || {
                self.engine
                    .heuristics()
                    .result_summary(result, SNAPSHOT_CHARS_MAX)
            };
            let answer = self.answer(question, extract, failures).await?;
            let body = EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
                call_id: call.call_id.clone(),
                request_revision: request.revision,
                summary: answer.text,
            });
            self.append(window, key, body, answer.actor).await?;
            (made, failures) = (made + 1, 0);
        }
        Ok(WorkOutcome::All)
    }

    async fn dialogue(
        &self,
        place: BranchKey,
        window: &WindowInput,
        due: DialogueDue<'_>,
        failures: u32,
    ) -> Result<(), WorkError> {
        let key = key("dialogue", place, due.to);
        if self.is_done(&key).await? {
            return Ok(());
        }
        let tools = compaction::tools_of(window);
        let events = &window.events[due.first..due.end];
        let previous = due.previous.map_or("", |summary| summary.content.as_str());
        let mut material = compaction::transcript(
            &**self.engine.heuristics(),
            events,
            &tools,
            DIALOGUE_SHOWN_CHARS_MAX,
        );
        if !previous.is_empty() {
            material = format!("[earlier summary]\n{previous}\n\n{material}");
        }
        let question = Question {
            instruction: DIALOGUE_INSTRUCTION,
            material,
            tools: &tools,
            chars_max: SUMMARY_CHARS_MAX,
        };
        let extract = || {
            let room = DIALOGUE_SUMMARY_CHARS_MAX;
            let heuristics = self.engine.heuristics();
            let told = heuristics.dialogue_summary(window.conversation, events, room);
            let earlier: String = previous.chars().take(room).collect();
            format!("{earlier}\n\n{told}").trim().to_owned()
        };
        let answer = self.answer(question, extract, failures).await?;
        let body = EventBody::SummaryRecorded(SummaryRecorded {
            content: answer.text,
            from_revision: due.from,
            to_revision: due.to,
        });
        self.append(window, key, body, answer.actor).await
    }

    async fn compaction(
        &mut self,
        place: BranchKey,
        branch: &BranchState,
        failures: u32,
    ) -> Result<(), WorkError> {
        for _ in 0..PLANS_MAX {
            let query = PlanQuery::new(self.address(place.conversation, &branch.name));
            let plan = self.engine.plan_compaction(query).await?;
            let Some(cut) = plan.cut.filter(|_| plan.due) else {
                return Ok(());
            };
            let key = key("compaction", place, cut);
            if self.is_done(&key).await? {
                return Ok(());
            }
            let answer = match self.answers.get(&key) {
                Some(answer) => answer.clone(),
                None => self.summary_of(&plan, failures).await?,
            };
            if self.answers.len() >= ANSWERS_MAX {
                self.answers.clear();
            }
            self.answers.insert(key.clone(), answer.clone());
            match self.compact(&plan, cut, key.clone(), answer).await {
                Err(ContextError::Append(AppendError::Rejected(rejection)))
                    if matches!(rejection.rule, Rule::RevisionMismatch { .. }) =>
                {
                    // There are new events. If they began a turn, the end of that turn will queue
                    // this branch again.
                    if self.ready(place).await?.is_none() {
                        return Ok(());
                    }
                }
                outcome => {
                    self.answers.remove(&key);
                    outcome?;
                    #[cfg(test)]
                    self.dies(Point::Appended)?;
                    return Ok(());
                }
            }
        }
        Err(WorkError::Later(
            "events are appended faster than the branch can be compacted".to_owned(),
        ))
    }

    async fn summary_of(&self, plan: &CompactionPlan, failures: u32) -> Result<Answer, WorkError> {
        let window = self
            .engine
            .dialogue_window(&self.address(plan.conversation, &plan.branch))
            .await?;
        let question = Question {
            instruction: INSTRUCTION,
            material: plan.material.clone(),
            tools: &compaction::tools_of(&window),
            chars_max: SUMMARY_CHARS_MAX,
        };
        self.answer(question, || plan.extract.clone(), failures)
            .await
    }

    async fn compact(
        &self,
        plan: &CompactionPlan,
        cut: Revision,
        key: String,
        answer: Answer,
    ) -> Result<(), ContextError> {
        let command = CompactCommand {
            summary: answer.text,
            cut: Some(cut),
            expected_head: Some(plan.head),
            idempotency_key: Some(key),
            actor: answer.actor.to_owned(),
            trigger: CompactionTrigger::Threshold,
            ..CompactCommand::new(self.address(plan.conversation, &plan.branch))
        };
        let outcome = self.engine.compact(command).await?;
        tracing::info!(
            conversation = %plan.conversation,
            branch = plan.branch.as_str(),
            tokens_before = outcome.tokens_before,
            tokens_after = outcome.tokens_after,
            warnings = outcome.warnings.len(),
            "compacted"
        );
        Ok(())
    }

    async fn is_done(&self, key: &str) -> Result<bool, WorkError> {
        Ok(self
            .engine
            .appended_with_key(&self.namespace, key)
            .await?
            .is_some())
    }

    async fn append(
        &self,
        window: &WindowInput,
        key: String,
        body: EventBody,
        actor: &str,
    ) -> Result<(), WorkError> {
        let mut event =
            NewEvent::new(window.conversation, body).on_branch(window.branch.name.clone());
        event.actor = actor.to_owned();
        let command = AppendCommand {
            idempotency_key: Some(key),
            ..AppendCommand::new(self.namespace.clone(), vec![event])
        };
        self.engine.append(command).await?;
        #[cfg(test)]
        self.dies(Point::Appended)?;
        Ok(())
    }

    /// Returns the model's answer, or the extract if that is allowed.
    async fn answer(
        &self,
        question: Question<'_>,
        extract: impl Fn() -> String,
        failures: u32,
    ) -> Result<Answer, WorkError> {
        match self.text(&question).await {
            Ok(text) => {
                #[cfg(test)]
                self.dies(Point::Answered)?;
                Ok(Answer {
                    text: text.chars().take(question.chars_max).collect(),
                    actor: ACTOR_MODEL,
                })
            }
            Err(error) => {
                let last = failures + 1 >= self.config.tries_max;
                if !last || self.config.fallback != Fallback::Extract {
                    return Err(error.into());
                }
                tracing::warn!(error = %with_causes(&error), "the endpoint failed too often: the engine's extract is used");
                Ok(Answer {
                    text: extract(),
                    actor: ACTOR_EXTRACT,
                })
            }
        }
    }

    /// Returns the model's text; asks a second time when it names tools.
    async fn text(&self, question: &Question<'_>) -> Result<String, EndpointError> {
        let ask = async |material: String| {
            let asked = self.endpoint.ask(question.instruction.to_owned(), material);
            let answer = asked.await;
            let measures = &self.config.measures;
            match answer {
                Ok(_) => measures.answers.add_one(),
                Err(_) => measures.failures.add_one(),
            }
            answer
        };
        let text = ask(question.material.clone()).await?;
        let names = tool_names_in(&text, question.tools);
        if names.is_empty() {
            return Ok(text);
        }
        let correction = format!(
            "{}\n\n[correction]\nAn earlier version of your text named {}. Write it again: state \
             the outcomes, and leave these names out.",
            question.material,
            names.join(", ")
        );
        let second = match ask(correction).await {
            Ok(second) => second,
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "a summary that names tools could not be rewritten");
                return Ok(text);
            }
        };
        let still = tool_names_in(&second, question.tools).len();
        if still > 0 {
            tracing::warn!(
                tools = still,
                "a summary still names tools after a correction"
            );
        }
        Ok(second)
    }

    #[cfg(test)]
    fn dies(&self, point: Point) -> Result<(), WorkError> {
        if self.dies_at == Some(point) {
            Err(WorkError::Died)
        } else {
            Ok(())
        }
    }
}

/// Returns the idempotency key of a task. It must never change.
fn key(task: &str, place: BranchKey, revision: Revision) -> String {
    let BranchKey {
        conversation,
        branch,
    } = place;
    format!("summariser/{task}/{conversation}/{branch}/{revision}")
}

/// Returns a result as shown to the model: its start and its end.
fn shown(result: &ToolResultRecorded) -> String {
    let mut texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
    if texts.iter().all(|text| text.trim().is_empty()) {
        texts.push(result.structured.as_str());
    }
    let mut text = texts.join("\n");
    if !result.error_message.is_empty() {
        text = format!("[error]\n{}\n\n{text}", result.error_message);
    }
    let length = text.chars().count();
    if length <= RESULT_SHOWN_CHARS_MAX {
        return text;
    }
    let half = RESULT_SHOWN_CHARS_MAX / 2;
    let start: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(length - half).collect();
    format!(
        "{start}\n[{} characters left out]\n{end}",
        length - 2 * half
    )
}
