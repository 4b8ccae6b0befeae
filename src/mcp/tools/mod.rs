//! The tools: one table of all tools ([`offered`]), and one function that calls them ([`call`]).
//!
//! Answers are text for a model: short, with a mark before each recorded line, and with the address
//! for the next call. Structured content is added only if a program may need it and it is small,
//! because several clients show both the text and the structured content to a model.

mod around;
mod branches;
mod conversations;
mod decide;
mod memory;
mod read;
mod request;
mod search;

use std::{borrow::Cow, sync::Arc};

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{bounds::ANSWER_BYTES_MAX, failure::Failure, source::StoreUse};
use treering_client::Connection;
use treering_search::RECALL_MARK;

pub(crate) use around::{event_text as text_of_event, texts as events_text};
pub(crate) use conversations::newest;
pub(crate) use read::resource;
pub(crate) use search::hits_text;

/// What agents may do besides reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentPermissions {
    /// Fork and remember.
    pub writing: bool,
    /// Decide about calls that wait for approval.
    pub approvals: bool,
}

/// The permission that a tool needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequiredPermission {
    Nothing,
    Writing,
    /// Reads pending calls.
    Approvals,
    /// Decides about pending calls.
    Deciding,
}

/// A tool as it is offered.
struct Offer {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    takes: fn() -> JsonObject,
    gives: Option<fn() -> JsonObject>,
    needs: RequiredPermission,
}

const OFFERS: [Offer; 11] = [
    Offer {
        name: "search",
        title: "Search past sessions",
        description: "Search everything that was said and done in past sessions: tool results \
                      (command output, files, errors), calls, messages. Use it before you repeat \
                      work, and when the user refers to something earlier. Cheap: returns \
                      addresses with short snippets; then `read` an address for the text, or \
                      `around` for the events before and after.",
        takes: schema::<search::SearchInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "around",
        title: "Show events around one",
        description: "Show the events before and after an event, shortened: which question led to \
                      a command, what was tried next. Takes an address from `search`.",
        takes: schema::<around::AroundInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "read",
        title: "Read a recorded text",
        description: "Read a tool result, message or summary by its address; of a call, its \
                      arguments and the address of its result. A long text is returned in parts: \
                      first its beginning and end, then the lines or bytes that you ask for. The \
                      answer says how to continue.",
        takes: schema::<read::ReadInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "conversations",
        title: "List past sessions",
        description: "List conversations (recorded sessions), newest first, with ids and titles. \
                      To find what was said or done in them, use `search`.",
        takes: schema::<conversations::ConversationsInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "branches",
        title: "List branches of a conversation",
        description: "List the branches of a conversation, with their fork points and heads.",
        takes: schema::<branches::BranchesInput>,
        gives: Some(schema::<branches::BranchesOutput>),
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "request",
        title: "Build the next request",
        description: "Build the request that a conversation's agent would send next, within a \
                      token budget: instructions, summaries, recent messages and results. Use it \
                      to take over another session's context in one call.",
        takes: schema::<request::RequestInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "recall",
        title: "Recall what was remembered",
        description: "Return what was remembered for all sessions (`remember`): preferences, \
                      decisions, facts. Without a key, all of it, shortened.",
        takes: schema::<memory::RecallInput>,
        gives: None,
        needs: RequiredPermission::Nothing,
    },
    Offer {
        name: "remember",
        title: "Remember something for all sessions",
        description: "Keep a value under a key for all later sessions, or forget it. Earlier \
                      values stay in the history. Keep only what the user wants kept.",
        takes: schema::<memory::RememberInput>,
        gives: Some(schema::<memory::RememberOutput>),
        needs: RequiredPermission::Writing,
    },
    Offer {
        name: "fork",
        title: "Fork a conversation",
        description: "Start a new branch of a conversation after one of its events, to try \
                      something else from there. Copies nothing and changes nothing, except the \
                      active branch with `activate`.",
        takes: schema::<branches::ForkInput>,
        gives: Some(schema::<branches::ForkOutput>),
        needs: RequiredPermission::Writing,
    },
    Offer {
        name: "pending",
        title: "Calls that wait for a decision",
        description: "List tool calls of other agents that wait for a person's decision, with \
                      their arguments. Show all of them to the user.",
        takes: schema::<decide::PendingInput>,
        gives: None,
        needs: RequiredPermission::Approvals,
    },
    Offer {
        name: "decide",
        title: "Approve or deny a call",
        description: "Record the user's decision about a waiting call. Ask the user first, each \
                      time; never decide yourself.",
        takes: schema::<decide::DecideInput>,
        gives: None,
        needs: RequiredPermission::Deciding,
    },
];

