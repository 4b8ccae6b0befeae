//! From usage that providers reported to a factor and an offset.

use std::collections::HashMap;

use super::Counter;
use crate::{
    draft::{Draft, Item},
    explain::TokenBasis,
    provider::maker::Vendor,
    window::WindowInput,
};
use treering_domain::{EventBody, EventRef, Role, Usage};

/// Counted tokens that usage must go along with before it says something about the slope.
const SPAN_MIN: f64 = 4_000.0;
/// No model's tokenizer is further than this from `o200k_base`; what looks so
/// comes from a history that is not what was sent.
const FACTOR_RANGE: (f64, f64) = (0.9, 1.5);
/// A factor stays until it is off by more than this: each other one lays a request out
/// anew, from its front on.
const FACTOR_HELD: f64 = 0.15;
/// A series ends where usage falls below this share of the usage before it: something was
/// let go that is counted here.
const FALLS_BELOW: f64 = 0.99;
/// It ends as well where usage rises by more than these tokens and this many times what
/// was counted since: something was sent that is not recorded here.
const RISES_BY: (f64, f64) = (8_000.0, 3.0);
/// A provider that counts fewer tokens than its own share of what is here was not
/// sent what is here: as a share of what it reported.
const SHORTFALL_MAX: f64 = 0.1;
/// Factors are rounded to multiples of this, so that each new usage does not
/// move what fits a budget.
const FACTOR_STEP: f64 = 0.05;

/// What recorded usage says about counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// What to multiply counts by.
    pub factor: f64,
    /// Tokens that the provider counts beside them.
    pub offset: i64,
    /// Usages that it comes from.
    pub points: u32,
}

impl Calibration {
    const NONE: Self = Self {
        factor: 1.0,
        offset: 0,
        points: 0,
    };

    /// As an explanation tells it.
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

/// What was counted before a step, and what the provider counted.
#[derive(Clone, Copy, Debug)]
struct Point {
    counted: f64,
    reported: f64,
}

/// Compares the counts of a draft, not scaled and whole, with the usage recorded
/// in its window by models of the family that the request goes to, which share a
/// tokenizer: another family's tokens, and what was sent to it beside what is recorded
/// here, say nothing about this one. Without a model there is nothing to compare.
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

/// Whether a body is for another vendor than its model is of: the conversation's model,
/// where nobody named one. OpenAI's shapes are taken by gateways to every model.
fn goes_elsewhere(draft: &Draft) -> bool {
    let description = draft.provider.description();
    let own = description.vendor.filter(|_| !description.is_for_any_model);
    let of_model = Vendor::named("", &draft.config.model_id);
    own.is_some() && of_model.is_some() && own != of_model
}

/// The letters that a model's name starts with, without where it is served: `claude`,
/// `gpt`, `gemini`.
fn family(model: &str) -> &str {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = match name.rsplit_once("anthropic.") {
        Some((_, name)) => name,
        None => name,
    };
    let end = name.find(|c: char| !c.is_ascii_alphabetic());
    &name[..end.unwrap_or(name.len())]
}

/// Tokens of requests, by the message that answered them. Only after the last
/// compaction: before it, other requests were sent.
fn usages(window: &WindowInput, family: &str) -> HashMap<EventRef, u64> {
    let mut usages = HashMap::new();
    if family.is_empty() {
        return usages;
    }
    for event in &window.events[window.memory_begins()..] {
        if let EventBody::MessageAppended(message) = &event.body
            && message.role == Role::Assistant
            && let Some(usage) = &message.usage
            && usage.input_tokens > 0
        {
            let raw = message.raw.as_ref().map_or("", |raw| raw.model.as_str());
            // The usage's own name, then the raw form's, then the conversation's.
            let of_conversation = window.branch.config.model_id.as_str();
            let names = [usage.model.as_str(), raw, of_conversation];
            let model = names.into_iter().find(|name| !name.is_empty());
            let model = model.unwrap_or_default();
            if self::family(model) == family {
                usages.insert(event.at, input_tokens(usage, model));
            }
        }
    }
    usages
}

/// Anthropic reports what came from its cache apart; others report it as a part.
fn input_tokens(usage: &Usage, model: &str) -> u64 {
    let cached = usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
    let is_apart = Vendor::named("", model).is_some_and(|vendor| vendor.reports_cache_apart);
    if is_apart || cached > usage.input_tokens {
        return usage.input_tokens + cached;
    }
    usage.input_tokens
}

/// Points in which what was counted and what was reported grew together: running means.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    points: f64,
    counted: f64,
    reported: f64,
    last: Option<Point>,
}

/// Sums over all series, each about its own means: one slope, and an offset for each.
#[derive(Clone, Copy, Debug, Default)]
struct Slope {
    together: f64,
    spread: f64,
    /// Counted tokens that the series reach over.
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
    /// Takes a point in (Welford).
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

    /// None as long as the points lie too close together.
    fn factor(&self) -> Option<f64> {
        if self.span < SPAN_MIN || self.spread <= 0.0 {
            return None;
        }
        let slope = self.together / self.spread;
        let rounded = (slope / FACTOR_STEP).round() * FACTOR_STEP;
        Some(rounded.clamp(FACTOR_RANGE.0, FACTOR_RANGE.1))
    }
}

