//! The built-in enhancers, in the order in which they run: first instructions for the whole
//! request, then the window, then sections that change with each request.

mod derived_tools;
mod guidance;
mod messages;
mod params;
mod prompts;
pub(crate) mod result_digests;
mod summary;
#[cfg(test)]
mod tests;
mod tools;
mod volatile;

use super::enhancer::Enhancer;

pub(super) use guidance::missing as guidance_missing;
pub(super) use messages::drop_reasoning;
pub use params::{Param, ParamKind};
pub(super) use summary::framed as framed_summary;
pub use volatile::KNOWLEDGE;

/// A built-in enhancer and its description.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Name in policies.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    /// Whether it runs unless the policy disables it.
    pub on_by_default: bool,
    /// Parameters that a policy can set.
    pub params: &'static [Param],
    pub(super) enhancer: &'static dyn Enhancer,
}

/// All built-in enhancers, in the order in which they run.
#[must_use]
pub fn built_in() -> &'static [BuiltIn] {
    BUILT_IN
}

const fn on(
    name: &'static str,
    about: &'static str,
    params: &'static [Param],
    enhancer: &'static dyn Enhancer,
) -> BuiltIn {
    BuiltIn {
        name,
        about,
        on_by_default: true,
        params,
        enhancer,
    }
}

static BUILT_IN: &[BuiltIn] = &[
    on(
        prompts::SYSTEM,
        "The branch's system prompt, and the system and developer messages that opened its history.",
        &[],
        &prompts::SystemPrompt,
    ),
    on(
        prompts::USER,
        "The branch's user prompt, as the first message of the user.",
        &[],
        &prompts::UserPrompt,
    ),
    on(
        tools::NAME,
        "The tools on offer: those defined, then those discovered; made from the branch's calls if no event defined any.",
        tools::PARAMS,
        &tools::Tools,
    ),
    on(
        summary::COMPACTION,
        "The last compaction's summary, in place of the replaced events, with its reference.",
        summary::COMPACTION_PARAMS,
        &summary::CompactionSummary,
    ),
    on(
        messages::NAME,
        "The messages of the window, and the model's steps with their calls and outcomes.",
        messages::PARAMS,
        &messages::Messages,
    ),
    on(
        guidance::NAME,
        "How to use a tool, sent once where it was discovered, until the next compaction.",
        guidance::PARAMS,
        &guidance::ToolGuidance,
    ),
    on(
        result_digests::NAME,
        "Digests of the results of finished turns, with references to the full results, if `tool_results` says so.",
        result_digests::PARAMS,
        &result_digests::ResultDigests,
    ),
    BuiltIn {
        on_by_default: false,
        ..on(
            volatile::KNOWLEDGE,
            "Facts from tool results: files, variables, the working directory.",
            volatile::KNOWLEDGE_PARAMS,
            &volatile::ToolKnowledge,
        )
    },
    on(
        volatile::LONG_TERM,
        "The namespace's long-term context, as JSON in `<LONG_TERM_CONTEXT>`.",
        volatile::KEYS_PARAMS,
        &volatile::LongTermContext,
    ),
    on(
        volatile::ACTIVE,
        "The branch's active context, as JSON in `<SYSTEM_CONTEXT>`.",
        volatile::KEYS_PARAMS,
        &volatile::ActiveContext,
    ),
    on(
        summary::DIALOGUE,
        "The last dialogue summary, in `<DIALOGUE_SUMMARY>`.",
        summary::DIALOGUE_PARAMS,
        &summary::DialogueSummary,
    ),
];
