//! Renders messages and notes as cards.

use maud::{Markup, PreEscaped, html};

use crate::{
    bounds::{HEAD_BYTES, REASONING_BYTES, SAID_BYTES, TITLE_CHARS},
    pages::media::IMAGES,
    parts::{
        escape::{escape_inline, escaped, first, fitting, headline},
        json::pretty,
        markdown::markdown,
        numbers::{bytes_human, count, things},
        pieces::{BadgeColor, badge},
        time,
    },
    recorded_text::Piece,
    request_context::{RequestContext, path_part, query},
};
use treering_present::{
    Tone,
    json::role_name,
    text::{describe_event, is_usual_end, parts_text},
};
use treering_proto::pb::{self, content_part::Part, media::Source};

/// The space left on a page, in bytes of markup.
#[derive(Debug)]
pub(crate) struct MarkupAllowance(pub(crate) usize);

impl MarkupAllowance {
    /// Returns the beginning of a text that fits, and whether it is the whole text.
    pub(crate) fn take<'a>(&mut self, text: &'a str, bytes_max: usize) -> (&'a str, bool) {
        // No text may take all of the remaining space, so that later events still get a line.
        let most = bytes_max.min((self.0 / 8).max(LEAST_BYTES));
        let mut end = fitting(text, most);
        if end == text.len() {
            self.0 = self.0.saturating_sub(most.min(end * 2));
            return (text, true);
        }
        if let Some(at) = text[..end].rfind('\n').filter(|at| *at > end / 2) {
            end = at;
        }
        self.0 = self.0.saturating_sub(most);
        (&text[..end], false)
    }

    /// Like `take`, for coloured JSON, whose markup is larger.
    pub(crate) fn take_json<'a>(&mut self, text: &'a str, bytes_max: usize) -> (&'a str, bool) {
        let (text, is_whole) = self.take(text, bytes_max);
        self.0 = self.0.saturating_sub(2 * text.len());
        (text, is_whole)
    }
}

/// Minimum number of bytes for each text, even when no space is left.
const LEAST_BYTES: usize = 120;

/// Returns the address of an event of this conversation.
#[must_use]
pub(crate) fn event_address(request_context: &RequestContext, event: &pb::Event) -> String {
    let id = path_part(&event.conversation_id);
    request_context.link(&format!("/c/{id}/e/{}", event.revision))
}

/// Returns the address of an event's text.
#[must_use]
pub(crate) fn text_address(request_context: &RequestContext, event: &pb::Event) -> String {
    let path = format!(
        "/c/{}/text/{}",
        path_part(&event.conversation_id),
        event.revision
    );
    match event.branch.as_str() {
        "" => request_context.link(&path),
        branch => format!(
            "{}?{}",
            request_context.link(&path),
            query(&[("branch", branch)])
        ),
    }
}

/// Renders the revision of an event as a link to it.
#[must_use]
pub(crate) fn number(request_context: &RequestContext, event: &pb::Event) -> Markup {
    html! {
        a.rev href=(event_address(request_context, event)) title="the event itself" { "#" (event.revision) }
    }
}

fn happened(event: &pb::Event) -> Option<&prost_types::Timestamp> {
    event.occurred_at.as_ref().or(event.recorded_at.as_ref())
}

/// Renders the time of day of an event.
#[must_use]
pub(crate) fn clock(event: &pb::Event) -> Markup {
    time::clock(happened(event))
}

/// Renders a message.
#[must_use]
pub(crate) fn said(
    request_context: &RequestContext,
    event: &pb::Event,
    message: &pb::MessageAppended,
    room: &mut MarkupAllowance,
) -> Markup {
    let role = role_name(message.role);
    // System and developer messages are long and the same in each conversation.
    let is_folded = matches!(message.role(), pb::Role::System | pb::Role::Developer);
    let parts = html! {
        @for (index, part) in message.parts.iter().enumerate() {
            @match part.part.as_ref() {
                Some(Part::Text(text)) if message.role() == pb::Role::Assistant => {
                    (prose(request_context, event, text, TextForm::Markdown, room))
                }
                _ => (part_of(request_context, event, index, part, room)),
            }
        }
    };
    // An answer with only calls has no text.
    let class = if parts.0.is_empty() {
        "said bare"
    } else {
        "said"
    };
    html! {
        article id={ "e" (event.revision) } class={ (class) " " (role) } data-item tabindex="-1" {
            header {
                strong.role { (role) }
                @if !message.author.is_empty() { span { (escape_inline(&message.author)) } }
                (about(message))
                @if event.erased { (badge(BadgeColor::Bad, "erased")) }
                span.end { (clock(event)) " " (number(request_context, event)) }
            }
            @if is_folded {
                details.fold id={ "m" (event.revision) } {
                    summary { span.dim { (headline(&parts_text(&message.parts), TITLE_CHARS)) } }
                    (parts)
                }
            } @else { (parts) }
        }
    }
}

