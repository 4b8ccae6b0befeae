//! Anthropic Messages.
//!
//! Roles alternate: consecutive messages of one role are merged. All results of a step are in the
//! one user message after the step, before any text. Arguments are an object, and ids use
//! Anthropic's characters. Thinking is sent unmodified and in order. The system prompt is at the
//! top. Up to four cache breakpoints follow the tools, the system prompt, the stable messages, and
//! an earlier user message.

mod body;
mod thinking;

pub use body::*;

use std::borrow::Cow;

use crate::{
    cancellation::CancellationToken,
    draft::{Content as Says, Draft, Message as Said, Step},
    policy::ContextPolicy,
    provider::{
        AdaptedBody, Adapter, Provider, RenderError,
        json::{self, Fields},
        maker::Vendor,
        media::{self, IMAGES, MediaPlace, Medium, MediumKind, MediumSource},
        names::Charset,
        parameters::ToolChoice,
        reader::{NOTHING_SAID, OPENING, OutcomeView, Piece, Reader, StepPiece, system_message},
        render_with,
        table::{Description, ReasoningPlacement, ReshapeRules, UnitFields},
    },
};

use treering_domain::Reasoning;

const BREAKPOINT: CacheControl = CacheControl {
    r#type: "ephemeral",
};

/// The adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anthropic;

/// Anthropic, including other services that host its models.
pub(super) static VENDOR: Vendor = Vendor {
    name: "Anthropic",
    provider: Provider::Anthropic,
    models: &["claude"],
    words: &["anthropic", "claude"],
};

pub(super) static DESCRIPTION: Description = Description {
    vendor: Some(&VENDOR),
    is_for_any_model: false,
    reshaping: Some(RESHAPING),
    parameters: &[
        ("max_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop", "stop_sequences"),
        ("thinking", "thinking"),
        ("output_config", "output_config"),
        ("metadata", "metadata"),
        ("service_tier", "service_tier"),
        ("stream", "stream"),
        ("tool_choice", "tool_choice"),
    ],
    temperature_max: 1.0,
    thoughts: ReasoningPlacement::BeforeMore,
    names_authors: false,
    cutting: UnitFields {
        instructions: "system",
        said: "messages",
        by_block: true,
    },
    render: |draft, policy, cancellation| render_with(&Anthropic, draft, policy, cancellation),
};

const RESHAPING: ReshapeRules = ReshapeRules {
    tool_names: Charset::WORD,
    call_ids: Charset::WORD,
    takes,
};

fn takes(place: MediaPlace, medium: &Medium<'_>) -> Result<(), &'static str> {
    let (is_inline, is_web) = (medium.is_inline(), medium.is_web());
    let media_type = medium.media_type.as_ref();
    match (place, medium.kind) {
        (MediaPlace::Assistant | MediaPlace::Instruction, _) => {
            Err("media are accepted only in user messages and results")
        }
        (_, MediumKind::Audio) => Err("audio is not accepted"),
        _ if !is_inline && !is_web => Err("only http and https addresses are accepted"),
        (_, MediumKind::Image) => (!is_inline || IMAGES.contains(&media_type))
            .then_some(())
            .ok_or("only PNG, JPEG, GIF and WebP images are accepted"),
        (_, MediumKind::File) => (media_type == "application/pdf")
            .then_some(())
            .ok_or("only PDF and text files are accepted"),
    }
}

impl Adapter for Anthropic {
    type Body<'a> = Body<'a>;

    fn provider(&self) -> Provider {
        Provider::Anthropic
    }

    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Body<'a>>, RenderError> {
        let mut writer = Writer {
            reader: Reader::new(Provider::Anthropic, &RESHAPING, draft, policy, cancellation),
            messages: Vec::new(),
            blocks: Vec::new(),
            is_volatile: false,
        };
        let mut tools = writer.tools();
        let parameters = writer.reader.parameters();
        let (texts, system_items) = writer.reader.instructions();
        writer.write()?;
        let mut system: Vec<_> = texts.into_iter().map(system_block).collect();
        if policy.anthropic_cache_breakpoints {
            if let Some(tool) = tools.last_mut() {
                tool.cache_control = Some(BREAKPOINT);
            }
            if let Some(block) = system.last_mut() {
                block.cache_control = Some(BREAKPOINT);
            }
            writer.set_breakpoints();
        }
        let mut units = Vec::with_capacity(writer.blocks.len() + 1);
        if !system.is_empty() {
            units.push(system_items);
        }
        let blocks = std::mem::take(&mut writer.blocks);
        let mut fields = with_max_tokens(parameters.fields, policy);
        thinking::settle(&mut fields, &writer.messages, &mut writer.reader.warnings);
        units.extend(blocks.into_iter().map(|block| Vec::from_iter(block.item)));
        let body = Body {
            model: writer.reader.model(),
            parameters: fields,
            tool_choice: parameters
                .tool_choice
                .map(|choice| choice_of(choice, &tools)),
            tools,
            system,
            messages: writer.messages,
        };
        Ok(AdaptedBody {
            body,
            units,
            warnings: writer.reader.warnings.into_vec(),
        })
    }
}

