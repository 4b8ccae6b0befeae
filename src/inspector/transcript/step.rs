//! Renders steps: tool calls side by side, each with its arguments and result folded.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use maud::{Markup, html};
use serde_json::Value;

use super::{
    card::{MarkupAllowance, calls_told, clock, number, part_of, text_address},
    thread::{CallEnd, ThreadCall, ThreadCallStatus},
    window::WindowPlace,
};
use crate::{
    bounds::{ARGUMENT_BYTES, EDIT_LINES, HEAD_BYTES, TITLE_CHARS},
    pages::call::address_of as call_address,
    parts::{
        edits::edits,
        escape::{block, escape_inline, first, headline},
        json::pretty,
        line_diff::LineDiff,
        numbers::{bytes_human, count},
        pieces::{BadgeColor, badge},
    },
    recorded_text::Piece,
    request_context::RequestContext,
};
use treering_present::{
    json::{cancel_name, moment},
    text::{decision_text, duration, parts_text, printable},
    tool_summary,
};
use treering_proto::pb;

/// Beginnings of results that are too large, by conversation and revision.
type Heads = HashMap<(String, u64), Piece>;

/// Names of arguments that show what a call does, in order of preference.
const DEEDS: [&str; 16] = [
    "command",
    "cmd",
    "script",
    "file_path",
    "path",
    "filename",
    "pattern",
    "regex",
    "query",
    "q",
    "url",
    "sql",
    "code",
    "description",
    "prompt",
    "name",
];

/// Maximum number of other arguments shown.
const FIELDS_SHOWN: usize = 4;
/// Maximum number of characters shown of each of their values.
const VALUE_CHARS: usize = 40;

/// Renders a step.
#[must_use]
pub(crate) fn step(
    request_context: &RequestContext,
    calls: &[ThreadCall],
    heads: &Heads,
    place: &WindowPlace,
    room: &mut MarkupAllowance,
) -> Markup {
    html! {
        div.step .many[calls.len() > 1] {
            @if calls.len() > 1 { p.dim.together { (calls_told(calls.len())) " together" } }
            div.calls { @for call in calls { (card(request_context, call, heads, place, room)) } }
        }
    }
}

fn card(
    request_context: &RequestContext,
    call: &ThreadCall,
    heads: &Heads,
    place: &WindowPlace,
    room: &mut MarkupAllowance,
) -> Markup {
    let Some(event) = call.event() else {
        return html! {};
    };
    let head = match &call.ended {
        Some(CallEnd::Result(event, None)) => {
            heads.get(&(event.conversation_id.clone(), event.revision))
        }
        _ => None,
    };
    let stands = call.status(head.map(|head| &head.info));
    let (mood, word) = told(stands, call);
    let (tool, arguments) = match &call.asked {
        Some((_, asked)) => (
            asked.tool.as_str(),
            String::from_utf8_lossy(&asked.arguments),
        ),
        None => (
            head.map_or("", |head| head.info.tool.as_str()),
            Cow::Borrowed(""),
        ),
    };
    html! {
        // When the request is before the window, `e…` is the id of the call's decision or end, so
        // the call needs another id.
        section id={ @if call.asked.is_some() { "e" } @else { "c" } (event.revision) }
            class={ "call " (mood.class()) } data-item tabindex="-1"
            aria-label={ "call of " (printable(&first(tool, 40))) ", " (word) } {
            header {
                span.tool {
                    @match (tool, own_page(request_context, call)) {
                        ("", _) => "an earlier call",
                        (tool, Some(page)) => a href=(page) title="page of the call" data-own { (escape_inline(tool)) },
                        (tool, None) => (escape_inline(tool)),
                    }
                }
                (badge(mood, &word))
                (lasted(call))
                span.end { (clock(event)) " " (number(request_context, event)) }
            }
            // Each event of the call has an anchor for links.
            @if let Some(started) = &call.started { span id={ "e" (started.revision) } {} }
            @for revision in &call.summarised { span id={ "e" (revision) } {} }
            @if !arguments.is_empty() { (asked(event, tool, &arguments, room)) }
            @if let Some((event, decided)) = &call.decided { (decision(event, decided)) }
            @match &call.ended {
                Some(CallEnd::Result(event, result)) => {
                    @let is_open = place.is_at(event.revision);
                    (returned(request_context, event, result.as_ref(), head, is_open, room))
                }
                Some(CallEnd::Cancelled(event, cancelled)) => p.why id={ "e" (event.revision) } {
                    (escape_inline(&cancelled.detail)) " " (number(request_context, event))
                },
                None => {}
            }
        }
    }
}

/// Renders the duration: as the tool measured it, else the time from request to end by their
/// `occurred_at`.
fn lasted(call: &ThreadCall) -> Markup {
    if let Some(CallEnd::Result(_, Some(result))) = &call.ended
        && let Some(milliseconds) = result.execution_time_ms
    {
        return html! { span.dim.number { (duration(Duration::from_millis(milliseconds))) } };
    }
    let between = || {
        let (asked, _) = call.asked.as_ref()?;
        let (CallEnd::Result(ended, _) | CallEnd::Cancelled(ended, _)) = call.ended.as_ref()?;
        let from = moment(asked.occurred_at.as_ref()?)?;
        let took = Duration::try_from(moment(ended.occurred_at.as_ref()?)? - from).ok()?;
        Some(took).filter(|took| !took.is_zero())
    };
    html! {
        @if let Some(took) = between() {
            span.dim.number title=(BETWEEN) { "within " (duration(took)) }
        }
    }
}

