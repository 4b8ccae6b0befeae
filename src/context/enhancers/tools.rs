//! Adds the tools on offer.

use std::collections::HashMap;

use super::{
    derived_tools,
    params::{Param, ParamKind, Params},
};
use crate::{
    draft::Draft, enhancer::Enhancer, explain::EnhancerReport, policy::ContextPolicy, steps,
    window::WindowInput,
};
use treering_domain::{EventBody, ToolDefinition};

pub(super) const NAME: &str = "tools";
pub(super) const PARAMS: &[Param] = &[
    Param::new(
        "only",
        ParamKind::Names,
        "Offer only these tools. Default: all.",
    ),
    Param::new(
        "without",
        ParamKind::Names,
        "Do not offer these. Default: none.",
    ),
    Param::new(
        "from_calls",
        ParamKind::Flag,
        "If no event defined tools, define those that the branch's calls name. Default: true.",
    ),
];

/// Adds defined tools in the order of definition, then discovered tools in the order of discovery.
/// If no event defined tools, adds the tools that were called.
#[derive(Debug)]
pub(super) struct Tools;

impl Enhancer for Tools {
    fn name(&self) -> &str {
        NAME
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let params = Params::of(policy, NAME);
        let only = params.names("only", draft);
        let without = params.names("without", draft).unwrap_or_default();
        let offered = |tool: &&ToolDefinition| {
            let name = tool.name.as_str();
            only.as_ref().is_none_or(|only| only.contains(name)) && !without.contains(name)
        };
        let from_calls = params.flag("from_calls", draft).unwrap_or(true);
        if from_calls && window.branch.tools_defined.is_none() {
            // An eighth of the budget, at four bytes per token.
            let bytes_max = match policy.budget_tokens {
                0 => usize::MAX,
                budget => usize::try_from(budget / 2).unwrap_or(usize::MAX),
            };
            let made = derived_tools::from_calls(window, bytes_max);
            if !made.is_empty() {
                draft.tools = made.into_iter().filter(|tool| offered(&tool)).collect();
                let did = format!(
                    "{} tools, made from the calls of the branch: no event defines any",
                    draft.tools.len()
                );
                return EnhancerReport::ran(NAME, did, draft.tools.len());
            }
        }
        let defined = defined(window);
        let core = defined.iter().filter(|tool| !tool.discoverable);
        let mut tools: Vec<_> = core.filter(offered).cloned().collect();
        let core = tools.len();
        let named = by_name(defined);
        let mut unknown = Vec::new();
        for name in &window.branch.memory.discovered_tools {
            steps::note(1);
            match named.get(name.as_str()) {
                Some(tool) if tool.discoverable => {
                    tools.extend(offered(tool).then(|| (*tool).clone()));
                }
                Some(_) => {}
                None => unknown.push(name.as_str()),
            }
        }
        if !unknown.is_empty() {
            draft.warnings.push(format!(
                "discovered tools that no ToolsDefined event defines are not offered: {}",
                unknown.join(", ")
            ));
        }
        let did = format!("{core} tools, and {} discovered", tools.len() - core);
        draft.tools = tools;
        EnhancerReport::ran(NAME, did, draft.tools.len())
    }
}

/// The definitions in force.
pub(super) fn defined(window: &WindowInput) -> &[ToolDefinition] {
    match window
        .referred(window.branch.tools_defined)
        .map(|event| &event.body)
    {
        Some(EventBody::ToolsDefined { tools }) => tools,
        _ => &[],
    }
}

/// Definitions by name. The first definition of a name is used.
pub(super) type ByName<'a> = HashMap<&'a str, &'a ToolDefinition>;

pub(super) fn by_name(defined: &[ToolDefinition]) -> ByName<'_> {
    // Inserted in reverse order, so that the first definition of a name stays.
    let last_first = defined.iter().rev();
    last_first.map(|tool| (tool.name.as_str(), tool)).collect()
}