impl Offer {
    fn is_allowed(&self, allowed: AgentPermissions) -> bool {
        match self.needs {
            RequiredPermission::Nothing => true,
            RequiredPermission::Writing => allowed.writing,
            RequiredPermission::Approvals | RequiredPermission::Deciding => allowed.approvals,
        }
    }

    fn tool(&self) -> Tool {
        let changes = matches!(
            self.needs,
            RequiredPermission::Writing | RequiredPermission::Deciding
        );
        // The other hints are only meaningful for tools that write.
        let hints = match changes {
            false => ToolAnnotations::with_title(self.title).read_only(true),
            true => ToolAnnotations::with_title(self.title)
                .read_only(false)
                // It may replace a value, activate a branch, or let a call run.
                .destructive(true)
                .idempotent(false),
        };
        let tool = Tool::new(self.name, self.description, (self.takes)())
            .with_title(self.title)
            .with_annotations(hints.open_world(false));
        match self.gives {
            Some(gives) => tool.with_raw_output_schema(Arc::new(gives())),
            None => tool,
        }
    }
}

/// Returns the offered tools.
#[must_use]
pub(crate) fn offered_tools(allowed: AgentPermissions) -> Vec<Tool> {
    let allowed = OFFERS.iter().filter(|offer| offer.is_allowed(allowed));
    allowed.map(Offer::tool).collect()
}

/// Returns one offered tool.
#[must_use]
pub(crate) fn offered_as(name: &str, allowed: AgentPermissions) -> Option<Tool> {
    let offer = OFFERS.iter().find(|offer| offer.name == name)?;
    offer.is_allowed(allowed).then(|| offer.tool())
}

/// Returns how a tool uses the store; `None`: it does not exist, or is not allowed.
#[must_use]
pub(crate) fn used(name: &str, allowed: AgentPermissions) -> Option<StoreUse> {
    let offer = OFFERS.iter().find(|offer| offer.name == name)?;
    offer.is_allowed(allowed).then_some(match offer.needs {
        RequiredPermission::Nothing | RequiredPermission::Approvals => StoreUse::Looks,
        RequiredPermission::Writing | RequiredPermission::Deciding => StoreUse::Appends,
    })
}

/// Returns why a tool is not offered. The text for standard input differs from that for HTTP.
#[must_use]
pub(crate) fn missing(name: &str, by_http: bool) -> String {
    let offer = OFFERS.iter().find(|offer| offer.name == name);
    let why = match (offer.map(|offer| offer.needs), by_http) {
        (Some(RequiredPermission::Nothing) | None, _) => {
            return "no such tool; see tools/list".into();
        }
        (Some(RequiredPermission::Writing), false) => "this server was started without --writable",
        (Some(RequiredPermission::Writing), true) => {
            "this server was started without --mcp-writable"
        }
        (Some(_), false) => "this server was started without --allow-approvals",
        (Some(_), true) => "approvals are not available over HTTP",
    };
    format!("the tool `{name}` is not offered: {why}")
}

/// The answer of a tool.
#[derive(Debug)]
pub(crate) struct ToolAnswer {
    text: String,
    /// The text is never cut: a part of it would be useless.
    is_whole: bool,
    structured: Option<Value>,
}

