//! References to whole results. A request explains `#REVISION` once and offers a tool to read it.
//! The caller answers calls of that tool through `Tools.GetResult`.

use super::{
    budget::BUDGET,
    draft::{Block, Content, Draft, Fate, Item, Outcome, Section, full_result_ref},
    policy::ContextPolicy,
    tokens::Tally,
    window::WindowInput,
};
use treering_domain::{ConversationId, EventRef, JsonText, Revision, ToolDefinition};

/// Default name of the tool that reads a shortened result.
pub(crate) const READ_TOOL: &str = "treering_read_result";
/// The enhancer that adds the explanation.
const ENHANCER: &str = "tool_snapshots";
/// Prefix of a full reference.
const SCHEME: &str = "treering:";

/// Returns the reference to an event in a request of `conversation`: `#17`, or a full reference if
/// the event is in another conversation.
#[must_use]
pub fn short_reference(conversation: ConversationId, event: EventRef) -> String {
    if event.conversation == conversation {
        format!("#{}", event.revision)
    } else {
        full_result_ref(event)
    }
}

/// Adds the explanation of references, and the tool that reads them if the policy has one. Does so
/// if results are shortened or the budget will shorten some, so that the budget counts both.
/// [`settle`] removes them again if they are not needed.
pub fn reserve(window: &WindowInput, policy: &ContextPolicy, tally: &Tally, draft: &mut Draft) {
    let over = policy.budget_tokens > 0 && draft.tokens() > policy.budget_tokens;
    let mut forms = Forms::of(draft);
    forms.cut |= over;
    forms.left_out |= over;
    if forms == Forms::default() {
        return;
    }
    let tool = policy.read_tool.as_deref();
    if let Some(name) = tool
        && draft.tools.iter().all(|defined| defined.name != name)
    {
        let definition = definition(name);
        draft.tools_tokens += tally.tools(std::slice::from_ref(&definition));
        draft.tools.push(definition);
    }
    let text = note(window.conversation, tool, forms);
    let mut item = Item::new(Section::System, ENHANCER, Content::Instruction(text));
    item.reason = "says what references to shortened results are".into();
    tally.measure_item(&mut item);
    item.whole_tokens = item.tokens;
    let is_instruction = |item: &Item| matches!(&*item.content, Content::Instruction(_));
    let place = draft.items.iter().rposition(is_instruction);
    draft.items.insert(place.map_or(0, |place| place + 1), item);
}

/// Limits the explanation to the references in the draft. Removes what [`reserve`] added if nothing
/// was shortened. Returns the tokens saved.
pub fn settle(
    window: &WindowInput,
    policy: &ContextPolicy,
    tally: &Tally,
    draft: &mut Draft,
) -> u64 {
    let before = draft.tokens();
    let forms = Forms::of(draft);
    if forms != Forms::default() {
        let text = note(window.conversation, policy.read_tool.as_deref(), forms);
        for item in draft.items.iter_mut().filter(|item| is_note(item)) {
            item.content = Content::Instruction(text.clone()).into();
            tally.measure_item(item);
            item.whole_tokens = item.tokens;
        }
        return before.saturating_sub(draft.tokens());
    }
    draft.items.retain(|item| !is_note(item));
    let own = |tool: &ToolDefinition| {
        tool.source == SOURCE && policy.read_tool.as_deref() == Some(&tool.name)
    };
    if let Some(at) = draft.tools.iter().position(own) {
        let tokens = tally.tools(&draft.tools[at..=at]);
        draft.tools_tokens = draft.tools_tokens.saturating_sub(tokens);
        draft.tools.remove(at);
    }
    before.saturating_sub(draft.tokens())
}

fn is_note(item: &Item) -> bool {
    item.enhancer == ENHANCER && matches!(&*item.content, Content::Instruction(_))
}

/// The kinds of references in a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Forms {
    /// `[short #N]`: a result digest.
    short: bool,
    /// `[… the whole: #N …]`: the head and tail of a text.
    cut: bool,
    /// A note in place of dropped steps and messages.
    left_out: bool,
}

