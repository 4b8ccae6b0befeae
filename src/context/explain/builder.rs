//! Builds the explanation of a finished draft.

use std::collections::BTreeMap;

use super::{EnhancerReport, ExplainedItem, Explanation, SectionTokens, SharedPrefix, TokenBasis};
use crate::{
    budget::BudgetOutcome,
    draft::{Block, Content, Draft, Fate, Item, Outcome, Section, Speaker, Step},
    enhancers,
    shared::Caption,
    tokens::Tally,
    window::WindowInput,
};
use treering_domain::{ContentPart, Media};

/// Maximum length of an item's head, in characters.
const HEAD_CHARS: usize = 100;

/// Inputs of an explanation, besides the draft.
#[derive(Debug)]
pub struct ExplanationBuilder<'a> {
    /// The window of the draft.
    pub window: &'a WindowInput,
    /// The tally that counted its tokens.
    pub tally: &'a Tally,
    /// How tokens were counted.
    pub basis: TokenBasis,
    /// Reports of the enhancers.
    pub reports: Vec<EnhancerReport>,
    /// Result of the token budget.
    pub fitted: BudgetOutcome,
    /// Token budget; 0 for none.
    pub budget_tokens: u64,
}

impl ExplanationBuilder<'_> {
    /// Returns the explanation of the draft in its current state.
    #[must_use]
    pub fn explain(self, draft: &Draft, shared_prefix: Option<SharedPrefix>) -> Explanation {
        let window = self.window;
        Explanation {
            conversation: window.conversation,
            branch: window.branch.name.clone(),
            revision: window.revision,
            provider: draft.provider,
            model: draft.config.model_id.clone(),
            basis: self.basis,
            tokens: draft.tokens(),
            budget_tokens: self.budget_tokens,
            over_budget: self.fitted.over_budget,
            compaction_due: self.fitted.compaction_due,
            tokens_before_budget: self.fitted.tokens_before,
            sections: sections(draft, self.tally),
            items: items(draft),
            enhancers: self.reports,
            shared_prefix,
            warnings: draft.warnings.clone(),
            guidance_missing: enhancers::guidance_missing(window),
        }
    }
}

/// Returns the tokens of each section that has items. They add up to the draft's tokens.
#[must_use]
pub fn sections(draft: &Draft, tally: &Tally) -> Vec<SectionTokens> {
    let mut lines: BTreeMap<Section, SectionTokens> = BTreeMap::new();
    let mut add = |section, tokens, dropped_tokens, items: usize| {
        let line = lines.entry(section).or_insert(SectionTokens {
            section,
            tokens: 0,
            dropped_tokens: 0,
            items: 0,
        });
        line.tokens += tokens;
        line.dropped_tokens += dropped_tokens;
        line.items += u32::try_from(items).unwrap_or(u32::MAX);
    };
    if !draft.tools.is_empty() {
        add(Section::Tools, draft.tools_tokens, 0, draft.tools.len());
    }
    for item in &draft.items {
        let gone = item.whole_tokens.saturating_sub(item.tokens);
        let here = usize::from(item.fate != Fate::Dropped);
        let with_results = item.step().filter(|_| item.section == Section::Messages);
        let Some(step) = with_results.filter(|_| here == 1) else {
            add(item.section, item.tokens, gone, here);
            continue;
        };
        let outcomes = step.calls().count();
        let results = tally.outcomes(&item.content).min(item.tokens);
        let is_short = |outcome: &Outcome| match outcome {
            Outcome::Snapshot(_) => true,
            Outcome::Result(result) => result.shortened,
            Outcome::Missing { .. } => false,
        };
        let shortened = step.calls().any(|call| is_short(&call.outcome));
        let (gone_results, gone) = if shortened { (gone, 0) } else { (0, gone) };
        add(item.section, item.tokens - results, gone, here);
        if outcomes > 0 {
            add(Section::ToolResults, results, gone_results, outcomes);
        }
    }
    lines.into_values().collect()
}

