//! How a server looks on a terminal. What is drawn depends on nothing but what is known of it
//! and on the size; no clock is read here.

use std::collections::VecDeque;

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Sparkline, Widget},
};
use unicode_width::UnicodeWidthStr;

use super::{
    super::text::{bytes_human, count, printable},
    figures::{Figures, Growth, Share, Times},
};

/// Looks that are remembered: as wide as the widest sparkline.
const HISTORY_MAX: usize = 120;
/// Columns of what stands before each line.
const LABEL_COLUMNS: u16 = 9;
/// A sparkline has its place right of the text, where so many columns are left.
const SPARK_FROM: u16 = 62;
const SPARK_COLUMNS_MIN: u16 = 8;
/// A narrower terminal cuts long lines, as it has no room for more of them.
const FOLD_FROM: u16 = 60;
/// Between the parts of a line.
const GAP: &str = "   ";
/// Columns of the numbers of a method.
const NUMBERS_COLUMNS: u16 = 43;
const NAME_COLUMNS_MIN: u16 = 12;
const NAME_COLUMNS_MAX: u16 = 48;

/// All that is known of a server.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    /// Where it is.
    pub from: String,
    /// What it said last.
    pub figures: Figures,
    /// For how long the store is open, in seconds.
    pub up_seconds: Option<f64>,
    /// Since when it does not answer, in seconds, and why.
    pub trouble: Option<(u64, String)>,
    /// What is missing in the view, and how to have it.
    pub hint: Option<String>,
    /// Appends in a second, the newest last.
    pub appends: VecDeque<f64>,
    /// The 99th percentile of commits, in seconds, the newest last.
    pub commits: VecDeque<f64>,
}

impl Glance {
    /// Remembers a look.
    pub fn take(&mut self, figures: Figures) {
        for (history, value) in [
            (&mut self.appends, figures.appends.or(figures.events)),
            (&mut self.commits, figures.commit.p99),
        ] {
            if history.len() == HISTORY_MAX {
                history.pop_front();
            }
            history.push_back(value.unwrap_or(0.0));
        }
        self.figures = figures;
        self.trouble = None;
    }
}

/// A screen as plain lines, without what is empty at their ends.
#[must_use]
pub fn plain(shown: &Glance, columns: u16, rows: u16) -> Vec<String> {
    let area = Rect::new(0, 0, columns, rows);
    let mut buffer = Buffer::empty(area);
    draw(shown, area, &mut buffer);
    let mut lines: Vec<String> = buffer
        .content()
        .chunks(usize::from(columns))
        .map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect())
        .map(|line: String| line.trim_end().to_owned())
        .collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Draws it.
pub fn draw(shown: &Glance, area: Rect, buffer: &mut Buffer) {
    let mut page = Page {
        area,
        row: 0,
        buffer,
    };
    page.line(heading(shown, area.width));
    for (text, tone) in notes(shown) {
        page.line(Line::styled(text, tone));
    }
    let figures = &shown.figures;
    page.with_spark(appends(figures), &shown.appends);
    page.with_spark(commits(figures), &shown.commits);
    for (label, parts) in facts(figures) {
        page.fact(label, &parts, Style::new());
    }
    page.fact("trouble", &troubles(figures), bad());
    page.fact("refused", &refused(figures), Style::new());
    page.methods(figures);
}

fn quiet() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bad() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn good() -> Style {
    Style::new().fg(Color::Green)
}

/// Where the next line goes. What has no room is left out.
struct Page<'a> {
    area: Rect,
    row: u16,
    buffer: &'a mut Buffer,
}