fn system_block(text: &str) -> SystemBlock<'_> {
    SystemBlock {
        r#type: "text",
        text,
        cache_control: None,
    }
}

/// Adds `max_tokens`, which is required. The limit includes thinking, so the policy's value is
/// added to the thinking budget.
fn with_max_tokens<'a>(mut fields: Fields<'a>, policy: &ContextPolicy) -> Fields<'a> {
    if fields.get("max_tokens").is_none() {
        let thinking = thinking::budget(&fields).unwrap_or(0);
        let most = policy.max_output_tokens.max(1).saturating_add(thinking);
        fields
            .0
            .insert(0, ("max_tokens".into(), json::to_raw(&most)));
    }
    fields
}

fn choice_of(choice: ToolChoice, tools: &[Tool<'_>]) -> Choice {
    let (r#type, name) = match choice {
        ToolChoice::None => ("none", None),
        ToolChoice::Required => ("any", None),
        ToolChoice::Tool(name) if tools.iter().any(|tool| tool.name == name) => {
            ("tool", Some(name))
        }
        ToolChoice::Auto | ToolChoice::Tool(_) => ("auto", None),
    };
    Choice {
        r#type,
        name,
        disable_parallel_tool_use: None,
    }
}

/// An added block: its place, its item, and whether it may change.
struct PlacedBlock {
    message: usize,
    block: usize,
    item: Option<usize>,
    is_volatile: bool,
}

struct Writer<'a, 'p> {
    reader: Reader<'a, 'p>,
    messages: Vec<Message<'a>>,
    blocks: Vec<PlacedBlock>,
    /// Whether the current item, or an earlier one, may change.
    is_volatile: bool,
}

impl<'a> Writer<'a, '_> {
    fn tools(&mut self) -> Vec<Tool<'a>> {
        let offers = self.reader.offers().into_iter();
        let tools = offers.map(|offer| Tool {
            name: offer.name,
            description: offer.description,
            input_schema: offer.schema,
            cache_control: None,
        });
        tools.collect()
    }

    /// Adds a block to the last message if it has this role, else to a new message.
    fn push(&mut self, role: Role, content: Content<'a>, item: Option<usize>) {
        if self.messages.is_empty() && role == Role::Assistant {
            let text = OPENING.into();
            self.push(Role::User, Content::Text { text }, None);
        }
        if self.messages.last().is_none_or(|last| last.role != role) {
            let content = Vec::new();
            self.messages.push(Message { role, content });
        }
        let message = self.messages.len() - 1;
        let blocks = &mut self.messages[message].content;
        blocks.push(Block {
            content,
            cache_control: None,
        });
        self.blocks.push(PlacedBlock {
            message,
            block: blocks.len() - 1,
            item,
            is_volatile: self.is_volatile,
        });
    }

    fn write(&mut self) -> Result<(), RenderError> {
        for (at, item) in self.reader.items() {
            self.is_volatile |= item.is_volatile;
            match &*item.content {
                Says::Instruction(_) => {}
                Says::Message(message) => self.message(at, message)?,
                Says::Step(step) => self.step(at, step)?,
            }
        }
        match self.messages.last() {
            None => {
                let text = NOTHING_SAID.into();
                self.push(Role::User, Content::Text { text }, None);
            }
            Some(last) if last.role == Role::Assistant => self.reader.warnings.add(
                "the request ends with the assistant's message, which Anthropic continues or refuses",
            ),
            Some(_) => {}
        }
        Ok(())
    }

    fn message(&mut self, at: usize, message: &'a Said) -> Result<(), RenderError> {
        let place = MediaPlace::of(message.speaker);
        let pieces = self.reader.message(message)?;
        for piece in pieces {
            let content = match (place, piece) {
                (MediaPlace::Instruction, Piece::Text(text)) => Content::Text {
                    text: system_message(&text).into(),
                },
                (_, piece) => content(piece),
            };
            self.push(Role::User, content, Some(at));
        }
        Ok(())
    }

    fn step(&mut self, at: usize, step: &'a Step) -> Result<(), RenderError> {
        let mut results = Vec::new();
        let mut contents = Vec::new();
        for spoken in self.reader.step(step)? {
            contents.push(match spoken {
                StepPiece::Piece(Piece::Text(text)) => Content::Text {
                    text: trimmed(text),
                },
                StepPiece::Piece(piece) => content(piece),
                StepPiece::Refusal(text) => Content::Text {
                    text: text.trim_end().into(),
                },
                StepPiece::Reasoning(reasoning) => thought(reasoning),
                StepPiece::Call(call) => {
                    let id = self.reader.ids.assign(&call.wire_id);
                    let told = self.reader.outcome(call)?;
                    results.push(tool_result(id.clone(), told));
                    Content::ToolUse {
                        id,
                        name: self.reader.tool_name(&call.tool),
                        input: json::arguments_object(call.arguments.as_str()),
                    }
                }
            });
        }
        let is_thought = |content: &Content<'_>| {
            matches!(
                content,
                Content::Thinking { .. } | Content::RedactedThinking { .. }
            )
        };
        while contents.last().is_some_and(is_thought) {
            contents.pop();
            let why = "reasoning was left out: the output that it led to is missing";
            self.reader.warnings.add(why);
        }
        if contents.is_empty() {
            self.reader.left_out_empty();
        }
        for content in contents {
            self.push(Role::Assistant, content, Some(at));
        }
        for result in results {
            self.push(Role::User, result, Some(at));
        }
        Ok(())
    }

    /// Sets a breakpoint on the last stable block, and on the last stable block of the user message
    /// before it, where the previous request ended.
    fn set_breakpoints(&mut self) {
        let mut left = 2;
        let mut below = usize::MAX;
        for put in self.blocks.iter().rev() {
            if left == 0 {
                break;
            }
            let message = &mut self.messages[put.message];
            let block = &mut message.content[put.block];
            let is_thought = matches!(
                block.content,
                Content::Thinking { .. } | Content::RedactedThinking { .. }
            );
            let is_place = left == 2 || message.role == Role::User;
            if put.is_volatile || is_thought || put.message >= below || !is_place {
                continue;
            }
            block.cache_control = Some(BREAKPOINT);
            below = put.message;
            left -= 1;
        }
    }
}