/// Returns the descriptions of the items.
#[must_use]
pub fn items(draft: &Draft) -> Vec<ExplainedItem> {
    draft.items.iter().map(explained).collect()
}

fn explained(item: &Item) -> ExplainedItem {
    let told = item.content.told(|| Caption {
        label: label(&item.content),
        head: head(&item.content),
    });
    ExplainedItem {
        section: item.section,
        events: item.events.clone(),
        enhancer: item.enhancer.clone(),
        label: told.label.clone(),
        head: told.head.clone(),
        tokens: item.tokens,
        whole_tokens: item.whole_tokens,
        fate: item.fate,
        reason: item.reason.clone(),
        is_volatile: item.is_volatile,
        turn: item.turn,
    }
}

fn label(content: &Content) -> String {
    match content {
        Content::Instruction(_) => "instruction".to_owned(),
        Content::Message(message) => {
            let speaker = match message.speaker {
                Speaker::System => "system",
                Speaker::Developer => "developer",
                Speaker::User => "user",
            };
            match message.author.as_str() {
                "" => speaker.to_owned(),
                author => format!("{speaker} {author}"),
            }
        }
        Content::Step(step) => {
            let tools: Vec<_> = step.calls().map(|call| call.tool.as_str()).collect();
            match tools.as_slice() {
                [] => "assistant".to_owned(),
                tools => format!("assistant → {}", tools.join(", ")),
            }
        }
    }
}

fn head(content: &Content) -> String {
    match content {
        Content::Instruction(text) => line(text),
        Content::Message(message) => message.parts.first().map(part_head).unwrap_or_default(),
        Content::Step(step) => step_head(step),
    }
}

/// Returns the beginning of the step's text, or else of its first call, or else of its reasoning.
/// Reasoning comes last because most requests omit it.
fn step_head(step: &Step) -> String {
    let parts = |is_thought: bool| {
        step.blocks.iter().find_map(|block| match block {
            Block::Part(part) if matches!(**part, ContentPart::Reasoning(_)) == is_thought => {
                Some(part_head(part)).filter(|head| !head.is_empty())
            }
            Block::Part(_) | Block::Call(_) => None,
        })
    };
    let calls = || {
        let call = step.calls().next()?;
        Some(line(&format!("{} {}", call.tool, call.arguments.as_str())))
    };
    let said = parts(false).or_else(calls).or_else(|| parts(true));
    said.unwrap_or_default()
}

fn part_head(part: &ContentPart) -> String {
    let medium = |kind: &str, media: &Media| match media.name.as_str() {
        "" => format!("[{kind} {}]", media.media_type),
        name => format!("[{kind} {name}]"),
    };
    match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => line(text),
        ContentPart::Json(json) => line(json.as_str()),
        ContentPart::Reasoning(reasoning) if reasoning.text.is_empty() => String::new(),
        ContentPart::Reasoning(reasoning) => line(&format!("[reasoning] {}", reasoning.text)),
        ContentPart::Image(media) => medium("image", media),
        ContentPart::File(media) => medium("file", media),
        ContentPart::Audio(media) => medium("audio", media),
    }
}

/// Returns the first characters that are not blank, on one line.
fn line(text: &str) -> String {
    // Collapses white space. Stops early, because texts may have many megabytes.
    let mut line = String::new();
    let mut count = 0;
    for word in text.split_whitespace() {
        let blank = usize::from(count > 0);
        let room = HEAD_CHARS.saturating_sub(count + blank);
        if room == 0 {
            return line + "…";
        }
        if blank == 1 {
            line.push(' ');
        }
        let mut taken = 0;
        for c in word.chars().take(room) {
            line.push(c);
            taken += 1;
        }
        count += blank + taken;
        if word.chars().nth(taken).is_some() {
            return line + "…";
        }
    }
    line
}
