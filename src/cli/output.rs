//! Standard output of commands, with colour if wanted. Also progress bars, which are shown only if
//! standard error is a terminal.

use std::{
    fmt::{self, Display},
    io::{self, BufWriter, IsTerminal, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use prost_types::Timestamp;

use super::{
    args::Color,
    json::{self, Object},
    pager::Pager,
    pb,
};
pub use treering_present::{Paint, Tone};
use treering_present::{
    safe::SafeText,
    text::{EventText, Zone, cut, printable, row_around, wrapped},
};

/// Buffer size if the output is not a terminal.
const BUFFER_BYTES: usize = 64 * 1024;
/// Width of text if the output is not a terminal.
const PLAIN_WIDTH: usize = 100;
/// Maximum number of columns: wider lines are hard to read.
const WIDTH_MAX: usize = 120;

/// Standard output.
pub struct Out {
    to: Box<dyn Write + Send>,
    /// Something was written.
    is_begun: bool,
    /// Colours of the output.
    pub paint: Paint,
    /// Print JSON lines instead of text.
    pub json: bool,
    /// Width of text in columns.
    pub width: usize,
    /// The output is a terminal, so rows are cut at the width.
    cuts: bool,
    /// Print times as dates, not relative to now.
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
    /// Returns standard output with the settings of the options.
    #[must_use]
    pub fn stdout(color: Color, json: bool) -> Self {
        let choice = match color {
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
            Color::Auto => AutoStream::choice(&io::stdout()),
        };
        let colored = !json && !matches!(choice, ColorChoice::Never);
        // Without colour there are no escape sequences of ours to strip, so content is passed
        // through unchanged.
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

    /// Sends the output through a pager, if it goes to a terminal and there is a pager.
    pub(crate) fn paged(mut self) -> Self {
        if !self.cuts || self.json {
            return self;
        }
        if let Some((pager, to)) = Pager::start() {
            self.to = Box::new(BufWriter::with_capacity(BUFFER_BYTES, to));
            self.pager = Some(pager);
        }
        self
    }

    /// Returns true if a pager shows the output.
    pub(crate) fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Flushes the output, and waits for the pager.
    pub(crate) fn close(mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.to = Box::new(io::sink());
        if let Some(pager) = self.pager.take() {
            pager.wait();
        }
        flushed
    }

    /// Returns a time as text: relative to now or, with `--absolute`, as a date.
    pub(crate) fn when(&self, time: Option<&Timestamp>) -> String {
        if self.absolute {
            self.zone().day_clock(time)
        } else {
            self.zone().ago(time)
        }
    }

    /// Returns the time zone: on a terminal the user's own, otherwise UTC.
    pub(crate) fn zone(&self) -> Zone {
        match self.is_terminal() {
            true => Zone::OfMachine,
            false => Zone::Utc,
        }
    }

    /// Returns the format of events: short for lists, or complete.
    pub(crate) fn event_text(&self, lines_max: usize, full: bool) -> EventText {
        EventText::new(self.paint, self.zone(), self.width, lines_max, full)
    }

    /// Returns the columns of the terminal; without a terminal, lines are unlimited.
    pub(crate) fn columns(&self) -> usize {
        if self.cuts { self.width } else { usize::MAX }
    }

    /// Returns true if the output goes to a terminal as text, not JSON.
    pub(crate) fn is_terminal(&self) -> bool {
        self.cuts && !self.json
    }

    /// Writes a row of a list or a sentence, within the width of a terminal.
    pub(crate) fn row(&mut self, text: impl Display) -> io::Result<()> {
        let text = SafeText::line(text, self.paint);
        let text = text.as_str();
        if !self.cuts {
            return self.line(text);
        }
        // Rows with columns are cut; sentences are wrapped.
        if text.contains("  ") || text.starts_with(' ') {
            return self.line(cut(text, self.width));
        }
        for line in wrapped(text, self.width) {
            self.line(line)?;
        }
        Ok(())
    }

    /// Writes a heading after an empty line.
    pub(crate) fn heading(&mut self, text: impl Display) -> io::Result<()> {
        self.line("")?;
        self.line(self.paint.text(Tone::Strong, text))
    }

    /// Writes a note in addition to the requested output.
    pub(crate) fn note(&mut self, text: impl Display) -> io::Result<()> {
        self.row(self.paint.text(Tone::Dim, text))
    }

    /// Writes appended events as JSON.
    pub(crate) fn appended(
        &mut self,
        events: &[pb::Appended],
        repeated_key: bool,
        warnings: &[String],
    ) -> io::Result<()> {
        self.json(json::appended(
            events,
            repeated_key,
            warnings,
            Object::new(),
        ))
    }

    /// Writes warnings about valid but suspicious input.
    pub(crate) fn warnings(&mut self, warnings: &[String]) -> io::Result<()> {
        let mark = self.paint.text(Tone::Wait, "warning:");
        for warning in warnings {
            self.line(format!("{mark} {}", printable(warning)))?;
        }
        Ok(())
    }

    /// Writes a row with an address in it. On a terminal, the text around the address is cut, but
    /// never the address.
    pub(crate) fn row_around(
        &mut self,
        before: &str,
        address: &str,
        after: &str,
    ) -> io::Result<()> {
        let columns = self.columns();
        self.line(row_around(before, address, after, columns))
    }

    /// Returns an output for tests.
    #[cfg(test)]
    pub fn captured(json: bool) -> (Self, CapturedOutput) {
        let captured = CapturedOutput::default();
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

    /// Writes one line; with `--json`, JSON.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn line(&mut self, text: impl Display) -> io::Result<()> {
        match self.json {
            true => self.json(text),
            false => self.put(&SafeText::line(text, self.paint)),
        }
    }

    /// Writes text of several lines.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn lines(&mut self, text: impl Display) -> io::Result<()> {
        self.put(&SafeText::lines(text, self.paint))
    }

    /// Writes JSON, and escapes characters that a terminal would interpret.
    pub(crate) fn json(&mut self, json: impl Display) -> io::Result<()> {
        self.put(&SafeText::json(json))
    }

    fn put(&mut self, text: &SafeText) -> io::Result<()> {
        self.is_begun = true;
        writeln!(self.to, "{}", text.as_str())
    }

    /// Writes recorded text unchanged to a file or pipe. On a terminal, control characters are
    /// replaced by visible symbols.
    pub(crate) fn recorded(&mut self, text: &[u8]) -> io::Result<()> {
        self.is_begun = true;
        if self.is_terminal() {
            let text = SafeText::lines(String::from_utf8_lossy(text), Paint(false));
            return self.to.write_all(text.as_str().as_bytes());
        }
        self.to.write_all(text)
    }

    /// Returns true if something was written, which cannot be undone.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The output in a test.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub struct CapturedOutput(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl CapturedOutput {
    /// Returns everything that was written.
    ///
    /// # Panics
    /// If it is not text.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for CapturedOutput {
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

/// Returns a progress bar on standard error; hidden if standard error is not a terminal.
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
    bar.set_message(printable(what));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A progress bar for work with known progress. Disappears on drop.
pub(crate) struct Steps(ProgressBar);

impl Steps {
    /// Shows it.
    pub(crate) fn start(what: &str) -> Self {
        Self(progress(what, None, BarUnit::Things))
    }

    /// Sets the progress.
    pub(crate) fn reach(&self, done: u64, total: u64) {
        if total > 0 {
            self.0.set_length(total);
        }
        self.0.set_position(done);
    }

    /// Sets the progress of a step.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code))]
    pub(crate) fn of(&self, what: &str, done: u64, total: u64) {
        self.0.set_message(printable(what));
        self.reach(done, total);
    }

    /// Shows the progress that a server reports.
    pub(crate) fn show(&self, step: &pb::Progress) {
        self.0.set_message(printable(&step.what));
        self.reach(step.done, step.total);
    }

    /// Advances by one.
    pub(crate) fn one_more(&self) {
        self.0.inc(1);
    }

    /// Prints without damaging the progress bar.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Unit of a progress bar.
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