impl ToolAnswer {
    fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_whole: false,
            structured: None,
        }
    }

    fn whole(text: String) -> Self {
        Self {
            is_whole: true,
            ..Self::text(text)
        }
    }

    fn with(mut self, structured: Value) -> Self {
        self.structured = Some(structured);
        self
    }

    /// Returns the result for the protocol, cut to the size limit.
    #[must_use]
    pub(crate) fn result(self) -> CallToolResult {
        let text = match self.is_whole {
            true => self.text,
            false => within(self.text),
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = self.structured;
        result
    }
}

/// Returns an error as a result for the model.
#[must_use]
pub(crate) fn refused(failure: &Failure) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(within(failure.text()))])
}

fn within(mut text: String) -> String {
    if text.len() <= ANSWER_BYTES_MAX {
        return text;
    }
    let left = text.len() - text.floor_char_boundary(ANSWER_BYTES_MAX);
    text.truncate(text.floor_char_boundary(ANSWER_BYTES_MAX));
    text.push_str(&format!(
        "\n[cut: {left} more bytes. Ask for less at once.]\n"
    ));
    text
}

/// Calls a tool that is allowed. `actor` is the caller.
///
/// # Errors
/// A failure, described for the model.
pub(crate) async fn call(
    name: &str,
    arguments: JsonObject,
    store: &Connection,
    actor: &str,
) -> Result<ToolAnswer, Failure> {
    let mut answer = match name {
        "search" => search::call(input(name, arguments)?, store).await,
        "around" => around::call(&input(name, arguments)?, store).await,
        "read" => read::call(&input(name, arguments)?, store).await,
        "conversations" => conversations::call(input(name, arguments)?, store).await,
        "branches" => branches::call(&input(name, arguments)?, store).await,
        "request" => request::call(input(name, arguments)?, store).await,
        "recall" => memory::recall(input(name, arguments)?, store).await,
        "remember" => memory::remember(input(name, arguments)?, store, actor).await,
        "fork" => branches::fork(input(name, arguments)?, store, actor).await,
        "pending" => decide::pending(input(name, arguments)?, store).await,
        "decide" => decide::decide(input(name, arguments)?, store, actor).await,
        _ => Err(Failure::new("no such tool", "use a tool from tools/list")),
    }?;
    let reads = |offer: &Offer| offer.name == name && offer.needs == RequiredPermission::Nothing;
    if OFFERS.iter().any(reads) {
        answer.text.insert_str(0, &mark_line());
    }
    Ok(answer)
}

/// Returns the first line of answers that contain text from the store. If the agent's session is
/// recorded, this line shows that the text is a copy, not an original.
#[must_use]
pub(crate) fn mark_line() -> String {
    format!("{RECALL_MARK}\n")
}

fn input<T: DeserializeOwned>(name: &str, arguments: JsonObject) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        Failure::new(
            format!("invalid arguments of `{name}`: {error}"),
            "call it again with arguments that match its schema",
        )
    })
}

/// Returns the JSON Schema of a type, without parts that cost tokens and say nothing.
fn schema<T: JsonSchema>() -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    strip(&mut schema);
    match schema {
        Value::Object(mut schema) => {
            schema.entry("type").or_insert_with(|| json!("object"));
            // A tool without arguments.
            schema.entry("properties").or_insert_with(|| json!({}));
            schema
        }
        _ => JsonObject::new(),
    }
}