/// Least squares, point by point: what was found early holds until it is off by much, so
/// that a request and the next one count alike. The offset is the first series': its points
/// stand before anything was let go, and closest to what was sent besides.
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
            // Multiples of a step are compared, not what is left of their division.
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

    // A model that counts a fifth more and has 900 tokens of framing of its own:
    // both must be told apart, or budgets are wrong by the framing at every size.
    #[test]
    fn factor_and_offset_are_told_apart() {
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

    // An exact encoding needs no factor, whatever a history with holes suggests.
    #[test]
    fn exact_encodings_keep_their_counts() {
        let found = fit(&points(&[(100.0, 700.0), (200.0, 900.0)]), true);
        assert!((found.factor - 1.0).abs() < 1e-9);
        assert_eq!(found.offset, 650);
    }

    // A history that is not what was sent (compacted elsewhere, say) gives slopes
    // that no tokenizer has: they must not blow up counts.
    #[test]
    fn factors_stay_in_range() {
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

    /// A model that counts 1.3 times as much, and 40,000 tokens besides.
    fn grows(counted: std::ops::Range<u32>, beside: f64) -> Vec<(f64, f64)> {
        let counted = counted.step_by(1_000).map(f64::from);
        counted
            .map(|counted| (counted, beside + 1.3 * counted))
            .collect()
    }

    // A harness let old results go in the middle of a session: usage fell from 71,856 to
    // 62,250 while what is counted here grew on, and budgets of 16,000 came out at 115 kB.
    // What was reported since then grows as before, from another place.
    #[test]
    fn where_usage_falls_another_series_begins() {
        let mut recorded = grows(1_000..30_000, 40_000.0);
        recorded.extend(grows(31_000..40_000, 15_000.0));
        let found = fit(&points(&recorded), false);
        assert!((found.factor - 1.3).abs() < 1e-9, "{found:?}");
        // The first of it say what was sent besides.
        assert_eq!((found.offset, found.points), (40_000, 38));
    }

    // What a harness sent besides grew by a file of 30,000 tokens: no tokenizer's doing.
    #[test]
    fn what_comes_besides_is_no_factor() {
        let mut recorded = grows(1_000..10_000, 20_000.0);
        recorded.extend(grows(10_000..20_000, 50_000.0));
        let found = fit(&points(&recorded), false);
        assert!((found.factor - 1.3).abs() < 1e-9, "{found:?}");
        assert_eq!(found.offset, 20_000);
    }

    // The factor moved with each new usage, and with it what fits a budget: of 24 requests
    // of a growing session, 17 lost their front. It stays while it is not off by much.
    #[test]
    fn a_factor_is_held() {
        let mut recorded = grows(1_000..20_000, 40_000.0);
        let mut factors = Vec::new();
        for step in 0..60 {
            let (counted, reported) = recorded[recorded.len() - 1];
            // Now less is added than before, now more.
            let times = if step % 20 < 10 { 1.1 } else { 1.6 };
            recorded.push((counted + 700.0, reported + 700.0 * times));
            factors.push(fit(&points(&recorded), false).factor);
        }
        factors.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
        assert_eq!(factors.len(), 1, "{factors:?}");
        // Off by much, it follows.
        let (counted, reported) = recorded[recorded.len() - 1];
        let steeper = (1..90).map(f64::from);
        let steeper = steeper.map(|at| (counted + at * 1_000.0, reported + at * 1_600.0));
        recorded.extend(steeper);
        assert!((fit(&points(&recorded), false).factor - 1.5).abs() < 1e-9);
    }

    // Here is a long history of which only a part was sent, because it was compacted
    // elsewhere: its usage says nothing about the tokens that are counted here.
    #[test]
    fn usage_of_another_history_is_not_believed() {
        let recorded = points(&[
            (200_000.0, 40_000.0),
            (210_000.0, 53_000.0),
            (220_000.0, 66_000.0),
        ]);
        assert_eq!(fit(&recorded, false), Calibration::NONE);
    }

    // One usage cannot tell a factor from a system prompt that was never recorded:
    // counts stay, and the difference is told.
    #[test]
    fn few_points_give_an_offset_only() {
        let found = fit(&points(&[(1_000.0, 21_000.0), (1_010.0, 21_020.0)]), false);
        assert!((found.factor - 1.0).abs() < 1e-9);
        assert_eq!((found.offset, found.points), (20_005, 2));
    }

    // Each maker's models report in their own way.
    #[test]
    fn what_a_cache_served_is_in_or_beside() {
        let usage = Usage {
            input_tokens: 10,
            cache_read_input_tokens: 5,
            ..Usage::default()
        };
        assert_eq!(input_tokens(&usage, "claude-opus-4"), 15);
        assert_eq!(input_tokens(&usage, "anthropic/claude-sonnet-4-5"), 15);
        assert_eq!(input_tokens(&usage, "gpt-5"), 10);
    }

    /// A conversation in which a model reports what it was sent: half as much again as is
    /// recorded, and 20,000 tokens that nobody recorded.
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

    // An imported session's harness sends its own system prompt, to its own model. What
    // that model reported was charged to every other one where it named no model, and to
    // requests that name none.
    #[test]
    fn usage_speaks_for_its_own_family_only() {
        let story = reported_by("claude-opus-4-5-20251101");
        let own = calibrated(&story, "claude-opus-4-5");
        assert!((own.factor - 1.5).abs() < 0.06, "{own:?}");
        assert!(own.offset > 19_000 && own.points == 8, "{own:?}");
        let sibling = calibrated(&story, "us.anthropic.claude-sonnet-4-5-v1:0");
        assert!((sibling.factor - own.factor).abs() < 1e-9, "{sibling:?}");
        for other in ["gemini-2.5-pro", "gpt-5", ""] {
            assert_eq!(calibrated(&story, other), Calibration::NONE, "{other}");
        }
        // Nobody knows whose it is.
        let unknown = calibrated(&reported_by(""), "claude-opus-4-5");
        assert_eq!(unknown, Calibration::NONE);
    }
}