fn trimmed(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_end()),
        Cow::Owned(text) => Cow::Owned(text.trim_end().to_owned()),
    }
}

fn thought(reasoning: &Reasoning) -> Content<'_> {
    let signature = media::opaque_text(&reasoning.signature);
    if reasoning.redacted {
        return Content::RedactedThinking { data: signature };
    }
    Content::Thinking {
        thinking: &reasoning.text,
        signature,
    }
}

fn tool_result<'a>(tool_use_id: Cow<'a, str>, told: OutcomeView<'a>) -> Content<'a> {
    Content::ToolResult {
        tool_use_id,
        content: told.pieces.into_iter().map(content).collect(),
        is_error: told.is_error,
    }
}

fn content(piece: Piece<'_>) -> Content<'_> {
    let medium = match piece {
        Piece::Text(text) => return Content::Text { text },
        Piece::Medium(medium) => medium,
    };
    let source = match medium.source {
        MediumSource::Url(url) => Source::Url { url },
        MediumSource::Base64(data) => Source::Base64 {
            media_type: medium.media_type,
            data,
        },
    };
    match medium.kind {
        MediumKind::Image | MediumKind::Audio => Content::Image { source },
        MediumKind::File => Content::Document {
            source,
            title: (!medium.name.trim().is_empty()).then_some(medium.name),
        },
    }
}
