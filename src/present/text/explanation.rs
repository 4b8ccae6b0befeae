//! Formats the explanation of a request: a bar of its tokens, what each pipeline step did, then the
//! items.

use super::{
    super::{
        Paint, Tone,
        explanation::{
            self, Advice, BudgetTokens, DroppedRun, ItemRow, border_text, dropped_tokens,
            fate_text, section_text, sections, token_basis, token_share,
        },
        pb,
    },
    bytes_human, count, first_line, printable, things,
};
use treering_context::Provider;

/// Maximum number of cells of the bar.
const BAR_CELLS_MAX: usize = 76;
/// Columns of an item's line without its label and its head.
const ITEM_COLUMNS: usize = 32;
/// Columns before the description of a step.
const STEP_COLUMNS: usize = 32;

/// How an explanation is shown.
#[derive(Clone, Copy, Debug)]
pub struct ExplanationText {
    /// The colour settings.
    pub paint: Paint,
    /// Width of the output, in columns.
    pub width: usize,
    /// Show each dropped item on its own line, and steps that did nothing.
    pub all: bool,
}

impl ExplanationText {
    /// Columns of an item's label.
    fn label_columns(self) -> usize {
        (self.width / 3).clamp(24, 40)
    }

    /// Columns of an item's head.
    fn head_columns(self) -> usize {
        let taken = ITEM_COLUMNS + self.label_columns();
        self.width.saturating_sub(taken).max(12)
    }
}

/// Formats an explanation as lines.
#[must_use]
pub fn explanation_lines(told: &pb::Explanation, how: ExplanationText) -> Vec<String> {
    let mut lines = header(told, how.paint);
    lines.push(String::new());
    lines.extend(budget(told, how));
    lines.extend(notices(told, how));
    lines.push(String::new());
    lines.extend(steps(told, how));
    lines.push(String::new());
    lines.extend(items(told, how));
    lines
}

fn header(told: &pb::Explanation, paint: Paint) -> Vec<String> {
    let model = if told.model.is_empty() {
        String::new()
    } else {
        format!(" · {}", printable(&told.model))
    };
    let provider = Provider::of_number(told.provider).unwrap_or_default();
    let provider = paint.text(Tone::Strong, provider.as_str());
    let mut lines = vec![
        format!("Request for {provider}{model}"),
        format!(
            "{} on {} at #{}",
            paint.text(Tone::Name, &told.conversation_id),
            paint.text(Tone::Name, &told.branch),
            told.revision
        ),
        tokens_line(told, paint),
    ];
    let basis = told.basis.iter().flat_map(basis_lines);
    lines.extend(basis.map(|line| paint.text(Tone::Dim, line)));
    lines
}

fn tokens_line(told: &pb::Explanation, paint: Paint) -> String {
    let of = match told.budget_tokens {
        0 => " tokens, no budget".to_owned(),
        budget => format!(
            " of {} tokens ({})",
            count(budget),
            token_share(told.tokens, budget)
        ),
    };
    let tone = if told.over_budget {
        Tone::Bad
    } else {
        Tone::Strong
    };
    format!("{}{of}", paint.text(tone, count(told.tokens)))
}

fn basis_lines(basis: &pb::TokenBasis) -> Vec<String> {
    let mut lines = vec![token_basis(basis)];
    let tokens = count(basis.offset.unsigned_abs());
    match basis.offset {
        0 => {}
        1.. => lines.push(format!("the provider counts about {tokens} more")),
        _ => lines.push(format!("the provider counts about {tokens} fewer")),
    }
    lines
}

/// Returns the letter of a section in a bar without colours.
fn letter(section: pb::Section) -> char {
    match section {
        pb::Section::System => 'S',
        pb::Section::Tools => 'T',
        pb::Section::Compaction => 'C',
        pb::Section::Messages => 'M',
        pb::Section::ToolResults => 'R',
        pb::Section::OpenTurn => 'O',
        pb::Section::Guidance => 'G',
        pb::Section::DialogueSummary => 'D',
        pb::Section::Knowledge => 'K',
        pb::Section::ActiveContext => 'A',
        pb::Section::LongTermContext => 'L',
        pb::Section::Other | pb::Section::Unspecified => 'X',
    }
}

/// Returns the cells of a section: coloured blocks, or its letter.
fn cells(section: pb::Section, number: usize, paint: Paint) -> String {
    let hue = usize::try_from(i32::from(section)).unwrap_or_default();
    if paint.0 {
        paint.hue(hue, "█".repeat(number))
    } else {
        letter(section).to_string().repeat(number)
    }
}

