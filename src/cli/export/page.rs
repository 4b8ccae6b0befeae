//! Writes a branch for people, as Markdown or as one self-contained HTML page.

use super::super::{
    output::Tone,
    pb,
    text::{EventWords, Zone, describe_event, is_undated, printable, printable_lines},
};

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFormat {
    /// Markdown.
    Markdown,
    /// HTML.
    Html,
}

/// In HTML, contents with more lines than this are folded.
const OPEN_LINES_MAX: usize = 20;

/// Style sheet of an HTML page.
const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;\
color:#1c1c1c;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1rem;margin:1.5rem 0 .3rem}\
.note{color:#666;font-weight:normal;font-size:.85rem}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:.6rem .8rem;\
background:#f5f5f2;border-radius:6px;font-size:.85rem}\
.said{white-space:pre-wrap;overflow-wrap:anywhere}\
.user{color:#2457a6}.assistant{color:#8a2a8a}.tool{color:#8a6d00}.bad{color:#b00020}\
summary{cursor:pointer;color:#666;font-size:.85rem}\
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#242424}}";

impl PageFormat {
    /// Returns the text before the events.
    pub(crate) fn head(self, summary: &pb::ConversationSummary, branch: &str) -> String {
        let title = match summary.title.lines().next() {
            Some(title) if !title.trim().is_empty() => printable(title),
            _ => "Conversation".to_owned(),
        };
        let about = format!(
            "{} · branch {} · {}",
            printable(&summary.conversation_id),
            printable(branch),
            when(summary)
        );
        match self {
            Self::Markdown => format!("# {}\n\n{}\n", inline(&title), inline(&about)),
            Self::Html => format!(
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
                 <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n\
                 <style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n<p class=\"note\">{1}</p>",
                escaped(&title),
                escaped(&about)
            ),
        }
    }

    /// Returns the text of one event. `is_undated` means that the recording time of the event does
    /// not tell when it happened.
    pub(crate) fn event(self, event: &pb::Event, is_undated: bool) -> String {
        let said = describe_event(event);
        let recorded = event.recorded_at.as_ref().filter(|_| !is_undated);
        let mut note = format!("#{}", event.revision);
        if let Some(time) = event.occurred_at.as_ref().or(recorded) {
            note.push_str(&format!(" · {}", Zone::Utc.day_clock(Some(time))));
        }
        if !said.note.is_empty() {
            note.push_str(" · ");
            note.push_str(&one_line(&printable(&said.note)));
        }
        match self {
            Self::Markdown => markdown(&said, &note),
            Self::Html => html(&said, &note),
        }
    }

    /// Returns the text after the events.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Self::Markdown => "",
            Self::Html => "</body></html>",
        }
    }
}

/// Returns when the conversation began.
fn when(summary: &pb::ConversationSummary) -> String {
    if is_undated(summary) {
        return format!(
            "recorded {}",
            Zone::Utc.day_clock(summary.created_at.as_ref())
        );
    }
    let began = summary.happened_from.as_ref();
    Zone::Utc.day_clock(began.or(summary.created_at.as_ref()))
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Returns true if an event is a message. Other contents, such as tool arguments and results, are
/// quoted.
fn is_prose(said: &EventWords) -> bool {
    matches!(said.tone, Tone::User | Tone::Assistant)
}

fn markdown(said: &EventWords, note: &str) -> String {
    let title = one_line(&printable(&said.title));
    let mut text = format!("\n## {}\n\n<sub>{}</sub>\n", inline(&title), inline(note));
    let content = printable_lines(&said.content);
    if content.trim().is_empty() {
        return text;
    }
    if is_prose(said) && is_plain_markdown(&content) {
        text.push_str(&format!("\n{}\n", content.trim_end()));
    } else {
        let fence = fence(&content);
        let language = match serde_json::from_str::<serde::de::IgnoredAny>(&content) {
            Ok(_) => "json",
            Err(_) => "",
        };
        text.push_str(&format!(
            "\n{fence}{language}\n{}\n{fence}\n",
            content.trim_end()
        ));
    }
    text
}

/// Escapes text for a line of Markdown.
fn inline(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in escaped(&one_line(text)).chars() {
        if matches!(c, '[' | ']' | '`' | '\\') {
            shown.push('\\');
        }
        shown.push(c);
    }
    shown
}

/// Returns true if the text is safe as Markdown: no parser finds HTML in it, and all its links lead
/// to web pages, mailboxes or relative paths. Other text is quoted as a whole, because parsers
/// disagree on where code ends.
fn is_plain_markdown(text: &str) -> bool {
    let is_tag =
        |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
    let is_near = |rest: &str| {
        let target = rest.trim_start().trim_start_matches('<');
        let end = target.find(|c: char| c.is_whitespace() || c == ')');
        let target = target[..end.unwrap_or(target.len())].to_ascii_lowercase();
        let known = ["http://", "https://", "mailto:"];
        known.iter().any(|scheme| target.starts_with(scheme))
            || !target.contains([':', '&', '\\', '%'])
    };
    let after = |mark: &str| {
        let at: Vec<_> = text.match_indices(mark).collect();
        at.into_iter()
            .map(move |(at, mark)| &text[at + mark.len()..])
    };
    !after("<").any(is_tag) && after("](").chain(after("]:")).all(is_near)
}

/// Returns a run of backticks that the content does not have.
fn fence(content: &str) -> String {
    let longest = content
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    "`".repeat(longest.max(2) + 1)
}

fn html(said: &EventWords, note: &str) -> String {
    let class = match said.tone {
        Tone::User => "user",
        Tone::Assistant => "assistant",
        Tone::Tool | Tone::Good => "tool",
        Tone::Bad => "bad",
        _ => "other",
    };
    let title = escaped(&one_line(&printable(&said.title)));
    let note = escaped(note);
    let mut text = format!("<h2 class=\"{class}\">{title} <span class=\"note\">{note}</span></h2>");
    let content = printable_lines(&said.content);
    let shown = escaped(content.trim_end());
    let lines = content.trim_end().lines().count();
    if shown.is_empty() {
        return text;
    }
    text.push_str(&match (is_prose(said), lines > OPEN_LINES_MAX) {
        (true, _) => format!("\n<div class=\"said\">{shown}</div>"),
        (false, false) => format!("\n<pre>{shown}</pre>"),
        (false, true) => {
            format!("\n<details><summary>{lines} lines</summary><pre>{shown}</pre></details>")
        }
    });
    text
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn result(text: &str) -> pb::Event {
        let part = pb::content_part::Part::Text(text.into());
        let result = pb::ToolResultRecorded {
            call_id: "c<1>".into(),
            success: true,
            parts: vec![pb::ContentPart { part: Some(part) }],
            ..Default::default()
        };
        pb::Event {
            revision: 7,
            body: Some(pb::event::Body::ToolResultRecorded(
                result.encode_to_vec().into(),
            )),
            ..Default::default()
        }
    }

    // A tool result may be an HTML page with scripts, or have code fences. It must be shown as text
    // and never become part of the page.
    #[test]
    fn exported_content_is_escaped() {
        let hostile = "<script>alert(1)</script>\n```\n# not a heading\n```";
        let html = PageFormat::Html.event(&result(hostile), false);
        assert!(
            !html.contains("<script>") && html.contains("&lt;script&gt;"),
            "{html}"
        );
        assert!(html.contains("c&lt;1&gt;"), "{html}");
        let markdown = PageFormat::Markdown.event(&result(hostile), false);
        assert!(markdown.contains("\n````\n<script>"), "{markdown}");
        assert!(markdown.trim_end().ends_with("\n````"), "{markdown}");
    }

    // Messages of a model are Markdown, and may repeat a page with scripts. Such a message must be
    // quoted, and markup in titles and notes must be escaped.
    #[test]
    fn markdown_with_scripts_or_script_links_is_quoted() {
        let said = |text: &str| EventWords {
            tone: Tone::Assistant,
            title: "assistant".into(),
            note: String::new(),
            content: text.into(),
        };
        for hostile in [
            "<script>alert(1)</script>",
            "see <img src=x onerror=alert(1)>",
            "[a](javascript:alert(1))",
            "[a](  <JavaScript:alert(1)>)",
            "[a](java&#115;cript:alert(1))",
            "[a][b]\n\n[b]: data:text/html,x",
            "<javascript:alert(1)>",
        ] {
            let shown = markdown(&said(hostile), "#1");
            assert!(shown.contains("\n```\n"), "{shown}");
        }
        for plain in [
            "a < b, **strong** `code` [a](https://b/c?d=e) [f](src/a.rs)",
            "```rust\nlet a = 1;\n```",
        ] {
            assert!(markdown(&said(plain), "#1").ends_with(&format!("\n\n{plain}\n")));
        }
        let named = EventWords {
            title: "<b>[a](javascript:x)".into(),
            ..said("")
        };
        let shown = markdown(&named, "<i>#1");
        assert!(
            shown.contains("## &lt;b&gt;\\[a\\](javascript:x)"),
            "{shown}"
        );
        assert!(shown.contains("<sub>&lt;i&gt;#1</sub>"), "{shown}");
    }

    // A result of a thousand lines must not hide the messages.
    #[test]
    fn html_export_collapses_long_results() {
        let html = PageFormat::Html.event(&result(&"line\n".repeat(30)), false);
        assert!(html.contains("<details><summary>30 lines"), "{html}");
        assert!(
            !PageFormat::Html
                .event(&result("line"), false)
                .contains("<details>")
        );
    }
}