impl Page<'_> {
    fn next(&mut self) -> Option<Rect> {
        let row = self.row;
        self.row = row.saturating_add(1);
        let Rect { x, y, width, .. } = self.area;
        (row < self.area.height && width > 0).then(|| Rect::new(x, y + row, width, 1))
    }

    fn line(&mut self, line: Line<'_>) {
        if let Some(at) = self.next() {
            self.buffer.set_line(at.x, at.y, &line, at.width);
        }
    }

    fn labelled(&mut self, label: &str, text: Span<'_>) {
        let label = format!("{label:<width$}", width = usize::from(LABEL_COLUMNS));
        self.line(Line::from(vec![Span::styled(label, quiet()), text]));
    }

    /// Parts beside each other; where there is room for it, what does not fit goes below.
    fn fact(&mut self, label: &str, parts: &[String], tone: Style) {
        let room = usize::from(self.area.width.saturating_sub(LABEL_COLUMNS));
        let folds = self.area.width >= FOLD_FROM;
        let (mut label, mut line) = (label, String::new());
        for part in parts {
            if folds && !line.is_empty() && line.width() + GAP.len() + part.width() > room {
                self.labelled(label, Span::styled(std::mem::take(&mut line), tone));
                label = "";
            }
            if !line.is_empty() {
                line.push_str(GAP);
            }
            line.push_str(part);
        }
        if !line.is_empty() {
            self.labelled(label, Span::styled(line, tone));
        }
    }

    fn with_spark(&mut self, (label, text): (&str, String), history: &VecDeque<f64>) {
        if text.is_empty() {
            return;
        }
        let row = self.row;
        self.labelled(label, Span::raw(text));
        let Rect { x, y, width, .. } = self.area;
        let room = width.saturating_sub(SPARK_FROM);
        if row >= self.area.height || room < SPARK_COLUMNS_MIN {
            return;
        }
        // Thousandths, as a second's commits are fractions.
        let newest = history.len().saturating_sub(usize::from(room));
        let data = history.iter().skip(newest);
        let data: Vec<u64> = data.map(|value| whole(value * 1_000.0)).collect();
        let at = Rect::new(x + SPARK_FROM, y + row, room, 1);
        Sparkline::default().data(data).render(at, self.buffer);
    }

    fn methods(&mut self, figures: &Figures) {
        if figures.methods.is_empty() {
            return;
        }
        let room = self.area.width.saturating_sub(NUMBERS_COLUMNS);
        let columns = usize::from(room.clamp(NAME_COLUMNS_MIN, NAME_COLUMNS_MAX));
        let head = format!(
            "{:<columns$}{:>8}{:>5}{:>8}{:>6}{:>8}{:>8}",
            "METHOD", "/s", "run", "err/s", "errs", "p50", "p99"
        );
        self.line(Line::styled(
            head,
            quiet().add_modifier(Modifier::UNDERLINED),
        ));
        for method in &figures.methods {
            let numbers = format!(
                "{:>8}{:>5}{:>8}{:>6}{:>8}{:>8}",
                per_second(method.rate),
                short(method.running),
                per_second(method.error_rate),
                short(method.errors),
                seconds(method.times.p50),
                seconds(method.times.p99),
            );
            let name = within(&printable(&method.name), columns.saturating_sub(1));
            let fails = method.error_rate.is_some_and(|rate| rate > 0.0);
            let tone = if fails { bad() } else { Style::new() };
            let name = format!("{name:<columns$}");
            self.line(Line::from(vec![
                Span::raw(name),
                Span::styled(numbers, tone),
            ]));
        }
    }
}

fn heading(shown: &Glance, columns: u16) -> Line<'static> {
    let figures = &shown.figures;
    let version = figures.version.as_deref().unwrap_or("?");
    let mut spans = vec![Span::styled(
        format!("treering {}", printable(version)),
        Style::new().add_modifier(Modifier::BOLD),
    )];
    let mut says = |is: Option<bool>, yes: &'static str, no: &'static str| {
        let (word, tone) = match is {
            Some(true) => (yes, good()),
            Some(false) => (no, bad()),
            None => return,
        };
        spans.push(Span::raw("  "));
        spans.push(Span::styled(word, tone));
    };
    // What was so before it was gone is not so now.
    if shown.trouble.is_none() {
        says(figures.live, "live", "NOT LIVE");
        says(figures.ready, "ready", "NOT READY");
    } else {
        says(Some(false), "", "NO ANSWER");
    }
    if let Some(up) = shown.up_seconds {
        spans.push(Span::raw(format!("  up {}", lasting(up))));
    }
    spans.push(Span::styled(
        format!("  {}", printable(&shown.from)),
        quiet(),
    ));
    let line = Line::from(spans);
    const QUIT: &str = "  q quits";
    let width = line.width() + QUIT.len();
    if width > usize::from(columns) {
        return line;
    }
    let gap = " ".repeat(usize::from(columns) - width);
    let mut spans = line.spans;
    spans.push(Span::styled(format!("{gap}{QUIT}"), quiet()));
    Line::from(spans)
}

