//! Computes a factor and an offset from the usage that providers reported.

use std::collections::HashMap;

use super::Counter;
use crate::{
    draft::{Draft, Item},
    explain::TokenBasis,
    provider::maker::Vendor,
    window::WindowInput,
};
use treering_domain::{EventBody, EventRef, Role, Usage};

/// Minimum number of counted tokens that the observed usages must span to compute a factor.
const SPAN_MIN: f64 = 4_000.0;
/// Range of factors. No tokenizer differs more from `o200k_base`. A result outside it means that
/// another history was sent.
const FACTOR_RANGE: (f64, f64) = (0.9, 1.5);
/// A factor is kept until it is off by more than this, because each change requires a new layout of
/// the request.
const FACTOR_HELD: f64 = 0.15;
/// A series ends when usage falls below this share of the previous usage, because the sender
/// dropped content that is counted here.
const FALLS_BELOW: f64 = 0.99;
/// A series also ends when usage rises by more than the first value, plus the second value times
/// the tokens counted since the previous usage. Unrecorded content was then sent.
const RISES_BY: (f64, f64) = (8_000.0, 3.0);
/// The calibration is rejected if the scaled count exceeds the reported usage by more than this
/// share of the usage, because the provider was sent less than is recorded here.
const SHORTFALL_MAX: f64 = 0.1;
/// Factors are rounded to multiples of this, so that a new usage rarely changes which items fit the
/// budget.
const FACTOR_STEP: f64 = 0.05;

/// Calibration of counts by recorded usage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Factor for counts.
    pub factor: f64,
    /// Tokens that the provider counts in addition.
    pub offset: i64,
    /// Number of usages on which it is based.
    pub points: u32,
}

impl Calibration {
    const NONE: Self = Self {
        factor: 1.0,
        offset: 0,
        points: 0,
    };

    /// Returns the basis for an explanation.
    #[must_use]
    pub fn basis(self, counter: Counter) -> TokenBasis {
        TokenBasis {
            encoding: counter.encoding.name(),
            estimate: !counter.exact,
            factor: self.factor,
            offset: self.offset,
            calibrated_on: self.points,
        }
    }
}

/// Tokens counted before a step, and tokens reported by the provider.
#[derive(Clone, Copy, Debug)]
struct Point {
    counted: f64,
    reported: f64,
}

/// Compares the unscaled counts of a draft with the usage recorded in its window by models of the
/// same family, which share a tokenizer. Ignores usage of other families. Without a model there is
/// no calibration.
#[must_use]
pub fn calibrate(counter: Counter, window: &WindowInput, draft: &Draft) -> Calibration {
    if goes_elsewhere(draft) {
        return Calibration::NONE;
    }
    let family = family(&draft.config.model_id);
    let usages = usages(window, family);
    if usages.is_empty() {
        return Calibration::NONE;
    }
    let mut points = Vec::new();
    let mut counted = draft.tools_tokens;
    for item in &draft.items {
        if let Some(reported) = reported(item, &usages) {
            #[allow(clippy::cast_precision_loss)]
            points.push(Point {
                counted: counted as f64,
                reported: reported as f64,
            });
        }
        counted += item.whole_tokens;
    }
    fit(&points, counter.exact)
}

fn reported(item: &Item, usages: &HashMap<EventRef, u64>) -> Option<u64> {
    item.step()?;
    item.events.iter().find_map(|at| usages.get(at).copied())
}

/// Whether a body is for a vendor other than its model's. This happens if a call names no model and
/// the conversation's model is used. Gateways accept OpenAI's formats for every model.
fn goes_elsewhere(draft: &Draft) -> bool {
    let description = draft.provider.description();
    let own = description.vendor.filter(|_| !description.is_for_any_model);
    let of_model = Vendor::named("", &draft.config.model_id);
    own.is_some() && of_model.is_some() && own != of_model
}

