//! The values that a branch's state refers to: prompts, tools, summaries, active context.

use crate::{Engine, error::ReadError, work::PriorityClass};
use treering_domain::{
    BranchState, Compacted, ContextSet, EventBody, EventRef, Namespace, PromptSet, SummaryRecorded,
    ToolDefinition,
};

/// The values that a branch's state refers to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BranchValues {
    /// The current system prompt.
    pub system_prompt: Option<PromptSet>,
    /// The current user prompt.
    pub user_prompt: Option<PromptSet>,
    /// The available tools.
    pub tools_defined: Vec<ToolDefinition>,
    /// The last dialogue summary.
    pub summary: Option<SummaryRecorded>,
    /// The last compaction.
    pub compaction: Option<Compacted>,
    /// The active context, ordered by key.
    pub active_context: Vec<ContextSet>,
    /// Values that did not fit: names of the fields above, and `active_context.KEY`.
    pub left_out: Vec<String>,
}

/// A value that a state refers to.
enum ValueRef<'b> {
    SystemPrompt,
    UserPrompt,
    Tools,
    Summary,
    Compaction,
    Key(&'b str),
}

impl ValueRef<'_> {
    fn name(&self) -> String {
        match self {
            Self::SystemPrompt => "system_prompt".to_owned(),
            Self::UserPrompt => "user_prompt".to_owned(),
            Self::Tools => "tools_defined".to_owned(),
            Self::Summary => "summary".to_owned(),
            Self::Compaction => "compaction".to_owned(),
            Self::Key(key) => format!("active_context.{key}"),
        }
    }
}

/// Returns references to the values of a state. Those that are usually short and often needed come
/// first.
fn wanted_of(branch: &BranchState) -> impl Iterator<Item = (ValueRef<'_>, EventRef)> {
    let fields = [
        (ValueRef::SystemPrompt, branch.system_prompt),
        (ValueRef::UserPrompt, branch.user_prompt),
        (ValueRef::Summary, branch.summary),
        (ValueRef::Compaction, branch.compaction),
        (ValueRef::Tools, branch.tools_defined),
    ];
    let fields = fields
        .into_iter()
        .filter_map(|(wanted, at)| Some((wanted, at?)));
    let keys = branch.active_context.iter();
    fields.chain(keys.map(|(key, at)| (ValueRef::Key(key), *at)))
}

/// Returns the size that a value counts against the limit, in bytes.
fn size_of(body: &EventBody) -> usize {
    match body {
        EventBody::SystemPromptSet(prompt) | EventBody::UserPromptSet(prompt) => {
            prompt.content.len()
        }
        EventBody::SummaryRecorded(summary) => summary.content.len(),
        EventBody::Compacted(compacted) => compacted.summary.len(),
        EventBody::ContextSet(set) => set.key.len() + set.value.as_bytes().len(),
        EventBody::ToolsDefined { tools } => {
            let size = |tool: &ToolDefinition| {
                let texts = [&tool.name, &tool.description, &tool.source, &tool.guidance];
                let texts: usize = texts.map(String::len).iter().sum();
                texts + tool.input_schema.as_bytes().len()
            };
            tools.iter().map(size).sum()
        }
        _ => 0,
    }
}

impl Engine {
    /// Returns the values that a state refers to, as many as fit into `bytes_max` bytes.
    ///
    /// # Errors
    /// [`ReadError`] when an event cannot be read.
    pub async fn branch_values(
        &self,
        namespace: &Namespace,
        branch: &BranchState,
        bytes_max: usize,
    ) -> Result<BranchValues, ReadError> {
        let (namespace, branch) = (namespace.clone(), branch.clone());
        let read = |engine: Self| async move {
            let mut values = BranchValues::default();
            let mut room = bytes_max;
            for (wanted, at) in wanted_of(&branch) {
                if room == 0 {
                    values.left_out.push(wanted.name());
                    continue;
                }
                let event = engine.inner.reads.window_event(&namespace, at).await?;
                let size = size_of(&event.body);
                if size > room {
                    values.left_out.push(wanted.name());
                    continue;
                }
                room -= size;
                values.put(&wanted, &event.body);
            }
            Ok(values)
        };
        self.on(PriorityClass::Short, read).await
    }
}

impl BranchValues {
    fn put(&mut self, wanted: &ValueRef<'_>, body: &EventBody) {
        match (wanted, body) {
            (ValueRef::SystemPrompt, EventBody::SystemPromptSet(prompt)) => {
                self.system_prompt = Some(prompt.clone());
            }
            (ValueRef::UserPrompt, EventBody::UserPromptSet(prompt)) => {
                self.user_prompt = Some(prompt.clone());
            }
            (ValueRef::Tools, EventBody::ToolsDefined { tools }) => {
                self.tools_defined.clone_from(tools);
            }
            (ValueRef::Summary, EventBody::SummaryRecorded(summary)) => {
                self.summary = Some(summary.clone());
            }
            (ValueRef::Compaction, EventBody::Compacted(compacted)) => {
                self.compaction = Some(compacted.clone());
            }
            (ValueRef::Key(_), EventBody::ContextSet(set)) => self.active_context.push(set.clone()),
            _ => {}
        }
    }
}
