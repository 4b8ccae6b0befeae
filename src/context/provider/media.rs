//! Images, files and sounds: what they are, where their content is, and whether
//! a provider takes them.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::draft::Speaker;
use treering_domain::{Media, MediaSource};

/// Image types of OpenAI and Anthropic.
pub(super) const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// What kind of medium a part says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MediumKind {
    Image,
    File,
    Audio,
}

impl MediumKind {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::File => "file",
            Self::Audio => "audio",
        }
    }
}

/// Where in a request a medium stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaPlace {
    /// A user's message.
    User,
    /// A system or developer message.
    Instruction,
    /// The model's own message.
    Assistant,
    /// A tool's result.
    Result,
}

impl MediaPlace {
    /// In a message of this speaker.
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
    /// What the part says it is.
    pub kind: MediumKind,
    /// In lower case, without parameters.
    pub media_type: Cow<'a, str>,
    /// Where its content is.
    pub source: MediumSource<'a>,
    /// File name, or empty.
    pub name: &'a str,
    /// Provider's hint, or empty.
    pub detail: &'a str,
}

/// Where a medium's content is.
#[derive(Clone, Debug, PartialEq)]
pub enum MediumSource<'a> {
    /// Base64 with padding.
    Base64(Cow<'a, str>),
    /// An address that is not a `data:` one.
    Url(&'a str),
}

impl<'a> Medium<'a> {
    /// Reads a medium.
    ///
    /// # Errors
    /// Why it has no content that can be sent.
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

    /// As a URL: its own, or a `data:` one.
    #[must_use]
    pub fn url(&self) -> Cow<'a, str> {
        match &self.source {
            MediumSource::Url(url) => Cow::Borrowed(url),
            MediumSource::Base64(data) => {
                Cow::Owned(format!("data:{};base64,{data}", self.media_type))
            }
        }
    }

    /// At an address that providers load from.
    #[must_use]
    pub fn is_web(&self) -> bool {
        matches!(self.source, MediumSource::Url(url)
            if url.starts_with("https://") || url.starts_with("http://"))
    }

    /// With its content inline.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(self.source, MediumSource::Base64(_))
    }

    /// Inline text, for providers that take no such file.
    #[must_use]
    pub fn as_text(&self) -> Option<String> {
        const TEXTS: [&str; 5] = [
            "application/json",
            "application/xml",
            "application/yaml",
            "application/x-yaml",
            "application/javascript",
        ];
        let is_text =
            self.media_type.starts_with("text/") || TEXTS.contains(&self.media_type.as_ref());
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

    /// For people: type and name.
    #[must_use]
    pub fn label(&self) -> String {
        label(self.kind, &self.media_type, self.name)
    }
}

/// For people: type and name of a medium.
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

/// A signature, or other opaque bytes, as text: as they are when they are the
/// text that the provider sent, else as base64.
#[must_use]
pub fn opaque_text(bytes: &[u8]) -> Cow<'_, str> {
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

/// True for base64 text with padding, in the usual or the URL-safe alphabet.
#[must_use]
pub fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte))
}

/// The type in lower case without parameters, `image/jpg` by its real name.
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

/// Type and base64 content of what follows `data:`.
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

/// The type by the first bytes.
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

    /// Recordings name types loosely or not at all: what the bytes say must fill
    /// in, and a `data:` URI must count as inline.
    #[test]
    fn types_and_sources_are_found() {
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

    /// What cannot be sent must say why, not go out broken.
    #[test]
    fn broken_media_say_why() {
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
