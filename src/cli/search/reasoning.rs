//! Separates reasoning from the answer if both are in one text.

use super::super::{connect::Connection, error::ClientError, names, pb, read};
use treering_domain::{ContentPart, EventBody, Namespace};
use treering_engine::{part_at, searchable_text};
use treering_proto::{body, envelope};

/// Marks a line where reasoning or the answer begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Voice {
    /// The line, from 1.
    line: u64,
    what: &'static str,
}

/// Returns the lines where an event's text changes between reasoning and answer; empty if it has no
/// reasoning.
pub(crate) fn voices(event: pb::Event) -> Vec<Voice> {
    let decoded = || {
        let event = envelope::event_from_pb(event, Namespace::default()).ok()?;
        body::decode(event.header.kind()?, &event.body).ok()
    };
    decoded().map_or_else(Vec::new, |body| of_body(&body))
}

fn of_body(body: &EventBody) -> Vec<Voice> {
    let text = searchable_text(body).unwrap_or_default();
    let mut voices: Vec<Voice> = Vec::new();
    let mut start = 0;
    for (line, text) in (1..).zip(text.split_inclusive('\n')) {
        let what = match part_at(body, start) {
            Some(ContentPart::Reasoning(_)) => "thought",
            _ => "said",
        };
        start += text.len();
        if voices.last().is_none_or(|last| last.what != what) {
            voices.push(Voice { line, what });
        }
    }
    voices.retain(|_| !text.is_empty());
    match &voices[..] {
        [only] if only.what == "said" => Vec::new(),
        _ => voices,
    }
}

/// Returns the voices in a hit's text.
pub(super) async fn of_hit(
    hit: &pb::SearchHit,
    store: &Connection,
) -> Result<Vec<Voice>, ClientError> {
    if hit.role != i32::from(pb::Role::Assistant) {
        return Ok(Vec::new());
    }
    let request = pb::ReadRequest {
        from_revision: hit.revision,
        to_revision: hit.revision,
        ..read::of_conversation(&hit.conversation_id)
    };
    let event = names::first(store, request).await?;
    Ok(event.map_or_else(Vec::new, voices))
}

/// Returns the heading before a line, if the voice changes there or the line is the first one
/// shown.
pub(crate) fn heading(voices: &[Voice], line: u64, is_first: bool) -> Option<&'static str> {
    let here = voices.iter().rev().find(|voice| voice.line <= line)?;
    (is_first || here.line == line).then_some(here.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::{MessageAppended, Reasoning, Role};

    // Context around a hit must not show reasoning as if it were part of the answer.
    #[test]
    fn reasoning_and_answer_get_separate_headings() {
        let thought = |text: &str| {
            ContentPart::Reasoning(Reasoning {
                text: text.into(),
                ..Reasoning::default()
            })
        };
        let said = |text: &str| ContentPart::Text(text.into());
        let of = |parts| {
            let message = MessageAppended::new(Role::Assistant, parts);
            of_body(&EventBody::MessageAppended(message))
        };
        let voices = of(vec![thought("maybe\nthis"), said("It is\nthat.")]);
        let headings = |first: u64| -> Vec<_> {
            (first..=4)
                .filter_map(|line| Some((line, heading(&voices, line, line == first)?)))
                .collect()
        };
        assert_eq!(headings(1), [(1, "thought"), (3, "said")]);
        assert_eq!(headings(2), [(2, "thought"), (3, "said")]);
        assert_eq!(headings(4), [(4, "said")]);
        assert_eq!(of(vec![said("It is that.")]), []);
        assert_eq!(of(Vec::new()), []);
    }
}
