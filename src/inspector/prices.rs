//! What model calls cost: the prices that an operator has in a file.

use std::{collections::HashMap, fs, io, path::Path};

use serde::Deserialize;

/// Largest file of prices, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Tokens of model calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Model calls.
    pub(crate) calls: u64,
    /// Input tokens that the prompt cache neither served nor stored.
    pub(crate) input: u64,
    /// Input tokens that the prompt cache served.
    pub(crate) cache_read: u64,
    /// Input tokens that were written to the prompt cache.
    pub(crate) cache_write: u64,
    /// Output tokens.
    pub(crate) output: u64,
}

impl Tokens {
    /// Adds the tokens of other calls.
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.input += other.input;
        self.cache_read += other.cache_read;
        self.cache_write += other.cache_write;
        self.output += other.output;
    }

    /// Returns all tokens.
    #[must_use]
    pub(crate) fn all(&self) -> u64 {
        self.input + self.cache_read + self.cache_write + self.output
    }
}

/// Prices of one model, in US dollars a token. The names are those of `LiteLLM`'s list of models.
#[derive(Clone, Copy, Debug, Deserialize)]
struct ModelPrice {
    input_cost_per_token: f64,
    output_cost_per_token: f64,
    cache_read_input_token_cost: Option<f64>,
    cache_creation_input_token_cost: Option<f64>,
}

/// Prices of models by name.
#[derive(Debug, Default)]
pub struct Prices(HashMap<String, ModelPrice>);

impl Prices {
    /// Reads a JSON file: an object of models, each with `input_cost_per_token` and
    /// `output_cost_per_token` in US dollars, and optionally `cache_read_input_token_cost` and
    /// `cache_creation_input_token_cost`. Models without the first two are left out, so that a
    /// published list with images and embeddings can be used as it is.
    ///
    /// # Errors
    /// If the file cannot be read, exceeds 16 MiB, is not such an object, or has no price.
    pub fn read(path: &Path) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(invalid("it is larger than 16 MiB".to_owned()));
        }
        let models: HashMap<String, serde_json::Value> =
            serde_json::from_slice(&fs::read(path)?)
                .map_err(|error| invalid(format!("not a JSON object of models: {error}")))?;
        let priced = models.into_iter().filter_map(|(name, model)| {
            let price = serde_json::from_value::<ModelPrice>(model).ok()?;
            Some((name, price))
        });
        let prices = Self(priced.collect());
        if prices.0.is_empty() {
            return Err(invalid(
                "no model in it has input_cost_per_token and output_cost_per_token".to_owned(),
            ));
        }
        Ok(prices)
    }

    /// True without prices.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what calls of a model cost, in US dollars. `None`: the model has no price. Cached
    /// tokens without a price of their own cost as much as other input.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // Sums of money are shown in cents.
    pub(crate) fn cost(&self, model: &str, tokens: &Tokens) -> Option<f64> {
        let price = self.of_model(model)?;
        let input = price.input_cost_per_token;
        let read = price.cache_read_input_token_cost.unwrap_or(input);
        let write = price.cache_creation_input_token_cost.unwrap_or(input);
        Some(
            tokens.input as f64 * input
                + tokens.cache_read as f64 * read
                + tokens.cache_write as f64 * write
                + tokens.output as f64 * price.output_cost_per_token,
        )
    }

    /// Finds a model by its name, or by its name without the provider before `/` or without the
    /// date of its version at the end.
    fn of_model(&self, model: &str) -> Option<&ModelPrice> {
        let name = model.rsplit('/').next().unwrap_or(model);
        let names = [Some(model), Some(name), undated(name)];
        names
            .into_iter()
            .flatten()
            .find_map(|name| self.0.get(name))
    }
}

/// Removes a date such as `-20250929`, `@20250929` or `-2025-09-29` from the end of a name.
fn undated(name: &str) -> Option<&str> {
    let dates = ["-20250929", "-2025-09-29"].into_iter();
    let mut tails =
        dates.filter_map(|date| name.split_at_checked(name.len().checked_sub(date.len())?));
    let is_date = |tail: &str| {
        let date = tail.strip_prefix(['-', '@']).unwrap_or_default();
        let digits = date.replace('-', "");
        digits.len() == DATE_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    tails.find_map(|(name, tail)| is_date(tail).then_some(name))
}

/// Digits of a date.
const DATE_DIGITS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> io::Result<Prices> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.json");
        fs::write(&path, json).unwrap();
        Prices::read(&path)
    }

    // Providers add the date of a version to a model's name, and routers put the provider before it.
    // A larger or smaller model of the same family must not get the wrong price.
    #[test]
    fn model_has_the_price_of_its_name() {
        let prices = of(r#"{
            "sample": {"max_tokens": "a text"},
            "claude-sonnet-4": {"input_cost_per_token": 3e-6, "output_cost_per_token": 15e-6,
                "cache_read_input_token_cost": 0.3e-6, "cache_creation_input_token_cost": 3.75e-6},
            "gpt-4o": {"input_cost_per_token": 2.5e-6, "output_cost_per_token": 10e-6}
        }"#)
        .unwrap();
        let tokens = Tokens {
            calls: 1,
            input: 1_000_000,
            cache_read: 1_000_000,
            cache_write: 1_000_000,
            output: 1_000_000,
        };
        let cents = |model| {
            prices
                .cost(model, &tokens)
                .map(|cost| (cost * 100.0).round())
        };
        assert_eq!(cents("claude-sonnet-4"), Some(2_205.0));
        assert_eq!(cents("anthropic/claude-sonnet-4"), Some(2_205.0));
        assert_eq!(cents("claude-sonnet-4-20250514"), Some(2_205.0));
        assert_eq!(cents("gpt-4o-2024-11-20"), Some(1_750.0));
        for unknown in ["claude-sonnet-4-5", "gpt-4o-mini", "gpt-4", "", "sample"] {
            assert_eq!(cents(unknown), None, "{unknown}");
        }
    }

    // A wrong file must be noticed at the start, and not by missing costs.
    #[test]
    fn file_without_prices_is_refused() {
        for wrong in ["", "[]", "{}", r#"{"gpt-4o": {"input": 1}}"#] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