/// Returns the leading letters of a model's name, without a host's prefix: `claude`, `gpt`,
/// `gemini`.
fn family(model: &str) -> &str {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = match name.rsplit_once("anthropic.") {
        Some((_, name)) => name,
        None => name,
    };
    let end = name.find(|c: char| !c.is_ascii_alphabetic());
    &name[..end.unwrap_or(name.len())]
}

/// Returns the tokens of requests, by the message that answered them. Ignores requests before the
/// last compaction, because they had other contents.
fn usages(window: &WindowInput, family: &str) -> HashMap<EventRef, u64> {
    let mut usages = HashMap::new();
    if family.is_empty() {
        return usages;
    }
    for event in &window.events[window.memory_begins()..] {
        if let EventBody::MessageAppended(message) = &event.body
            && message.role == Role::Assistant
            && let Some(usage) = &message.usage
            && input_tokens(usage) > 0
        {
            let raw = message.raw.as_ref().map_or("", |raw| raw.model.as_str());
            // The model of the usage, else of the raw form, else of the conversation.
            let of_conversation = window.branch.config.model_id.as_str();
            let names = [usage.model.as_str(), raw, of_conversation];
            let model = names.into_iter().find(|name| !name.is_empty());
            let model = model.unwrap_or_default();
            if self::family(model) == family {
                usages.insert(event.at, input_tokens(usage));
            }
        }
    }
    usages
}

/// Returns the tokens of the whole request.
fn input_tokens(usage: &Usage) -> u64 {
    usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
}

/// Running means of points between which counted and reported tokens grew together.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    points: f64,
    counted: f64,
    reported: f64,
    last: Option<Point>,
}

/// Sums for a least-squares fit over all series. The series share one slope, and each has its own
/// offset.
#[derive(Clone, Copy, Debug, Default)]
struct Slope {
    together: f64,
    spread: f64,
    /// Counted tokens that the series cover.
    span: f64,
}

impl Series {
    fn ends_before(&self, next: Point) -> bool {
        let Some(last) = self.last else { return false };
        let (least, times) = RISES_BY;
        let counted = (next.counted - last.counted).max(0.0);
        next.reported < last.reported * FALLS_BELOW
            || next.reported - last.reported > least + times * counted
    }
}

impl Slope {
    /// Adds a point (Welford's algorithm).
    fn add(&mut self, series: &mut Series, next: Point) {
        self.span += series.last.map_or(0.0, |last| next.counted - last.counted);
        series.last = Some(next);
        series.points += 1.0;
        let counted = next.counted - series.counted;
        series.counted += counted / series.points;
        series.reported += (next.reported - series.reported) / series.points;
        self.spread += counted * (next.counted - series.counted);
        self.together += counted * (next.reported - series.reported);
    }

    /// Returns the factor. None while the points are too close together.
    fn factor(&self) -> Option<f64> {
        if self.span < SPAN_MIN || self.spread <= 0.0 {
            return None;
        }
        let slope = self.together / self.spread;
        let rounded = (slope / FACTOR_STEP).round() * FACTOR_STEP;
        Some(rounded.clamp(FACTOR_RANGE.0, FACTOR_RANGE.1))
    }
}

