//! Determines in which form content is sent to a provider, so that its tokens can be counted.
//! Follows the same rules as the adapters.

use std::borrow::Cow;

use super::{
    Provider, maker,
    media::{MediaPlace, MediumKind},
    reader::{Piece, left_out, taken},
    table::ReasoningPlacement,
};
use crate::draft::{Block, Step};
use treering_domain::{ContentPart, Media, MediaSource, Reasoning};

/// The form in which a part is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SentPart<'a> {
    Nothing,
    /// The text of the part, or text in its place.
    Text(Cow<'a, str>),
    Medium,
}

/// Returns how a part of a message, step or result is sent. Reasoning of a step: see
/// [`sent_thoughts`].
pub(crate) fn sent(provider: Provider, part: &ContentPart, place: MediaPlace) -> SentPart<'_> {
    let reshaping = provider.description().reshaping;
    let is_blank = |text: &str| reshaping.is_some() && text.trim().is_empty();
    let (kind, media) = match part {
        ContentPart::Text(said) | ContentPart::Refusal(said) if is_blank(said) => {
            return SentPart::Nothing;
        }
        ContentPart::Text(said) | ContentPart::Refusal(said) => {
            return SentPart::Text(said.as_str().into());
        }
        ContentPart::Json(json) => return SentPart::Text(json.as_str().into()),
        ContentPart::Reasoning(_) => return SentPart::Nothing,
        ContentPart::Image(media) => (MediumKind::Image, media),
        ContentPart::File(media) => (MediumKind::File, media),
        ContentPart::Audio(media) => (MediumKind::Audio, media),
    };
    let Some(reshaping) = reshaping else {
        return neutral(kind, media);
    };
    match taken(reshaping.takes, kind, media, place) {
        Ok(Piece::Text(text)) => SentPart::Text(text),
        Ok(Piece::Medium(_)) => SentPart::Medium,
        Err(why) => SentPart::Text(left_out(kind, media, why).into()),
    }
}

/// Treering's own format counts a text file as its text.
fn neutral(kind: MediumKind, media: &Media) -> SentPart<'_> {
    if kind == MediumKind::File
        && let MediaSource::Data(data) = &media.source
        && media.media_type.starts_with("text/")
        && let Ok(text) = std::str::from_utf8(data)
    {
        return SentPart::Text(text.into());
    }
    SentPart::Medium
}

/// Returns the reasoning of a step that is sent: it may be sent to the model, and is at a place
/// that the provider accepts.
pub(crate) fn sent_thoughts<'a>(
    provider: Provider,
    model: &str,
    step: &'a Step,
) -> Vec<&'a Reasoning> {
    let description = provider.description();
    let (place, vendor) = (description.thoughts, description.vendor);
    if place == ReasoningPlacement::Nowhere {
        return Vec::new();
    }
    let goes = |reasoning: &Reasoning| {
        vendor.is_none_or(|vendor| maker::goes_back(reasoning, &step.maker, vendor, model).is_ok())
    };
    let (mut sent, mut waiting) = (Vec::new(), Vec::new());
    for block in &step.blocks {
        if let Block::Part(part) = block
            && let ContentPart::Reasoning(reasoning) = &**part
        {
            waiting.extend(goes(reasoning).then_some(reasoning));
            continue;
        }
        let is_sent = match block {
            Block::Call(_) => true,
            Block::Part(part) => sent_at_all(provider, part),
        };
        if is_sent {
            settle(place, &mut waiting, &mut sent);
        }
    }
    match place {
        // The item that the reasoning led to is missing.
        ReasoningPlacement::BeforeMore
        | ReasoningPlacement::BeforeItsItem
        | ReasoningPlacement::Nowhere => {}
        ReasoningPlacement::Anywhere => sent.append(&mut waiting),
    }
    sent
}

fn sent_at_all(provider: Provider, part: &ContentPart) -> bool {
    self::sent(provider, part, MediaPlace::Assistant) != SentPart::Nothing
}

fn settle<'a>(
    place: ReasoningPlacement,
    waiting: &mut Vec<&'a Reasoning>,
    sent: &mut Vec<&'a Reasoning>,
) {
    if place == ReasoningPlacement::BeforeItsItem {
        // Only reasoning directly before its item is sent.
        let id = waiting.last().map_or("", |last| last.id.as_str());
        let other = |reasoning: &&Reasoning| id.is_empty() || reasoning.id != id;
        let before_last = waiting.len().saturating_sub(1);
        let first = waiting[..before_last].iter().rposition(other);
        waiting.drain(..first.map_or(0, |first| first + 1));
    }
    sent.append(waiting);
}