fn budget(told: &pb::Explanation, how: ExplanationText) -> Vec<String> {
    let paint = how.paint;
    let used: Vec<_> = told.sections.iter().filter(|s| s.tokens > 0).collect();
    let tokens: Vec<u64> = used.iter().map(|section| section.tokens).collect();
    let BudgetTokens { whole, free } = BudgetTokens::of(told);
    let width = how.width.saturating_sub(4).min(BAR_CELLS_MAX);
    let shares = apportion(&tokens, whole, width);
    let filled: usize = shares.iter().sum();
    let mut bar: String = used
        .iter()
        .zip(&shares)
        .map(|(section, share)| cells(section.section(), *share, paint))
        .collect();
    bar.push_str(&paint.text(Tone::Dim, "·".repeat(width.saturating_sub(filled))));
    let mut lines = vec![format!("  {bar}")];
    lines.extend(sections(told).map(|section| legend(section, whole, paint)));
    if free > 0 {
        let name = format!("  · {:<18}{:>10}", "free", count(free));
        let share = token_share(free, whole);
        lines.push(paint.text(Tone::Dim, format!("{name}  {share:>5}")));
    }
    lines
}

fn legend(section: &pb::SectionTokens, whole: u64, paint: Paint) -> String {
    let name = section_text(section.section());
    let dropped = match section.dropped_tokens {
        0 => String::new(),
        dropped => paint.text(Tone::Wait, format!("  {} left out", count(dropped))),
    };
    format!(
        "  {} {name:<18}{:>10}  {:>5}  {}{dropped}",
        cells(section.section(), 1, paint),
        count(section.tokens),
        token_share(section.tokens, whole),
        paint.text(Tone::Dim, things(u64::from(section.items), "item", "items")),
    )
}

/// Distributes the cells in proportion to the tokens. Each number gets at least one cell. The sum
/// exceeds `cells` only if there are more numbers than cells.
fn apportion(tokens: &[u64], whole: u64, cells: usize) -> Vec<usize> {
    if whole == 0 {
        return vec![0; tokens.len()];
    }
    let exact = |tokens: u64| u128::from(tokens) * cells as u128;
    let mut shares: Vec<usize> = tokens
        .iter()
        .map(|tokens| {
            let rounded = (exact(*tokens) + u128::from(whole) / 2) / u128::from(whole);
            usize::try_from(rounded).unwrap_or(cells).max(1)
        })
        .collect();
    while shares.iter().sum::<usize>() > cells {
        let Some(largest) = shares.iter_mut().max() else {
            break;
        };
        if *largest <= 1 {
            break;
        }
        *largest -= 1;
    }
    shares
}

