//! Cuts long texts to head and tail. The tail is kept because errors are in the last lines.

use super::{
    Scope, blobs, file_lines,
    mark::{CutMark, RESULT},
};
use crate::{
    draft::{Block, Call, Content, Item, Message, Outcome, ResultOutcome, Section, Step},
    enhancers::framed_summary,
    references::short_reference,
    shared::{Parts, SharedContent},
    steps,
};
use treering_domain::ContentPart;

/// A text is cut only if it exceeds its limit by more than an eighth of the limit and by more than
/// `SAVES_BYTES_LEAST` bytes. A mark takes about 100 bytes, so a smaller cut saves too little.
const SAVES_AT_LEAST: usize = 8;
const SAVES_BYTES_LEAST: usize = 200;
/// Minimum length of a cut text, in bytes: room for a first and a last line.
pub(super) const LEAST_BYTES: usize = 160;

/// Which texts of a step may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutScope {
    /// The results of its calls.
    Results,
    /// The results and the model's own texts.
    All,
}

/// Number of bytes in the texts of an item that can be cut.
pub(super) fn bytes(item: &Item, of: CutScope) -> usize {
    match &*item.content {
        Content::Instruction(_) => 0,
        Content::Message(message) => message.parts.iter().map(part_bytes).sum(),
        Content::Step(step) => {
            let said = step.blocks.iter().map(|block| match block {
                Block::Call(call) => match &call.outcome {
                    Outcome::Result(result) => result_bytes(result),
                    _ => 0,
                },
                Block::Part(part) if of == CutScope::All => part_bytes(part),
                Block::Part(_) => 0,
            });
            said.sum()
        }
    }
}

/// The item with its texts cut to about `bytes_max` bytes in total. None if that saves too little.
/// Reasoning and calls do not change.
pub(super) fn item(
    item: &Item,
    scope: Scope<'_>,
    bytes_max: usize,
    of: CutScope,
) -> Option<SharedContent> {
    let all = bytes(item, of);
    steps::note(1);
    if !is_long(all, bytes_max) {
        return None;
    }
    let each_max = fair_share(item, bytes_max, of).max(LEAST_BYTES);
    let mut content = item.content.clone();
    let changed = match content.make_mut() {
        Content::Instruction(_) => false,
        Content::Message(message) => {
            let at = item
                .events
                .first()
                .map(|at| short_reference(scope.conversation, *at));
            let frame = match item.section {
                Section::Compaction => framed_summary,
                _ => unframed,
            };
            cut_message(message, scope, at, each_max, frame)
        }
        Content::Step(step) => cut_step(step, scope, each_max, of),
    };
    changed.then_some(content)
}

/// Returns the item without the encoded data in its results, including results told in a message.
/// None if there is no encoded data.
pub(super) fn without_blobs(item: &Item, scope: Scope<'_>) -> Option<SharedContent> {
    if !item.content.is_encoded(is_encoded) {
        return None;
    }
    let mut content = item.content.clone();
    match content.make_mut() {
        Content::Message(message) => {
            let at = item.events.first().copied();
            let at = at.map(|at| short_reference(scope.conversation, at));
            let mark = CutMark::of(whose(message), at, scope.heuristics);
            message.parts = parts_without_blobs(&message.parts, &mark);
        }
        Content::Step(step) => {
            for call in step.calls_mut() {
                if let Outcome::Result(result) = &mut call.outcome
                    && result_is_encoded(result)
                {
                    let at = short_reference(scope.conversation, result.event);
                    let mark = CutMark::of(RESULT, Some(at), scope.heuristics);
                    result.parts = match result.parts.is_empty() {
                        false => parts_without_blobs(&result.parts, &mark),
                        true => {
                            let text = mark.without_blobs(result.structured.as_str());
                            text.map(ContentPart::Text)
                                .into_iter()
                                .collect::<Vec<_>>()
                                .into()
                        }
                    };
                    result.shortened = true;
                }
            }
        }
        Content::Instruction(_) => {}
    }
    Some(content)
}

fn parts_without_blobs(parts: &[ContentPart], mark: &CutMark<'_>) -> Parts {
    let parts = parts.iter().map(|part| {
        let told = part.text().and_then(|text| mark.without_blobs(text));
        told.map_or_else(|| part.clone(), ContentPart::Text)
    });
    parts.collect::<Vec<_>>().into()
}

/// Whether a result or a harness message has encoded data. Messages of the user are never changed.
fn is_encoded(content: &Content) -> bool {
    match content {
        Content::Message(message) => message.is_told && parts_are_encoded(&message.parts),
        Content::Step(step) => step.calls().any(|call| match &call.outcome {
            Outcome::Result(result) => result_is_encoded(result),
            _ => false,
        }),
        Content::Instruction(_) => false,
    }
}

