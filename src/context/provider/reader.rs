//! The common part of all adapters: skips dropped items, collects the instructions, renders results
//! as text, omits unsupported media and reasoning, and records each omission.

use std::{borrow::Cow, collections::HashMap};

use super::{
    super::{
        cancellation::CancellationToken,
        draft::{Block, Call, Content, Draft, Fate, Item, Message, Outcome, ResultOutcome, Step},
        policy::{ContextPolicy, UnsupportedMedia},
        steps,
    },
    Provider, RenderError,
    json::{self, Fields, Raw},
    maker::{self, OmissionReason, Vendor},
    media::{self, MediaPlace, Medium, MediumKind},
    names::{CallIds, ToolNames},
    parameters::{self, Parameters, ToolChoice},
    table::{MediaRule, ReshapeRules},
};
use treering_domain::{ContentPart, Media, Reasoning, ToolDefinition};

/// Warnings about changed or omitted content, each once with its count.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    told: Vec<(String, u32)>,
    places: HashMap<String, usize>,
    /// Number of warnings beyond [`WARNINGS_MAX`].
    more: u64,
}

/// Maximum number of different warnings. Further warnings are only counted.
const WARNINGS_MAX: usize = 256;

impl Warnings {
    /// Adds a warning.
    pub fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        steps::note(1);
        match self.places.get(&text) {
            Some(place) => self.told[*place].1 += 1,
            None if self.told.len() >= WARNINGS_MAX => self.more += 1,
            None => {
                self.places.insert(text.clone(), self.told.len());
                self.told.push((text, 1));
            }
        }
    }

    /// Returns the warnings in the order in which they first occurred.
    pub(crate) fn into_vec(self) -> Vec<String> {
        let told = |(text, times)| match times {
            1 => text,
            _ => format!("{text} ({times} times)"),
        };
        let more = (self.more > 0).then(|| format!("{} more warnings of these kinds", self.more));
        self.told.into_iter().map(told).chain(more).collect()
    }
}

/// A piece of a message or of a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece<'a> {
    /// Text that is not blank.
    Text(Cow<'a, str>),
    /// A medium that the provider accepts at this place.
    Medium(Medium<'a>),
}

/// A piece of a step.
#[derive(Clone, Debug)]
pub(super) enum StepPiece<'a> {
    Piece(Piece<'a>),
    Refusal(&'a str),
    /// Reasoning that may be sent.
    Reasoning(&'a Reasoning),
    Call(&'a Call),
}

/// The outcome of a call as the request shows it.
#[derive(Clone, Debug)]
pub(super) struct OutcomeView<'a> {
    /// Whether the call failed or has no result.
    pub is_error: bool,
    /// The content; never empty.
    pub pieces: Vec<Piece<'a>>,
    /// The whole outcome as a JSON value, if it is one.
    pub value: Option<Raw<'a>>,
}

impl<'a> OutcomeView<'a> {
    /// Returns its texts, joined by newlines.
    pub fn text(&self) -> Cow<'a, str> {
        if let [Piece::Text(text)] = self.pieces.as_slice() {
            return text.clone();
        }
        let texts = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_ref()),
            Piece::Medium(_) => None,
        });
        Cow::Owned(texts.collect::<Vec<_>>().join("\n"))
    }

    /// Returns its texts, with a note that the call failed if they do not say so. For providers
    /// without a failure flag.
    pub(crate) fn plain_text(&self) -> Cow<'a, str> {
        let text = self.text();
        if !self.is_error {
            return text;
        }
        let head = &text[..text.floor_char_boundary(LOOKED_AT_BYTES)].to_lowercase();
        if head.contains("error") || head.contains("fail") || says_exit_code(&text) {
            return text;
        }
        Cow::Owned(format!("Error: {text}"))
    }
}

/// Bytes at each end of a result that are searched for a failure.
const LOOKED_AT_BYTES: usize = 200;

/// Whether the text gives the exit code of a command. Such a text is output, not an error message:
/// `grep` exits with 1 if it finds nothing.
fn says_exit_code(text: &str) -> bool {
    const SAYS: [&str; 4] = ["exit code", "exit status", "exited with", "exitcode"];
    let head = &text[..text.floor_char_boundary(LOOKED_AT_BYTES)];
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(LOOKED_AT_BYTES))..];
    let says = |end: &str| {
        let end = end.to_lowercase();
        SAYS.iter().any(|said| end.contains(said))
    };
    says(head) || says(tail)
}

/// Reads a draft for an adapter.
pub(super) struct Reader<'a, 'p> {
    cancellation: CancellationToken,
    pub draft: &'a Draft,
    pub policy: &'p ContextPolicy,
    pub provider: Provider,
    pub ids: CallIds,
    pub warnings: Warnings,
    names: ToolNames,
    takes: MediaRule,
}