/// Returns the notices to show before the details.
fn notices(told: &pb::Explanation, how: ExplanationText) -> Vec<String> {
    let paint = how.paint;
    let mut lines = Vec::new();
    if let dropped @ 1.. = dropped_tokens(told) {
        lines.push(format!(
            "Before the budget: {} tokens; {} were dropped or shortened.",
            count(told.tokens_before_budget),
            count(dropped)
        ));
    }
    if let Some(shared) = &told.shared_prefix {
        lines.push(format!(
            "Repeats the last request (#{}): {} of {} tokens ({}), {}",
            shared.previous_revision,
            count(shared.tokens),
            count(shared.previous_tokens),
            token_share(shared.tokens, shared.previous_tokens),
            bytes_human(shared.bytes)
        ));
    }
    for notice in explanation::notices(told, usize::MAX) {
        let text = |columns| first_line(&notice.text, columns);
        lines.push(match notice.tone {
            Tone::Strong => text(how.width),
            tone => format!("{} {}", paint.text(tone, "!"), text(how.width * 2)),
        });
        lines.extend(notice.advice.map(|advice| match advice {
            Advice::Text(text) => format!("  {text}"),
            Advice::Command(command) => format!("  {command}"),
        }));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

fn steps(told: &pb::Explanation, how: ExplanationText) -> Vec<String> {
    let paint = how.paint;
    let mut lines = vec![paint.text(Tone::Strong, "Steps")];
    let mut idle = Vec::new();
    let mut off = Vec::new();
    for step in &told.enhancers {
        match (step.enabled, step.items) {
            (false, _) if !how.all => off.push(step.name.as_str()),
            (true, 0) if !how.all => idle.push(step.name.as_str()),
            _ => lines.push(step_line(step, how)),
        }
    }
    for (names, what) in [(idle, "nothing to do:"), (off, "switched off:")] {
        if !names.is_empty() {
            let text = wrapped(what, &names, how.width);
            lines.extend(text.into_iter().map(|line| paint.text(Tone::Dim, line)));
        }
    }
    lines
}

fn step_line(step: &pb::EnhancerReport, how: ExplanationText) -> String {
    let mark = if step.enabled {
        format!("{:>4}", step.items)
    } else {
        " off".to_owned()
    };
    let did = first_line(&step.did, how.width.saturating_sub(STEP_COLUMNS));
    format!("{mark}  {:<22}  {did}", step.name)
}

/// Formats a label and names, wrapped to the width.
fn wrapped(what: &str, names: &[&str], width: usize) -> Vec<String> {
    let mut lines = vec![format!("   ·  {what}")];
    for (place, name) in names.iter().enumerate() {
        let comma = if place + 1 < names.len() { "," } else { "" };
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last + name.len() + comma.len() + 1 > width {
            lines.push(" ".repeat(5));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(name);
            line.push_str(comma);
        }
    }
    lines
}

fn items(told: &pb::Explanation, how: ExplanationText) -> Vec<String> {
    let paint = how.paint;
    let columns = how.label_columns();
    let title = format!(
        "{:>4}  {:<columns$}  {:>8}    event",
        "turn", "item", "tokens"
    );
    let mut lines = vec![paint.text(Tone::Strong, title)];
    let rows = explanation::item_rows(&told.items, how.all).into_iter();
    lines.extend(rows.map(|row| match row {
        ItemRow::One(item) => item_line(item, how),
        ItemRow::Dropped(run) => dropped_run(run, how),
        ItemRow::Border { is_volatile } => {
            let text = format!("  ┄┄  {}  ┄┄", border_text(is_volatile));
            paint.text(Tone::Dim, text)
        }
    }));
    lines
}

fn dropped_run(run: DroppedRun<'_>, how: ExplanationText) -> String {
    let turns = match run.turns {
        Some((first, last)) if first == last => format!("{first}"),
        Some((first, last)) => format!("{first}-{last}"),
        None => String::new(),
    };
    let what = format!("{} items left out", run.items);
    let columns = how.label_columns();
    let line = format!(
        "{turns:>4}  {what:<columns$}  {:>8} ✗ {}",
        count(run.tokens),
        first_line(run.reason, how.head_columns() + 8),
    );
    how.paint.text(Tone::Dim, line)
}

fn item_line(item: &pb::ExplainedItem, how: ExplanationText) -> String {
    let paint = how.paint;
    let turn = match item.turn {
        0 => String::new(),
        turn => turn.to_string(),
    };
    let columns = how.label_columns();
    let label = first_line(&item.label, columns - 2);
    let (mark, tokens) = match item.fate() {
        pb::Fate::Dropped => ("✗", item.whole_tokens),
        pb::Fate::Shortened => ("~", item.tokens),
        pb::Fate::Kept | pb::Fate::Unspecified => (" ", item.tokens),
    };
    let mark = paint.text(fate_text(item.fate()).0, mark);
    let said = match item.fate() {
        pb::Fate::Kept | pb::Fate::Unspecified => item.head.clone(),
        pb::Fate::Shortened => format!("of {}: {}", count(item.whole_tokens), item.reason),
        pb::Fate::Dropped => item.reason.clone(),
    };
    let said = first_line(&said, how.head_columns());
    format!(
        "{turn:>4}  {}  {:>8} {mark} {} {}",
        paint.text(tone(item), format!("{label:<columns$}")),
        count(tokens),
        paint.text(Tone::Name, format!("{:<9}", places(item))),
        paint.text(Tone::Dim, said)
    )
}

/// Returns the revisions of an item's events.
fn places(item: &pb::ExplainedItem) -> String {
    let revisions = item.events.iter().map(|event| event.revision);
    match (revisions.clone().min(), revisions.max()) {
        (Some(first), Some(last)) if first == last => format!("#{first}"),
        (Some(first), Some(last)) => format!("#{first}-{last}"),
        _ => String::new(),
    }
}

fn tone(item: &pb::ExplainedItem) -> Tone {
    let speaker = item.label.split([' ', ':']).next().unwrap_or("");
    match (item.fate(), speaker) {
        (pb::Fate::Dropped, _) => Tone::Dim,
        (_, "user") => Tone::User,
        (_, "assistant") => Tone::Assistant,
        (_, "tool") => Tone::Tool,
        _ => Tone::Strong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> ExplanationText {
        ExplanationText {
            paint: Paint(false),
            width: 80,
            all: false,
        }
    }

    fn item(turn: u32, fate: pb::Fate, label: &str) -> pb::ExplainedItem {
        pb::ExplainedItem {
            section: pb::Section::Messages.into(),
            events: vec![pb::EventRef {
                conversation_id: String::new(),
                revision: u64::from(turn) * 2,
            }],
            label: label.into(),
            head: "says\u{1b}[2J something that goes on and on and on, further than a line".into(),
            tokens: 1_234,
            whole_tokens: 5_678,
            fate: fate.into(),
            reason: "older turns go first".into(),
            turn,
            ..pb::ExplainedItem::default()
        }
    }

    fn step(name: &str, enabled: bool, items: u32) -> pb::EnhancerReport {
        pb::EnhancerReport {
            name: name.into(),
            enabled,
            did: "what it did, or why it did nothing".into(),
            items,
        }
    }

    fn told() -> pb::Explanation {
        let section = |section: pb::Section, tokens, dropped_tokens| pb::SectionTokens {
            section: section.into(),
            tokens,
            dropped_tokens,
            items: 2,
        };
        let dropped = |turn| item(turn, pb::Fate::Dropped, "user");
        let mut items = vec![item(0, pb::Fate::Kept, "system prompt")];
        items.extend((1..=4).map(dropped));
        items.push(item(
            5,
            pb::Fate::Shortened,
            "assistant → read_file, and a dozen others",
        ));
        items.push(pb::ExplainedItem {
            is_volatile: true,
            ..item(6, pb::Fate::Kept, "user")
        });
        pb::Explanation {
            conversation_id: "0198c0de-0000-7000-8000-000000000001".into(),
            branch: "main".into(),
            revision: 41,
            provider: pb::Provider::Anthropic.into(),
            model: "claude-sonnet-4-5".into(),
            basis: Some(pb::TokenBasis {
                encoding: "o200k_base".into(),
                estimate: true,
                factor: 1.08,
                offset: -4_843,
                calibrated_on: 3,
            }),
            tokens: 6_001,
            budget_tokens: 8_000,
            compaction_due: true,
            tokens_before_budget: 28_000,
            sections: vec![
                section(pb::Section::System, 1, 0),
                section(pb::Section::Messages, 6_000, 21_999),
            ],
            items,
            enhancers: vec![
                step("system_prompt", true, 1),
                step("user_prompt", true, 0),
                step("tool_guidance", true, 0),
                step("knowledge", false, 0),
            ],
            shared_prefix: Some(pb::SharedPrefix {
                bytes: 482_304,
                tokens: 117_900,
                previous_bytes: 483_000,
                previous_tokens: 118_100,
                previous_revision: 12_345,
            }),
            warnings: vec!["an image was left out".into()],
            ..pb::Explanation::default()
        }
    }

    // The output must fit 80 columns or a pipe, distinguish sections without colour, and not let
    // contents control the terminal.
    #[test]
    fn explanation_fits_80_columns_without_colour() {
        let lines = explanation_lines(&told(), plain());
        let text = lines.join("\n");
        for line in &lines {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for part in [
            "Request for anthropic · claude-sonnet-4-5",
            "6,001 of 8,000 tokens (75%)",
            "estimated with o200k_base × 1.08, calibrated on 3 recorded usages",
            "SMMMM",
            "·····",
            "21,999 left out",
            "counts about 4,843 fewer",
            "Repeats the last request (#12345): 117,900 of 118,100 tokens (99%), 471.0 KiB",
            "treering compact 000000000001",
            " 1-4  4 items left out",
            "of 5,678: older turns",
            "nothing to do: user_prompt, tool_guidance",
            "switched off: knowledge",
            "the next request may differ",
            "! an image was left out",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        let all = ExplanationText {
            all: true,
            ..plain()
        };
        let longer = explanation_lines(&told(), all);
        // One more step and three more items, which the short form merges into others.
        assert_eq!(longer.len(), lines.len() + 4);
    }

    // A section of three tokens must be visible in a bar of a million, and twelve such sections
    // must not make the bar longer than the line.
    #[test]
    fn section_bars_fit_their_line() {
        for (tokens, whole, expected) in [
            (vec![3, 999_997], 1_000_000, vec![1, 75]),
            (vec![1; 12], 12_000_000, vec![1; 12]),
            (vec![500, 500], 2_000, vec![19, 19]),
            (vec![], 0, vec![]),
            (vec![u64::MAX / 2, u64::MAX / 2], u64::MAX, vec![38, 38]),
        ] {
            assert_eq!(apportion(&tokens, whole, 76), expected);
        }
        assert!(apportion(&[9, 1, 1, 1], 12, 3).iter().sum::<usize>() <= 4);
    }
}
