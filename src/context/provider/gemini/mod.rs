//! Gemini `generateContent`.
//!
//! The only roles are `user` and `model`. A model content with calls is followed by one user
//! content with exactly as many responses, in order. Other user messages follow in their own
//! content. Consecutive model contents are merged, because calls must follow a user turn. A
//! `thoughtSignature` stays on the part with which it was recorded.

mod body;

pub use body::*;

use std::borrow::Cow;

use crate::{
    cancellation::CancellationToken,
    draft::{Call, Content as Says, Draft, Message as Said, Step},
    policy::ContextPolicy,
    provider::{
        AdaptedBody, Adapter, Provider, RenderError,
        json::{self, Fields, Raw},
        maker::{Vendor, family},
        media::{self, MediaPlace, Medium, MediumKind, MediumSource},
        names::Charset,
        parameters::ToolChoice,
        reader::{
            NOTHING_SAID, OPENING, OutcomeView, Piece, Reader, StepPiece, set_media_aside,
            system_message,
        },
        render_with,
        table::{Description, ReasoningPlacement, ReshapeRules, UnitFields},
    },
};

use treering_domain::Reasoning;

/// The adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gemini;

/// Google.
pub(super) static VENDOR: Vendor = Vendor {
    name: "Google",
    provider: Provider::Gemini,
    models: &["gemini", "gemma"],
    words: &["google", "gemini", "vertex"],
};

pub(super) static DESCRIPTION: Description = Description {
    vendor: Some(&VENDOR),
    is_for_any_model: false,
    reshaping: Some(RESHAPING),
    parameters: &[
        ("max_tokens", "maxOutputTokens"),
        ("temperature", "temperature"),
        ("top_p", "topP"),
        ("top_k", "topK"),
        ("stop", "stopSequences"),
        ("seed", "seed"),
        ("frequency_penalty", "frequencyPenalty"),
        ("presence_penalty", "presencePenalty"),
        ("logprobs", "responseLogprobs"),
        ("top_logprobs", "logprobs"),
        ("thinking_config", "thinkingConfig"),
        ("response_mime_type", "responseMimeType"),
        ("response_schema", "responseSchema"),
        ("response_json_schema", "responseJsonSchema"),
        ("tool_choice", "tool_choice"),
    ],
    temperature_max: 2.0,
    thoughts: ReasoningPlacement::Anywhere,
    names_authors: false,
    cutting: UnitFields {
        instructions: "systemInstruction",
        said: "contents",
        by_block: false,
    },
    render: |draft, policy, cancellation| render_with(&Gemini, draft, policy, cancellation),
};

const RESHAPING: ReshapeRules = ReshapeRules {
    tool_names: Charset::GEMINI,
    call_ids: Charset::any(usize::MAX),
    takes,
};

/// Google's placeholder signature for calls that no Gemini model made. From the third generation
/// on, the first call of a content must have a signature.
const UNSIGNED: &str = "skip_thought_signature_validator";

fn takes(place: MediaPlace, medium: &Medium<'_>) -> Result<(), &'static str> {
    const IMAGES: [&str; 5] = [
        "image/png",
        "image/jpeg",
        "image/webp",
        "image/heic",
        "image/heif",
    ];
    const VIDEOS: [&str; 9] = [
        "video/mp4",
        "video/mpeg",
        "video/mov",
        "video/quicktime",
        "video/avi",
        "video/x-flv",
        "video/webm",
        "video/wmv",
        "video/3gpp",
    ];
    const SOUNDS: [&str; 10] = [
        "audio/wav",
        "audio/x-wav",
        "audio/mp3",
        "audio/mpeg",
        "audio/aiff",
        "audio/aac",
        "audio/ogg",
        "audio/flac",
        "audio/mp4",
        "audio/webm",
    ];
    let is_gs = matches!(medium.source, MediumSource::Url(url) if url.starts_with("gs://"));
    let media_type = medium.media_type.as_ref();
    if place == MediaPlace::Instruction {
        return Err("media are accepted only in messages and results");
    }
    if !medium.is_inline() && !medium.is_web() && !is_gs {
        return Err("only http, https and gs addresses are accepted");
    }
    let is_taken = match medium.kind {
        MediumKind::Image => IMAGES.contains(&media_type),
        MediumKind::Audio => SOUNDS.contains(&media_type),
        MediumKind::File => {
            media_type == "application/pdf"
                || (media_type.starts_with("text/") && !medium.is_inline())
                || VIDEOS.contains(&media_type)
                || IMAGES.contains(&media_type)
                || SOUNDS.contains(&media_type)
        }
    };
    is_taken
        .then_some(())
        .ok_or("this media type is not accepted")
}

impl Adapter for Gemini {
    type Body<'a> = Body<'a>;

    fn provider(&self) -> Provider {
        Provider::Gemini
    }

    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Body<'a>>, RenderError> {
        let reader = Reader::new(Provider::Gemini, &RESHAPING, draft, policy, cancellation);
        let mut writer = Writer {
            needs_signature: family(reader.model()).starts_with("gemini-3"),
            reader,
            contents: Vec::new(),
            units: Vec::new(),
        };
        let declarations = writer.declarations();
        let parameters = writer.reader.parameters();
        let (texts, system_items) = writer.reader.instructions();
        writer.write()?;
        let mut units = Vec::with_capacity(writer.units.len() + 1);
        if !texts.is_empty() {
            units.push(system_items);
        }
        units.append(&mut writer.units);
        let choice = parameters.tool_choice;
        let body = Body {
            generation_config: parameters.fields,
            tool_config: choice.map(|choice| config_of(choice, &declarations)),
            tools: tools_of(declarations),
            system_instruction: (!texts.is_empty()).then(|| SystemInstruction {
                parts: texts
                    .into_iter()
                    .map(|text| text_part(text.into()))
                    .collect(),
            }),
            contents: writer.contents,
        };
        Ok(AdaptedBody {
            body,
            units,
            warnings: writer.reader.warnings.into_vec(),
        })
    }
}