fn result_is_encoded(result: &ResultOutcome) -> bool {
    match result.parts.is_empty() {
        true => blobs::are_beside(result.structured.as_str()),
        false => parts_are_encoded(&result.parts),
    }
}

fn parts_are_encoded(parts: &[ContentPart]) -> bool {
    let mut texts = parts.iter().filter_map(ContentPart::text);
    texts.any(blobs::are_beside)
}

/// Returns the limit in bytes for each text so that all texts together fit in `bytes_max`. Long
/// texts get the room that short texts do not use.
fn fair_share(item: &Item, bytes_max: usize, of: CutScope) -> usize {
    let mut sizes: Vec<usize> = match &*item.content {
        Content::Instruction(_) => Vec::new(),
        Content::Message(message) => message.parts.iter().map(part_bytes).collect(),
        Content::Step(step) => {
            let sizes = step.blocks.iter().map(|block| match block {
                Block::Call(call) => match &call.outcome {
                    Outcome::Result(result) => result_bytes(result),
                    _ => 0,
                },
                Block::Part(part) if of == CutScope::All => part_bytes(part),
                Block::Part(_) => 0,
            });
            sizes.collect()
        }
    };
    sizes.sort_unstable();
    let (mut left, mut count) = (bytes_max, sizes.len());
    for size in sizes {
        if size * count >= left {
            return left / count.max(1);
        }
        left -= size;
        count -= 1;
    }
    bytes_max
}

fn part_bytes(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text(text) => text.len(),
        ContentPart::Json(json) => json.as_str().len(),
        _ => 0,
    }
}

fn result_bytes(result: &ResultOutcome) -> usize {
    /// Size of an image or other medium, counted as one page of text.
    const MEDIUM_BYTES: usize = 4_096;
    let parts = result.parts.iter().map(|part| match part.text() {
        Some(text) => text.len(),
        None => MEDIUM_BYTES,
    });
    let structured = match result.parts.is_empty() {
        true => result.structured.as_str().len(),
        false => 0,
    };
    parts.sum::<usize>() + structured + result.error_message.len()
}

/// The recorded text, between the texts that an enhancer added before and after it.
type FramedText<'a> = (&'a str, &'a str, &'a str);

fn unframed(text: &str) -> FramedText<'_> {
    ("", text, "")
}

fn cut_message(
    message: &mut Message,
    scope: Scope<'_>,
    at: Option<String>,
    each_max: usize,
    frame: fn(&str) -> FramedText<'_>,
) -> bool {
    let mark = CutMark::of(whose(message), at, scope.heuristics);
    let long = |part: &ContentPart| is_long(part_bytes(part), each_max);
    if !message.parts.iter().any(long) {
        return false;
    }
    let parts = message.parts.iter().map(|part| match part {
        part if long(part) => {
            // Bytes and lines are counted in the recorded text, because readers use these numbers
            // to request parts of it.
            let (before, text, behind) = frame(part.text().unwrap_or_default());
            let room = each_max.saturating_sub(before.len() + behind.len());
            let room = room.max(LEAST_BYTES);
            let text = match scope.heuristics.analysis(text) {
                // Only summaries have a frame and an analysis.
                Some(analysis) if !before.is_empty() => mark.cut_beside(text, &analysis, room),
                _ => mark.cut(text, room),
            };
            ContentPart::Text(format!("{before}{text}{behind}"))
        }
        part => part.clone(),
    });
    message.parts = parts.collect::<Vec<_>>().into();
    true
}

/// Returns what the mark calls the text. A late result told in a message counts as a result.
fn whose(message: &Message) -> &'static str {
    match message.is_told && !message.parts.are_recorded() {
        true => RESULT,
        false => "this message",
    }
}

fn cut_step(step: &mut Step, scope: Scope<'_>, each_max: usize, of: CutScope) -> bool {
    let mut changed = false;
    for block in &mut step.blocks {
        match block {
            Block::Call(call) => {
                let begins = begins(call, each_max);
                if let Outcome::Result(result) = &mut call.outcome
                    && is_long(result_bytes(result), each_max)
                {
                    let at = short_reference(scope.conversation, result.event);
                    cut_result(result, scope, at, begins, each_max);
                    changed = true;
                }
            }
            Block::Part(part) if of == CutScope::All => {
                if let ContentPart::Text(text) = &**part
                    && is_long(text.len(), each_max)
                {
                    let at = part.recorded_at();
                    let at = at.map(|at| short_reference(scope.conversation, at));
                    let text =
                        CutMark::of("what was said", at, scope.heuristics).cut(text, each_max);
                    *part = ContentPart::Text(text).into();
                    changed = true;
                }
            }
            Block::Part(_) => {}
        }
    }
    changed
}

