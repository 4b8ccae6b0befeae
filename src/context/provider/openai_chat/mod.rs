//! OpenAI Chat Completions.
//!
//! Arguments are a JSON *string*, unchanged byte for byte. The `tool` messages directly follow the
//! assistant message with their calls, in the order of the calls. They accept only text, so media
//! of results follow in a user message. The format has no field for reasoning.

mod body;

pub use body::*;

use std::borrow::Cow;

use crate::{
    cancellation::CancellationToken,
    draft::{Content, Draft, Message as Said, Speaker, Step},
    policy::ContextPolicy,
    provider::{
        AdaptedBody, Adapter, Provider, RenderError,
        media::{IMAGES, MediaPlace, Medium, MediumKind, MediumSource},
        names::Charset,
        openai_responses,
        parameters::ToolChoice,
        reader::{NOTHING_SAID, Piece, Reader, StepPiece, set_media_aside},
        render_with,
        table::{Description, ReasoningPlacement, ReshapeRules, UnitFields},
    },
};

/// The adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiChat;

pub(super) static DESCRIPTION: Description = Description {
    vendor: Some(&openai_responses::VENDOR),
    is_for_any_model: true,
    reshaping: Some(RESHAPING),
    parameters: &[
        ("max_tokens", "max_completion_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("stop", "stop"),
        ("seed", "seed"),
        ("frequency_penalty", "frequency_penalty"),
        ("presence_penalty", "presence_penalty"),
        ("logprobs", "logprobs"),
        ("top_logprobs", "top_logprobs"),
        ("reasoning_effort", "reasoning_effort"),
        ("verbosity", "verbosity"),
        ("response_format", "response_format"),
        ("metadata", "metadata"),
        ("user", "user"),
        ("service_tier", "service_tier"),
        ("stream", "stream"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("tool_choice", "tool_choice"),
    ],
    temperature_max: 2.0,
    thoughts: ReasoningPlacement::Nowhere,
    names_authors: true,
    cutting: UnitFields {
        instructions: "",
        said: "messages",
        by_block: false,
    },
    render: |draft, policy, cancellation| render_with(&OpenAiChat, draft, policy, cancellation),
};

const RESHAPING: ReshapeRules = ReshapeRules {
    tool_names: Charset::WORD,
    call_ids: Charset::any(40),
    takes,
};

fn takes(place: MediaPlace, medium: &Medium<'_>) -> Result<(), &'static str> {
    let is_inline = medium.is_inline();
    match (place, medium.kind) {
        (MediaPlace::Assistant | MediaPlace::Instruction, _) => {
            Err("media are accepted only in user messages")
        }
        (_, MediumKind::Image) if !is_inline => medium
            .is_web()
            .then_some(())
            .ok_or("only http and https addresses are accepted"),
        (_, MediumKind::Image) => IMAGES
            .contains(&medium.media_type.as_ref())
            .then_some(())
            .ok_or("only PNG, JPEG, GIF and WebP images are accepted"),
        (_, MediumKind::Audio) => (is_inline && audio_format(medium).is_some())
            .then_some(())
            .ok_or("only inline WAV and MP3 are accepted"),
        (_, MediumKind::File) => (is_inline && medium.media_type == "application/pdf")
            .then_some(())
            .ok_or("only inline PDF and text files are accepted"),
    }
}

fn audio_format(medium: &Medium<'_>) -> Option<&'static str> {
    match medium.media_type.as_ref() {
        "audio/wav" | "audio/x-wav" | "audio/wave" | "audio/vnd.wave" => Some("wav"),
        "audio/mpeg" | "audio/mp3" => Some("mp3"),
        _ => None,
    }
}

impl Adapter for OpenAiChat {
    type Body<'a> = Body<'a>;

    fn provider(&self) -> Provider {
        Provider::OpenAiChat
    }

    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Body<'a>>, RenderError> {
        let mut writer = Writer {
            reader: Reader::new(
                Provider::OpenAiChat,
                &RESHAPING,
                draft,
                policy,
                cancellation,
            ),
            messages: Vec::new(),
            units: Vec::new(),
        };
        let tools = writer.tools();
        let parameters = writer.reader.parameters();
        writer.write()?;
        let body = Body {
            model: writer.reader.model(),
            parameters: parameters.fields,
            tool_choice: parameters
                .tool_choice
                .map(|choice| choice_of(choice, &tools)),
            tools,
            messages: writer.messages,
        };
        Ok(AdaptedBody {
            body,
            units: writer.units,
            warnings: writer.reader.warnings.into_vec(),
        })
    }
}

fn choice_of(choice: ToolChoice, tools: &[Tool<'_>]) -> Choice {
    match choice {
        ToolChoice::None => Choice::Word("none"),
        ToolChoice::Required => Choice::Word("required"),
        ToolChoice::Tool(name) if tools.iter().any(|tool| tool.function.name == name) => {
            Choice::Tool {
                r#type: "function",
                function: ChosenFunction { name },
            }
        }
        ToolChoice::Auto | ToolChoice::Tool(_) => Choice::Word("auto"),
    }
}

struct Writer<'a, 'p> {
    reader: Reader<'a, 'p>,
    messages: Vec<Message<'a>>,
    units: Vec<Vec<usize>>,
}

impl<'a> Writer<'a, '_> {
    fn tools(&mut self) -> Vec<Tool<'a>> {
        let offers = self.reader.offers().into_iter();
        let tools = offers.map(|offer| Tool {
            r#type: "function",
            function: Function {
                name: offer.name,
                description: offer.description,
                parameters: offer.schema,
                strict: offer.strict,
            },
        });
        tools.collect()
    }

    fn push(&mut self, message: Message<'a>, items: Vec<usize>) {
        self.messages.push(message);
        self.units.push(items);
    }

    fn write(&mut self) -> Result<(), RenderError> {
        let (texts, items) = self.reader.instructions();
        if !texts.is_empty() {
            let content = Cow::Owned(texts.join("\n\n"));
            self.push(
                Message::System {
                    content,
                    name: None,
                },
                items,
            );
        }
        let said_before = self.messages.len();
        for (at, item) in self.reader.items() {
            match &*item.content {
                Content::Instruction(_) => {}
                Content::Message(message) => self.message(at, message)?,
                Content::Step(step) => self.step(at, step)?,
            }
        }
        if self.messages.len() == said_before {
            self.push(
                user(vec![Piece::Text(NOTHING_SAID.into())], None),
                Vec::new(),
            );
        }
        Ok(())
    }

    fn message(&mut self, at: usize, message: &'a Said) -> Result<(), RenderError> {
        let pieces = self.reader.message(message)?;
        if pieces.is_empty() {
            return Ok(());
        }
        let name = Charset::WORD.cleaned(&message.author);
        let message = match message.speaker {
            Speaker::User => user(pieces, name),
            Speaker::System => Message::System {
                content: joined(pieces),
                name,
            },
            Speaker::Developer => Message::Developer {
                content: joined(pieces),
                name,
            },
        };
        self.push(message, vec![at]);
        Ok(())
    }

    fn step(&mut self, at: usize, step: &'a Step) -> Result<(), RenderError> {
        let (mut texts, mut refusals, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for spoken in self.reader.step(step)? {
            match spoken {
                StepPiece::Piece(piece) => texts.push(piece),
                StepPiece::Refusal(text) => refusals.push(Piece::Text(text.into())),
                StepPiece::Call(call) => calls.push(call),
                StepPiece::Reasoning(_) => {
                    let why = "reasoning was left out: Chat Completions has no place for it";
                    self.reader.warnings.add(why);
                }
            }
        }
        if texts.is_empty() && refusals.is_empty() && calls.is_empty() {
            self.reader.left_out_empty();
            return Ok(());
        }
        let (mut tool_calls, mut results, mut aside) = (Vec::new(), Vec::new(), Vec::new());
        for call in calls {
            let id = self.reader.ids.assign(&call.wire_id);
            let arguments = call.arguments.as_str();
            tool_calls.push(ToolCall {
                id: id.clone(),
                r#type: "function",
                function: CalledFunction {
                    name: self.reader.tool_name(&call.tool),
                    arguments: if arguments.is_empty() {
                        "{}"
                    } else {
                        arguments
                    },
                },
            });
            let mut told = self.reader.outcome(call)?;
            aside.extend(set_media_aside(&mut told).into_iter().map(Piece::Medium));
            let content = told.plain_text();
            results.push(Message::Tool {
                tool_call_id: id,
                content,
            });
        }
        let some = |pieces: Vec<Piece<'a>>| (!pieces.is_empty()).then(|| joined(pieces));
        let assistant = Message::Assistant {
            content: some(texts),
            refusal: some(refusals),
            tool_calls,
        };
        self.push(assistant, vec![at]);
        for result in results {
            self.push(result, vec![at]);
        }
        if !aside.is_empty() {
            aside.insert(0, Piece::Text("[media of the results above]".into()));
            self.push(user(aside, None), vec![at]);
        }
        Ok(())
    }
}

/// The texts joined by empty lines.
pub(super) fn joined(pieces: Vec<Piece<'_>>) -> Cow<'_, str> {
    let mut texts: Vec<_> = pieces
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Text(text) => Some(text),
            Piece::Medium(_) => None,
        })
        .collect();
    match texts.len() {
        1 => texts.swap_remove(0),
        _ => Cow::Owned(texts.join("\n\n")),
    }
}

fn user<'a>(mut pieces: Vec<Piece<'a>>, name: Option<Cow<'a, str>>) -> Message<'a> {
    let content = match pieces.as_mut_slice() {
        [Piece::Text(text)] => UserContent::Text(std::mem::take(text)),
        _ => UserContent::Parts(pieces.into_iter().map(part).collect()),
    };
    Message::User { content, name }
}

fn part(piece: Piece<'_>) -> Part<'_> {
    let medium = match piece {
        Piece::Text(text) => return Part::Text { text },
        Piece::Medium(medium) => medium,
    };
    match (medium.kind, &medium.source) {
        (MediumKind::Audio, MediumSource::Base64(data)) => Part::InputAudio {
            input_audio: InputAudio {
                data: data.clone(),
                format: audio_format(&medium).unwrap_or("wav"),
            },
        },
        (MediumKind::File, _) => Part::File {
            file: File {
                filename: file_name(&medium),
                file_data: medium.url(),
            },
        },
        _ => Part::ImageUrl {
            image_url: ImageUrl {
                url: medium.url(),
                detail: detail(&medium),
            },
        },
    }
}

/// The name of a file, never empty.
pub(super) fn file_name<'a>(medium: &Medium<'a>) -> Cow<'a, str> {
    Cow::Borrowed(if medium.name.is_empty() {
        "file.pdf"
    } else {
        medium.name
    })
}

/// Returns the detail hint, if OpenAI knows it.
pub(super) fn detail<'a>(medium: &Medium<'a>) -> Option<&'a str> {
    ["auto", "low", "high"]
        .contains(&medium.detail)
        .then_some(medium.detail)
}