fn tools_of(function_declarations: Vec<FunctionDeclaration<'_>>) -> Vec<Tool<'_>> {
    if function_declarations.is_empty() {
        return Vec::new();
    }
    vec![Tool {
        function_declarations,
    }]
}

fn config_of(choice: ToolChoice, declarations: &[FunctionDeclaration<'_>]) -> ToolConfig {
    let (mode, allowed_function_names) = match choice {
        ToolChoice::None => ("NONE", Vec::new()),
        ToolChoice::Required => ("ANY", Vec::new()),
        ToolChoice::Tool(name) if declarations.iter().any(|one| one.name == name) => {
            ("ANY", vec![name])
        }
        ToolChoice::Auto | ToolChoice::Tool(_) => ("AUTO", Vec::new()),
    };
    ToolConfig {
        function_calling_config: FunctionCallingConfig {
            mode,
            allowed_function_names,
        },
    }
}

struct Writer<'a, 'p> {
    reader: Reader<'a, 'p>,
    needs_signature: bool,
    contents: Vec<Content<'a>>,
    units: Vec<Vec<usize>>,
}

impl<'a> Writer<'a, '_> {
    fn declarations(&mut self) -> Vec<FunctionDeclaration<'a>> {
        let offers = self.reader.offers().into_iter();
        let declarations = offers.map(|offer| FunctionDeclaration {
            name: offer.name,
            description: offer.description,
            parameters_json_schema: offer.schema,
        });
        declarations.collect()
    }

    fn push(&mut self, role: Role, mut parts: Vec<Part<'a>>, items: Vec<usize>) {
        if self.contents.is_empty() && role == Role::Model {
            self.push(Role::User, vec![text_part(OPENING.into())], Vec::new());
        }
        let joins = role == Role::Model;
        match (self.contents.last_mut(), self.units.last_mut()) {
            (Some(last), Some(unit)) if joins && last.role == Role::Model => {
                last.parts.append(&mut parts);
                unit.extend(items);
            }
            _ => {
                self.contents.push(Content { role, parts });
                self.units.push(items);
            }
        }
    }

    fn write(&mut self) -> Result<(), RenderError> {
        for (at, item) in self.reader.items() {
            match &*item.content {
                Says::Instruction(_) => {}
                Says::Message(message) => self.message(at, message)?,
                Says::Step(step) => self.step(at, step)?,
            }
        }
        match self.contents.last() {
            None => {
                let parts = vec![text_part(NOTHING_SAID.into())];
                self.push(Role::User, parts, Vec::new());
            }
            Some(last) if last.role == Role::Model => self
                .reader
                .warnings
                .add("the request ends with the model's content, which Gemini may refuse"),
            Some(_) => {}
        }
        Ok(())
    }

    fn message(&mut self, at: usize, message: &'a Said) -> Result<(), RenderError> {
        let place = MediaPlace::of(message.speaker);
        let pieces = self.reader.message(message)?;
        if pieces.is_empty() {
            return Ok(());
        }
        let parts = pieces.into_iter().map(|piece| match (place, piece) {
            (MediaPlace::Instruction, Piece::Text(text)) => text_part(system_message(&text).into()),
            (_, piece) => part(piece),
        });
        let parts = parts.collect();
        self.push(Role::User, parts, vec![at]);
        Ok(())
    }

    fn step(&mut self, at: usize, step: &'a Step) -> Result<(), RenderError> {
        let (mut parts, mut responses, mut aside) = (Vec::new(), Vec::new(), Vec::new());
        let mut signature: Option<Cow<'a, str>> = None;
        for spoken in self.reader.step(step)? {
            let mut next = match spoken {
                StepPiece::Piece(piece) => part(piece),
                StepPiece::Refusal(text) => text_part(text.into()),
                StepPiece::Call(call) => {
                    let (call, response) = self.call(call, &mut aside)?;
                    responses.push(response);
                    call
                }
                StepPiece::Reasoning(reasoning) if reasoning.text.trim().is_empty() => {
                    if signature.replace(signature_of(reasoning)).is_some() {
                        self.lost_signature();
                    }
                    continue;
                }
                StepPiece::Reasoning(reasoning) => thought(reasoning),
            };
            if let (false, Some(signature)) = (next.thought, signature.take()) {
                next.thought_signature = Some(signature);
            }
            parts.push(next);
        }
        if signature.is_some() {
            self.lost_signature();
        }
        if parts.is_empty() {
            self.reader.left_out_empty();
            return Ok(());
        }
        self.sign_first_call(&mut parts);
        self.push(Role::Model, parts, vec![at]);
        if !responses.is_empty() {
            self.push(Role::User, responses, vec![at]);
        }
        if !aside.is_empty() {
            aside.insert(0, text_part("[media of the results above]".into()));
            self.push(Role::User, aside, vec![at]);
        }
        Ok(())
    }

    fn lost_signature(&mut self) {
        let why = "a thought signature was left out: its part is missing";
        self.reader.warnings.add(why);
    }

    /// Returns the part with the call, and the part with its response.
    fn call(
        &mut self,
        call: &'a Call,
        aside: &mut Vec<Part<'a>>,
    ) -> Result<(Part<'a>, Part<'a>), RenderError> {
        let name = self.reader.tool_name(&call.tool);
        let mut told = self.reader.outcome(call)?;
        let media = set_media_aside(&mut told);
        aside.extend(media.into_iter().map(|medium| part(Piece::Medium(medium))));
        let response = FunctionResponse {
            name: name.clone(),
            response: response(told),
        };
        let args = json::arguments_object(call.arguments.as_str());
        let called = Data::FunctionCall(FunctionCall { name, args });
        Ok((plain(called), plain(Data::FunctionResponse(response))))
    }

    fn sign_first_call(&self, parts: &mut [Part<'a>]) {
        let is_call = |part: &&mut Part<'_>| matches!(part.data, Data::FunctionCall(_));
        if let Some(first) = parts.iter_mut().find(is_call)
            && self.needs_signature
            && first.thought_signature.is_none()
        {
            first.thought_signature = Some(UNSIGNED.into());
        }
    }
}

/// The outcome of a call, as an object.
fn response<'a>(told: OutcomeView<'a>) -> Raw<'a> {
    let is_whole = told.pieces.len() == 1 && !told.is_error;
    let mut fields = Fields::default();
    match &told.value {
        Some(value) if is_whole && json::is_object(value) => return value.clone(),
        Some(value) if is_whole => fields.push("output", value.clone()),
        _ => {
            let key = if told.is_error { "error" } else { "output" };
            fields.push(key, json::to_raw(&told.text()));
        }
    }
    json::to_raw(&fields)
}