fn notes(shown: &Glance) -> Vec<(String, Style)> {
    let mut notes = Vec::new();
    if let Some((since, why)) = &shown.trouble {
        notes.push((format!("for {since} s: {}", printable(why)), bad()));
        notes.push((
            "it is asked again; what follows is what it said last".into(),
            quiet(),
        ));
    }
    notes.extend(
        shown
            .hint
            .iter()
            .map(|hint| (printable(hint), Style::new().fg(Color::Yellow))),
    );
    notes
}

fn appends(figures: &Figures) -> (&'static str, String) {
    let text = joined([
        figures
            .appends
            .map(|it| format!("{} appends/s", per_second(Some(it)))),
        figures
            .events
            .map(|it| format!("{} events/s", per_second(Some(it)))),
        figures.bytes.map(|it| format!("{}/s", size(it))),
        figures.head.map(|it| format!("head {}", whole_of(it))),
    ]);
    ("appends", text)
}

fn commits(figures: &Figures) -> (&'static str, String) {
    let times = |what: &str, it: Times| {
        it.p50
            .map(|_| format!("{what}p50 {} p99 {}", seconds(it.p50), seconds(it.p99)))
    };
    let told = joined([times("", figures.commit), times("fsync ", figures.fsync)]);
    let idle = told.is_empty() && figures.queue_appends.is.is_some();
    (
        "commit",
        if idle {
            "none in this interval".into()
        } else {
            told
        },
    )
}

fn facts(figures: &Figures) -> [(&'static str, Vec<String>); 7] {
    let queue = figures.queue_appends.is.map(|_| {
        let (appends, bytes) = (figures.queue_appends, figures.queue_bytes);
        format!("queue {}, {}", counts(appends), sizes(bytes))
    });
    let groups = [
        figures.group_appends.map(|it| format!("{it:.1} appends")),
        figures.group_events.map(|it| format!("{it:.1} events")),
        queue,
    ];
    let lag = [
        figures
            .views_lag
            .map(|it| format!("views {}", whole_of(it))),
        figures
            .index_lag
            .map(|it| format!("index {}", whole_of(it))),
        figures
            .backup_lag
            .map(|it| format!("backup {}", whole_of(it))),
        figures.subscriptions.map(|it| {
            let slowest = whole_of(figures.subscription_lag.unwrap_or(0.0));
            format!("subscriptions {}, slowest {slowest}", whole_of(it))
        }),
    ];
    let disk = [
        figures
            .disk
            .is
            .map(|_| format!("{} free", sizes(figures.disk))),
        figures.disk_floor.map(|it| format!("floor {}", size(it))),
    ];
    let store = figures.store.iter();
    let store = store.map(|(part, bytes)| format!("{} {}", printable(part), size(*bytes)));
    let resident = figures.resident.map(|it| format!("{} resident", size(it)));
    let caches = figures.caches.iter();
    let caches = caches.map(|(name, held)| format!("{} {}", printable(name), of(*held, brief)));
    let process = [
        figures
            .files
            .is
            .map(|_| format!("{} open", counts(figures.files))),
        figures
            .connections
            .map(|it| format!("connections {}", whole_of(it))),
        figures
            .threads
            .map(|it| format!("threads {}", whole_of(it))),
        figures
            .processors
            .map(|it| format!("cpu {:.0}%", it * 100.0)),
    ];
    [
        ("groups", groups.into_iter().flatten().collect()),
        ("lag", lag.into_iter().flatten().collect()),
        ("disk", disk.into_iter().flatten().collect()),
        ("store", store.collect()),
        ("memory", resident.into_iter().collect()),
        ("caches", caches.collect()),
        ("files", process.into_iter().flatten().collect()),
    ]
}

/// What should be nothing, and is not.
fn troubles(figures: &Figures) -> Vec<String> {
    let low = match (figures.disk.is, figures.disk_floor) {
        (Some(free), Some(floor)) if free < floor => Some("disk below its floor".to_owned()),
        _ => None,
    };
    let damaged = figures.damaged.filter(|it| *it > 0.0);
    let grown = |what: &str, it: Option<Growth>| {
        let it = it.filter(|it| it.all > 0.0)?;
        let new = match it.new > 0.0 {
            true => format!(" (+{})", whole_of(it.new)),
            false => String::new(),
        };
        Some(format!("{what} {}{new}", whole_of(it.all)))
    };
    let all = [
        low,
        damaged.map(|it| format!("damaged conversations {}", whole_of(it))),
        grown("damaged reads", figures.damaged_reads),
        grown("failed fsyncs", figures.failed_fsyncs),
        grown("failed groups", figures.failed_groups),
        grown("slow", figures.slow),
        grown("denied keys", figures.denied),
        grown("summariser failures", figures.summariser_failures),
        grown("spans lost", figures.spans_lost),
    ];
    all.into_iter().flatten().collect()
}

fn refused(figures: &Figures) -> Vec<String> {
    let refused = figures.refused.iter();
    let refused = refused.map(|(why, all, rate)| {
        let now = rate.filter(|rate| *rate > 0.0);
        let now = now.map_or(String::new(), |rate| {
            format!(" ({}/s)", per_second(Some(rate)))
        });
        format!("{} {}{now}", printable(why), whole_of(*all))
    });
    refused.collect()
}

fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(GAP)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates; NaN is 0.
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn whole_of(value: f64) -> String {
    count(whole(value))
}

/// In five columns at most: 12345, 1.2M.
fn short(value: f64) -> String {
    match value {
        value if value < 99_999.5 => whole(value).to_string(),
        value if value < 9_950_000.0 => format!("{:.1}M", value / 1e6),
        value if value < 999_500_000.0 => format!("{:.0}M", value / 1e6),
        value => format!("{:.0}G", value / 1e9),
    }
}

fn per_second(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value <= 0.0 => "0".into(),
        Some(value) if value < 99.5 => format!("{value:.1}"),
        Some(value) if value < 99_999.5 => whole_of(value),
        Some(value) => short(value),
    }
}

