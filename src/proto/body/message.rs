//! Messages and content parts.

use bytes::Bytes;

use super::fault::{BodyProblem, Checked, FieldFault, chosen, each, json, short, unspecified};
use crate::pb::{self, content_part::Part, media::Source};
use treering_domain::{
    ContentPart, EventBody, Media, MediaSource, MessageAppended, RawEncoding, RawMessage,
    Reasoning, Role, Usage,
};

pub(super) fn role(value: i32) -> Checked<Role> {
    Ok(match chosen("role", value)? {
        pb::Role::Unspecified => return unspecified("role"),
        pb::Role::System => Role::System,
        pb::Role::Developer => Role::Developer,
        pb::Role::User => Role::User,
        pb::Role::Assistant => Role::Assistant,
        pb::Role::Tool => Role::Tool,
    })
}

pub(super) fn role_pb(role: Role) -> pb::Role {
    match role {
        Role::System => pb::Role::System,
        Role::Developer => pb::Role::Developer,
        Role::User => pb::Role::User,
        Role::Assistant => pb::Role::Assistant,
        Role::Tool => pb::Role::Tool,
    }
}

fn media(media: pb::Media) -> Checked<Media> {
    Ok(Media {
        media_type: short("media_type", media.media_type)?,
        source: match media.source {
            None => MediaSource::Absent,
            Some(Source::Data(data)) => MediaSource::Data(data),
            Some(Source::Uri(uri)) => MediaSource::Uri(uri),
        },
        name: short("name", media.name)?,
        detail: short("detail", media.detail)?,
    })
}

fn media_pb(media: &Media) -> pb::Media {
    pb::Media {
        media_type: media.media_type.clone(),
        source: match &media.source {
            MediaSource::Absent => None,
            MediaSource::Data(data) => Some(Source::Data(data.clone())),
            MediaSource::Uri(uri) => Some(Source::Uri(uri.clone())),
        },
        name: media.name.clone(),
        detail: media.detail.clone(),
    }
}

fn reasoning(reasoning: pb::Reasoning) -> Checked<Reasoning> {
    Ok(Reasoning {
        text: reasoning.text,
        signature: reasoning.signature,
        redacted: reasoning.redacted,
        provider: short("provider", reasoning.provider)?,
        model: short("model", reasoning.model)?,
        id: short("id", reasoning.id)?,
    })
}

fn reasoning_pb(reasoning: &Reasoning) -> pb::Reasoning {
    pb::Reasoning {
        text: reasoning.text.clone(),
        signature: reasoning.signature.clone(),
        redacted: reasoning.redacted,
        provider: reasoning.provider.clone(),
        model: reasoning.model.clone(),
        id: reasoning.id.clone(),
    }
}

fn part(part: pb::ContentPart) -> Checked<ContentPart> {
    let Some(part) = part.part else {
        return Err(FieldFault::here(BodyProblem::Missing));
    };
    Ok(match part {
        Part::Text(text) => ContentPart::Text(text),
        Part::Image(image) => {
            ContentPart::Image(media(image).map_err(|fault| fault.within("image"))?)
        }
        Part::File(file) => ContentPart::File(media(file).map_err(|fault| fault.within("file"))?),
        Part::Audio(audio) => {
            ContentPart::Audio(media(audio).map_err(|fault| fault.within("audio"))?)
        }
        Part::Reasoning(thought) => {
            ContentPart::Reasoning(reasoning(thought).map_err(|fault| fault.within("reasoning"))?)
        }
        Part::Refusal(text) => ContentPart::Refusal(text),
        Part::Json(text) => ContentPart::Json(json("json", Bytes::from(text))?),
    })
}

pub(super) fn parts(list: Vec<pb::ContentPart>) -> Checked<Vec<ContentPart>> {
    each("parts", list, part)
}

pub(super) fn parts_pb(parts: &[ContentPart]) -> Vec<pb::ContentPart> {
    let part_pb = |part: &ContentPart| {
        Some(match part {
            ContentPart::Text(text) => Part::Text(text.clone()),
            ContentPart::Image(media) => Part::Image(media_pb(media)),
            ContentPart::File(media) => Part::File(media_pb(media)),
            ContentPart::Audio(media) => Part::Audio(media_pb(media)),
            ContentPart::Reasoning(thought) => Part::Reasoning(reasoning_pb(thought)),
            ContentPart::Refusal(text) => Part::Refusal(text.clone()),
            ContentPart::Json(json) => Part::Json(json.as_str().to_owned()),
        })
    };
    parts
        .iter()
        .map(|part| pb::ContentPart {
            part: part_pb(part),
        })
        .collect()
}

