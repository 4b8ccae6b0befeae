//! Notes about the answer of a search: the number of hits, and alternatives that the user may have
//! meant.

use super::{
    super::{
        connect::Connection,
        names::{self, SCHEME, split},
        pb,
        text::{address, count, printable, things},
    },
    Role, SearchArgs,
};

/// A text contains all of the query if its share of the query is above this. The limit is below 1
/// because of rounding.
const ALL_TOGETHER: f32 = 0.999;

/// The parts of the query that the notes need.
pub(super) struct QueryNotes {
    /// The query text on one line.
    text: String,
    tools: Vec<String>,
    /// The role filter is `tool`, and there is no kind filter.
    tool_messages: bool,
    limit: Option<u32>,
    offset: u32,
    /// There are both a role filter and a tool or path filter, which no event can pass together.
    roles_and_calls: bool,
    /// Hits have no score and come newest first: there is a regular expression, or no query.
    pub(super) is_regex: bool,
    /// There is no query: everything that passes the filters is listed.
    pub(super) is_listing: bool,
    /// The user gave a regular expression.
    is_typed_regex: bool,
    /// Only successes, or only failures.
    outcome: Option<&'static str>,
}

impl QueryNotes {
    pub(super) fn of(args: &SearchArgs) -> Self {
        Self {
            text: args.typed(),
            tools: args.tool.clone(),
            tool_messages: args.role.contains(&Role::Tool) && args.kind.is_empty(),
            limit: args.limit,
            offset: args.offset,
            roles_and_calls: !args.role.is_empty()
                && (!args.tool.is_empty() || !args.path.is_empty()),
            is_regex: args.regex,
            is_listing: false,
            is_typed_regex: args.regex,
            outcome: match (args.success, args.failed) {
                (true, _) => Some("--success"),
                (_, true) => Some("--failed"),
                _ => None,
            },
        }
    }

    /// Returns the maximum number of hits to show.
    pub(super) fn hits_max(&self) -> usize {
        let limit = self.limit.map(usize::try_from);
        limit.and_then(Result::ok).unwrap_or(usize::MAX)
    }

    /// Returns the conversations to show, out of all conversations with hits.
    pub(super) fn conversations<'a>(
        &self,
        all: &'a [pb::ConversationHits],
    ) -> &'a [pb::ConversationHits] {
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let rest = all.get(number(self.offset)..).unwrap_or_default();
        let most = self.limit.map_or(rest.len(), number);
        &rest[..most.min(rest.len())]
    }

    /// Returns a note with the numbers of shown and of all hits.
    pub(super) fn note(&self, answer: &pb::SearchResponse) -> String {
        let shown = answer.hits.len() as u64;
        let total = answer.total.max(shown);
        let mut note = match total {
            0 if answer.more_than_total => "Nothing found in the newest texts that were scanned; \
                                            older ones may match. Use a longer word, or narrow \
                                            with --source, --kind or --until."
                .to_owned(),
            0 if !self.tools.is_empty() && !self.roles_and_calls => format!(
                "Nothing found in calls and results of {}; `treering tools CONVERSATION` lists \
                 tool names.",
                printable(&self.tools.join(", "))
            ),
            0 => "Nothing found.".to_owned(),
            // The search stopped after the shown hits.
            _ if answer.more_than_total && total <= shown + u64::from(self.offset) => format!(
                "{}, and there are more: -n N shows more of them, --count counts them",
                things(shown, "hit", "hits")
            ),
            _ => {
                let more = if answer.more_than_total {
                    "more than "
                } else {
                    ""
                };
                format!("{} of {more}{}", count(shown), things(total, "hit", "hits"))
            }
        };
        if self.is_listing {
            note.push_str(" (no words: everything that matches the filters, newest first)");
        } else if self.is_regex && !self.is_typed_regex {
            note.push_str(" (no words: searched for the exact characters, newest first)");
        }
        if answer.read_as == i32::from(pb::QueryMode::Query) {
            note.push_str(" (read as a query; --plain reads words)");
        } else if !self.is_regex && self.text.split_whitespace().any(|word| word == "NOT") {
            note.push_str(" (NOT was read as a word; --query makes it an operator)");
        }
        note
    }

    /// Returns notes that follow from the answer itself.
    pub(super) fn told(&self, answer: &pb::SearchResponse) -> Vec<String> {
        let mut told = Vec::new();
        if answer.parts_only {
            let name = printable(&self.text);
            told.push(format!(
                "Nothing contains all of `{name}`; these contain its parts."
            ));
        }
        if let (Some(hidden), Some(outcome)) = (&answer.hidden, self.outcome) {
            let place = address(&hidden.source_id, &hidden.conversation_id, hidden.revision);
            let has = match hidden.together > ALL_TOGETHER {
                true => "matches the whole query",
                false => "matches more of the query",
            };
            told.push(format!("Without {outcome}, {place} {has}."));
        }
        told
    }

    /// Returns alternatives that the user may have meant.
    pub(super) async fn hints(&self, store: &Connection) -> Vec<String> {
        let mut hints = Vec::new();
        if self.roles_and_calls {
            hints.push(
                "--role filters messages, --tool and --path filter calls and results: no event \
                 matches both"
                    .to_owned(),
            );
        }
        if self.tool_messages {
            hints.push(
                "--role filters messages, and tool results are not messages: use --kind \
                 tool_result_recorded"
                    .to_owned(),
            );
        }
        // `file.rs#12` names an event only if such a conversation exists.
        let may_be_place = split(&self.text).is_some() && !self.text.contains(' ');
        if may_be_place && names::find(store, &self.text).await.is_ok() {
            let place = printable(&self.text);
            hints.push(if self.text.starts_with(SCHEME) {
                format!("That is a reference: `treering result {place}` prints it")
            } else {
                format!("That is an event: `treering log {place}` shows it and its neighbours")
            });
        }
        hints
    }
}
