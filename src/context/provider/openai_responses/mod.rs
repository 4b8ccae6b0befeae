//! OpenAI Responses.
//!
//! `input` is flat: a `function_call` and its `function_call_output` are separate items with the
//! same `call_id`. The outputs of a step follow its last call. A `reasoning` item is directly
//! before the item that it led to, and is omitted if that item is. OpenAI stores nothing, so
//! reasoning is sent encrypted.
//!
//! Items have the ids that OpenAI assigned (`fc_…`, `msg_…`) if all reasoning of their answer is
//! sent too: OpenAI knows which reasoning an item had, and refuses the item without it. Otherwise a
//! message gets a generated id, and a call gets none.

mod body;

pub use body::*;

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use crate::{
    cancellation::CancellationToken,
    draft::{Block, Call, Content, Draft, Item as DraftItem, Message as Said, Speaker, Step},
    policy::ContextPolicy,
    provider::{
        AdaptedBody, Adapter, Provider, RenderError,
        maker::{Vendor, family},
        media::{self, IMAGES, MediaPlace, Medium, MediumKind, MediumSource},
        names::Charset,
        openai_chat::{detail, file_name},
        parameters::ToolChoice,
        reader::{NOTHING_SAID, Piece, Reader, StepPiece},
        render_with,
        table::{Description, ReasoningPlacement, ReshapeRules, UnitFields},
    },
    steps,
};

use treering_domain::{ContentPart, Reasoning as Thought};

/// The adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiResponses;

/// OpenAI, including Azure.
pub(super) static VENDOR: Vendor = Vendor {
    name: "OpenAI",
    provider: Provider::OpenAiResponses,
    models: &["gpt-", "chatgpt", "codex", "o1", "o3", "o4"],
    words: &["openai", "azure"],
};

