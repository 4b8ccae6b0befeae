//! Renders Markdown in recorded text. HTML is shown as text, images are named but not loaded, and
//! links lead only to web and mail addresses.

use maud::{Markup, PreEscaped};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::escape::escaped;

/// Deepest nesting of quotes and lists that is rendered.
const DEPTH_MAX: usize = 12;
/// Maximum number of bytes of markup per byte of text; text that needs more is shown unformatted.
const MARKUP_PER_BYTE: usize = 6;
/// Bytes of markup that any text may have in addition.
const MARKUP_BYTES: usize = 1_000;
/// Schemes of links.
const SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

/// Renders a text as Markdown. `None` if the text has no Markdown structure, is nested too deeply,
/// or needs too much markup.
#[must_use]
pub(crate) fn markdown(text: &str) -> Option<Markup> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let mut writer = Writer::default();
    for event in Parser::new_ext(text, options) {
        writer.write(event);
        if writer.depth > DEPTH_MAX {
            return None;
        }
    }
    let is_small = writer.out.len() <= MARKUP_PER_BYTE * text.len() + MARKUP_BYTES;
    (writer.has_structure && is_small).then_some(PreEscaped(writer.out))
}

#[derive(Default)]
struct Writer {
    out: String,
    depth: usize,
    is_table_head: bool,
    has_structure: bool,
    /// For each open link, whether it is rendered as a link.
    links: Vec<bool>,
    /// The addresses of open images.
    images: Vec<String>,
}

