//! Colours of text on a terminal.

use std::fmt::Display;

use anstyle::{AnsiColor, Color as StyleColor, Style};

use crate::text::printable;

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(pub bool);

/// The role of a piece of text; one place chooses its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Names that can be used in the next command.
    Name,
    /// Numbers and times beside the text.
    Dim,
    /// The user.
    User,
    /// The assistant.
    Assistant,
    /// A tool call or result.
    Tool,
    /// Success.
    Good,
    /// Failure or refusal.
    Bad,
    /// Needs attention.
    Wait,
    /// A heading.
    Strong,
}

impl Tone {
    fn style(self) -> Style {
        let fg = |color| Style::new().fg_color(Some(StyleColor::Ansi(color)));
        match self {
            Self::Name => fg(AnsiColor::Cyan),
            Self::Dim => Style::new().dimmed(),
            Self::User => fg(AnsiColor::Blue).bold(),
            Self::Assistant => fg(AnsiColor::Magenta).bold(),
            Self::Tool => fg(AnsiColor::Yellow),
            Self::Good => fg(AnsiColor::Green),
            Self::Bad => fg(AnsiColor::Red),
            Self::Wait => fg(AnsiColor::Yellow).bold(),
            Self::Strong => Style::new().bold(),
        }
    }
}

/// Colours to tell apart things of one kind.
const HUES: [AnsiColor; 12] = [
    AnsiColor::BrightBlack,
    AnsiColor::Blue,
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Red,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
    AnsiColor::BrightCyan,
    AnsiColor::BrightGreen,
    AnsiColor::BrightYellow,
];

impl Paint {
    /// Colours the text with colour `number` of a fixed list, modulo the length of the list.
    #[must_use]
    pub(crate) fn hue(self, number: usize, text: impl Display) -> String {
        let text = printable(&text.to_string());
        if !self.0 {
            return text;
        }
        let color = StyleColor::Ansi(HUES[number % HUES.len()]);
        let style = Style::new().fg_color(Some(color));
        format!("{style}{text}{style:#}")
    }

    /// Colours the text and makes it one line, because most coloured text is a recorded name.
    #[must_use]
    pub fn text(self, tone: Tone, text: impl Display) -> String {
        let text = printable(&text.to_string());
        if self.0 {
            let style = tone.style();
            format!("{style}{text}{style:#}")
        } else {
            text
        }
    }

    /// Returns the length in bytes of our colour code at the start of the text; `None` if there is
    /// none.
    #[must_use]
    pub(crate) fn color_at(self, text: &str) -> Option<usize> {
        if !self.0 {
            return None;
        }
        let end = text.strip_prefix("\u{1b}[")?.find('m')? + "\u{1b}[m".len();
        // Foreground colours, bold or dim, and the reset code.
        let is_ours = |code: &str| {
            code.parse()
                .is_ok_and(|code: u8| matches!(code, 0..=2 | 31..=36 | 90..=96))
        };
        let codes = &text["\u{1b}[".len()..end - 1];
        codes.split(';').all(is_ours).then_some(end)
    }
}
