//! Output of commands, on standard output and standard error: recorded text in it cannot control
//! the terminal.

use std::{fmt::Display, io};

use super::{
    Paint, Tone,
    text::{is_unseen, printable, printable_json, printable_lines},
};

/// Text that is safe to print: only our own colour codes reach the terminal. The output streams
/// accept only this type, so no command can forget the conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafeText(String);

impl SafeText {
    /// Makes one safe line; line ends in the text are replaced by visible characters.
    pub fn line(text: impl Display, paint: Paint) -> Self {
        Self(around_colors(&text.to_string(), paint, printable))
    }

    /// Makes safe text of several lines.
    pub fn lines(text: impl Display, paint: Paint) -> Self {
        Self(around_colors(&text.to_string(), paint, printable_lines))
    }

    /// Makes safe, equivalent JSON.
    pub fn json(json: impl Display) -> Self {
        let json = json.to_string();
        Self(printable_json(&json).into_owned())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Keeps our colour codes and replaces unsafe characters in the rest.
fn around_colors(text: &str, paint: Paint, signs: impl Fn(&str) -> String) -> String {
    if !text.contains(is_unseen) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    // Length of the text before the next colour code.
    let mut plain = 0;
    while let Some(at) = rest[plain..].find('\u{1b}').map(|at| plain + at) {
        let Some(color) = paint.color_at(&rest[at..]) else {
            plain = at + 1;
            continue;
        };
        shown.push_str(&signs(&rest[..at]));
        shown.push_str(&rest[at..at + color]);
        (rest, plain) = (&rest[at + color..], 0);
    }
    shown.push_str(&signs(rest));
    shown
}

/// Prints one line to standard error; takes the arguments of `format!`.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::safe::beside(format_args!($($text)*))
    };
}
pub use tell;

/// Prints one line to standard error.
pub fn beside(text: impl Display) {
    // If standard error is closed, there is nobody to tell.
    let _ = write_beside(anstream::stderr(), &SafeText::line(text, Paint(true)));
}

/// Prints a prompt, without a line end, to standard error.
///
/// # Errors
/// Those of the stream.
pub fn ask(text: impl Display) -> io::Result<()> {
    use io::Write;
    let mut stderr = anstream::stderr();
    stderr.write_all(SafeText::line(text, Paint(true)).as_str().as_bytes())?;
    stderr.flush()
}

/// Prints an error and what to do about it; further lines of either are indented below the first.
pub fn report(error: &str, hint: Option<&str>, choice: anstream::ColorChoice) {
    let paint = Paint(!matches!(choice, anstream::ColorChoice::Never));
    let words = [
        (Tone::Bad, "error:", Some(error)),
        (Tone::Dim, " hint:", hint),
    ];
    for (tone, word, text) in words {
        let Some(text) = text else { continue };
        let below = format!("\n{:1$}", "", word.len() + 1);
        let text = printable_lines(text).replace('\n', &below);
        let said = SafeText::lines(format!("{} {text}", paint.text(tone, word)), paint);
        let _ = write_beside(anstream::AutoStream::new(io::stderr(), choice), &said);
    }
}

fn write_beside(mut to: impl io::Write, text: &SafeText) -> io::Result<()> {
    writeln!(to, "{}", text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A conversation title moved the cursor and drew a fake line: in all output, only our own
    // colour codes may reach the terminal.
    #[test]
    fn output_keeps_only_own_color_codes() {
        let hostile = "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}1m\u{202e}\u{1b}[8m\ry\nz";
        let shown = "␛[2J␛]0;x␇<U+009B>1m<U+202E>␛[8m␍y";
        for paint in [Paint(false), Paint(true)] {
            let name = paint.text(Tone::Name, hostile);
            let line = SafeText::line(format!("{name} {hostile}"), paint);
            let plain = line.as_str().replace("\u{1b}[36m", "");
            let plain = plain.replace("\u{1b}[0m", "");
            assert_eq!(plain, format!("{shown}␊z {shown}␊z"));
            assert_eq!(line.as_str().contains("\u{1b}[36m"), paint.0);
            let lines = SafeText::lines(format!("{name}\n{hostile}"), paint);
            assert!(lines.as_str().ends_with(&format!("\n{shown}\nz")));
        }
        // Without colours, not even those.
        assert_eq!(
            SafeText::line("\u{1b}[36mx\u{1b}[0m", Paint(false)).as_str(),
            "␛[36mx␛[0m"
        );
        let json = SafeText::json("{\"a\":\"\u{9b}\u{202e}\"}");
        assert_eq!(json.as_str(), "{\"a\":\"\\u009b\\u202e\"}");
    }
}
