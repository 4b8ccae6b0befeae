//! Cutting long texts to head and tail: what is said first, and the last lines, where
//! errors stand.

use super::{blobs, file_lines, json};
use crate::{
    context::{
        draft::{Block, Call, Content, Item, Message, Outcome, ResultOutcome, Step},
        references::short_reference,
        shared::{Parts, SharedContent},
        steps,
        summary::without_reminders,
    },
    domain::{ContentPart, ConversationId},
};

/// Of what stays, so much stands in front: tenths.
const HEAD_TENTHS: usize = 5;
/// A cut moves back to the end of a line that is at most so far: a share of its part.
const LINE_WITHIN: usize = 4;
/// Of a short part it may be more: half of it, at most so many bytes.
const SHORT_LINE: usize = 100;
/// So much of encoded data tells what it was.
const BLOB_HEAD: usize = 16;
/// Least that a cut leaves out, as a share of the text: less is not worth a gap.
const SAVES_AT_LEAST: usize = 8;
/// Shortest that a text is cut to, in bytes: room for a first and a last line.
pub(super) const LEAST_BYTES: usize = 160;

/// What of a step may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// What its calls returned.
    Results,
    /// That, and what the model said.
    All,
}

/// Bytes of an item's texts that can be cut.
pub(super) fn bytes(item: &Item, of: Of) -> usize {
    match &*item.content {
        Content::Instruction(_) => 0,
        Content::Message(message) => message.parts.iter().map(part_bytes).sum(),
        Content::Step(step) => {
            let said = step.blocks.iter().map(|block| match block {
                Block::Call(call) => match &call.outcome {
                    Outcome::Result(result) => result_bytes(result),
                    _ => 0,
                },
                Block::Part(part) if of == Of::All => part_bytes(part),
                Block::Part(_) => 0,
            });
            said.sum()
        }
    }
}

/// An item whose texts have at most about so many bytes together; none when that would
/// save little. Reasoning and calls stay as they are.
pub(super) fn item(
    item: &Item,
    conversation: ConversationId,
    bytes_max: usize,
    of: Of,
) -> Option<SharedContent> {
    let all = bytes(item, of);
    steps::note(1);
    if all < bytes_max + bytes_max / SAVES_AT_LEAST {
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
                .map(|at| short_reference(conversation, *at));
            cut_message(message, at, each_max)
        }
        Content::Step(step) => cut_step(step, conversation, each_max, of),
    };
    changed.then_some(content)
}

