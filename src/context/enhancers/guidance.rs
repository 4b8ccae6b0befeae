//! Adds usage guidance for discovered tools, at the place of their discovery.

use std::collections::{BTreeSet, HashSet};

use super::{
    params::{Param, ParamKind, Params},
    tools,
};
use crate::{
    draft::{Content, Draft, Item, Message, Section, Speaker},
    enhancer::Enhancer,
    explain::EnhancerReport,
    policy::ContextPolicy,
    steps,
    window::{WindowEvent, WindowInput},
};
use treering_domain::{EventBody, EventRef, ToolDefinition};

pub(super) const NAME: &str = "tool_guidance";
pub(super) const PARAMS: &[Param] = &[Param::new(
    "from_definitions",
    ParamKind::Flag,
    "Send the `guidance` of a tool's definition when the tool is discovered. Default: true; \
     false: only what GuidanceGiven events say.",
)];

/// Adds a `[TOOL GUIDANCE]` message at the place of each event that discovers tools or gives
/// guidance. The guidance of each tool is sent once, as it was first recorded.
#[derive(Debug)]
pub(super) struct ToolGuidance;

impl Enhancer for ToolGuidance {
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
        let from_definitions = params.flag("from_definitions", draft).unwrap_or(true);
        let defined = if from_definitions {
            tools::defined(window)
        } else {
            &[]
        };
        let told = tell(window, defined);
        if told.is_empty() {
            return EnhancerReport::ran(NAME, "no guidance was given", 0);
        }
        let tools: usize = told.iter().map(|told| told.tools).sum();
        let count = told.len();
        insert(window, told, draft);
        EnhancerReport::ran(NAME, format!("guidance for {tools} tools"), count)
    }
}

/// Discovered tools without guidance.
pub(crate) fn missing(window: &WindowInput) -> Vec<String> {
    let memory = &window.branch.memory;
    let defined = tools::defined(window);
    let with_text = defined.iter().filter(|tool| !tool.guidance.is_empty());
    let with_text: HashSet<&str> = with_text.map(|tool| tool.name.as_str()).collect();
    let given: HashSet<&str> = memory.guidance_given.iter().map(String::as_str).collect();
    let discovered = memory.discovered_tools.iter();
    discovered
        .inspect(|_| steps::note(1))
        .filter(|name| !given.contains(name.as_str()) && !with_text.contains(name.as_str()))
        .cloned()
        .collect()
}

/// The guidance of one event.
struct GuidanceContent {
    at: EventRef,
    place: usize,
    text: String,
    tools: usize,
}

fn tell(window: &WindowInput, defined: &[ToolDefinition]) -> Vec<GuidanceContent> {
    let defined = tools::by_name(defined);
    let mut known = BTreeSet::new();
    let mut told = Vec::new();
    let begins = window.memory_begins();
    let mut named = window.names_in_results.iter().peekable();
    for (place, event) in window.events.iter().enumerate().skip(begins) {
        let named = named.next_if(|names| names.place == place);
        let named = named.map_or_else(Vec::new, |names| definitions(&names.tools, &defined));
        let texts = texts(event, &defined);
        let new: Vec<_> = texts
            .into_iter()
            .chain(named)
            .filter(|(tool, text)| !text.is_empty() && known.insert(tool.to_owned()))
            .map(|(tool, text)| format!("{tool}: {text}"))
            .collect();
        if !new.is_empty() {
            told.push(GuidanceContent {
                at: event.at,
                place,
                text: format!("[TOOL GUIDANCE]\n{}", new.join("\n\n")),
                tools: new.len(),
            });
        }
    }
    told
}

fn texts<'a>(event: &'a WindowEvent, defined: &tools::ByName<'a>) -> Vec<(&'a str, &'a str)> {
    match &event.body {
        EventBody::GuidanceGiven { guidance } => guidance
            .iter()
            .map(|given| (given.tool.as_str(), given.text.as_str()))
            .collect(),
        EventBody::ToolsDiscovered { names } => definitions(names, defined),
        _ => Vec::new(),
    }
}

/// The guidance of the tools' definitions, by name.
fn definitions<'a>(names: &[String], defined: &tools::ByName<'a>) -> Vec<(&'a str, &'a str)> {
    let known = names.iter().filter_map(|name| defined.get(name.as_str()));
    known
        .map(|tool| (tool.name.as_str(), tool.guidance.as_str()))
        .collect()
}

/// Inserts each message before the first item that began after its event.
fn insert(window: &WindowInput, told: Vec<GuidanceContent>, draft: &mut Draft) {
    let places = window.places();
    let mut told = told.into_iter().peekable();
    let mut items = Vec::with_capacity(draft.items.len() + told.len());
    let (mut turn, mut is_volatile) = (0, false);
    for item in std::mem::take(&mut draft.items) {
        // Prompts and the summary come first, wherever their events are recorded.
        let in_window = matches!(item.section, Section::Messages | Section::OpenTurn);
        let place = item.events.first().filter(|_| in_window);
        if let Some(place) = place.and_then(|at| places.get(at)) {
            while let Some(next) = told.next_if(|next| next.place < *place) {
                items.push(message(next, turn, is_volatile));
            }
            (turn, is_volatile) = (item.turn, item.is_volatile);
        }
        items.push(item);
    }
    items.extend(told.map(|told| message(told, turn, is_volatile)));
    draft.items = items;
}

fn message(told: GuidanceContent, turn: u32, is_volatile: bool) -> Item {
    let content = Content::Message(Message::text(Speaker::User, told.text));
    let mut item = Item::new(Section::Guidance, NAME, content);
    item.events = vec![told.at];
    item.turn = turn;
    item.is_volatile = is_volatile;
    item.reason = "sent once, where the tools were discovered".into();
    item
}
