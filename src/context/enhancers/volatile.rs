//! Adds the sections that change with each request, and therefore come last.

use super::params::{Param, ParamKind, Params};
use crate::{
    draft::{Content, Draft, Item, Message, Section, Speaker},
    enhancer::Enhancer,
    explain::EnhancerReport,
    policy::ContextPolicy,
    window::WindowInput,
};
use treering_domain::{EventBody, EventRef, JsonText};

/// Name of the enhancer that adds tool knowledge.
pub const KNOWLEDGE: &str = "knowledge";
pub(super) const LONG_TERM: &str = "long_term_context";
pub(super) const ACTIVE: &str = "active_context";
pub(super) const KEYS_PARAMS: &[Param] = &[
    Param::new("only", ParamKind::Names, "Only these keys. Default: all."),
    Param::new(
        "without",
        ParamKind::Names,
        "Not these keys. Default: none.",
    ),
];
pub(super) const KNOWLEDGE_PARAMS: &[Param] = &[Param::new(
    "max_chars",
    ParamKind::Number,
    "Maximum number of characters. Default: 4000.",
)];
const KNOWLEDGE_CHARS: usize = 4_000;

/// Adds the tool knowledge.
#[derive(Debug)]
pub(super) struct ToolKnowledge;

impl Enhancer for ToolKnowledge {
    fn name(&self) -> &str {
        KNOWLEDGE
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let params = Params::of(policy, KNOWLEDGE);
        let max = params.number("max_chars", draft).unwrap_or(KNOWLEDGE_CHARS);
        let text = window.knowledge.as_deref().unwrap_or_default();
        if text.is_empty() {
            return EnhancerReport::ran(KNOWLEDGE, "nothing is known yet", 0);
        }
        let text: String = text.chars().take(max).collect();
        let text = tagged("TOOL_KNOWLEDGE", &text);
        draft
            .items
            .push(block(Section::Knowledge, KNOWLEDGE, text, Vec::new()));
        EnhancerReport::ran(KNOWLEDGE, "facts from tool results", 1)
    }
}

/// Adds the namespace's long-term context.
#[derive(Debug)]
pub(super) struct LongTermContext;

impl Enhancer for LongTermContext {
    fn name(&self) -> &str {
        LONG_TERM
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let entries = window
            .long_term
            .iter()
            .map(|entry| (entry.key.as_str(), &entry.value, entry.at));
        let keys = Keys {
            enhancer: LONG_TERM,
            section: Section::LongTermContext,
            tag: "LONG_TERM_CONTEXT",
        };
        keys.add(entries.collect(), policy, draft)
    }
}

/// Adds the branch's active context.
#[derive(Debug)]
pub(super) struct ActiveContext;

impl Enhancer for ActiveContext {
    fn name(&self) -> &str {
        ACTIVE
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let keys = window.branch.active_context.iter();
        let entries = keys.filter_map(|(key, at)| match &window.referred(Some(*at))?.body {
            EventBody::ContextSet(set) => Some((key.as_str(), &set.value, *at)),
            _ => None,
        });
        let keys = Keys {
            enhancer: ACTIVE,
            section: Section::ActiveContext,
            tag: "SYSTEM_CONTEXT",
        };
        keys.add(entries.collect(), policy, draft)
    }
}

struct Keys {
    enhancer: &'static str,
    section: Section,
    tag: &'static str,
}

impl Keys {
    fn add(
        &self,
        mut entries: Vec<(&str, &JsonText, EventRef)>,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let params = Params::of(policy, self.enhancer);
        if let Some(only) = params.names("only", draft) {
            entries.retain(|(key, ..)| only.contains(key));
        }
        if let Some(without) = params.names("without", draft) {
            entries.retain(|(key, ..)| !without.contains(key));
        }
        if entries.is_empty() {
            return EnhancerReport::ran(self.enhancer, "it has no keys", 0);
        }
        let text = tagged(self.tag, &object(&entries));
        let events = entries.iter().map(|(_, _, at)| *at).collect();
        draft
            .items
            .push(block(self.section, self.enhancer, text, events));
        EnhancerReport::ran(self.enhancer, format!("{} keys", entries.len()), 1)
    }
}

/// Returns a JSON object on one line, with each value as it was recorded.
fn object(entries: &[(&str, &JsonText, EventRef)]) -> String {
    let entries = entries.iter().map(|(key, value, _)| {
        let key = serde_json::Value::from(*key);
        let value = match value.as_str() {
            "" => "null",
            text => text,
        };
        // A value must not contain the closing tag. In JSON, `\/` is `/`.
        format!("{key}:{}", value.replace("</", "<\\/"))
    });
    format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
}

/// Returns `<TAG>`, the text and `</TAG>`, each on its own line.
pub(super) fn tagged(tag: &str, text: &str) -> String {
    format!("<{tag}>\n{text}\n</{tag}>")
}

fn block(section: Section, enhancer: &'static str, text: String, events: Vec<EventRef>) -> Item {
    let message = Message::text(Speaker::User, text);
    let mut item = Item::new(section, enhancer, Content::Message(message));
    item.events = events;
    item.is_volatile = true;
    item.reason = "as it is now".into();
    item
}