pub(super) static DESCRIPTION: Description = Description {
    vendor: Some(&VENDOR),
    is_for_any_model: true,
    reshaping: Some(RESHAPING),
    parameters: &[
        ("max_tokens", "max_output_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_logprobs", "top_logprobs"),
        ("reasoning", "reasoning"),
        ("text", "text"),
        ("truncation", "truncation"),
        ("metadata", "metadata"),
        ("user", "user"),
        ("service_tier", "service_tier"),
        ("stream", "stream"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("tool_choice", "tool_choice"),
    ],
    temperature_max: 2.0,
    thoughts: ReasoningPlacement::BeforeItsItem,
    names_authors: false,
    cutting: UnitFields {
        instructions: "instructions",
        said: "input",
        by_block: false,
    },
    render: |draft, policy, cancellation| {
        render_with(&OpenAiResponses, draft, policy, cancellation)
    },
};

const RESHAPING: ReshapeRules = ReshapeRules {
    tool_names: Charset::WORD,
    call_ids: Charset::any(64),
    takes,
};

fn takes(place: MediaPlace, medium: &Medium<'_>) -> Result<(), &'static str> {
    let (is_inline, is_web) = (medium.is_inline(), medium.is_web());
    match (place, medium.kind) {
        (MediaPlace::Assistant | MediaPlace::Instruction, _) => {
            Err("media are accepted only in user messages and results")
        }
        (_, MediumKind::Audio) => Err("audio is not accepted"),
        _ if !is_inline => is_web
            .then_some(())
            .ok_or("only http and https addresses are accepted"),
        (_, MediumKind::Image) => IMAGES
            .contains(&medium.media_type.as_ref())
            .then_some(())
            .ok_or("only PNG, JPEG, GIF and WebP images are accepted"),
        (_, MediumKind::File) => (medium.media_type == "application/pdf")
            .then_some(())
            .ok_or("only PDF and text files are accepted"),
    }
}

impl Adapter for OpenAiResponses {
    type Body<'a> = Body<'a>;

    fn provider(&self) -> Provider {
        Provider::OpenAiResponses
    }

    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Body<'a>>, RenderError> {
        let mut writer = Writer {
            reader: Reader::new(
                Provider::OpenAiResponses,
                &RESHAPING,
                draft,
                policy,
                cancellation,
            ),
            input: Vec::new(),
            units: Vec::new(),
            replays_reasoning: false,
            own_ids: false,
            own_message_id: None,
            step_start: 0,
            step_hash: None,
            item_ids: HashSet::new(),
            signatures: HashMap::new(),
        };
        let tools = writer.tools();
        let parameters = writer.reader.parameters();
        let instructions = writer.write()?;
        let model = writer.reader.model();
        let mut include = Vec::new();
        let asks_for_reasoning = parameters.fields.get("reasoning").is_some();
        if writer.replays_reasoning || asks_for_reasoning || reasons(model) {
            include.push("reasoning.encrypted_content");
        }
        let body = Body {
            model,
            store: false,
            include,
            parameters: parameters.fields,
            tool_choice: parameters
                .tool_choice
                .map(|choice| choice_of(choice, &tools)),
            tools,
            instructions,
            input: writer.input,
        };
        Ok(AdaptedBody {
            body,
            units: writer.units,
            warnings: writer.reader.warnings.into_vec(),
        })
    }
}

/// Whether an OpenAI model returns encrypted reasoning, whatever its parameters. Other models
/// refuse a request for it. A deployment can have any name, so for unknown models the parameter
/// `reasoning` decides.
fn reasons(model: &str) -> bool {
    let family = family(model);
    let starts = ["o1", "o3", "o4", "gpt-5", "codex"];
    starts.iter().any(|start| family.starts_with(start)) && !family.contains("-chat")
}

fn choice_of(choice: ToolChoice, tools: &[Tool<'_>]) -> Choice {
    match choice {
        ToolChoice::None => Choice::Word("none"),
        ToolChoice::Required => Choice::Word("required"),
        ToolChoice::Tool(name) if tools.iter().any(|tool| tool.name == name) => Choice::Tool {
            r#type: "function",
            name,
        },
        ToolChoice::Auto | ToolChoice::Tool(_) => Choice::Word("auto"),
    }
}

struct Writer<'a, 'p> {
    reader: Reader<'a, 'p>,
    input: Vec<Item<'a>>,
    units: Vec<Vec<usize>>,
    replays_reasoning: bool,
    /// Whether items of the current step keep the ids that OpenAI assigned.
    own_ids: bool,
    /// The id that OpenAI assigned to the only message of the current step.
    own_message_id: Option<&'a str>,
    /// Index where the current step begins.
    step_start: usize,
    /// Hash over the events of the current step, for the ids of its messages.
    step_hash: Option<Box<blake3::Hasher>>,
    /// Ids used so far, both OpenAI's and generated ones. Each is used once.
    item_ids: HashSet<String>,
    /// Number of ids generated from each signature, by the hash of the signature.
    signatures: HashMap<[u8; 32], u64>,
}

impl<'a> Writer<'a, '_> {
    fn tools(&mut self) -> Vec<Tool<'a>> {
        let offers = self.reader.offers().into_iter();
        let tools = offers.map(|offer| Tool {
            r#type: "function",
            name: offer.name,
            description: offer.description,
            parameters: offer.schema,
            strict: offer.strict.unwrap_or_default(),
        });
        tools.collect()
    }

    fn push(&mut self, item: Item<'a>, items: Vec<usize>) {
        self.input.push(item);
        self.units.push(items);
    }

    /// Writes the input to `self` and returns the instructions.
    fn write(&mut self) -> Result<Option<String>, RenderError> {
        let (texts, items) = self.reader.instructions();
        let instructions = (!texts.is_empty()).then(|| texts.join("\n\n"));
        if instructions.is_some() {
            self.units.push(items);
        }
        for (at, item) in self.reader.items() {
            match &*item.content {
                Content::Instruction(_) => {}
                Content::Message(message) => self.message(at, message)?,
                Content::Step(step) => self.step(at, item, step)?,
            }
        }
        if self.input.is_empty() {
            let content = vec![part(Piece::Text(NOTHING_SAID.into()))];
            let role = "user";
            self.push(Item::Message(Message::Input { role, content }), Vec::new());
        }
        Ok(instructions)
    }

    fn message(&mut self, at: usize, message: &'a Said) -> Result<(), RenderError> {
        let pieces = self.reader.message(message)?;
        if pieces.is_empty() {
            return Ok(());
        }
        let role = match message.speaker {
            Speaker::User => "user",
            Speaker::System => "system",
            Speaker::Developer => "developer",
        };
        let content = pieces.into_iter().map(part).collect();
        self.push(Item::Message(Message::Input { role, content }), vec![at]);
        Ok(())
    }

    fn step(&mut self, at: usize, item: &DraftItem, step: &'a Step) -> Result<(), RenderError> {
        self.step_start = self.input.len();
        self.step_hash = None;
        let mut thoughts: Vec<&'a Thought> = Vec::new();
        let mut said: Vec<OutputPart<'a>> = Vec::new();
        let mut outputs = Vec::new();
        let all_spoken = self.reader.step(step)?;
        self.own_ids =
            is_whole(step, &all_spoken) && maker_of(step).is_none_or(|maker| *maker == VENDOR);
        self.own_message_id = the_message_id(step, &all_spoken);
        for spoken in all_spoken {
            match spoken {
                StepPiece::Piece(piece) => {
                    self.before(at, &mut thoughts, said.is_empty());
                    if let Piece::Text(text) = piece {
                        said.push(OutputPart::OutputText {
                            text,
                            annotations: [],
                        });
                    }
                }
                StepPiece::Refusal(refusal) => {
                    self.before(at, &mut thoughts, said.is_empty());
                    said.push(OutputPart::Refusal { refusal });
                }
                StepPiece::Reasoning(thought) => {
                    self.say(at, item, step, &mut said);
                    thoughts.push(thought);
                }
                StepPiece::Call(call) => {
                    self.say(at, item, step, &mut said);
                    self.before(at, &mut thoughts, true);
                    outputs.push(self.call(at, call)?);
                }
            }
        }
        self.say(at, item, step, &mut said);
        for _ in thoughts {
            let why = "reasoning was left out: the output that it led to is missing";
            self.reader.warnings.add(why);
        }
        for output in outputs {
            self.push(output, vec![at]);
        }
        if self.input.len() == self.step_start {
            self.reader.left_out_empty();
        }
        Ok(())
    }

    /// Adds pending reasoning before a new item. Only reasoning directly before the item is sent:
    /// the last piece, and the pieces before it with the same id, which are one item.
    fn before(&mut self, at: usize, thoughts: &mut Vec<&'a Thought>, begins_item: bool) {
        if thoughts.is_empty() || !begins_item {
            return;
        }
        let id = thoughts.last().map_or("", |thought| thought.id.as_str());
        let first = match id {
            "" => thoughts.len() - 1,
            id => thoughts
                .iter()
                .rposition(|thought| thought.id != id)
                .map_or(0, |i| i + 1),
        };
        // Without that reasoning, OpenAI does not recognise the item.
        self.own_ids &= first == 0;
        for _ in 0..first {
            let why = "reasoning was left out: it is not directly before the output that it led to";
            self.reader.warnings.add(why);
        }
        let own: Vec<_> = thoughts.split_off(first);
        thoughts.clear();
        let Some(last) = own.last() else { return };
        let summary = own.iter().filter(|thought| !thought.text.is_empty());
        let reasoning = Item::Reasoning {
            id: self.reasoning_id(last),
            summary: summary
                .map(|thought| SummaryText {
                    r#type: "summary_text",
                    text: &thought.text,
                })
                .collect(),
            encrypted_content: media::opaque_text(&last.signature),
        };
        self.replays_reasoning = true;
        self.push(reasoning, vec![at]);
    }

    /// Adds a message with the texts collected so far.
    fn say(&mut self, at: usize, item: &DraftItem, step: &Step, said: &mut Vec<OutputPart<'a>>) {
        if said.is_empty() {
            return;
        }
        let own = self.own_message_id.filter(|id| self.takes_id(id, "msg_"));
        let message = Message::Output {
            id: own.map_or_else(|| self.message_id(item, step), str::to_owned),
            role: "assistant",
            status: "completed",
            content: std::mem::take(said),
        };
        self.push(Item::Message(message), vec![at]);
    }

    /// Adds a call. Returns its output, which comes after all calls of the step.
    fn call(&mut self, at: usize, call: &'a Call) -> Result<Item<'a>, RenderError> {
        let call_id = self.reader.ids.assign(&call.wire_id);
        let arguments = call.arguments.as_str();
        let id = Some(call.item_id.as_str()).filter(|id| self.takes_id(id, "fc_"));
        let item = Item::FunctionCall {
            id,
            call_id: call_id.clone(),
            name: self.reader.tool_name(&call.tool),
            // OpenAI accepts any text. `{}` is usual for a call without arguments.
            arguments: if arguments.is_empty() {
                "{}"
            } else {
                arguments
            },
        };
        self.push(item, vec![at]);
        let told = self.reader.outcome(call)?;
        let has_media = told
            .pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Medium(_)));
        let output = if has_media {
            Output::Parts(told.pieces.into_iter().map(part).collect())
        } else {
            Output::Text(told.plain_text())
        };
        Ok(Item::FunctionCallOutput { call_id, output })
    }

    /// Whether an item can use this id assigned by OpenAI. If so, marks the id as used.
    fn takes_id(&mut self, id: &str, start: &str) -> bool {
        self.own_ids
            && id.starts_with(start)
            && Charset::WORD.is_legal(id)
            && self.item_ids.insert(id.to_owned())
    }

    /// Returns OpenAI's id, or one generated from the signature if there is none or it is already
    /// used.
    fn reasoning_id(&mut self, thought: &'a Thought) -> Cow<'a, str> {
        let is_legal = thought.id.starts_with("rs_") && Charset::WORD.is_legal(&thought.id);
        if is_legal && self.item_ids.insert(thought.id.clone()) {
            return Cow::Borrowed(&thought.id);
        }
        self.own_ids = false;
        let of_signature = blake3::hash(&thought.signature);
        let uses = self.signatures.entry(*of_signature.as_bytes()).or_default();
        loop {
            steps::note(1);
            let hash = match *uses {
                0 => of_signature,
                again => {
                    let mut hasher = blake3::Hasher::new();
                    hasher.update(of_signature.as_bytes());
                    hasher.update(&again.to_le_bytes());
                    hasher.finalize()
                }
            };
            *uses += 1;
            let id = format!("rs_{}", &hash.to_hex()[..32]);
            if self.item_ids.insert(id.clone()) {
                return Cow::Owned(id);
            }
        }
    }

    /// Returns a generated id for a message whose OpenAI id is unknown or cannot be used. It is the
    /// same in every request and unique within each: a hash of the message's events, or of its
    /// index if it has none.
    fn message_id(&mut self, item: &DraftItem, step: &Step) -> String {
        let of_step = self
            .step_hash
            .get_or_insert_with(|| Box::new(events_hash(item)));
        let mut hasher = (**of_step).clone();
        let start = if item.events.is_empty() {
            0
        } else {
            self.step_start
        };
        hasher.update(step.message_id.as_bytes());
        hasher.update(&((self.input.len() - start) as u64).to_le_bytes());
        format!("msg_{}", &hasher.finalize().to_hex()[..32])
    }
}