/// Removes number formats, `null` in types of optional fields, and titles.
fn strip(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object
                .get("type")
                .is_some_and(|of| of.is_string() || of.is_array())
            {
                object.remove("format");
                object.remove("title");
                if let Some(Value::Array(types)) = object.get("type").cloned() {
                    let real: Vec<_> = types.into_iter().filter(|of| of != "null").collect();
                    if let [only] = &real[..] {
                        object.insert("type".into(), only.clone());
                    }
                }
            }
            object.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Returns a requested number or the default, limited to the range from 1 to `most`.
fn bounded(asked: Option<u32>, usual: u32, most: u32) -> u32 {
    asked.unwrap_or(usual).clamp(1, most)
}

/// Treats an empty argument as absent: models send empty texts for omitted arguments.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// Returns an argument for an error message: shortened, on one line.
fn shown(text: &str) -> Cow<'_, str> {
    super::quote::named(text, 80).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: AgentPermissions = AgentPermissions {
        writing: true,
        approvals: true,
    };

    fn names(allowed: AgentPermissions) -> Vec<String> {
        let tools = offered_tools(allowed);
        tools
            .into_iter()
            .map(|tool| tool.name.into_owned())
            .collect()
    }

    // An agent that may approve calls can approve its own: these tools, and those that write, must
    // not exist unless enabled.
    #[test]
    fn disallowed_tools_are_not_offered() {
        let looking = names(AgentPermissions::default());
        for name in ["remember", "fork", "pending", "decide"] {
            assert!(!looking.iter().any(|tool| tool == name), "{name}");
            assert_eq!(used(name, AgentPermissions::default()), None);
            assert!(missing(name, false).contains("--"), "{name}");
        }
        let writing = AgentPermissions {
            writing: true,
            approvals: false,
        };
        assert_eq!(used("fork", writing), Some(StoreUse::Appends));
        assert_eq!(used("decide", writing), None);
        assert!(missing("decide", true).contains("over HTTP"));
        assert_eq!(used("pending", ALL), Some(StoreUse::Looks));
        assert_eq!(names(ALL).len(), OFFERS.len());
        assert_eq!(used("nothing", ALL), None);
    }

    // Clients ask the user before a tool that is not read-only, and just run the others: a tool
    // that appends must never be marked read-only.
    #[test]
    fn tools_that_append_are_not_marked_read_only() {
        for tool in offered_tools(ALL) {
            let hints = tool.annotations.unwrap();
            let changes = used(&tool.name, ALL) == Some(StoreUse::Appends);
            assert_eq!(hints.read_only_hint, Some(!changes), "{}", tool.name);
            // `remember` replaces and deletes, `fork` may activate another branch.
            assert_eq!(
                hints.destructive_hint,
                changes.then_some(true),
                "{}",
                tool.name
            );
            assert_eq!(hints.open_world_hint, Some(false));
        }
    }

    // The list of tools is in every context of every session: its size must be limited.
    #[test]
    fn tool_list_is_limited_in_tokens() {
        let tools = serde_json::to_string(&offered_tools(AgentPermissions::default())).unwrap();
        let tokens = treering_context::tokens::Counter::for_model("").count(&tools);
        assert!(tokens < 2_200, "{tokens}: {tools}");
        assert!(
            !tools.contains("uint32") && !tools.contains("$schema"),
            "{tools}"
        );
    }

    // Ignoring a mistyped argument would answer another question.
    #[test]
    fn unknown_arguments_are_refused() {
        let arguments = json!({"query": "x", "limt": 3});
        let Value::Object(arguments) = arguments else {
            unreachable!()
        };
        let error = input::<search::SearchInput>("search", arguments).unwrap_err();
        assert!(error.text().contains("limt"), "{}", error.text());
        for tool in offered_tools(ALL) {
            let closed = tool.input_schema.get("additionalProperties");
            assert_eq!(closed, Some(&json!(false)), "{}", tool.name);
        }
    }

    // No answer may fill a context, whatever a tool has found.
    #[test]
    fn tool_answers_are_limited_in_bytes() {
        let long = ToolAnswer::text("ä".repeat(ANSWER_BYTES_MAX)).result();
        let text = long.content[0].as_text().unwrap().text.clone();
        assert!(text.len() < ANSWER_BYTES_MAX + 100 && text.contains("[cut: "));
    }
}