fn seconds(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 0.000_999_5 => format!("{:.0}us", value * 1e6),
        Some(value) if value < 0.099_95 => format!("{:.1}ms", value * 1e3),
        Some(value) if value < 0.999_5 => format!("{:.0}ms", value * 1e3),
        Some(value) => format!("{value:.1}s"),
    }
}

fn lasting(seconds: f64) -> String {
    let seconds = whole(seconds.max(0.0));
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    match hours {
        0 if minutes == 0 => format!("{seconds}s"),
        0 => format!("{minutes}m{:02}s", seconds % 60),
        1..48 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

fn size(bytes: f64) -> String {
    bytes_human(whole(bytes))
}

/// In few columns: 4.8K, 41M.
fn brief(bytes: f64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    for (shift, unit) in units {
        let amount = bytes / f64::from(1_u32 << shift);
        if amount >= 10.0 {
            return format!("{amount:.0}{unit}");
        }
        if amount >= 1.0 {
            return format!("{amount:.1}{unit}");
        }
    }
    whole(bytes).to_string()
}

fn counts(share: Share) -> String {
    of(share, whole_of)
}

fn sizes(share: Share) -> String {
    of(share, size)
}

fn of(share: Share, told: impl Fn(f64) -> String) -> String {
    let is = share.is.map_or("-".into(), &told);
    match share.of {
        Some(of) => format!("{is} of {}", told(of)),
        None => is,
    }
}

/// A name in so many columns: of a long one, what is in its middle is left out.
fn within(name: &str, columns: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= columns {
        return name.to_owned();
    }
    let kept = columns.saturating_sub(1);
    let end = kept * 2 / 3;
    let start = chars[..kept - end].iter();
    let rest = chars[chars.len() - end..].iter();
    start.chain(['…'].iter()).chain(rest).collect()
}

#[cfg(test)]
mod tests;
