//! Images, files and audio: their type, where their content is, and whether a provider accepts
//! them.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::draft::Speaker;
use treering_domain::{Media, MediaSource, is_text_type};

/// Image types that OpenAI and Anthropic accept.
pub(super) const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Kind of a medium, as its part declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MediumKind {
    Image,
    File,
    Audio,
}

impl MediumKind {
    /// Name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::File => "file",
            Self::Audio => "audio",
        }
    }
}

/// Where a medium is in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaPlace {
    /// A message of the user.
    User,
    /// A system or developer message.
    Instruction,
    /// A message of the model.
    Assistant,
    /// A tool result.
    Result,
}

impl MediaPlace {
    /// The place for messages of this speaker.
    #[must_use]
    pub fn of(speaker: Speaker) -> Self {
        match speaker {
            Speaker::User => Self::User,
            Speaker::System | Speaker::Developer => Self::Instruction,
        }
    }
}

/// A medium that can be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Medium<'a> {
    /// The declared kind.
    pub kind: MediumKind,
    /// MIME type in lower case, without parameters.
    pub media_type: Cow<'a, str>,
    /// Where its content is.
    pub source: MediumSource<'a>,
    /// File name, or empty.
    pub name: &'a str,
    /// Detail hint for the provider, or empty.
    pub detail: &'a str,
}

/// Where a medium's content is.
#[derive(Clone, Debug, PartialEq)]
pub enum MediumSource<'a> {
    /// Base64 with padding.
    Base64(Cow<'a, str>),
    /// A URL other than a `data:` URL.
    Url(&'a str),
}

impl<'a> Medium<'a> {
    /// Reads a medium.
    ///
    /// # Errors
    /// The reason why it has no content that can be sent.
    pub fn read(kind: MediumKind, media: &'a Media) -> Result<Self, &'static str> {
        let mut media_type = essence(&media.media_type);
        let source = match &media.source {
            MediaSource::Absent => return Err("its content was not recorded"),
            MediaSource::Data(data) if data.is_empty() => return Err("it is empty"),
            MediaSource::Data(data) => {
                if is_vague(&media_type) {
                    media_type = sniffed(data).map_or(media_type, Cow::Borrowed);
                }
                MediumSource::Base64(Cow::Owned(STANDARD.encode(data)))
            }
            MediaSource::Uri(uri) => match uri.strip_prefix("data:") {
                Some(rest) => {
                    let (of_uri, data) = data_uri(rest)?;
                    if is_vague(&media_type) && !of_uri.is_empty() {
                        media_type = of_uri;
                    }
                    if is_vague(&media_type) {
                        let sniffed = STANDARD.decode(data).ok().and_then(|data| sniffed(&data));
                        media_type = sniffed.map_or(media_type, Cow::Borrowed);
                    }
                    MediumSource::Base64(Cow::Borrowed(data))
                }
                None if uri.contains("://") => MediumSource::Url(uri),
                None => return Err("it is neither inline nor at an address that can be read"),
            },
        };
        Ok(Self {
            kind,
            media_type,
            source,
            name: &media.name,
            detail: &media.detail,
        })
    }

    /// Returns its URL, or a `data:` URL with its content.
    #[must_use]
    pub fn url(&self) -> Cow<'a, str> {
        match &self.source {
            MediumSource::Url(url) => Cow::Borrowed(url),
            MediumSource::Base64(data) => {
                Cow::Owned(format!("data:{};base64,{data}", self.media_type))
            }
        }
    }

    /// Whether it is at an `http` or `https` URL.
    #[must_use]
    pub(crate) fn is_web(&self) -> bool {
        matches!(self.source, MediumSource::Url(url)
            if url.starts_with("https://") || url.starts_with("http://"))
    }

    /// Whether its content is inline.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(self.source, MediumSource::Base64(_))
    }

    /// Returns its content if that is inline text, for providers that do not accept such a file.
    #[must_use]
    pub fn as_text(&self) -> Option<String> {
        let is_text = is_text_type(&self.media_type);
        let MediumSource::Base64(data) = &self.source else {
            return None;
        };
        if !is_text || self.kind != MediumKind::File {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(data.as_bytes()).ok()?).ok()?;
        let name = if self.name.is_empty() {
            "file"
        } else {
            self.name
        };
        Some(format!("[file {name:?}]\n{text}"))
    }

    /// Type and name for people.
    #[must_use]
    pub fn label(&self) -> String {
        label(self.kind, &self.media_type, self.name)
    }
}