impl Forms {
    fn of(draft: &Draft) -> Self {
        let mut forms = Self::default();
        for item in &draft.items {
            forms.left_out |= item.enhancer == BUDGET;
            if item.fate == Fate::Shortened {
                forms.note(item);
            }
        }
        forms
    }

    fn note(&mut self, item: &Item) {
        let Content::Step(step) = &*item.content else {
            self.cut |= matches!(&*item.content, Content::Message(_));
            return;
        };
        for block in &step.blocks {
            match block {
                Block::Part(part) => self.cut |= part.recorded_at().is_none(),
                Block::Call(call) => {
                    self.cut |= call.arguments_shortened;
                    match &call.outcome {
                        Outcome::Snapshot(_) => self.short = true,
                        Outcome::Result(result) => self.cut |= result.shortened,
                        Outcome::Missing { .. } => {}
                    }
                }
            }
        }
    }
}

/// Returns the text that explains the references in the request to the model.
fn note(conversation: ConversationId, tool: Option<&str>, forms: Forms) -> String {
    let told = [
        (
            forms.short,
            "a tool result that begins with [short #N] has only the lines that matter most, and … \
             marks what is missing",
        ),
        (
            forms.cut,
            "[… the whole: #N …] stands where the middle of a text was",
        ),
        (
            forms.left_out,
            "a note with their numbers stands where steps and messages were",
        ),
    ];
    let told = told.into_iter().filter(|(is_there, _)| *is_there);
    let told: Vec<_> = told.map(|(_, told)| told).collect();
    let read = match tool {
        Some(tool) => format!("When you need one, call {tool} with {{\"reference\": \"#N\"}}."),
        None => format!(
            "No tool here reads it: when you cannot do without one, say so and name it, as \
             {SCHEME}{conversation}/N."
        ),
    };
    format!(
        "Some of this conversation is shortened or left out: {}. #N is event N of this \
         conversation, stored in full. {read}",
        told.join("; ")
    )
}

const SOURCE: &str = "treering";

/// The tool that reads a shortened result.
#[must_use]
pub fn definition(name: &str) -> ToolDefinition {
    let schema = r##"{"type":"object","properties":{"reference":{"type":"string","description":"Which one: the number after #, for example #17"},"line_first":{"type":"integer","description":"First line to read, from 1; without it, from the start"},"line_last":{"type":"integer","description":"Last line to read; without it, to the end"}},"required":["reference"]}"##;
    ToolDefinition {
        name: name.to_owned(),
        description: "Read a tool result or message of this conversation that was shortened or \
                      left out, whole or some of its lines. No tool is run again."
            .to_owned(),
        input_schema: JsonText::from_checked(bytes::Bytes::from_static(schema.as_bytes())),
        source: SOURCE.to_owned(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    }
}

/// Arguments of a call of the tool that reads results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArguments {
    /// Conversation of the event; none for the conversation of the call.
    pub conversation: Option<ConversationId>,
    /// Revision of the result.
    pub revision: Revision,
    /// First line, from 1.
    pub line_first: u64,
    /// Last line; `u64::MAX` for the end of the result.
    pub line_last: u64,
}

/// Error for arguments that name no result. The text is for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; give {{\"reference\": \"#N\"}} with the number of a shortened result")]
pub struct BadReadArguments(&'static str);

impl ReadArguments {
    /// Reads a call's arguments as the model wrote them. Accepts small mistakes, such as a number
    /// as a string, or `[short #17]` as the reference.
    ///
    /// # Errors
    /// [`BadReadArguments`] if they name no result.
    pub fn parse(arguments: &str) -> Result<Self, BadReadArguments> {
        let value: serde_json::Value = serde_json::from_str(arguments)
            .map_err(|_| BadReadArguments("the arguments are not JSON"))?;
        // Some models send the object as a string.
        let value = match value {
            serde_json::Value::String(text) => {
                serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))
            }
            value => value,
        };
        let reference = match &value {
            serde_json::Value::Object(map) => ["reference", "ref"].iter().find_map(|k| map.get(*k)),
            value => Some(value),
        };
        let reference = match reference {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(serde_json::Value::Number(number)) => number.to_string(),
            _ => return Err(BadReadArguments("there is no `reference`")),
        };
        let (conversation, revision) =
            place(&reference).ok_or(BadReadArguments("the reference names no result"))?;
        let line = |name: &str| match value.get(name)? {
            serde_json::Value::String(text) => text.trim().parse().ok(),
            number => number.as_u64(),
        };
        let line_first = line("line_first").unwrap_or(1).max(1);
        let line_last = line("line_last")
            .filter(|line| *line > 0)
            .unwrap_or(u64::MAX);
        if line_last < line_first {
            return Err(BadReadArguments("`line_last` is before `line_first`"));
        }
        Ok(Self {
            conversation,
            revision,
            line_first,
            line_last,
        })
    }
}