fn plain(data: Data<'_>) -> Part<'_> {
    Part {
        data,
        thought: false,
        thought_signature: None,
    }
}

fn text_part(text: Cow<'_, str>) -> Part<'_> {
    plain(Data::Text(text))
}

fn thought(reasoning: &Reasoning) -> Part<'_> {
    Part {
        data: Data::Text(Cow::Borrowed(&reasoning.text)),
        thought: true,
        thought_signature: Some(signature_of(reasoning)),
    }
}

/// Returns a signature in base64. Google's signatures are base64, but Google's SDKs decode them, so
/// a recorded one may be raw bytes.
fn signature_of(reasoning: &Reasoning) -> Cow<'_, str> {
    let text = media::opaque_text(&reasoning.signature);
    if media::is_base64(&text) {
        return text;
    }
    Cow::Owned(media::base64(&reasoning.signature))
}

fn part(piece: Piece<'_>) -> Part<'_> {
    let medium = match piece {
        Piece::Text(text) => return text_part(text),
        Piece::Medium(medium) => medium,
    };
    let mime_type = medium.media_type;
    plain(match medium.source {
        MediumSource::Base64(data) => Data::InlineData(Blob { mime_type, data }),
        MediumSource::Url(file_uri) => Data::FileData(FileData {
            mime_type,
            file_uri,
        }),
    })
}
