//! Parses the parameters of a request in an address, and builds the request without a trace.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    failure::PageFailure,
    parts::place::{ConversationPlace, link},
    request_context::RequestContext,
};
use treering_context::Provider;
use treering_proto::pb;

/// When result digests replace finished calls: the value in an address, and its label.
pub(crate) const RESULTS: [(&str, &str); 4] = [
    ("", "policy’s"),
    ("keep", "kept in full"),
    ("turn-end", "digests at turn’s end"),
    ("older", "digests after 3 turns"),
];
/// The number of turns for `older`.
const OLDER_THAN_TURNS: u32 = 3;

/// The parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestParams {
    /// Provider of the body.
    pub(crate) provider: Provider,
    /// Branch.
    pub(crate) branch: String,
    /// In tokens; `None`: the policy's.
    pub(crate) budget: Option<u64>,
    /// As of this revision; `None`: now.
    pub(crate) as_of: Option<u64>,
    /// Model; empty: the conversation's.
    pub(crate) model: String,
    /// One of [`RESULTS`].
    pub(crate) results: String,
    /// JSON text that is merged into the conversation's policy; may be empty.
    pub(crate) policy: String,
}

/// A built request.
#[derive(Clone, Debug)]
pub(crate) struct RequestAnswer {
    /// Its explanation.
    pub(crate) told: pb::Explanation,
    /// Its body, as it would be sent.
    pub(crate) body: Bytes,
}

impl RequestParams {
    /// Parses the parameters of an address whose names begin with `prefix`; `branch` is the default
    /// branch.
    ///
    /// # Errors
    /// When a value is not valid.
    pub(crate) fn of(
        request_context: &RequestContext,
        prefix: &str,
        branch: &str,
    ) -> Result<Self, PageFailure> {
        let name = |name: &str| format!("{prefix}{name}");
        let text = |of: &str| {
            request_context
                .asked
                .text(&name(of))
                .unwrap_or_default()
                .to_owned()
        };
        let number = |of: &str| {
            let number = request_context.asked.number(&name(of))?;
            Ok::<_, PageFailure>(number.filter(|number| *number > 0))
        };
        let provider = match text("provider").as_str() {
            "" => Provider::default(),
            named => named.parse().map_err(|error| {
                PageFailure::asked(format!("{error}"), "use one of those on the page")
            })?,
        };
        let named = text("branch");
        let results: Vec<_> = RESULTS.iter().map(|(value, _)| *value).collect();
        let results = request_context.asked.one_of(&name("results"), &results)?;
        Ok(Self {
            provider,
            branch: if named.is_empty() {
                branch.to_owned()
            } else {
                named
            },
            budget: number("budget")?,
            as_of: number("as_of")?,
            model: text("model"),
            results: results.unwrap_or_default().to_owned(),
            policy: text("policy"),
        })
    }

    /// Checks whether the policy can be parsed, so that errors are reported before a request is
    /// built.
    ///
    /// # Errors
    /// When it cannot be parsed.
    pub(crate) fn check(&self) -> Result<(), PageFailure> {
        self.whole_policy().map(|_| ())
    }

    /// Builds the request. A request at the head with the conversation's own policy would be taken
    /// for a request that is sent, and the agent's next request would be compared with it. Such a
    /// request is therefore only explained, which leaves no trace, and its body is built with the
    /// same policy, given explicitly.
    ///
    /// # Errors
    /// Errors of the store, or if the policy cannot be parsed.
    pub(crate) async fn answer(
        &self,
        request_context: &RequestContext,
        conversation: &str,
    ) -> Result<RequestAnswer, PageFailure> {
        let request = pb::BuildRequest {
            conversation_id: conversation.to_owned(),
            branch: self.branch.clone(),
            as_of_revision: self.as_of.unwrap_or(0),
            provider: self.provider.number(),
            model: self.model.clone(),
            policy: self.whole_policy()?.into(),
            at_least: None,
            long_term: None,
        };
        let mut contexts = request_context.store.contexts();
        let build = contexts.build(pb::BuildRequest {
            policy: match request.policy.is_empty() {
                true => Bytes::from_static(b"{}"),
                false => request.policy.clone(),
            },
            ..request.clone()
        });
        let is_next = request.policy.is_empty() && self.as_of.is_none();
        let (built, explained) = tokio::try_join!(build, async {
            match is_next {
                true => request_context
                    .store
                    .contexts()
                    .explain(request)
                    .await
                    .map(Some),
                false => Ok(None),
            }
        })?;
        let built = built.into_inner();
        let explained = explained.and_then(|answer| answer.into_inner().explanation);
        Ok(RequestAnswer {
            told: explained.or(built.explanation).unwrap_or_default(),
            body: built.request,
        })
    }