/// Explains a duration that was not measured.
pub(crate) const BETWEEN: &str =
    "time between the events of the call and its result; it may include waiting";

/// Returns the address of the call's own page.
fn own_page(request_context: &RequestContext, call: &ThreadCall) -> Option<String> {
    let (event, asked) = call.asked.as_ref()?;
    let ended = match &call.ended {
        Some(CallEnd::Result(ended, _) | CallEnd::Cancelled(ended, _)) => Some(ended),
        None => None,
    };
    let id = event.conversation_id.as_str();
    // A call that was open at a fork may have ended on another branch or in another conversation.
    let ended = ended.filter(|ended| ended.conversation_id == id);
    let branch = ended.map_or(event.branch.as_str(), |ended| &ended.branch);
    let end = ended.map_or(0, |ended| ended.revision);
    let events = (event.revision, end);
    Some(call_address(
        request_context,
        (id, branch),
        &asked.call_id,
        events,
    ))
}

fn told(stands: ThreadCallStatus, call: &ThreadCall) -> (BadgeColor, String) {
    let word = |mood, word: &str| (mood, word.to_owned());
    match stands {
        ThreadCallStatus::Succeeded => word(BadgeColor::Good, "succeeded"),
        ThreadCallStatus::Failed => word(BadgeColor::Bad, "failed"),
        ThreadCallStatus::Denied => word(BadgeColor::Bad, "denied"),
        ThreadCallStatus::Waits => word(BadgeColor::Wait, "waits for approval"),
        ThreadCallStatus::Open if call.started.is_some() => word(BadgeColor::Wait, "runs"),
        ThreadCallStatus::Open => word(BadgeColor::Wait, "no result yet"),
        ThreadCallStatus::Cancelled => match &call.ended {
            Some(CallEnd::Cancelled(_, cancelled)) => {
                let name = cancel_name(cancelled.reason()).replace('_', " ");
                word(
                    BadgeColor::Wait,
                    if name.is_empty() { "cancelled" } else { &name },
                )
            }
            _ => word(BadgeColor::Wait, "cancelled"),
        },
    }
}

fn asked(event: &pb::Event, tool: &str, arguments: &str, room: &mut MarkupAllowance) -> Markup {
    let deed = deed_of(tool, arguments);
    let edits = edits(arguments, EDIT_LINES);
    if !edits.is_empty() {
        return edited(event, &deed, &edits, room);
    }
    let (text, is_whole) = room.take_json(arguments, ARGUMENT_BYTES);
    html! {
        details.fold.asked id={ "a" (event.revision) } {
            summary { code.deed { (headline(&deed, TITLE_CHARS)) } }
            (pretty(text))
            @if !is_whole { p.rest.dim { (count((arguments.len() - text.len()) as u64)) " bytes more: see the event" } }
        }
    }
}

/// Renders the edits of a call in place of its arguments.
fn edited(event: &pb::Event, deed: &str, edits: &[LineDiff], room: &mut MarkupAllowance) -> Markup {
    let mut lines = Vec::new();
    let mut is_cut = false;
    for edit in edits {
        let markup = edit.lines(["before: ", "after: "]);
        let fits = markup.0.len() <= room.0 / 4;
        is_cut |= edit.is_cut || !fits;
        if fits {
            room.0 -= markup.0.len();
            lines.push(markup);
        }
    }
    html! {
        details.fold.asked id={ "a" (event.revision) } {
            summary { code.deed { (headline(deed, TITLE_CHARS)) } }
            div.lines-diff { @for edit in &lines { (edit) } }
            @if is_cut { p.rest.dim { "more lines: see the page of the call" } }
        }
    }
}

/// Summarises a call on one line.
#[must_use]
pub(crate) fn deed_of(tool: &str, arguments: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(arguments) else {
        return arguments.to_owned();
    };
    match DEEDS.iter().find_map(|name| fields.get(*name)) {
        Some(Value::String(text)) => tool_summary::summarise_call(tool, text),
        Some(Value::Array(items)) => {
            let words: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            tool_summary::summarise_call(tool, &words.join(" "))
        }
        _ if fields.is_empty() => "no arguments".to_owned(),
        _ => {
            let pairs = fields.iter().take(FIELDS_SHOWN).map(|(name, value)| {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                format!("{name}: {}", first(&value, VALUE_CHARS))
            });
            pairs.collect::<Vec<_>>().join(", ")
        }
    }
}

fn decision(event: &pb::Event, decided: &pb::ApprovalDecided) -> Markup {
    let (tone, word) = decision_text(decided.decision());
    html! {
        p.why id={ "e" (event.revision) } {
            (badge(BadgeColor::of(tone), word))
            @if !decided.decided_by.is_empty() { " by " (escape_inline(&decided.decided_by)) }
            @if !decided.reason.is_empty() { ": " (escape_inline(&decided.reason)) }
        }
    }
}