/// Returns the line of the file at which a long result begins, if the result is a single text.
fn begins(call: &Call, each_max: usize) -> Option<u64> {
    let Outcome::Result(result) = &call.outcome else {
        return None;
    };
    let [part] = &result.parts[..] else {
        return None;
    };
    let text = part.text().filter(|text| is_long(text.len(), each_max))?;
    file_lines::first_line(call, text)
}

fn is_long(bytes: usize, each_max: usize) -> bool {
    bytes > each_max.saturating_add((each_max / SAVES_AT_LEAST).max(SAVES_BYTES_LEAST))
}

fn cut_result(
    result: &mut ResultOutcome,
    scope: Scope<'_>,
    at: String,
    begins: Option<u64>,
    each_max: usize,
) {
    let mark = CutMark {
        begins,
        ..CutMark::of(RESULT, Some(at), scope.heuristics)
    };
    let error = std::mem::take(&mut result.error_message);
    let is_told = |part: &ContentPart| part.text().is_some_and(|text| text.contains(&error));
    // Omit an error message that the text already contains.
    if !error.is_empty() && !result.parts.iter().any(is_told) {
        result.error_message = match is_long(error.len(), each_max) {
            true => mark.cut(&error, each_max),
            false => error,
        };
    }
    let room = each_max
        .saturating_sub(result.error_message.len())
        .max(LEAST_BYTES);
    if result.parts.is_empty() {
        let text = result.structured.as_str();
        if is_long(text.len(), room) {
            result.parts = vec![ContentPart::Text(mark.cut(text, room))].into();
        }
        result.shortened = true;
        return;
    }
    let mut left = room;
    let mut parts = Vec::with_capacity(result.parts.len());
    for part in result.parts.iter() {
        match part.text() {
            Some(text) if is_long(text.len(), left.max(LEAST_BYTES)) => {
                parts.push(ContentPart::Text(mark.cut(text, left.max(LEAST_BYTES))));
                left = 0;
            }
            Some(text) => {
                left = left.saturating_sub(text.len());
                parts.push(part.clone());
            }
            None => {
                let text = format!("[a medium is left out{}]", mark.whole);
                parts.push(ContentPart::Text(text));
            }
        }
    }
    result.parts = parts.into();
    result.shortened = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{draft::Speaker, heuristics::PlainHeuristics};
    use treering_domain::{ConversationId, EventRef, Revision};

    // The mark counted the enhancer's frame as lines of the summary, so a reader who asked for the
    // omitted lines missed the first one.
    #[test]
    fn note_counts_the_lines_of_the_recorded_summary() {
        let summary: String = (1..=200)
            .map(|line| format!("summary, line {line}\n"))
            .collect();
        let summary = summary.trim_end();
        let text =
            format!("[CONVERSATION SUMMARY]\n{summary}\n\n(It stands for treering:a/1 to /443.)");
        let content = Content::Message(Message::text(Speaker::User, text));
        let mut of_compaction = Item::new(Section::Compaction, "compaction_summary", content);
        let conversation = ConversationId(uuid::Uuid::from_u128(1));
        of_compaction.events = vec![EventRef {
            conversation,
            revision: Revision(445),
        }];
        let scope = Scope {
            conversation,
            heuristics: &PlainHeuristics,
        };
        let content = item(&of_compaction, scope, 1_000, CutScope::All).unwrap();
        let Content::Message(message) = &*content else {
            panic!("a message")
        };
        let told = message.parts[0].text().unwrap();
        assert!(
            told.starts_with("[CONVERSATION SUMMARY]\nsummary, line 1\n"),
            "{told}"
        );
        assert!(
            told.ends_with("line 200\n\n(It stands for treering:a/1 to /443.)"),
            "{told}"
        );
        let (head, rest) = told.split_once("\n[… ").unwrap();
        let (note, tail) = rest.split_once(" …]\n").unwrap();
        let last = head.lines().count() - 1;
        let next = 200 - tail.lines().count() + 3;
        let gone = (last + 1..next).map(|line| format!("summary, line {line}\n").len());
        let expected = format!(
            "{} of {} bytes of this message are left out, lines {} to {}; the whole: #445",
            // The newline at the end of the previous line.
            gone.sum::<usize>() + 1,
            summary.len(),
            last + 1,
            next - 1
        );
        assert_eq!(note, expected, "{told}");
    }
}