    /// Returns the policy with the values of the form fields; empty if there is none.
    fn whole_policy(&self) -> Result<Vec<u8>, PageFailure> {
        let unreadable = |what: String| {
            PageFailure::asked(
                format!("invalid policy: {what}"),
                r#"write it as a JSON object, for example {"budget_tokens": 16000}"#,
            )
        };
        let mut policy = match self.policy.as_str() {
            "" => Map::new(),
            text => match serde_json::from_str(text) {
                Ok(Value::Object(policy)) => policy,
                Ok(_) => return Err(unreadable("it must be a JSON object".into())),
                Err(error) => return Err(unreadable(error.to_string())),
            },
        };
        if let Some(budget) = self.budget {
            policy.insert("budget_tokens".into(), budget.into());
        }
        let results = match self.results.as_str() {
            "keep" => Some(json!("keep")),
            "turn-end" => Some(json!("turn_end")),
            "older" => Some(json!({ "older_than_turns": OLDER_THAN_TURNS })),
            _ => None,
        };
        if let Some(results) = results {
            policy.insert("tool_results".into(), results);
        }
        match policy.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(Value::Object(policy).to_string().into_bytes()),
        }
    }

    fn pairs(&self) -> [(&'static str, String); 7] {
        let number = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
        [
            ("provider", self.provider.as_str().to_owned()),
            ("branch", self.branch.clone()),
            ("budget", number(self.budget)),
            ("as_of", number(self.as_of)),
            ("model", self.model.clone()),
            ("results", self.results.clone()),
            ("policy", self.policy.clone()),
        ]
    }

    /// Returns the address of its page.
    #[must_use]
    pub(crate) fn address(
        &self,
        request_context: &RequestContext,
        place: &ConversationPlace,
    ) -> String {
        self.at(request_context, place, "/request")
    }

    /// Returns the address of its body.
    #[must_use]
    pub(crate) fn body_address(
        &self,
        request_context: &RequestContext,
        place: &ConversationPlace,
    ) -> String {
        self.at(request_context, place, "/request/body")
    }

    fn at(
        &self,
        request_context: &RequestContext,
        place: &ConversationPlace,
        tail: &str,
    ) -> String {
        let pairs = self.pairs();
        let pairs = pairs
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        link(request_context, &place.id, tail, &pairs)
    }

    /// Describes the parameters that distinguish the request from others.
    #[must_use]
    pub(crate) fn words(&self) -> String {
        let mut words = vec![self.provider.as_str().to_owned(), self.branch.clone()];
        words.extend(self.budget.map(|budget| format!("{budget} tokens")));
        words.extend(self.as_of.map(|revision| format!("at #{revision}")));
        let results = RESULTS
            .iter()
            .find(|(value, _)| *value == self.results && !value.is_empty());
        words.extend(results.map(|(_, word)| (*word).to_owned()));
        words.extend(
            [&self.model, &self.policy]
                .into_iter()
                .filter(|text| !text.is_empty())
                .cloned(),
        );
        words.join(" · ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> RequestParams {
        RequestParams {
            provider: Provider::default(),
            branch: "main".into(),
            budget: None,
            as_of: None,
            model: String::new(),
            results: String::new(),
            policy: String::new(),
        }
    }

    // Form fields must override the policy. Empty fields must send nothing, or the result would not
    // be the next request.
    #[test]
    fn form_fields_override_the_policy() {
        assert!(ask().whole_policy().unwrap().is_empty());
        let ask = RequestParams {
            budget: Some(7),
            results: "older".into(),
            policy: r#"{"budget_tokens": 5, "max_output_tokens": 9}"#.into(),
            ..ask()
        };
        assert_eq!(
            String::from_utf8(ask.whole_policy().unwrap()).unwrap(),
            r#"{"budget_tokens":7,"max_output_tokens":9,"tool_results":{"older_than_turns":3}}"#
        );
        for wrong in ["[1]", "{", "x"] {
            let wrong = RequestParams {
                policy: wrong.into(),
                ..ask.clone()
            };
            assert!(wrong.whole_policy().is_err());
        }
    }
}
