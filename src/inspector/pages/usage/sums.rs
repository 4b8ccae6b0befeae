//! Sums of the tokens of model calls by day and model.

use std::collections::{BTreeMap, HashSet};

use prost::Message;
use prost_types::Timestamp;

use crate::{
    parts::period::Period,
    prices::{Prices, Tokens},
};
use treering_present::json::rfc3339;
use treering_proto::pb;

/// Tokens and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub(super) tokens: Tokens,
    /// US dollars of the calls whose model has a price.
    pub(super) dollars: f64,
    /// Calls whose model has no price.
    pub(super) unpriced: u64,
}

impl Amount {
    fn add(&mut self, tokens: &Tokens, cost: Option<f64>) {
        self.tokens.add(tokens);
        match cost {
            Some(cost) => self.dollars += cost,
            None => self.unpriced += tokens.calls,
        }
    }
}

/// Tokens by day and model.
#[derive(Debug, Default)]
pub(super) struct UsageSums {
    /// By day in UTC (`2026-01-31`) and model. The model may be empty.
    cells: BTreeMap<(String, String), Tokens>,
    /// Ids of messages that are counted. A source may record one answer as several messages with
    /// the usage of all.
    counted: HashSet<String>,
}

impl UsageSums {
    /// Adds the call of a message if it has a usage and is in the period. `model` is that of the
    /// conversation, for usages that name none. The newest message of an id counts, so events are
    /// added newest first.
    pub(super) fn add_event(&mut self, event: &pb::Event, model: &str, period: &Period) {
        let Some(pb::event::Body::MessageAppended(body)) = &event.body else {
            return;
        };
        let Ok(message) = pb::MessageAppended::decode(body.as_ref()) else {
            return;
        };
        let at = event.occurred_at.as_ref().or(event.recorded_at.as_ref());
        let (Some(usage), Some(at)) = (&message.usage, at) else {
            return;
        };
        let id = &message.message_id;
        if !period.has(at) || !(id.is_empty() || self.counted.insert(id.clone())) {
            return;
        }
        let raw = message.raw.as_ref().map_or("", |raw| raw.model.as_str());
        let names = [usage.model.as_str(), raw, model].into_iter();
        let model = names.into_iter().find(|name| !name.is_empty());
        let tokens = Tokens {
            calls: 1,
            input: usage.input_tokens,
            cache_read: usage.cache_read_input_tokens,
            cache_write: usage.cache_creation_input_tokens,
            output: usage.output_tokens,
        };
        let cell = (day(at), model.unwrap_or_default().to_owned());
        self.cells.entry(cell).or_default().add(&tokens);
    }

    /// Adds the sums of another conversation.
    pub(super) fn add(&mut self, other: &Self) {
        for (cell, tokens) in &other.cells {
            self.cells.entry(cell.clone()).or_default().add(tokens);
        }
    }

    /// True without calls.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the sum of all calls.
    pub(super) fn total(&self, prices: &Prices) -> Amount {
        let mut total = Amount::default();
        for ((_, model), tokens) in &self.cells {
            total.add(tokens, prices.cost(model, tokens));
        }
        total
    }

    /// Returns the sums of each model, most tokens first.
    pub(super) fn by_model(&self, prices: &Prices) -> Vec<(String, Amount)> {
        let mut models = self.grouped(prices, |(_, model)| model);
        models.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.tokens.all()));
        models
    }

    /// Returns the sums of each day, oldest first.
    pub(super) fn by_day(&self, prices: &Prices) -> Vec<(String, Amount)> {
        self.grouped(prices, |(day, _)| day)
    }

    fn grouped(
        &self,
        prices: &Prices,
        name: impl Fn(&(String, String)) -> &String,
    ) -> Vec<(String, Amount)> {
        let mut groups: BTreeMap<&String, Amount> = BTreeMap::new();
        for (cell, tokens) in &self.cells {
            let cost = prices.cost(&cell.1, tokens);
            groups.entry(name(cell)).or_default().add(tokens, cost);
        }
        let groups = groups.into_iter();
        groups
            .map(|(name, amount)| (name.clone(), amount))
            .collect()
    }
}

/// Returns the day of a time in UTC.
fn day(at: &Timestamp) -> String {
    let mut text = rfc3339(at).unwrap_or_default();
    text.truncate("2026-01-31".len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_context::PageQuery;

    fn message(id: &str, model: &str, seconds: i64, output: u64) -> pb::Event {
        let usage = pb::Usage {
            input_tokens: 10,
            output_tokens: output,
            model: model.to_owned(),
            ..Default::default()
        };
        let message = pb::MessageAppended {
            message_id: id.to_owned(),
            usage: Some(usage),
            ..Default::default()
        };
        pb::Event {
            recorded_at: Some(Timestamp { seconds, nanos: 0 }),
            body: Some(pb::event::Body::MessageAppended(
                message.encode_to_vec().into(),
            )),
            ..Default::default()
        }
    }

    // Claude Code writes one answer as several lines with the same id and growing usage: counted
    // each time, a session would seem to cost several times as much.
    #[test]
    fn answer_in_several_messages_is_one_call() {
        let mut sums = UsageSums::default();
        let everything = Period::default();
        for event in [
            message("b", "claude-sonnet-4", 90_000, 7),
            message("a", "", 20, 5),
            message("a", "", 10, 1),
        ] {
            sums.add_event(&event, "gpt-4o", &everything);
        }
        sums.add_event(&pb::Event::default(), "", &everything);
        let prices = Prices::default();
        let total = sums.total(&prices);
        assert_eq!((total.tokens.calls, total.tokens.output), (2, 12));
        assert_eq!(total.unpriced, 2);
        let names = |groups: Vec<(String, Amount)>| -> Vec<(String, u64)> {
            let of = groups.into_iter();
            of.map(|(name, amount)| (name, amount.tokens.output))
                .collect()
        };
        let models = [("claude-sonnet-4".to_owned(), 7), ("gpt-4o".to_owned(), 5)];
        assert_eq!(names(sums.by_model(&prices)), models);
        let days = [("1970-01-01".to_owned(), 5), ("1970-01-02".to_owned(), 7)];
        assert_eq!(names(sums.by_day(&prices)), days);
        let mut second_day = UsageSums::default();
        let period = Period::of(&PageQuery::of("since=1970-01-02")).unwrap();
        second_day.add_event(&message("b", "", 90_000, 7), "", &period);
        second_day.add_event(&message("a", "", 20, 5), "", &period);
        assert_eq!(second_day.total(&prices).tokens.output, 7);
    }
}