/// A tool in the form that all providers accept: a valid name, and a schema of an object.
pub(super) struct Offer<'a> {
    pub name: Cow<'a, str>,
    pub description: &'a str,
    pub schema: Raw<'a>,
    pub strict: Option<bool>,
}

/// Returns a warning about the request's model, if there is one.
fn about_model(provider: Provider, model: &str) -> Option<String> {
    if model.is_empty() {
        let warning = "no model is set, so the body has none: name one (`model`, or --model) before \
                       the request is sent";
        return Some(warning.to_owned());
    }
    let maker = Vendor::of_stranger(provider, model)?;
    let own = Vendor::of(provider)?.name;
    let unless = match provider.description().is_for_any_model {
        true => ", unless a gateway takes it",
        false => "",
    };
    Some(format!(
        "{model} is a model of {maker}, and the body is for {own}: name one of {own} (`model`, or \
         --model){unless}"
    ))
}

/// First message for providers that require the user to begin.
pub(super) const OPENING: &str = "(The conversation begins with the assistant.)";
/// Text of an empty request.
pub(super) const NOTHING_SAID: &str = "(Nothing has been said yet.)";

impl<'a, 'p> Reader<'a, 'p> {
    /// Starts to read a draft.
    pub fn new(
        provider: Provider,
        reshaping: &ReshapeRules,
        draft: &'a Draft,
        policy: &'p ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Self {
        let mut reader = Self {
            cancellation: cancellation.clone(),
            draft,
            policy,
            provider,
            ids: CallIds::new(reshaping.call_ids),
            warnings: Warnings::default(),
            names: ToolNames::new(reshaping.tool_names),
            takes: reshaping.takes,
        };
        if let Some(warning) = about_model(provider, &draft.config.model_id) {
            reader.warnings.add(warning);
        }
        reader
    }

