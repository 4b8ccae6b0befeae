//! A row of the table: a measured figure, its baseline and its target.

use std::fmt::Write;

use treering_cli::output::{Out, Tone};

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Items per second.
    PerSecond,
    /// Megabytes (10^6 bytes) per second.
    MegabytesPerSecond,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Seconds.
    Seconds,
    /// MiB of memory.
    Mebibytes,
    /// A ratio or a score, without a unit.
    Plain,
}

impl Unit {
    /// The name of the unit in JSON.
    fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "1/s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Seconds => "s",
            Self::Mebibytes => "MiB",
            Self::Plain => "",
        }
    }

    fn show(self, value: f64) -> String {
        let number = number(value);
        match self {
            Self::PerSecond => format!("{number}/s"),
            Self::Plain => number,
            _ => format!("{number} {}", self.name()),
        }
    }
}

/// Formats a number with about three significant digits: measurements on a noisy machine are not
/// more precise.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.digits$}");
    let Some(whole) = plain.strip_suffix("").filter(|_| digits == 0) else {
        return plain;
    };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && digit != '-' {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped.replace("-,", "-")
}

/// The target of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The ratio to the baseline is at least this.
    RatioAtLeast(f64),
    /// The ratio to the baseline is at most this.
    RatioAtMost(f64),
    /// The figure itself is at least this.
    AtLeast(f64),
    /// The figure itself is at most this.
    AtMost(f64),
}

/// A measured row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Group and row, for scripts: `append.raw`.
    pub id: &'static str,
    /// What was measured, in words.
    pub what: String,
    /// The measured figure: a median.
    pub measured: f64,
    /// The unit of the figure.
    pub unit: Unit,
    /// The name of the baseline, and its figure in the same unit.
    pub baseline: Option<(&'static str, f64)>,
    /// The measured figure divided by that of the baseline. It is the median of the ratios of
    /// rounds that ran one after the other, not the ratio of the medians.
    pub ratio: Option<f64>,
    /// The target, if there is one.
    pub target: Option<Target>,
    /// An explanation for the reader.
    pub note: String,
}

impl Row {
    /// A figure without baseline or target.
    #[must_use]
    pub fn new(id: &'static str, what: impl Into<String>, measured: f64, unit: Unit) -> Self {
        Self {
            id,
            what: what.into(),
            measured,
            unit,
            baseline: None,
            ratio: None,
            target: None,
            note: String::new(),
        }
    }

    /// Sets the baseline: its name, its figure, and the ratio to it.
    #[must_use]
    pub fn beside(mut self, name: &'static str, figure: f64, ratio: f64) -> Self {
        self.baseline = Some((name, figure));
        self.ratio = Some(ratio);
        self
    }

    /// Sets the target.
    #[must_use]
    pub fn aim(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Sets the note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Returns true if the target was met; `None` if there is no target.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        match self.target? {
            Target::RatioAtLeast(bound) => self.ratio.map(|ratio| ratio >= bound),
            Target::RatioAtMost(bound) => self.ratio.map(|ratio| ratio <= bound),
            Target::AtLeast(bound) => Some(self.measured >= bound),
            Target::AtMost(bound) => Some(self.measured <= bound),
        }
    }

    /// Formats the row as one JSON object.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let (kind, bound) = match self.target {
            None => (None, None),
            Some(Target::RatioAtLeast(bound)) => (Some("ratio at least"), Some(bound)),
            Some(Target::RatioAtMost(bound)) => (Some("ratio at most"), Some(bound)),
            Some(Target::AtLeast(bound)) => (Some("at least"), Some(bound)),
            Some(Target::AtMost(bound)) => (Some("at most"), Some(bound)),
        };
        serde_json::json!({
            "row": self.id,
            "what": self.what,
            "measured": self.measured,
            "unit": self.unit.name(),
            "baseline": self.baseline.map(|(name, _)| name),
            "baseline_measured": self.baseline.map(|(_, figure)| figure),
            "ratio": self.ratio,
            "target": bound,
            "target_is": kind,
            "met": self.met(),
            "note": self.note,
        })
    }

    fn cells(&self) -> [String; 5] {
        let shown = |value| self.unit.show(value);
        let baseline = self
            .baseline
            .map_or_else(String::new, |(name, figure)| match name {
                "" => shown(figure),
                name => format!("{name} {}", shown(figure)),
            });
        let target = match self.target {
            None => String::new(),
            Some(Target::RatioAtLeast(bound)) => format!("ratio ≥ {bound}"),
            Some(Target::RatioAtMost(bound)) => format!("ratio ≤ {bound}"),
            Some(Target::AtLeast(bound)) => format!("≥ {}", shown(bound)),
            Some(Target::AtMost(bound)) => format!("≤ {}", shown(bound)),
        };
        [
            self.what.clone(),
            shown(self.measured),
            baseline,
            self.ratio.map_or_else(String::new, number),
            target,
        ]
    }
}

const HEADINGS: [&str; 5] = ["what", "measured", "baseline", "ratio", "target"];

/// Prints rows as a table, with their notes below it.
///
/// # Errors
/// When the output cannot be written.
pub fn print(rows: &[Row], out: &mut Out) -> std::io::Result<()> {
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        let texts = cells.iter().map(|row| row[column].chars().count());
        let heading = HEADINGS[column].len();
        texts.chain([heading]).max().unwrap_or(heading)
    };
    let widths: Vec<_> = (0..HEADINGS.len()).map(width).collect();
    let line = |texts: [&str; 5]| {
        let mut line = String::new();
        for (column, text) in texts.iter().enumerate() {
            let pad = widths[column] - text.chars().count();
            // Numbers are aligned on the right.
            let (before, after) = if matches!(column, 1 | 3) {
                (pad, 0)
            } else {
                (0, pad)
            };
            // Writing to a string does not fail.
            let _ = write!(line, "{:before$}{text}{:after$}  ", "", "");
        }
        line
    };
    let paint = out.paint;
    out.line(paint.text(Tone::Strong, format!("{}met", line(HEADINGS))))?;
    for (row, texts) in rows.iter().zip(&cells) {
        let met = match row.met() {
            Some(true) => paint.text(Tone::Good, "yes"),
            Some(false) => paint.text(Tone::Bad, "no"),
            None => String::new(),
        };
        let texts: [&str; 5] = std::array::from_fn(|column| texts[column].as_str());
        out.line(format!("{}{met}", line(texts)))?;
    }
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        let note = format!("{}: {}", row.id, row.note);
        out.line(paint.text(Tone::Dim, note))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong comparison would report a missed target as met. Tests each kind of target, met and
    /// missed.
    #[test]
    fn targets_are_judged_the_right_way_round() {
        let row = || Row::new("x", "x", 5.0, Unit::Plain).beside("y", 10.0, 0.5);
        for (target, met) in [
            (Target::RatioAtLeast(0.4), true),
            (Target::RatioAtLeast(0.6), false),
            (Target::RatioAtMost(0.6), true),
            (Target::RatioAtMost(0.4), false),
            (Target::AtLeast(5.0), true),
            (Target::AtLeast(5.1), false),
            (Target::AtMost(5.0), true),
            (Target::AtMost(4.9), false),
        ] {
            assert_eq!(row().aim(target).met(), Some(met), "{target:?}");
        }
        assert_eq!(row().met(), None);
    }

    /// Large numbers have digits in groups of three; small numbers keep their decimals.
    #[test]
    fn numbers_have_three_figures() {
        for (value, text) in [
            (1_234_567.0, "1,234,567"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.0123, "0.012"),
            (-123_456.0, "-123,456"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