/// An item whose results, told in a message or not, come without their encoded data; none
/// where they have none.
pub(super) fn without_blobs(item: &Item, conversation: ConversationId) -> Option<SharedContent> {
    if !item.content.is_encoded(is_encoded) {
        return None;
    }
    let mut content = item.content.clone();
    match content.make_mut() {
        Content::Message(message) => {
            let at = item.events.first().copied();
            let at = at.map(|at| short_reference(conversation, at));
            let mark = Mark::of(whose(message), at);
            message.parts = parts_without_blobs(&message.parts, &mark);
        }
        Content::Step(step) => {
            for call in step.calls_mut() {
                if let Outcome::Result(result) = &mut call.outcome
                    && result_is_encoded(result)
                {
                    let at = short_reference(conversation, result.event);
                    let mark = Mark::of("this result", Some(at));
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

fn parts_without_blobs(parts: &[ContentPart], mark: &Mark) -> Parts {
    let parts = parts.iter().map(|part| {
        let told = part.text().and_then(|text| mark.without_blobs(text));
        told.map_or_else(|| part.clone(), ContentPart::Text)
    });
    parts.collect::<Vec<_>>().into()
}

/// What a tool returned or a harness told has encoded data. What the user says stays.
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

/// The most that each text may have, so that all have `bytes_max` together: short ones
/// leave theirs to the long ones.
fn fair_share(item: &Item, bytes_max: usize, of: Of) -> usize {
    let mut sizes: Vec<usize> = match &*item.content {
        Content::Instruction(_) => Vec::new(),
        Content::Message(message) => message.parts.iter().map(part_bytes).collect(),
        Content::Step(step) => {
            let sizes = step.blocks.iter().map(|block| match block {
                Block::Call(call) => match &call.outcome {
                    Outcome::Result(result) => result_bytes(result),
                    _ => 0,
                },
                Block::Part(part) if of == Of::All => part_bytes(part),
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
    /// A medium counts as a page of text.
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

fn cut_message(message: &mut Message, at: Option<String>, each_max: usize) -> bool {
    let mark = Mark::of(whose(message), at);
    let long = |part: &ContentPart| is_long(part_bytes(part), each_max);
    if !message.parts.iter().any(long) {
        return false;
    }
    let parts = message.parts.iter().map(|part| match part {
        part if long(part) => {
            ContentPart::Text(mark.cut(part.text().unwrap_or_default(), each_max))
        }
        part => part.clone(),
    });
    message.parts = parts.collect::<Vec<_>>().into();
    true
}

/// What a result that came late tells is a result.
fn whose(message: &Message) -> &'static str {
    match message.is_told && !message.parts.are_recorded() {
        true => "this result",
        false => "this message",
    }
}

fn cut_step(step: &mut Step, conversation: ConversationId, each_max: usize, of: Of) -> bool {
    let mut changed = false;
    for block in &mut step.blocks {
        match block {
            Block::Call(call) => {
                let begins = begins(call, each_max);
                if let Outcome::Result(result) = &mut call.outcome
                    && is_long(result_bytes(result), each_max)
                {
                    let at = short_reference(conversation, result.event);
                    cut_result(result, at, begins, each_max);
                    changed = true;
                }
            }
            Block::Part(part) if of == Of::All => {
                if let ContentPart::Text(text) = &**part
                    && is_long(text.len(), each_max)
                {
                    let at = part.recorded_at();
                    let at = at.map(|at| short_reference(conversation, at));
                    let text = Mark::of("what was said", at).cut(text, each_max);
                    *part = ContentPart::Text(text).into();
                    changed = true;
                }
            }
            Block::Part(_) => {}
        }
    }
    changed
}

/// The line of its file that the one text of a long result begins with.
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
    bytes > each_max + each_max / SAVES_AT_LEAST
}

fn cut_result(result: &mut ResultOutcome, at: String, begins: Option<u64>, each_max: usize) {
    let mark = Mark {
        begins,
        ..Mark::of("this result", Some(at))
    };
    let error = std::mem::take(&mut result.error_message);
    let is_told = |part: &ContentPart| part.text().is_some_and(|text| text.contains(&error));
    // What the text says already is not said again.
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

/// What stands where a text was cut.
struct Mark {
    of: &'static str,
    /// Where the whole is, or nothing.
    whole: String,
    /// The line of a file that the text begins with, where that is another one than the
    /// first and known.
    begins: Option<u64>,
}

impl Mark {
    fn of(of: &'static str, at: Option<String>) -> Self {
        Self {
            of,
            whole: at.map_or_else(String::new, |at| format!("; the whole: {at}")),
            begins: None,
        }
    }

    /// Head and tail of a text, about `bytes_max` together.
    fn cut(&self, text: &str, bytes_max: usize) -> String {
        // What a harness added for the moment is no end of a text.
        let told = without_reminders(text);
        if told.len() > bytes_max
            && let Some(json) = json::cut(told, bytes_max)
        {
            let gone = text.len().saturating_sub(json.len());
            return format!("{json}{}", self.behind(gone, text.len(), None));
        }
        let told = &*blobs::without(told, BLOB_HEAD);
        let (head, tail) = match told.len() <= bytes_max {
            true => (told.len(), told.len()),
            false => {
                let head_max = bytes_max * HEAD_TENTHS / 10;
                let tail_at = ceil(told, told.len() - (bytes_max - head_max));
                let head = line_end_before(told, floor(told, head_max));
                (head, line_start_after(told, tail_at))
            }
        };
        let gone = text.len().saturating_sub(head + told.len() - tail);
        let mark = self.behind(gone, text.len(), lines(told, head, tail));
        format!("{}{mark}\n{}", &told[..head], &told[tail..])
    }

    /// A text without its encoded data, if it has some.
    fn without_blobs(&self, text: &str) -> Option<String> {
        let told = blobs::without(text, 0);
        let gone = text.len().saturating_sub(told.len());
        let is_less = blobs::are_beside(text) && gone > 0;
        // How much of it is said where it was.
        is_less.then(|| {
            let (of, whole, all) = (self.of, &self.whole, text.len());
            format!("{told}\n[… encoded data is left out above, of {all} bytes of {of}{whole} …]")
        })
    }

    /// What stands behind what is left of a text.
    fn behind(&self, gone: usize, all: usize, lines: Option<(usize, usize)>) -> String {
        let (of, whole) = (self.of, &self.whole);
        let lines = lines.map_or_else(String::new, |(from, to)| {
            let in_file = self.begins.map(|begins| {
                let [from, to] = [from, to].map(|line| begins.saturating_add(line as u64 - 1));
                format!(" (of the file: {from} to {to})")
            });
            format!(", lines {from} to {to}{}", in_file.unwrap_or_default())
        });
        format!("\n[… {gone} of {all} bytes of {of} are left out{lines}{whole} …]")
    }
}

/// The lines between two places of a text, from 1, where they are some: by these they can be
/// read again.
fn lines(text: &str, head: usize, tail: usize) -> Option<(usize, usize)> {
    /// Fewer are told by their bytes.
    const LEAST: usize = 3;
    let newlines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    let gone = newlines(&text[head..tail]);
    if gone < LEAST {
        return None;
    }
    // A cut stands at the end of a line, or in one.
    let from = newlines(&text[..head]) + 1 + usize::from(text[head..].starts_with('\n'));
    let to = newlines(&text[..tail]) + usize::from(!text[..tail].ends_with('\n'));
    Some((from, to))
}

/// Whether the end of a line is near enough for a cut of a part of so many bytes.
fn is_near(distance: usize, part: usize) -> bool {
    distance <= (part / LINE_WITHIN).max(SHORT_LINE.min(part / 2))
}

/// The end of the last whole line, if that is near.
fn line_end_before(text: &str, at: usize) -> usize {
    match text[..at].rfind('\n') {
        Some(line) if is_near(at - line, at) => line,
        _ => at,
    }
}

/// The begin of the next line, if that is near.
fn line_start_after(text: &str, at: usize) -> usize {
    let rest = text.len() - at;
    match text[at..].find('\n') {
        Some(line) if is_near(line + 1, rest) => at + line + 1,
        _ => at,
    }
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    // What was left out could be read again by lines, and which ones was not said.
    #[test]
    fn a_cut_says_which_lines_are_left_out() {
        let mark = Mark::of("this result", Some("#7".to_owned()));
        let text: String = (1..=100)
            .map(|line| format!("this is line {line}\n"))
            .collect();
        let told = mark.cut(&text, 400);
        let (head, rest) = told.split_once("\n[… ").unwrap();
        let (said, tail) = rest.split_once(" …]\n").unwrap();
        let last = head.lines().count();
        let next: usize = tail.lines().next().unwrap()["this is line ".len()..]
            .parse()
            .unwrap();
        assert!(head.ends_with(&format!("this is line {last}")), "{told}");
        let lines = format!(
            "left out, lines {} to {}; the whole: #7",
            last + 1,
            next - 1
        );
        assert!(said.ends_with(&lines), "{told}");
        // One long line has none.
        assert!(!mark.cut(&"x y ".repeat(500), 400).contains("lines"));
    }

    // Of `git status`, cut in the middle, a half of a line stood on both sides, 40 bytes from
    // the ends of their lines.
    #[test]
    fn a_short_cut_stands_at_the_ends_of_lines() {
        let mark = Mark::of("this result", None);
        let text = "  (use \"git add/rm <file>...\" to update what will be committed)\n".repeat(8);
        let told = mark.cut(&text, 270);
        let is_whole = |line: &str| line.ends_with("committed)") && line.starts_with("  (");
        let whole = told.lines().filter(|line| !line.starts_with("[…"));
        assert!(whole.clone().count() >= 2, "{told}");
        assert!(whole.clone().all(is_whole), "{told}");
    }
}