fn about(message: &pb::MessageAppended) -> Markup {
    let usage = message.usage.as_ref();
    let model = usage
        .map(|usage| usage.model.as_str())
        .filter(|model| !model.is_empty());
    html! {
        @if let Some(model) = model { span.mono.dim { (escape_inline(model)) } }
        @if let Some(usage) = usage {
            span.dim title="tokens, as counted by the provider" {
                (count(usage.input_tokens)) " in · " (count(usage.output_tokens)) " out"
                @if usage.cache_read_input_tokens > 0 { " · " (count(usage.cache_read_input_tokens)) " cached" }
            }
        }
        @if !is_usual_end(&message.finish_reason) {
            (badge(BadgeColor::Wait, &message.finish_reason))
        }
    }
}

/// Renders a part of a message or a result.
#[must_use]
pub(crate) fn part_of(
    request_context: &RequestContext,
    event: &pb::Event,
    index: usize,
    part: &pb::ContentPart,
    room: &mut MarkupAllowance,
) -> Markup {
    match part.part.as_ref() {
        None => html! {},
        Some(Part::Text(text)) => prose(request_context, event, text, TextForm::Plain, room),
        Some(Part::Json(text)) => {
            let (text, is_whole) = room.take_json(text, SAID_BYTES);
            html! { (pretty(text)) @if !is_whole { (rest(request_context, event)) } }
        }
        Some(Part::Refusal(text)) => html! {
            p { (badge(BadgeColor::Bad, "refused")) }
            (prose(request_context, event, text, TextForm::Plain, room))
        },
        Some(Part::Reasoning(reasoning)) => thought(request_context, event, index, reasoning, room),
        Some(Part::Image(media)) => image(request_context, event, index, media),
        Some(Part::File(media)) => match IMAGES.contains(&media.media_type.as_str()) {
            true => image(request_context, event, index, media),
            false => attached("file", media),
        },
        Some(Part::Audio(media)) => attached("sound", media),
    }
}

/// How a text is rendered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextForm {
    Plain,
    Markdown,
}

fn prose(
    request_context: &RequestContext,
    event: &pb::Event,
    text: &str,
    form: TextForm,
    room: &mut MarkupAllowance,
) -> Markup {
    let trimmed = text.trim_end();
    let (start, is_whole) = room.take(trimmed, SAID_BYTES);
    let rendered = match form {
        TextForm::Markdown => markdown(start),
        TextForm::Plain => None,
    };
    if let Some(PreEscaped(markup)) = &rendered {
        room.0 = room
            .0
            .saturating_sub(markup.len().saturating_sub(start.len()));
    }
    html! {
        @match rendered {
            Some(markup) => div.prose.markdown dir="auto" { (markup) },
            None if start.is_empty() => {},
            None => div.prose dir="auto" { (escaped(start)) },
        }
        @if !is_whole {
            p.rest { a href=(text_address(request_context, event)) { (count((trimmed.len() - start.len()) as u64)) " bytes more" } }
        }
    }
}

fn rest(request_context: &RequestContext, event: &pb::Event) -> Markup {
    html! { p.rest { a href=(text_address(request_context, event)) { "everything" } } }
}

fn thought(
    request_context: &RequestContext,
    event: &pb::Event,
    index: usize,
    reasoning: &pb::Reasoning,
    room: &mut MarkupAllowance,
) -> Markup {
    if reasoning.text.trim().is_empty() {
        return html! {
            p.dim.thought { "thought" @if reasoning.redacted { ", encrypted by its provider" } }
        };
    }
    let (text, is_whole) = room.take(reasoning.text.trim(), REASONING_BYTES);
    html! {
        details.fold.thought id={ "t" (event.revision) "-" (index) } {
            summary { span.dim { "thought: " (headline(&reasoning.text, TITLE_CHARS)) } }
            div.prose dir="auto" { (escaped(text)) }
            @if !is_whole { (rest(request_context, event)) }
        }
    }
}

fn image(
    request_context: &RequestContext,
    event: &pb::Event,
    index: usize,
    media: &pb::Media,
) -> Markup {
    let is_shown = IMAGES.contains(&media.media_type.as_str());
    if !is_shown || !matches!(media.source, Some(Source::Data(_))) {
        return attached("image", media);
    }
    let id = path_part(&event.conversation_id);
    let address = request_context.link(&format!("/c/{id}/media/{}/{index}", event.revision));
    let name = match media.name.as_str() {
        "" => "an image of the conversation",
        name => name,
    };
    html! {
        a.image href=(address) { img src=(address) alt=(treering_present::text::first_line(name, TITLE_CHARS)) loading="lazy" decoding="async"; }
    }
}

