//! A scrape: samples as Prometheus writes them, by name and labels. What they mean is not
//! known here.

use std::collections::HashMap;

/// All samples of one answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    samples: HashMap<String, Vec<Sample>>,
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    labels: Vec<(String, String)>,
    /// What it is now.
    pub value: f64,
}

impl Sample {
    /// What a label says.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels
            .find(|(label, _)| label == name)
            .map(|(_, value)| value.as_str())
    }
}

/// How often something was at most how large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bounds and how many were at most that, growing; the last bound is infinite.
    pub up_to: Vec<(f64, f64)>,
    /// All values together.
    pub sum: f64,
    /// How many there were.
    pub count: f64,
}

impl Scrape {
    /// Reads the text format of Prometheus, or OpenMetrics.
    ///
    /// # Errors
    /// The first line that is neither a comment nor a sample.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut scrape = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, sample) =
                sample(line).ok_or_else(|| format!("its line {number} is no metric"))?;
            scrape.put(name, sample);
        }
        Ok(scrape)
    }

    /// Adds a sample without labels.
    pub fn set(&mut self, name: &str, value: f64) {
        self.set_of(name, &[], value);
    }

    /// Adds a sample with labels.
    pub fn set_of(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let labels = labels.collect();
        self.put(name, Sample { labels, value });
    }

    fn put(&mut self, name: &str, sample: Sample) {
        self.samples
            .entry(name.to_owned())
            .or_default()
            .push(sample);
    }

    /// The samples of a name.
    #[must_use]
    pub fn all(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// A metric without labels.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<f64> {
        self.all(name).first().map(|sample| sample.value)
    }

    /// A histogram; of those with labels the one with this label.
    #[must_use]
    pub fn buckets(&self, name: &str, of: Option<(&str, &str)>) -> Option<Buckets> {
        let is_it =
            |sample: &&Sample| of.is_none_or(|(label, value)| sample.label(label) == Some(value));
        let part = |part: &str| {
            let name = format!("{name}_{part}");
            self.all(&name).iter().find(is_it).map(|it| it.value)
        };
        let (sum, count) = (part("sum")?, part("count")?);
        let buckets = self.all(&format!("{name}_bucket")).iter().filter(is_it);
        let up_to = buckets.filter_map(|it| Some((it.label("le")?.parse().ok()?, it.value)));
        let mut up_to: Vec<(f64, f64)> = up_to.collect();
        up_to.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(Buckets { up_to, sum, count })
    }
}

impl Buckets {
    /// What came since an earlier look at the same histogram. None: it was begun anew, or
    /// is another one.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let is_same = self.up_to.len() == before.up_to.len() && self.count >= before.count;
        let pairs = self.up_to.iter().zip(&before.up_to);
        let up_to = pairs.map(|(now, then)| (now.0, (now.1 - then.1).max(0.0)));
        is_same.then(|| Self {
            up_to: up_to.collect(),
            sum: (self.sum - before.sum).max(0.0),
            count: self.count - before.count,
        })
    }

    /// The value that a part of all are at most, as Prometheus guesses it: even within its
    /// bucket; what is above all bounds counts as the last one. None: there was nothing.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = self.up_to.last()?.1 * part;
        if wanted <= 0.0 {
            return None;
        }
        let at = self.up_to.iter().position(|(_, count)| *count >= wanted)?;
        let (below, counted) = match at {
            0 => (0.0, 0.0),
            at => self.up_to[at - 1],
        };
        let (bound, count) = self.up_to[at];
        if !bound.is_finite() {
            return Some(below);
        }
        let within = (wanted - counted) / (count - counted).max(f64::MIN_POSITIVE);
        Some(below + (bound - below) * within.min(1.0))
    }

    /// The mean. None: there was nothing.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// `name{label="value",…} 1.5`; what follows the value is not looked at.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some((name, Sample { labels, value }))
}

/// Labels up to their brace, and what is behind it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.push((name.trim().to_owned(), value));
        rest = after;
    }
}

