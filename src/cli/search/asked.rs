//! What a search says of its answer: how many hits there are, and what may have been
//! meant instead.

use super::{
    super::{
        connect::Connection,
        names::{self, SCHEME, split},
        pb,
        text::{address, count, printable, things},
    },
    Role, SearchArgs,
};

/// What has so much of a query has all of it, but for what rounding takes.
const ALL_TOGETHER: f32 = 0.999;

/// What was asked, as far as notes about the answer need it.
pub(super) struct Asked {
    /// One line.
    text: String,
    tools: Vec<String>,
    /// Messages with the role of a tool, and no kind.
    tool_messages: bool,
    limit: Option<u32>,
    offset: u32,
    /// Two filters that no event passes both are told apart from what is not there.
    roles_and_calls: bool,
    /// It was matched against texts, newest first.
    pub(super) is_regex: bool,
    /// There was nothing to look for: what the filters let through is listed.
    pub(super) is_listing: bool,
    /// It was given as an expression.
    is_typed_regex: bool,
    /// Only what worked, or what failed.
    outcome: Option<&'static str>,
}

impl Asked {
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

    /// Hits that are to be shown.
    pub(super) fn hits_max(&self) -> usize {
        let limit = self.limit.map(usize::try_from);
        limit.and_then(Result::ok).unwrap_or(usize::MAX)
    }

    /// Those of all conversations with hits that are to be shown.
    pub(super) fn conversations<'a>(
        &self,
        all: &'a [pb::ConversationHits],
    ) -> &'a [pb::ConversationHits] {
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let rest = all.get(number(self.offset)..).unwrap_or_default();
        let most = self.limit.map_or(rest.len(), number);
        &rest[..most.min(rest.len())]
    }

    /// How many hits there are of how many.
    pub(super) fn note(&self, answer: &pb::SearchResponse) -> String {
        let shown = answer.hits.len() as u64;
        let total = answer.total.max(shown);
        let mut note = match total {
            0 if answer.more_than_total => "Nothing found in the newest texts that were read; \
                there are older ones that it may be in. Give it a longer word, or fewer texts: \
                --source, --kind, --until."
                .to_owned(),
            0 if !self.tools.is_empty() && !self.roles_and_calls => format!(
                "Nothing found in calls and results of {}; `treering tools CONVERSATION` has the \
                 names of tools.",
                printable(&self.tools.join(", "))
            ),
            0 => "Nothing found.".to_owned(),
            // It was looked no further than for what is shown.
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
            note.push_str(" (no words: what the filters let through, newest first)");
        } else if self.is_regex && !self.is_typed_regex {
            note.push_str(" (there is no word in it: looked for as it stands, newest first)");
        }
        if answer.read_as == i32::from(pb::QueryMode::Query) {
            note.push_str(" (read as a query; --plain reads words)");
        } else if !self.is_regex && self.text.split_whitespace().any(|word| word == "NOT") {
            note.push_str(" (NOT was read as a word; --query makes it an operator)");
        }
        note
    }

    /// What the answer says of itself.
    pub(super) fn told(&self, answer: &pb::SearchResponse) -> Vec<String> {
        let mut told = Vec::new();
        if answer.parts_only {
            let name = printable(&self.text);
            told.push(format!("Nothing has `{name}` whole; these have its parts."));
        }
        if let (Some(hidden), Some(outcome)) = (&answer.hidden, self.outcome) {
            let place = address(&hidden.source_id, &hidden.conversation_id, hidden.revision);
            let has = match hidden.together > ALL_TOGETHER {
                true => "has all of the query",
                false => "has more of the query",
            };
            told.push(format!("Without {outcome}, {place} {has}."));
        }
        told
    }

    /// What may have been meant instead.
    pub(super) async fn hints(&self, store: &Connection) -> Vec<String> {
        let mut hints = Vec::new();
        if self.roles_and_calls {
            hints.push(
                "--role looks at messages, --tool and --path at calls and results: no event is \
                 both"
                    .to_owned(),
            );
        }
        if self.tool_messages {
            hints.push(
                "--role looks at messages, and what a tool returned is none: \
                 --kind tool_result_recorded looks there"
                    .to_owned(),
            );
        }
        // In `file.rs#12` a place is meant only when there is such a conversation.
        let may_be_place = split(&self.text).is_some() && !self.text.contains(' ');
        if may_be_place && names::find(store, &self.text).await.is_ok() {
            let place = printable(&self.text);
            hints.push(if self.text.starts_with(SCHEME) {
                format!("That is a reference: `treering result {place}` prints it")
            } else {
                format!("That is a place: `treering log {place}` reads around it")
            });
        }
        hints
    }
}
