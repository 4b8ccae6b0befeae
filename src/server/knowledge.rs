//! Converts tool knowledge for the Tools service.

use super::{
    bounds::KNOWLEDGE_BYTES_MAX,
    from_proto::{self, InvalidField},
    to_proto,
};
use treering_digest::knowledge::{CompletedArguments, FileVariables, KnownFile, Suggestion};
use treering_engine::{CallDigest, KnowledgeAnswer};
use treering_proto::pb;

/// Recent results in an answer, unless the client chooses.
pub(super) const RECENT_DEFAULT: usize = 5;
/// Approximate bytes of an item in a message besides its texts.
const ITEM_BYTES: usize = 80;

/// Checks a required tool name.
pub(super) fn tool(name: &str) -> Result<&str, InvalidField> {
    from_proto::required("tool", name)?;
    from_proto::check_short("tool", name)?;
    Ok(name)
}

/// Returns arguments as text; the engine checks that they are an object.
pub(super) fn arguments(bytes: &[u8]) -> Result<&str, InvalidField> {
    std::str::from_utf8(bytes).map_err(|_| InvalidField::new("arguments", "is not UTF-8"))
}

/// Returns an answer within the message limit. Items that do not fit are counted as left out.
pub(super) fn response(answer: KnowledgeAnswer) -> pb::KnowledgeResponse {
    let known = &answer.knowledge;
    let mut room = AnswerSpace(KNOWLEDGE_BYTES_MAX);
    let files: Vec<_> = known.files().iter().map_while(|f| room.file(f)).collect();
    let variables: Vec<_> = known
        .variables()
        .iter()
        .map_while(|of_file| room.variables(of_file))
        .collect();
    let count = |all: &[FileVariables]| all.iter().map(|f| f.variables.len()).sum::<usize>();
    let shown = variables.iter().map(|f| f.variables.len()).sum::<usize>();
    let cut = known.files().len() - files.len() + count(known.variables()) - shown;
    let directory = known.working_directory();
    pb::KnowledgeResponse {
        revision: answer.revision.0,
        files,
        variables,
        working_directory: directory.map_or_else(String::new, |known| known.path.clone()),
        working_directory_from: directory.map(|known| to_proto::event_ref(known.event)),
        tools: known
            .outcomes()
            .iter()
            .map(|(tool, outcomes)| pb::ToolOutcomeCount {
                tool: tool.clone(),
                succeeded: outcomes.succeeded,
                failed: outcomes.failed,
                last: Some(to_proto::event_ref(outcomes.last)),
            })
            .collect(),
        summary: known.summary_text(),
        left_out: known.left_out() + cut as u64,
        recent: answer.recent.into_iter().map(to_proto::tool_call).collect(),
    }
}

/// Bytes left in an answer.
struct AnswerSpace(usize);

impl AnswerSpace {
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes + ITEM_BYTES)?;
        Some(())
    }

    fn file(&mut self, file: &KnownFile) -> Option<pb::KnownFile> {
        self.take(file.path.len() + file.tool.len())?;
        Some(pb::KnownFile {
            path: file.path.to_string(),
            event: Some(to_proto::event_ref(file.event)),
            tool: file.tool.to_string(),
            touch: file.touch.name().to_owned(),
        })
    }

    fn variables(&mut self, of_file: &FileVariables) -> Option<pb::KnownVariables> {
        self.take(of_file.file.len() + of_file.tool.len())?;
        let mut variables = Vec::new();
        for variable in &of_file.variables {
            if self
                .take(variable.name.len() + variable.detail.len())
                .is_none()
            {
                break;
            }
            variables.push(pb::KnownVariable {
                name: variable.name.clone(),
                detail: variable.detail.clone(),
            });
        }
        Some(pb::KnownVariables {
            file: of_file.file.to_string(),
            variables,
            event: Some(to_proto::event_ref(of_file.event)),
            tool: of_file.tool.to_string(),
        })
    }
}

pub(super) fn suggestions(suggested: CompletedArguments) -> pb::SuggestArgumentsResponse {
    let suggestion = |suggestion: Suggestion| pb::ArgumentSuggestion {
        argument: suggestion.argument,
        value: suggestion.value,
        alternatives: suggestion.alternatives,
        reason: suggestion.reason,
        event: Some(to_proto::event_ref(suggestion.event)),
    };
    pb::SuggestArgumentsResponse {
        arguments: suggested.arguments.into(),
        suggestions: suggested.suggestions.into_iter().map(suggestion).collect(),
    }
}

/// Converts the digest of a finished call.
pub(super) fn snapshot(snapshot: CallDigest) -> pb::ToolSnapshot {
    pb::ToolSnapshot {
        full_result_ref: snapshot.full_result_ref(),
        call_id: snapshot.call_id,
        tool_name: snapshot.tool,
        arguments: snapshot.arguments.as_bytes().clone(),
        result_summary: snapshot.result_summary,
        success: snapshot.success,
        recorded: snapshot.recorded,
        request: Some(to_proto::event_ref(snapshot.request)),
    }
}