/// Parses `#17`, `17`, `[short #17]` or `treering:CONVERSATION/17`.
fn place(reference: &str) -> Option<(Option<ConversationId>, Revision)> {
    let text = reference
        .trim()
        .trim_matches(['[', ']', '`', '"', '(', ')']);
    let text = text.strip_prefix("short").unwrap_or(text).trim();
    let number = |text: &str| {
        let digits = text.trim_start_matches('#');
        digits
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .map(Revision)
    };
    if let Some(revision) = number(text) {
        return Some((None, revision));
    }
    let (conversation, revision) = text.strip_prefix(SCHEME)?.split_once('/')?;
    Some((Some(conversation.parse().ok()?), number(revision)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The note must explain the forms of references that the request contains, and no others. It
    // must not mention a tool that is not offered.
    #[test]
    fn note_explains_only_the_reference_forms_in_use() {
        let id = ConversationId(uuid::Uuid::from_u128(7));
        let none = Forms::default();
        let cut = note(id, None, Forms { cut: true, ..none });
        assert!(
            cut.contains("[… the whole: #N …]") && !cut.contains("[short"),
            "{cut}"
        );
        assert!(
            cut.contains("No tool here reads it") && !cut.contains("numbers stands"),
            "{cut}"
        );
        let both = Forms {
            short: true,
            left_out: true,
            ..none
        };
        let both = note(id, Some("read_it"), both);
        assert!(
            both.contains("[short #N]") && both.contains("numbers stands"),
            "{both}"
        );
        assert!(
            both.contains("call read_it") && !both.contains("No tool"),
            "{both}"
        );
    }

    // A model copies references from its input. All usual forms must find the result. Other forms
    // must give an error for the model.
    #[test]
    fn read_arguments_accept_every_reference_form() {
        let id = "00000000-0000-0000-0000-000000000007";
        let full = format!(r#"{{"reference": "treering:{id}/17"}}"#);
        for (arguments, line_first, line_last) in [
            (r##"{"reference": "#17"}"##, 1, u64::MAX),
            (r#"{"reference": "17"}"#, 1, u64::MAX),
            (r#"{"reference": 17, "line_first": null}"#, 1, u64::MAX),
            (
                r#"{"ref": "[short #17]", "line_first": "3", "line_last": 9, "why": "x"}"#,
                3,
                9,
            ),
            (r##""{\"reference\": \"#17\"}""##, 1, u64::MAX),
            (full.as_str(), 1, u64::MAX),
        ] {
            let read = ReadArguments::parse(arguments).unwrap();
            assert_eq!(read.revision, Revision(17), "{arguments}");
            assert_eq!((read.line_first, read.line_last), (line_first, line_last));
            assert_eq!(read.conversation.is_some(), arguments == full);
        }
        for wrong in [
            "",
            "{}",
            "[]",
            r##"{"reference": "#0"}"##,
            r#"{"reference": "the last one"}"#,
            r#"{"reference": "treering:x/1"}"#,
            r##"{"reference": "#3", "line_first": 9, "line_last": 2}"##,
        ] {
            let error = ReadArguments::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("\"reference\""), "{wrong}: {error}");
        }
    }
}