impl Writer {
    fn write(&mut self, event: Event<'_>) {
        let is_plain = matches!(
            event,
            Event::Text(_)
                | Event::SoftBreak
                | Event::Start(Tag::Paragraph)
                | Event::End(TagEnd::Paragraph)
        );
        self.has_structure |= !is_plain;
        match event {
            Event::Start(tag) => {
                self.depth += 1;
                self.start(tag);
            }
            Event::End(tag) => {
                self.depth = self.depth.saturating_sub(1);
                self.end(tag);
            }
            Event::Code(text) => {
                self.out.push_str("<code>");
                self.text(&text);
                self.out.push_str("</code>");
            }
            Event::SoftBreak => self.out.push('\n'),
            Event::HardBreak => self.out.push_str("<br>"),
            Event::Rule => self.out.push_str("<hr>"),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.text(&text),
            Event::TaskListMarker(_) => {}
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push_str(&escaped(text).0);
    }

    fn start(&mut self, tag: Tag<'_>) {
        let plain = match tag {
            Tag::Paragraph => "<p>",
            Tag::Heading { .. } => "<p class=\"heading\">",
            Tag::BlockQuote(_) => "<blockquote>",
            Tag::CodeBlock(kind) => {
                if let CodeBlockKind::Fenced(language) = &kind
                    && !language.is_empty()
                {
                    self.out.push_str("<p class=\"dim language\">");
                    self.text(language);
                    self.out.push_str("</p>");
                }
                "<pre class=\"text\" dir=\"auto\" tabindex=\"0\">"
            }
            Tag::List(Some(first)) => {
                self.out.push_str(&format!("<ol start=\"{first}\">"));
                return;
            }
            Tag::List(None) => "<ul>",
            Tag::Item => "<li>",
            Tag::Table(_) => "<div class=\"table\" tabindex=\"0\"><table>",
            Tag::TableHead => {
                self.is_table_head = true;
                "<tr>"
            }
            Tag::TableRow => "<tr>",
            Tag::TableCell if self.is_table_head => "<th>",
            Tag::TableCell => "<td>",
            Tag::Emphasis => "<em>",
            Tag::Strong => "<strong>",
            Tag::Strikethrough => "<del>",
            Tag::Link { dest_url, .. } => return self.link(&dest_url),
            Tag::Image { dest_url, .. } => {
                self.images.push(dest_url.into_string());
                "[image: "
            }
            _ => return,
        };
        self.out.push_str(plain);
    }

    /// Begins a link. An address without one of [`SCHEMES`], or with characters that are not
    /// graphic ASCII, is dropped.
    fn link(&mut self, address: &str) {
        let is_link = SCHEMES.iter().any(|scheme| address.starts_with(scheme))
            && address.bytes().all(|byte| byte.is_ascii_graphic());
        self.links.push(is_link);
        if is_link {
            // `escaped` adds no elements for graphic ASCII, so the result is also valid in an
            // attribute.
            let address = escaped(address).0;
            self.out.push_str(&format!(
                "<a href=\"{address}\" title=\"{address}\" rel=\"noopener noreferrer nofollow\">"
            ));
        }
    }

    fn end(&mut self, tag: TagEnd) {
        let plain = match tag {
            TagEnd::Paragraph | TagEnd::Heading(_) => "</p>",
            TagEnd::BlockQuote(_) => "</blockquote>",
            TagEnd::CodeBlock => "</pre>",
            TagEnd::List(true) => "</ol>",
            TagEnd::List(false) => "</ul>",
            TagEnd::Item => "</li>",
            TagEnd::Table => "</table></div>",
            TagEnd::TableHead => {
                self.is_table_head = false;
                "</tr>"
            }
            TagEnd::TableRow => "</tr>",
            TagEnd::TableCell if self.is_table_head => "</th>",
            TagEnd::TableCell => "</td>",
            TagEnd::Emphasis => "</em>",
            TagEnd::Strong => "</strong>",
            TagEnd::Strikethrough => "</del>",
            TagEnd::Link => match self.links.pop() {
                Some(true) => "</a>",
                _ => "",
            },
            TagEnd::Image => {
                let address = self.images.pop().unwrap_or_default();
                self.text(&format!(" {address}"));
                "]"
            }
            _ => return,
        };
        self.out.push_str(plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        markdown(text).map(|markup| markup.0)
    }

    // Lists, code and tables must be rendered, not shown as asterisks and pipes.
    #[test]
    fn structure_is_rendered() {
        for (text, expected) in [
            ("## Plan", "<p class=\"heading\">Plan</p>"),
            (
                "a **b** *c* ~~d~~",
                "<p>a <strong>b</strong> <em>c</em> <del>d</del></p>",
            ),
            (
                "1. one\n2. two",
                "<ol start=\"1\"><li>one</li><li>two</li></ol>",
            ),
            ("use `x < 1`", "<p>use <code>x &lt; 1</code></p>"),
            (
                "```sh\nls -l\n```",
                "<p class=\"dim language\">sh</p>\
                 <pre class=\"text\" dir=\"auto\" tabindex=\"0\">ls -l\n</pre>",
            ),
            (
                "|a|b|\n|-|-|\n|1|2|",
                "<div class=\"table\" tabindex=\"0\"><table><tr><th>a</th><th>b</th></tr>\
                 <tr><td>1</td><td>2</td></tr></table></div>",
            ),
            (
                "[docs](https://a.example/?b=1&c=2)",
                "<p><a href=\"https://a.example/?b=1&amp;c=2\" \
                 title=\"https://a.example/?b=1&amp;c=2\" \
                 rel=\"noopener noreferrer nofollow\">docs</a></p>",
            ),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(shown("two plain\nlines\n\nand one more"), None);
    }

    // A model may repeat untrusted tool output: its HTML must stay text, and it must not load
    // resources or run scripts.
    #[test]
    fn hostile_markdown_stays_text() {
        let hostile = [
            "# x\n<script>alert(1)</script>",
            "# x\n<img src=x onerror=alert(1)>",
            "a <b onclick='x()'>b</b> `c`",
            "[x](javascript:alert(1))",
            "[x](data:text/html,<script>)",
            "[x](https://a.example/\"onclick=\"x)",
            "[x](<https://a.example/\u{202e}>)",
            "![x](https://a.example/pixel.png)",
            "```\"><script>\nx\n```",
            "|<script>|\n|-|\n|<b>|",
            "[a]: javascript:x\n\n[a]",
        ];
        for text in hostile {
            let markup = shown(text).unwrap_or_default();
            for bad in [
                "<script",
                "<img",
                "<b ",
                "<b>",
                "href=\"javascript",
                "href=\"data",
                "\u{202e}",
            ] {
                assert!(!markup.contains(bad), "{text:?}: {markup}");
            }
            let attributes = markup.matches("onclick=").count();
            assert_eq!(attributes, markup.matches("onclick=&").count(), "{markup}");
        }
        let image = shown("![x](https://a.example/pixel.png)");
        assert_eq!(
            image.as_deref(),
            Some("<p>[image: x https://a.example/pixel.png]</p>")
        );
        assert_eq!(shown(&"> ".repeat(400)), None);
    }
}