/// Whether all reasoning of a step is sent.
fn is_whole(step: &Step, spoken: &[StepPiece<'_>]) -> bool {
    let is_thought = |block: &&Block| match block {
        Block::Part(part) => matches!(&**part, ContentPart::Reasoning(_)),
        Block::Call(_) => false,
    };
    let had = step.blocks.iter().filter(is_thought).count();
    let has = |one: &&StepPiece<'_>| matches!(one, StepPiece::Reasoning(_));
    spoken.iter().filter(has).count() == had
}

/// Returns the id that OpenAI assigned to the step's message, if there is only one. With several,
/// it is unknown which one has the id.
fn the_message_id<'a>(step: &'a Step, spoken: &[StepPiece<'_>]) -> Option<&'a str> {
    let says = |one: &StepPiece<'_>| matches!(one, StepPiece::Piece(_) | StepPiece::Refusal(_));
    let messages = spoken.chunk_by(|one, next| says(one) == says(next));
    let is_one = messages.filter(|run| says(&run[0])).count() == 1;
    let id = step.message_id.as_str();
    // Anthropic's ids have the same prefix, but only OpenAI's are hexadecimal.
    let is_hex = id
        .trim_start_matches("msg_")
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit());
    (is_one && (is_hex || maker_of(step).is_some())).then_some(id)
}

/// The maker of a step, if it is known.
fn maker_of(step: &Step) -> Option<&'static Vendor> {
    Vendor::named(&step.maker.provider, &step.maker.model)
}

fn events_hash(item: &DraftItem) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    for event in &item.events {
        steps::note(1);
        hasher.update(event.conversation.0.as_bytes());
        hasher.update(&event.revision.0.to_le_bytes());
    }
    hasher
}

fn part(piece: Piece<'_>) -> InputPart<'_> {
    let medium = match piece {
        Piece::Text(text) => return InputPart::InputText { text },
        Piece::Medium(medium) => medium,
    };
    match (medium.kind, &medium.source) {
        (MediumKind::Image, _) => InputPart::InputImage {
            image_url: medium.url(),
            detail: detail(&medium).unwrap_or("auto"),
        },
        (_, MediumSource::Url(url)) => InputPart::InputFile {
            filename: None,
            file_data: None,
            file_url: Some(url),
        },
        (_, MediumSource::Base64(_)) => InputPart::InputFile {
            filename: Some(file_name(&medium)),
            file_data: Some(medium.url()),
            file_url: None,
        },
    }
}
