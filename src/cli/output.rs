//! Standard output of commands: colour where it is wanted, progress on a
//! terminal only.

use std::{
    fmt::{self, Display},
    io::{self, BufWriter, IsTerminal, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Color as StyleColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use prost_types::Timestamp;

use super::{
    args::Color,
    pager::Pager,
    text::{ago, cut, day_clock, row_around, wrapped},
};

/// Bytes gathered before they are written, when nobody watches live.
const BUFFER_BYTES: usize = 64 * 1024;
/// Width of text when the output is no terminal.
const PLAIN_WIDTH: usize = 100;
/// Wider lines are hard to read, however wide the terminal is.
const WIDTH_MAX: usize = 120;

/// Standard output.
pub struct Out {
    to: Box<dyn Write + Send>,
    /// Something was written.
    is_begun: bool,
    /// What colours there are.
    pub paint: Paint,
    /// Print JSON lines, not text.
    pub json: bool,
    /// Columns of text.
    pub width: usize,
    /// Rows are cut at the width: somebody looks at them.
    cuts: bool,
    /// Times are dates, not how long ago.
    pub absolute: bool,
    pager: Option<Pager>,
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Out")
            .field("json", &self.json)
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}

impl Out {
    /// Standard output, as the options want it.
    #[must_use]
    pub fn stdout(color: Color, json: bool) -> Self {
        let choice = match color {
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
            Color::Auto => AutoStream::choice(&io::stdout()),
        };
        let colored = !json && !matches!(choice, ColorChoice::Never);
        // Without colour nothing of ours needs stripping, and contents are
        // passed on as they are.
        let to: Box<dyn Write + Send> = if colored {
            Box::new(BufWriter::with_capacity(
                BUFFER_BYTES,
                AutoStream::new(io::stdout(), choice),
            ))
        } else {
            Box::new(BufWriter::with_capacity(BUFFER_BYTES, io::stdout()))
        };
        Self {
            to,
            is_begun: false,
            paint: Paint(colored),
            json,
            width: width(),
            cuts: io::stdout().is_terminal(),
            absolute: false,
            pager: None,
        }
    }

    /// Sends what is printed through a pager, when somebody looks at it and there is
    /// one.
    #[must_use]
    pub fn paged(mut self) -> Self {
        if !self.cuts || self.json {
            return self;
        }
        if let Some((pager, to)) = Pager::start() {
            self.to = Box::new(BufWriter::with_capacity(BUFFER_BYTES, to));
            self.pager = Some(pager);
        }
        self
    }

    /// True when a pager shows it.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Shows all that was written, and waits until it was looked at.
    ///
    /// # Errors
    /// What the stream says.
    pub fn close(mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.to = Box::new(io::sink());
        if let Some(pager) = self.pager.take() {
            pager.wait();
        }
        flushed
    }

    /// When something was, as people say it; with `--absolute` the day and time.
    #[must_use]
    pub fn when(&self, time: Option<&Timestamp>) -> String {
        if self.absolute {
            day_clock(time)
        } else {
            ago(time)
        }
    }

    /// Columns of the terminal; without one there is no end to a line.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.cuts { self.width } else { usize::MAX }
    }

    /// True when people look at it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.cuts && !self.json
    }

    /// Writes a line of a list, or a sentence: on a terminal no wider than that.
    ///
    /// # Errors
    /// What the stream says.
    pub fn row(&mut self, text: impl Display) -> io::Result<()> {
        let text = text.to_string();
        if !self.cuts {
            return self.line(text);
        }
        // What is laid out in columns is cut, a sentence goes on in the next line.
        if text.contains("  ") || text.starts_with(' ') {
            return self.line(cut(&text, self.width));
        }
        for line in wrapped(&text, self.width) {
            self.line(line)?;
        }
        Ok(())
    }

    /// Writes a row with an address in it: on a terminal what stands before and after gives
    /// way, and never the address.
    ///
    /// # Errors
    /// What the stream says.
    pub fn row_around(&mut self, before: &str, address: &str, after: &str) -> io::Result<()> {
        let columns = self.columns();
        self.line(row_around(before, address, after, columns))
    }

    /// An output that a test reads.
    #[cfg(test)]
    pub fn captured(json: bool) -> (Self, Captured) {
        let captured = Captured::default();
        let out = Self {
            to: Box::new(captured.clone()),
            is_begun: false,
            paint: Paint(false),
            json,
            width: PLAIN_WIDTH,
            cuts: false,
            absolute: false,
            pager: None,
        };
        (out, captured)
    }

    /// Writes one line.
    ///
    /// # Errors
    /// What the stream says.
    pub fn line(&mut self, text: impl Display) -> io::Result<()> {
        self.is_begun = true;
        writeln!(self.to, "{text}")
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// What the stream says.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_begun = true;
        self.to.write_all(bytes)
    }

    /// True when something was written: what was printed cannot be taken back.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Shows what was written so far.
    ///
    /// # Errors
    /// What the stream says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What was written, for a test.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub struct Captured(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Captured {
    /// All of it.
    ///
    /// # Panics
    /// When it was no text.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn width() -> usize {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((terminal_size::Width(columns), _)) => usize::from(columns).clamp(40, WIDTH_MAX),
        None => PLAIN_WIDTH,
    }
}

/// Colours, when they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(pub bool);

/// What a piece of text is, so that one place chooses its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Names that can be used in the next command.
    Name,
    /// Numbers and times beside the text.
    Dim,
    /// The user speaks.
    User,
    /// The assistant speaks.
    Assistant,
    /// A tool is asked or answers.
    Tool,
    /// It worked.
    Good,
    /// It failed or was refused.
    Bad,
    /// Wants attention.
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

/// Colours for things of one kind that stand side by side.
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
    /// The text in one of a row of colours, which begins again after its last.
    #[must_use]
    pub fn hue(self, number: usize, text: impl Display) -> String {
        if !self.0 {
            return text.to_string();
        }
        let color = StyleColor::Ansi(HUES[number % HUES.len()]);
        let style = Style::new().fg_color(Some(color));
        format!("{style}{text}{style:#}")
    }

    /// The text in its colour.
    #[must_use]
    pub fn text(self, tone: Tone, text: impl Display) -> String {
        if self.0 {
            let style = tone.style();
            format!("{style}{text}{style:#}")
        } else {
            text.to_string()
        }
    }
}

/// A progress bar on standard error; none when that is no terminal.
#[must_use]
pub fn progress(what: &str, total: Option<u64>, unit: BarUnit) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(template(total.is_some(), unit)) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarUnit {
    /// Bytes.
    Bytes,
    /// Anything else.
    Things,
}

fn template(known: bool, unit: BarUnit) -> &'static str {
    match (known, unit) {
        (true, BarUnit::Bytes) => "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        (true, BarUnit::Things) => "{msg} {bar:30} {human_pos}/{human_len} {eta}",
        (false, BarUnit::Bytes) => "{spinner} {msg} {bytes} {bytes_per_sec}",
        (false, BarUnit::Things) => "{spinner} {msg} {human_pos}",
    }
}