/// Type and name of a medium for people.
#[must_use]
pub fn label(kind: MediumKind, media_type: &str, name: &str) -> String {
    let media_type = if media_type.is_empty() {
        kind.name()
    } else {
        media_type
    };
    if name.is_empty() {
        media_type.to_owned()
    } else {
        format!("{media_type} {name:?}")
    }
}

/// Returns a signature or other opaque bytes as text: unchanged if they are text, else as base64.
#[must_use]
pub(crate) fn opaque_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(STANDARD.encode(bytes)),
    }
}

/// Bytes as base64.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Whether the text is base64 with padding, in the standard or URL-safe alphabet.
#[must_use]
pub fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte))
}

/// Returns the type in lower case without parameters. `image/jpg` becomes `image/jpeg`.
fn essence(media_type: &str) -> Cow<'_, str> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("image/jpg") {
        return Cow::Borrowed("image/jpeg");
    }
    if essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(essence.to_ascii_lowercase());
    }
    Cow::Borrowed(essence)
}

fn is_vague(media_type: &str) -> bool {
    media_type.is_empty() || media_type == "application/octet-stream" || media_type.ends_with("/*")
}

/// Returns the type and base64 content of a `data:` URL, given the text after `data:`.
fn data_uri(rest: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let (head, data) = rest.split_once(',').ok_or("its data URI has no content")?;
    let media_type = head
        .strip_suffix(";base64")
        .ok_or("its data URI is not base64")?;
    if data.is_empty() {
        return Err("it is empty");
    }
    if STANDARD.decode(data).is_err() {
        return Err("its data URI is not base64");
    }
    Ok((essence(media_type), data))
}

/// Returns the type indicated by the first bytes.
fn sniffed(data: &[u8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 5] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"ID3", "audio/mpeg"),
    ];
    let known = STARTS.iter().find(|(start, _)| data.starts_with(start));
    match (data.get(..4), data.get(8..12)) {
        (Some(b"RIFF"), Some(b"WEBP")) => Some("image/webp"),
        (Some(b"RIFF"), Some(b"WAVE")) => Some("audio/wav"),
        _ => known.map(|(_, media_type)| *media_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(media_type: &str, source: MediaSource) -> Media {
        Media {
            media_type: media_type.into(),
            source,
            ..Media::default()
        }
    }

    /// Recordings often have a wrong type or none. The bytes show the type, and `data:` URLs count
    /// as inline content.
    #[test]
    fn media_type_and_source_are_detected() {
        let png = b"\x89PNG\r\n\x1a\nrest".as_slice();
        let cases = [
            (media("", MediaSource::Data(png.into())), "image/png"),
            (
                media("IMAGE/JPG; q=1", MediaSource::Data(png.into())),
                "image/jpeg",
            ),
            (
                media("", MediaSource::Uri("data:image/gif;base64,AAAA".into())),
                "image/gif",
            ),
            (
                media("image/webp", MediaSource::Uri("https://x/y".into())),
                "image/webp",
            ),
        ];
        for (media, expected) in cases {
            let medium = Medium::read(MediumKind::Image, &media).unwrap();
            assert_eq!(medium.media_type, expected);
        }
    }

    /// Media that cannot be sent are refused with a reason.
    #[test]
    fn broken_media_are_refused_with_a_reason() {
        let bad = [
            MediaSource::Absent,
            MediaSource::Data(Vec::new().into()),
            MediaSource::Uri("data:image/png;base64,".into()),
            MediaSource::Uri("data:image/png;base64,not base64".into()),
            MediaSource::Uri("data:image/png,%00".into()),
            MediaSource::Uri("/tmp/x.png".into()),
        ];
        for source in bad {
            let media = media("image/png", source.clone());
            assert!(
                Medium::read(MediumKind::Image, &media).is_err(),
                "{source:?}"
            );
        }
    }
}