fn attached(what: &str, media: &pb::Media) -> Markup {
    html! {
        p.attached {
            (badge(BadgeColor::Plain, what)) " " (escape_inline(&media.name)) " "
            span.dim {
                (escape_inline(&media.media_type)) " "
                @match &media.source {
                    Some(Source::Data(bytes)) => (bytes_human(bytes.len() as u64)),
                    Some(Source::Uri(uri)) => (escape_inline(&first(uri, TITLE_CHARS))),
                    None => {}
                }
            }
        }
    }
}

/// Renders the beginning of a message whose body is too large.
#[must_use]
pub(crate) fn large(request_context: &RequestContext, event: &pb::Event, head: &Piece) -> Markup {
    html! {
        article.said id={ "e" (event.revision) } data-item tabindex="-1" {
            header {
                strong.role { (treering_present::json::kind_name(event.kind)) }
                span.dim { (bytes_human(head.info.total_bytes)) }
                span.end { (clock(event)) " " (number(request_context, event)) }
            }
            div.prose dir="auto" { (escaped(&head.text[..fitting(&head.text, HEAD_BYTES)])) }
            (rest(request_context, event))
        }
    }
}

/// Renders secondary events, folded. Messages without content become link anchors.
#[must_use]
pub(crate) fn folded(
    request_context: &RequestContext,
    events: &[pb::Event],
    room: &mut MarkupAllowance,
) -> Markup {
    let is_message = |event: &&pb::Event| event.kind() == pb::EventKind::MessageAppended;
    let (empty, records): (Vec<_>, Vec<_>) = events.iter().partition(is_message);
    html! {
        @for event in empty { span id={ "e" (event.revision) } {} }
        @if let (Some(first), Some(last)) = (records.first(), records.last()) {
            details.fold.beside id={ "b" (first.revision) } {
                summary { span.dim {
                    (things(records.len() as u64, "secondary event", "secondary events")) ", #" (first.revision)
                    @if records.len() > 1 { "–#" (last.revision) }
                } }
                @for event in &records { (noted(request_context, event, room)) }
            }
        }
    }
}

/// Renders any other event on one line, with long content folded.
#[must_use]
pub(crate) fn noted(
    request_context: &RequestContext,
    event: &pb::Event,
    room: &mut MarkupAllowance,
) -> Markup {
    let said = describe_event(event);
    let (text, is_whole) = room.take(said.content.trim(), REASONING_BYTES);
    let is_short = !text.contains('\n') && text.len() < TITLE_CHARS;
    html! {
        div.noted id={ "e" (event.revision) } .alert[matches!(said.tone, Tone::Bad)] data-item tabindex="-1" {
            div.line {
                strong { (escape_inline(&said.title)) }
                @if !said.note.is_empty() { span.dim { (headline(&said.note, TITLE_CHARS)) } }
                @if is_short && !text.is_empty() { span { (escape_inline(text)) } }
                span.end { (clock(event)) " " (number(request_context, event)) }
            }
            @if !is_short {
                details.fold id={ "n" (event.revision) } {
                    summary { span.dim { (headline(text, TITLE_CHARS)) } }
                    div.prose dir="auto" { (escaped(text)) }
                    @if !is_whole { (rest(request_context, event)) }
                }
            }
        }
    }
}

/// Returns a number of calls in words.
#[must_use]
pub(crate) fn calls_told(number: usize) -> String {
    things(number as u64, "call", "calls")
}

#[cfg(test)]
mod tests {
    use super::*;

    // A page with ten thousand long answers is too large for any browser: all texts together must
    // have a limit, and even the last text must show its beginning.
    #[test]
    fn texts_of_a_page_are_limited() {
        let text = "line of it\n".repeat(1_000);
        let mut room = MarkupAllowance(100_000);
        let mut all = 0;
        for _ in 0..200 {
            let (shown, is_whole) = room.take(&text, 6_000);
            assert!(!is_whole && shown.len() >= LEAST_BYTES / 2 && shown.len() <= 6_000);
            all += shown.len();
        }
        assert!(all < 100_000 + 200 * LEAST_BYTES, "{all}");
        let signs = "\0".repeat(1_000);
        let mut room = MarkupAllowance(100_000);
        let signs = (0..200).map(|_| escaped(room.take(&signs, 6_000).0).0.len());
        assert!(signs.sum::<usize>() < 100_000 + 200 * LEAST_BYTES);
        assert_eq!(MarkupAllowance(10).take("short", 6_000), ("short", true));
        assert_eq!(MarkupAllowance(10).take("", 6_000), ("", true));
        let long = "é".repeat(500);
        let (cut, _) = MarkupAllowance(10).take(&long, 6_000);
        assert!(cut.len() <= LEAST_BYTES);
    }
}
