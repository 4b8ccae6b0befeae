//! Rules for content parts and raw messages.

use bytes::Bytes;

use super::{
    convert::{json, short},
    fault::{BodyProblem, FieldFault, FieldResult},
};
use crate::pb::{self, content_part::Part, media::Source};
use treering_domain::{ContentPart, Media, MediaSource};

impl pb::Media {
    fn into_domain(self) -> FieldResult<Media> {
        Ok(Media {
            media_type: short("media_type", self.media_type)?,
            source: match self.source {
                None => MediaSource::Absent,
                Some(Source::Data(data)) => MediaSource::Data(data),
                Some(Source::Uri(uri)) => MediaSource::Uri(uri),
            },
            name: short("name", self.name)?,
            detail: short("detail", self.detail)?,
        })
    }

    fn of(media: &Media) -> Self {
        Self {
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
}

impl pb::ContentPart {
    pub(super) fn into_domain(self) -> FieldResult<ContentPart> {
        let Some(part) = self.part else {
            return Err(FieldFault::here(BodyProblem::Missing));
        };
        let media = |field: &str, media: pb::Media| {
            let read = media.into_domain();
            read.map_err(|fault| fault.within(field))
        };
        Ok(match part {
            Part::Text(text) => ContentPart::Text(text),
            Part::Image(image) => ContentPart::Image(media("image", image)?),
            Part::File(file) => ContentPart::File(media("file", file)?),
            Part::Audio(audio) => ContentPart::Audio(media("audio", audio)?),
            Part::Reasoning(reasoning) => {
                let reasoning = reasoning.into_domain();
                ContentPart::Reasoning(reasoning.map_err(|fault| fault.within("reasoning"))?)
            }
            Part::Refusal(text) => ContentPart::Refusal(text),
            Part::Json(text) => ContentPart::Json(json("json", Bytes::from(text))?),
        })
    }

    pub(super) fn of(part: &ContentPart) -> Self {
        let part = match part {
            ContentPart::Text(text) => Part::Text(text.clone()),
            ContentPart::Image(media) => Part::Image(pb::Media::of(media)),
            ContentPart::File(media) => Part::File(pb::Media::of(media)),
            ContentPart::Audio(media) => Part::Audio(pb::Media::of(media)),
            ContentPart::Reasoning(reasoning) => Part::Reasoning(pb::Reasoning::of(reasoning)),
            ContentPart::Refusal(text) => Part::Refusal(text.clone()),
            ContentPart::Json(json) => Part::Json(json.as_str().to_owned()),
        };
        Self { part: Some(part) }
    }
}

impl pb::RawMessage {
    pub(super) fn check(&self) -> FieldResult<()> {
        match self.encoding() {
            pb::RawEncoding::Unspecified | pb::RawEncoding::Whole => Ok(()),
            // A patch that is not JSON could never be applied.
            pb::RawEncoding::JsonPatch => crate::json::check_text(&self.data)
                .map_err(|fault| FieldFault::at("data", fault.into())),
            pb::RawEncoding::Rest => check_object(&self.data),
        }
    }
}

/// Checks that the fields to merge are a JSON object.
fn check_object(data: &[u8]) -> FieldResult<()> {
    crate::json::check_text(data).map_err(|fault| FieldFault::at("data", fault.into()))?;
    match data.trim_ascii_start().starts_with(b"{") {
        true => Ok(()),
        false => Err(FieldFault::at("data", BodyProblem::NotAnObject)),
    }
}
