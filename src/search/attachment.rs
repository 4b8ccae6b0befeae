//! The text of attached files.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use treering_domain::{Media, MediaSource, is_text_type};

/// Unspecific types, for which the content decides.
const UNKNOWN_TYPES: [&str; 2] = ["", "application/octet-stream"];

/// Returns the text of a file that is stored in the event, or an empty text if the file is not
/// text. A file is text if its media type is a text type or unspecific, and its content is UTF-8
/// without NUL bytes.
pub(super) fn text(file: &Media) -> Cow<'_, str> {
    let nothing = Cow::Borrowed("");
    let (media_type, bytes) = match &file.source {
        MediaSource::Absent => return nothing,
        MediaSource::Data(bytes) => (file.media_type.as_str(), Cow::from(&bytes[..])),
        MediaSource::Uri(uri) => match data_url(uri) {
            Some((own, _)) if !is_text(of(file, own)) => return nothing,
            Some((own, data)) => match STANDARD.decode(data) {
                Ok(bytes) => (of(file, own), Cow::from(bytes)),
                Err(_) => return nothing,
            },
            None => return nothing,
        },
    };
    // Text contains no NUL byte; most other files do.
    if !is_text(media_type) || bytes.contains(&0) {
        return nothing;
    }
    match bytes {
        Cow::Borrowed(bytes) => Cow::from(str::from_utf8(bytes).unwrap_or_default()),
        Cow::Owned(bytes) => Cow::from(String::from_utf8(bytes).unwrap_or_default()),
    }
}

fn of<'a>(file: &'a Media, of_url: &'a str) -> &'a str {
    match file.media_type.as_str() {
        "" => of_url,
        own => own,
    }
}

/// Returns the media type and the Base64 text of a `data:` URL.
fn data_url(uri: &str) -> Option<(&str, &str)> {
    let (head, data) = uri.strip_prefix("data:")?.split_once(',')?;
    Some((head.strip_suffix(";base64")?, data.trim()))
}

fn is_text(media_type: &str) -> bool {
    is_text_type(media_type) || UNKNOWN_TYPES.contains(&media_type)
}