/// A value up to its closing quote, and what is behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // What is misread is a number that somebody acts on at night: labels with everything in
    // them are read, and a line that is none is told with its number.
    #[test]
    fn samples_are_read_or_refused() {
        let text = "# HELP a Some.\n# TYPE a counter\na_total 7\n\
                    b{x=\"1\",y=\"a \\\"}, \\\\ \\n b\"} 2.5 # {id=\"7\"} 1\n\
                    c{} NaN\nd{le=\"+Inf\"} 1e3\n# EOF\n";
        let scrape = Scrape::read(text).unwrap();
        assert_eq!(scrape.one("a_total"), Some(7.0));
        let b = &scrape.all("b")[0];
        assert_eq!((b.label("x"), b.value), (Some("1"), 2.5));
        assert_eq!(b.label("y"), Some("a \"}, \\ \n b"));
        assert!(scrape.one("c").unwrap().is_nan());
        assert_eq!(scrape.one("d"), Some(1000.0));
        assert_eq!(scrape.one("e"), None);
        for (text, line) in [
            ("<html>", 1),
            ("a 1\nb{x=\"1 2", 2),
            ("a 1\n\nb", 3),
            ("a one", 1),
            ("a{x=1} 1", 1),
            ("\u{1b}[2J 1", 1),
        ] {
            let told = Scrape::read(text).unwrap_err();
            assert_eq!(told, format!("its line {line} is no metric"), "{text:?}");
        }
    }

    fn histogram(counts: [f64; 4]) -> Buckets {
        let bounds = [0.001, 0.01, 0.1, f64::INFINITY];
        let mut sum = 0.0;
        let up_to = bounds.into_iter().zip(counts).map(|(bound, count)| {
            sum += count;
            (bound, sum)
        });
        Buckets {
            up_to: up_to.collect(),
            sum: 1.0,
            count: counts.iter().sum(),
        }
    }

    // A quantile over all time hides the trouble of this minute: it is that of what came
    // since, and a server that was started anew has none for a moment.
    #[test]
    fn quantiles_are_of_what_came_since() {
        let before = histogram([100.0, 0.0, 0.0, 0.0]);
        let now = histogram([100.0, 50.0, 50.0, 0.0]);
        let since = now.since(&before).unwrap();
        assert_eq!(since.count, 100.0);
        assert!((since.quantile(0.25).unwrap() - 0.0055).abs() < 1e-9);
        assert!((since.quantile(0.5).unwrap() - 0.01).abs() < 1e-9);
        assert!((since.quantile(0.99).unwrap() - 0.0982).abs() < 1e-9);
        assert_eq!(before.since(&now), None, "begun anew");
        assert_eq!(now.since(&now).unwrap().quantile(0.99), None);
        assert_eq!(now.since(&now).unwrap().mean(), None);
        let slow = histogram([0.0, 0.0, 0.0, 3.0]);
        assert_eq!(slow.quantile(0.5), Some(0.1), "no bound is above the last");
        assert_eq!(Buckets::default().quantile(0.5), None);
    }

    #[test]
    fn a_histogram_is_found_by_its_label() {
        let text = "h_bucket{le=\"1\",m=\"a\"} 2\nh_bucket{le=\"+Inf\",m=\"a\"} 3\n\
                    h_sum{m=\"a\"} 9\nh_count{m=\"a\"} 3\nh_sum{m=\"b\"} 1\nh_count{m=\"b\"} 1\n";
        let scrape = Scrape::read(text).unwrap();
        let a = scrape.buckets("h", Some(("m", "a"))).unwrap();
        assert_eq!(a.up_to, [(1.0, 2.0), (f64::INFINITY, 3.0)]);
        assert_eq!((a.sum, a.count, a.mean()), (9.0, 3.0, Some(3.0)));
        assert!(scrape.buckets("h", Some(("m", "c"))).is_none());
    }
}