    /// The model that gets the request.
    pub fn model(&self) -> &'a str {
        &self.draft.config.model_id
    }

    /// Returns the items that were not dropped, with their indexes. Stops if the request is
    /// cancelled.
    pub fn items(&self) -> impl Iterator<Item = (usize, &'a Item)> + use<'a> {
        let items = self.draft.items.iter().enumerate();
        let cancellation = self.cancellation.clone();
        let items = items.take_while(move |(at, _)| !cancellation.is_cancelled_at(*at));
        let items = items.inspect(|_| steps::note(1));
        items.filter(|(_, item)| item.fate != Fate::Dropped)
    }

    /// Returns the instructions, with the indexes of their items.
    pub fn instructions(&self) -> (Vec<&'a str>, Vec<usize>) {
        let texts = self.items().filter_map(|(at, item)| match &*item.content {
            Content::Instruction(text) if !text.trim().is_empty() => Some((text.as_str(), at)),
            _ => None,
        });
        texts.unzip()
    }

    /// The tools on offer.
    pub fn offers(&mut self) -> Vec<Offer<'a>> {
        let mut offers: Vec<Offer<'a>> = Vec::with_capacity(self.draft.tools.len());
        let mut seen = std::collections::HashSet::new();
        for tool in &self.draft.tools {
            if !seen.insert(tool.name.as_str()) {
                self.warnings.add(format!(
                    "a second definition of the tool {:?} was left out",
                    tool.name
                ));
                continue;
            }
            offers.push(Offer {
                name: self.tool_name(&tool.name),
                description: &tool.description,
                schema: self.schema(tool),
                strict: tool.strict,
            });
        }
        offers
    }

    /// The name of a tool as the provider accepts it.
    pub fn tool_name(&mut self, name: &'a str) -> Cow<'a, str> {
        let mapped = self.names.name(name);
        if mapped != name {
            self.warnings.add(format!(
                "the tool {name:?} is sent as {mapped:?}: {} does not accept its name",
                self.provider
            ));
        }
        mapped
    }

    /// The parameters with the provider's names.
    pub fn parameters(&mut self) -> Parameters<'a> {
        let draft = self.draft;
        let has_tools = !draft.tools.is_empty();
        let mut parameters =
            parameters::read(&draft.config, self.provider, has_tools, &mut self.warnings);
        if let Some(ToolChoice::Tool(name)) = &mut parameters.tool_choice
            && let Some(tool) = draft.tools.iter().find(|tool| tool.name == *name)
        {
            *name = self.names.name(&tool.name).into_owned();
        }
        parameters
    }

    /// Returns a schema with `"type": "object"`.
    fn schema(&mut self, tool: &'a ToolDefinition) -> Raw<'a> {
        let text = tool.input_schema.as_str();
        let fields = json::raw(text).and_then(|raw| match raw {
            Cow::Borrowed(raw) => serde_json::from_str::<Fields<'a>>(raw.get()).ok(),
            Cow::Owned(_) => None,
        });
        let Some(fields) = fields else {
            if !text.is_empty() {
                self.warnings.add(format!(
                    "the input schema of tool {:?} is not a JSON object: any arguments are allowed",
                    tool.name
                ));
            }
            return raw_literal(r#"{"type":"object","properties":{}}"#);
        };
        match fields.get("type").map(serde_json::value::RawValue::get) {
            Some("\"object\"") => json::raw(text).unwrap_or_else(|| json::to_raw(&fields)),
            _ => {
                let mut whole = Fields::default();
                whole.push("type", raw_literal("\"object\""));
                let rest = fields.0.into_iter().filter(|(name, _)| name != "type");
                whole.0.extend(rest);
                json::to_raw(&whole)
            }
        }
    }

    /// Returns the pieces of a message, without blank texts. If none are left, adds a warning that
    /// the message is left out.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`].
    pub fn message(&mut self, message: &'a Message) -> Pieces<'a> {
        let pieces = self.pieces(&message.parts, MediaPlace::of(message.speaker))?;
        if pieces.is_empty() {
            self.left_out_empty();
        }
        Ok(pieces)
    }

    fn pieces(&mut self, parts: &'a [ContentPart], place: MediaPlace) -> Pieces<'a> {
        let mut pieces = Vec::with_capacity(parts.len());
        for part in parts {
            pieces.extend(self.piece(part, place)?);
        }
        Ok(pieces)
    }

    fn piece(
        &mut self,
        part: &'a ContentPart,
        place: MediaPlace,
    ) -> Result<Option<Piece<'a>>, RenderError> {
        let (kind, media) = match part {
            ContentPart::Text(text) | ContentPart::Refusal(text) => return Ok(text_piece(text)),
            ContentPart::Json(json) => return Ok(text_piece(json.as_str())),
            ContentPart::Reasoning(_) => {
                self.warnings
                    .add("reasoning outside an assistant message was left out");
                return Ok(None);
            }
            ContentPart::Image(media) => (MediumKind::Image, media),
            ContentPart::File(media) => (MediumKind::File, media),
            ContentPart::Audio(media) => (MediumKind::Audio, media),
        };
        self.medium(kind, media, place).map(Some)
    }

    /// Returns a medium, its text, or a note that says why it was left out.
    fn medium(
        &mut self,
        kind: MediumKind,
        media: &'a Media,
        place: MediaPlace,
    ) -> Result<Piece<'a>, RenderError> {
        let why = match taken(self.takes, kind, media, place) {
            Ok(piece) => return Ok(piece),
            Err(why) => why,
        };
        if self.policy.unsupported_media == UnsupportedMedia::Refuse {
            return Err(RenderError::Unsupported {
                provider: self.provider,
                medium: media::label(kind, &media.media_type, ""),
                why: why.to_owned(),
            });
        }
        let label = media::label(kind, &media.media_type, "");
        self.warnings.add(format!("{label} was left out: {why}"));
        Ok(Piece::Text(Cow::Owned(left_out(kind, media, why))))
    }

    /// Returns the pieces of a step, without reasoning that may not be sent.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`].
    pub fn step(&mut self, step: &'a Step) -> Result<Vec<StepPiece<'a>>, RenderError> {
        let mut spoken = Vec::with_capacity(step.blocks.len());
        for block in &step.blocks {
            match block {
                Block::Call(call) => spoken.push(StepPiece::Call(call)),
                Block::Part(part) => match &**part {
                    ContentPart::Reasoning(reasoning) => {
                        if self.reasoning_goes_back(reasoning, step) {
                            spoken.push(StepPiece::Reasoning(reasoning));
                        }
                    }
                    ContentPart::Refusal(text) if !text.trim().is_empty() => {
                        spoken.push(StepPiece::Refusal(text));
                    }
                    part => {
                        let piece = self.piece(part, MediaPlace::Assistant)?;
                        spoken.extend(piece.map(StepPiece::Piece));
                    }
                },
            }
        }
        Ok(spoken)
    }

    fn reasoning_goes_back(&mut self, reasoning: &Reasoning, step: &Step) -> bool {
        let Some(vendor) = Vendor::of(self.provider) else {
            return true;
        };
        let goes = maker::goes_back(reasoning, &step.maker, vendor, self.model());
        if let Err(why) = goes {
            self.leave_out_reasoning(why);
        }
        goes.is_ok()
    }

    fn leave_out_reasoning(&mut self, why: OmissionReason) {
        self.warnings
            .add(format!("reasoning was left out: {}", why.why()));
    }

    /// Returns the outcome of a call.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`].
    pub fn outcome(&mut self, call: &'a Call) -> Result<OutcomeView<'a>, RenderError> {
        match &call.outcome {
            Outcome::Result(result) => self.result(result),
            Outcome::Snapshot(snapshot) => Ok(OutcomeView {
                is_error: !snapshot.success,
                pieces: vec![Piece::Text(Cow::Owned(snapshot.text()))],
                value: None,
            }),
            Outcome::Missing { why, .. } => {
                let why = if why.trim().is_empty() {
                    "There is no result of this call."
                } else {
                    why
                };
                Ok(OutcomeView {
                    is_error: true,
                    pieces: vec![Piece::Text(Cow::Borrowed(why))],
                    value: None,
                })
            }
        }
    }

    fn result(&mut self, result: &'a ResultOutcome) -> Result<OutcomeView<'a>, RenderError> {
        let mut pieces = self.pieces(&result.parts, MediaPlace::Result)?;
        let has_text = pieces.iter().any(|piece| matches!(piece, Piece::Text(_)));
        let mut value = None;
        if !has_text && !result.structured.as_str().trim().is_empty() {
            value = json::raw(result.structured.as_str());
            pieces.insert(0, Piece::Text(Cow::Borrowed(result.structured.as_str())));
        }
        let error = result.error_message.trim();
        let is_told = pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Text(text) if text.contains(error)));
        if !result.success && !error.is_empty() && !is_told {
            value = None;
            let told = match says_exit_code(error) {
                true => Cow::Borrowed(error),
                false => Cow::Owned(format!("Error: {error}")),
            };
            pieces.insert(0, Piece::Text(told));
        }
        if pieces.is_empty() {
            let nothing = if result.success {
                "(The tool returned nothing.)"
            } else {
                "The tool failed and gave no reason."
            };
            pieces.push(Piece::Text(Cow::Borrowed(nothing)));
        }
        Ok(OutcomeView {
            is_error: !result.success,
            pieces,
            value,
        })
    }

    /// Warns that messages without content were left out.
    pub(crate) fn left_out_empty(&mut self) {
        self.warnings.add("a message without content was left out");
    }
}

/// Returns a medium in a form that a provider accepts at a place: the medium, or its text.
///
/// # Errors
/// Why the provider accepts neither.
pub(super) fn taken<'a>(
    takes: MediaRule,
    kind: MediumKind,
    media: &'a Media,
    place: MediaPlace,
) -> Result<Piece<'a>, &'static str> {
    let medium = Medium::read(kind, media)?;
    match takes(place, &medium) {
        Ok(()) => Ok(Piece::Medium(medium)),
        Err(why) => match medium.as_text() {
            Some(text) => Ok(Piece::Text(Cow::Owned(text))),
            None => Err(why),
        },
    }
}

/// The text that replaces an unsupported medium.
pub(super) fn left_out(kind: MediumKind, media: &Media, why: &str) -> String {
    let label = media::label(kind, &media.media_type, &media.name);
    format!("[{label} was left out: {why}]")
}

/// Pieces, or an error if the policy refuses a medium.
pub(super) type Pieces<'a> = Result<Vec<Piece<'a>>, RenderError>;

fn text_piece(text: &str) -> Option<Piece<'_>> {
    (!text.trim().is_empty()).then_some(Piece::Text(Cow::Borrowed(text)))
}