/// Fits the points by least squares, one after another. A factor is kept until it is off by a lot,
/// so that consecutive requests are counted alike. The offset is from the first series, before the
/// sender dropped anything, because it best shows the unrecorded content.
#[allow(clippy::cast_possible_truncation)]
fn fit(points: &[Point], exact: bool) -> Calibration {
    let (mut slope, mut series) = (Slope::default(), Series::default());
    let mut first = None;
    let mut held: Option<f64> = None;
    for &point in points {
        if series.ends_before(point) {
            first.get_or_insert(series);
            series = Series::default();
        }
        slope.add(&mut series, point);
        if let Some(found) = slope.factor() {
            // Compare with half a step of tolerance, to ignore rounding errors.
            let is_off = |held: f64| (found - held).abs() > FACTOR_HELD + FACTOR_STEP / 2.0;
            held = Some(held.filter(|held| !is_off(*held)).unwrap_or(found));
        }
    }
    let first = first.unwrap_or(series);
    if first.last.is_none() {
        return Calibration::NONE;
    }
    let factor = held.filter(|_| !exact).unwrap_or(1.0);
    let offset = first.reported - factor * first.counted;
    if offset < -SHORTFALL_MAX * first.reported {
        return Calibration::NONE;
    }
    Calibration {
        factor,
        offset: offset.round() as i64,
        points: u32::try_from(points.len()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        enhancer, policy::ContextPolicy, provider::Provider, tokens::Tally, window::samples::Story,
    };
    use treering_domain::{Config, MessageAppended};

    fn points(of: &[(f64, f64)]) -> Vec<Point> {
        of.iter()
            .map(|&(counted, reported)| Point { counted, reported })
            .collect()
    }

    // The model counts a fifth more and has 900 tokens of framing. If factor and offset are not
    // separated, budgets are off by the framing at every size.
    #[test]
    fn fit_separates_factor_and_offset() {
        let recorded = points(&[
            (1_000.0, 2_100.0),
            (2_000.0, 3_300.0),
            (5_000.0, 6_900.0),
            (9_000.0, 11_700.0),
        ]);
        let found = fit(&recorded, false);
        assert!((found.factor - 1.2).abs() < 1e-9);
        assert_eq!((found.offset, found.points), (900, 4));
    }

    // An exact encoding needs no factor, even if the history has gaps.
    #[test]
    fn exact_encoding_has_factor_one() {
        let found = fit(&points(&[(100.0, 700.0), (200.0, 900.0)]), true);
        assert!((found.factor - 1.0).abs() < 1e-9);
        assert_eq!(found.offset, 650);
    }

    // If another history was sent (for example, one compacted elsewhere), the slope is not that of
    // any tokenizer. It must not inflate counts.
    #[test]
    fn factor_is_clamped() {
        for (step, factor) in [(9_000.0, 1.5), (10.0, 0.9)] {
            let recorded = points(&[
                (3_000.0, 9_000.0),
                (6_000.0, 9_000.0 + step),
                (9_000.0, 9_000.0 + 2.0 * step),
            ]);
            assert!((fit(&recorded, false).factor - factor).abs() < 1e-9);
        }
        assert_eq!(fit(&[], false), Calibration::NONE);
    }

    /// Points of a model that counts 1.3 times as much, plus `beside` tokens.
    fn grows(counted: std::ops::Range<u32>, beside: f64) -> Vec<(f64, f64)> {
        let counted = counted.step_by(1_000).map(f64::from);
        counted
            .map(|counted| (counted, beside + 1.3 * counted))
            .collect()
    }

    // A harness may drop old results in the middle of a session: usage then falls (in one session,
    // from 71,856 to 62,250) while the count grows. Later usage grows as before, from another
    // offset.
    #[test]
    fn drop_of_usage_starts_a_new_series() {
        let mut recorded = grows(1_000..30_000, 40_000.0);
        recorded.extend(grows(31_000..40_000, 15_000.0));
        let found = fit(&points(&recorded), false);
        assert!((found.factor - 1.3).abs() < 1e-9, "{found:?}");
        assert_eq!((found.offset, found.points), (40_000, 38));
    }

    // The harness added a file of 30,000 tokens, which says nothing about the tokenizer.
    #[test]
    fn jump_of_usage_does_not_change_the_factor() {
        let mut recorded = grows(1_000..10_000, 20_000.0);
        recorded.extend(grows(10_000..20_000, 50_000.0));
        let found = fit(&points(&recorded), false);
        assert!((found.factor - 1.3).abs() < 1e-9, "{found:?}");
        assert_eq!(found.offset, 20_000);
    }

    // If the factor changed with each new usage, many requests of a growing session would lose
    // their prefix (17 of 24 in one session). It must stay until it is off by a lot.
    #[test]
    fn factor_changes_only_on_large_deviation() {
        let mut recorded = grows(1_000..20_000, 40_000.0);
        let mut factors = Vec::new();
        for step in 0..60 {
            let (counted, reported) = recorded[recorded.len() - 1];
            // Growth alternates between slower and faster.
            let times = if step % 20 < 10 { 1.1 } else { 1.6 };
            recorded.push((counted + 700.0, reported + 700.0 * times));
            factors.push(fit(&points(&recorded), false).factor);
        }
        factors.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
        assert_eq!(factors.len(), 1, "{factors:?}");
        let (counted, reported) = recorded[recorded.len() - 1];
        let steeper = (1..90).map(f64::from);
        let steeper = steeper.map(|at| (counted + at * 1_000.0, reported + at * 1_600.0));
        recorded.extend(steeper);
        assert!((fit(&points(&recorded), false).factor - 1.5).abs() < 1e-9);
    }

    // Only part of this long history was sent, because it was compacted elsewhere. Its usage says
    // nothing about the counts here.
    #[test]
    fn usage_of_another_history_is_ignored() {
        let recorded = points(&[
            (200_000.0, 40_000.0),
            (210_000.0, 53_000.0),
            (220_000.0, 66_000.0),
        ]);
        assert_eq!(fit(&recorded, false), Calibration::NONE);
    }

    // One usage cannot separate a factor from an unrecorded system prompt. Counts stay, and the
    // difference is reported as the offset.
    #[test]
    fn two_points_give_only_an_offset() {
        let found = fit(&points(&[(1_000.0, 21_000.0), (1_010.0, 21_020.0)]), false);
        assert!((found.factor - 1.0).abs() < 1e-9);
        assert_eq!((found.offset, found.points), (20_005, 2));
    }

    /// A conversation whose model reports 1.5 times the recorded tokens, plus 20,000 unrecorded
    /// tokens.
    fn reported_by(model: &str) -> Story {
        let mut story = Story::new();
        let mut counted = 0;
        for _ in 0..8 {
            story = story.user(&"word ".repeat(1_000));
            counted += 1_000;
            let mut message = MessageAppended::text(Role::Assistant, "so");
            message.usage = Some(Usage {
                model: model.to_owned(),
                input_tokens: 20_000 + counted * 3 / 2,
                ..Usage::default()
            });
            story = story.then(EventBody::MessageAppended(message));
        }
        story
    }

    fn calibrated(story: &Story, model: &str) -> Calibration {
        let window = story.input();
        let counter = Counter::for_model(model);
        let mut draft = Draft {
            provider: Provider::Anthropic,
            config: Config {
                model_id: model.to_owned(),
                ..Config::default()
            },
            tools: Vec::new(),
            tools_tokens: 0,
            items: Vec::new(),
            warnings: Vec::new(),
        };
        let tally = Tally::new(counter, None).sent_to(Provider::Anthropic, model);
        enhancer::run(&window, &ContextPolicy::default(), &[], &tally, &mut draft);
        calibrate(counter, &window, &draft)
    }

    // The harness of an imported session sends its own system prompt to its own model. The usage of
    // that model must not be applied to other models, or to requests without a model.
    #[test]
    fn calibration_uses_usage_of_the_same_model_family() {
        let story = reported_by("claude-opus-4-5-20251101");
        let own = calibrated(&story, "claude-opus-4-5");
        assert!((own.factor - 1.5).abs() < 0.06, "{own:?}");
        assert!(own.offset > 19_000 && own.points == 8, "{own:?}");
        let sibling = calibrated(&story, "us.anthropic.claude-sonnet-4-5-v1:0");
        assert!((sibling.factor - own.factor).abs() < 1e-9, "{sibling:?}");
        for other in ["gemini-2.5-pro", "gpt-5", ""] {
            assert_eq!(calibrated(&story, other), Calibration::NONE, "{other}");
        }
        // The model of the usage is unknown.
        let unknown = calibrated(&reported_by(""), "claude-opus-4-5");
        assert_eq!(unknown, Calibration::NONE);
    }
}