fn usage(usage: pb::Usage) -> Checked<Usage> {
    Ok(Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_input_tokens: usage.cache_read_input_tokens,
        cache_creation_input_tokens: usage.cache_creation_input_tokens,
        reasoning_output_tokens: usage.reasoning_output_tokens,
        model: short("model", usage.model)?,
    })
}

fn usage_pb(usage: &Usage) -> pb::Usage {
    pb::Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_input_tokens: usage.cache_read_input_tokens,
        cache_creation_input_tokens: usage.cache_creation_input_tokens,
        reasoning_output_tokens: usage.reasoning_output_tokens,
        model: usage.model.clone(),
    }
}

fn raw_message(raw: pb::RawMessage) -> Checked<RawMessage> {
    Ok(RawMessage {
        origin: short("origin", raw.origin)?,
        provider: short("provider", raw.provider)?,
        model: short("model", raw.model)?,
        encoding: match chosen("encoding", raw.encoding)? {
            pb::RawEncoding::Unspecified => return unspecified("encoding"),
            pb::RawEncoding::Whole => RawEncoding::Whole,
            pb::RawEncoding::JsonPatch => {
                // A patch that is not JSON could never be applied.
                crate::json::check_text(&raw.data)
                    .map_err(|fault| FieldFault::at("data", fault.into()))?;
                RawEncoding::JsonPatch
            }
            pb::RawEncoding::Rest => {
                check_object(&raw.data)?;
                RawEncoding::Rest
            }
        },
        data: raw.data,
    })
}

/// Checks that the fields to merge are a JSON object.
fn check_object(data: &[u8]) -> Checked<()> {
    crate::json::check_text(data).map_err(|fault| FieldFault::at("data", fault.into()))?;
    match data.trim_ascii_start().starts_with(b"{") {
        true => Ok(()),
        false => Err(FieldFault::at("data", BodyProblem::NotAnObject)),
    }
}

pub(super) fn raw(raw: Option<pb::RawMessage>) -> Checked<Option<RawMessage>> {
    raw.map(raw_message)
        .transpose()
        .map_err(|fault| fault.within("raw"))
}

pub(super) fn raw_pb(raw: &RawMessage) -> pb::RawMessage {
    let encoding = match raw.encoding {
        RawEncoding::Whole => pb::RawEncoding::Whole,
        RawEncoding::JsonPatch => pb::RawEncoding::JsonPatch,
        RawEncoding::Rest => pb::RawEncoding::Rest,
    };
    pb::RawMessage {
        origin: raw.origin.clone(),
        provider: raw.provider.clone(),
        model: raw.model.clone(),
        encoding: encoding.into(),
        data: raw.data.clone(),
    }
}

impl pb::MessageAppended {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let usage = self.usage.map(usage).transpose();
        Ok(EventBody::MessageAppended(MessageAppended {
            role: role(self.role)?,
            parts: parts(self.parts)?,
            author: short("author", self.author)?,
            usage: usage.map_err(|fault| fault.within("usage"))?,
            raw: raw(self.raw)?,
            message_id: short("message_id", self.message_id)?,
            finish_reason: short("finish_reason", self.finish_reason)?,
            tool_call_id: short("tool_call_id", self.tool_call_id)?,
            tool_name: short("tool_name", self.tool_name)?,
        }))
    }

    pub(super) fn of(message: &MessageAppended) -> Self {
        Self {
            role: role_pb(message.role).into(),
            parts: parts_pb(&message.parts),
            author: message.author.clone(),
            usage: message.usage.as_ref().map(usage_pb),
            raw: message.raw.as_ref().map(raw_pb),
            message_id: message.message_id.clone(),
            finish_reason: message.finish_reason.clone(),
            tool_call_id: message.tool_call_id.clone(),
            tool_name: message.tool_name.clone(),
        }
    }
}