/// A JSON literal as raw JSON.
pub(super) fn raw_literal(text: &'static str) -> Raw<'static> {
    json::raw(text).unwrap_or(Cow::Borrowed(serde_json::value::RawValue::NULL))
}

/// Removes the media from a result and leaves a note for each. For providers that accept only text
/// in results.
pub(super) fn set_media_aside<'a>(told: &mut OutcomeView<'a>) -> Vec<Medium<'a>> {
    let mut aside = Vec::new();
    for piece in &mut told.pieces {
        if let Piece::Medium(medium) = piece {
            let note = format!("[{}: see the message after the results]", medium.label());
            aside.push(medium.clone());
            *piece = Piece::Text(Cow::Owned(note));
        }
    }
    aside
}

/// Returns the text of a system or developer message within a conversation.
pub(super) fn system_message(text: &str) -> String {
    format!("<system-message>\n{text}\n</system-message>")
}

#[cfg(test)]
mod tests {
    use super::*;

    // If the output of a command that finds nothing begins with `Error:`, the model looks for an
    // error.
    #[test]
    fn output_with_an_exit_code_is_not_called_an_error() {
        let plain = |text: &'static str| {
            let view = OutcomeView {
                is_error: true,
                pieces: vec![Piece::Text(Cow::Borrowed(text))],
                value: None,
            };
            view.plain_text().into_owned()
        };
        for output in ["Exit code 1\na.rs", "a.rs\n\nCommand exited with code 1"] {
            assert_eq!(plain(output), output);
        }
        assert_eq!(plain("interrupted"), "Error: interrupted");
        assert_eq!(
            plain("the file is missing: ä"),
            "Error: the file is missing: ä"
        );
    }
}