fn returned(
    request_context: &RequestContext,
    event: &pb::Event,
    result: Option<&pb::ToolResultRecorded>,
    head: Option<&Piece>,
    is_open: bool,
    room: &mut MarkupAllowance,
) -> Markup {
    let text = match (result, head) {
        (Some(result), _) => Cow::Owned(parts_text(&texts_of(result))),
        (None, Some(head)) => Cow::Borrowed(head.text.as_str()),
        (None, None) => Cow::Borrowed(""),
    };
    let bytes = head.map_or(text.len() as u64, |head| head.info.total_bytes);
    let error = match (result, head) {
        (Some(result), _) => result.error_message.as_str(),
        (None, Some(head)) => head.info.error_message.as_str(),
        (None, None) => "",
    };
    let is_success = match (result, head) {
        (Some(result), _) => result.success,
        (None, head) => head.is_none_or(|head| head.info.success),
    };
    let line = if is_success {
        text.as_ref()
    } else {
        fault_of(&text)
    };
    let (start, is_whole) = room.take(&text, HEAD_BYTES);
    let is_whole = is_whole && head.is_none();
    html! {
        @if !error.is_empty() { p.why.bad { (headline(fault_of(error), 4 * TITLE_CHARS)) } }
        details.fold.result id={ "r" (event.revision) } open[is_open] {
            summary {
                span.first { @if text.trim().is_empty() { span.dim { "nothing" } } @else { (headline(line, TITLE_CHARS)) } }
                span.end.dim.number {
                    @if event.erased { "erased " }
                    (bytes_human(bytes))
                }
            }
            // A browser opens the `details` elements around a link's target, but not a `details`
            // element that is the target.
            div.returned id={ "e" (event.revision) } {
                @if !start.is_empty() { (block(start)) }
                p.rest {
                    a href=(text_address(request_context, event)) {
                        @if is_whole { "by lines" } @else { "all " (bytes_human(bytes)) ", by lines" }
                    }
                    " " (number(request_context, event))
                }
            }
        }
        @if let Some(result) = result { (media_of(request_context, event, result, room)) }
    }
}

/// Words that mark a line as an error.
const FAULTS: [&str; 14] = [
    "error",
    "exception",
    "fatal",
    "panic",
    "failed",
    "failure",
    "not found",
    "no such",
    "denied",
    "cannot",
    "can't",
    "invalid",
    "refused",
    "timed out",
];

/// Returns the line of a failed call's result that explains the failure: the first that looks like
/// an error, else the last.
#[must_use]
pub(crate) fn fault_of(text: &str) -> &str {
    let is_fault = |line: &&str| {
        let line = line.to_lowercase();
        FAULTS.iter().any(|word| line.contains(word))
    };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let found = lines.clone().find(is_fault);
    found.or_else(|| lines.next_back()).unwrap_or_default()
}

fn texts_of(result: &pb::ToolResultRecorded) -> Vec<pb::ContentPart> {
    use pb::content_part::Part;
    let is_text = |part: &&pb::ContentPart| {
        !matches!(
            part.part,
            Some(Part::Image(_) | Part::File(_) | Part::Audio(_))
        )
    };
    result.parts.iter().filter(is_text).cloned().collect()
}

fn media_of(
    request_context: &RequestContext,
    event: &pb::Event,
    result: &pb::ToolResultRecorded,
    room: &mut MarkupAllowance,
) -> Markup {
    use pb::content_part::Part;
    html! {
        @for (index, part) in result.parts.iter().enumerate() {
            @if matches!(part.part, Some(Part::Image(_) | Part::File(_) | Part::Audio(_))) {
                (part_of(request_context, event, index, part, room))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The list must show the error of a failure, not only `Exit code 1`.
    #[test]
    fn failed_call_shows_its_error_line() {
        for (text, line) in [
            (
                "Exit code 1\n\nsrc/a.rs\nerror[E0308]: no\nerror: more",
                "error[E0308]: no",
            ),
            ("Exit code 2\nmake: *** [all] 2\n\n", "make: *** [all] 2"),
            ("one line", "one line"),
            ("\n\n", ""),
        ] {
            assert_eq!(fault_of(text), line);
        }
    }

    // A folded call must show its command or path, for all usual names of that argument.
    #[test]
    fn call_summary_shows_command_or_path() {
        for (tool, arguments, deed) in [
            (
                "Bash",
                r#"{"description":"List","command":"ls -l"}"#,
                "$ ls -l",
            ),
            (
                "shell",
                r#"{"command":["bash","-lc","ls"]}"#,
                "$ bash -lc ls",
            ),
            ("Read", r#"{"limit":3,"file_path":"/a/b"}"#, "/a/b"),
            ("other", r#"{"n":3,"city":"Rome"}"#, "n: 3, city: Rome"),
            ("other", "{}", "no arguments"),
            ("other", "not json", "not json"),
        ] {
            assert_eq!(deed_of(tool, arguments), deed);
        }
    }
}
