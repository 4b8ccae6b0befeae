//! Returns an image of a message or a result, unchanged. Only formats that browsers treat only as
//! images are allowed.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use prost::Message;

use crate::{
    failure::PageFailure,
    request_context::{PathParams, RequestContext},
};
use treering_proto::pb::{self, content_part::Part, event::Body, media::Source};

/// Formats that are shown. SVG is not among them, because it may contain scripts.
pub(crate) const IMAGES: [&str; 5] = [
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/avif",
];

/// Returns the image.
///
/// # Errors
/// When there is no image in an allowed format.
pub(crate) async fn image(
    request_context: RequestContext,
    PathParams((id, revision, number)): PathParams<(String, u64, usize)>,
) -> Result<Response, PageFailure> {
    let none = || PageFailure::none("no image here", "see the event itself");
    let event = super::event::find(&request_context, &id, revision, false).await?;
    let parts = parts_of(&event).ok_or_else(none)?;
    let part = parts.into_iter().nth(number).and_then(|part| part.part);
    let Some(Part::Image(image) | Part::File(image)) = part else {
        return Err(none());
    };
    let kind = IMAGES.iter().find(|kind| **kind == image.media_type);
    let (Some(kind), Some(Source::Data(bytes))) = (kind, image.source) else {
        return Err(none());
    };
    let headers = [
        (CONTENT_TYPE, *kind),
        (CONTENT_DISPOSITION, "inline"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    Ok((headers, bytes).into_response())
}

/// Returns the parts of a message or a result.
#[must_use]
pub(crate) fn parts_of(event: &pb::Event) -> Option<Vec<pb::ContentPart>> {
    match event.body.as_ref()? {
        Body::MessageAppended(bytes) => {
            Some(pb::MessageAppended::decode(bytes.as_ref()).ok()?.parts)
        }
        Body::ToolResultRecorded(bytes) => {
            Some(pb::ToolResultRecorded::decode(bytes.as_ref()).ok()?.parts)
        }
        _ => None,
    }
}
