//! Adds the messages and steps of the window.

use super::params::{Param, ParamKind, Params};
use crate::{
    draft::{Block, Content, Draft, Item},
    enhancer::Enhancer,
    explain::EnhancerReport,
    policy::ContextPolicy,
    window::{self, WindowInput},
};
use treering_domain::ContentPart;

pub(super) const NAME: &str = "messages";
pub(super) const PARAMS: &[Param] = &[
    Param::new(
        "reasoning",
        ParamKind::Flag,
        "Send reasoning back to its maker. Default: true.",
    ),
    Param::new(
        "system_messages",
        ParamKind::Flag,
        "Send system and developer messages from the middle of the conversation. Default: true.",
    ),
];

/// Adds the items that [`window::fold`](window::fold()) creates from the window's events.
#[derive(Debug)]
pub(super) struct Messages;

impl Enhancer for Messages {
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
        let reasoning = params.flag("reasoning", draft).unwrap_or(true);
        let system = params.flag("system_messages", draft).unwrap_or(true);
        let mut items = window::fold(window);
        if !system {
            items.retain(|item| !is_system(item));
        }
        if !reasoning {
            items.iter_mut().for_each(drop_reasoning);
        }
        let steps = items.iter().filter(|item| item.step().is_some()).count();
        let turns = items.iter().map(|item| item.turn).max().unwrap_or_default();
        let did = format!(
            "{} messages and {steps} steps of {turns} turns",
            items.len() - steps
        );
        let count = items.len();
        draft.items.extend(items);
        EnhancerReport::ran(NAME, did, count)
    }
}

fn is_system(item: &Item) -> bool {
    use crate::draft::Speaker;
    matches!(&*item.content, Content::Message(message) if message.speaker != Speaker::User)
}

/// Removes the reasoning of a step.
pub(crate) fn drop_reasoning(item: &mut Item) {
    let is_reasoning = |block: &Block| matches!(block, Block::Part(part) if matches!(**part, ContentPart::Reasoning(_)));
    if item
        .step()
        .is_some_and(|step| step.blocks.iter().any(is_reasoning))
        && let Content::Step(step) = item.content.make_mut()
    {
        step.blocks.retain(|block| !is_reasoning(block));
    }
}
