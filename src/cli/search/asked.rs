//! What a search says of its answer: how many hits there are, and what may have been
//! meant instead.

use super::{
    super::{
        connect::Connection,
        names::{self, SCHEME, split},
        pb,
        text::{count, printable, things},
    },
    Role, SearchArgs,
};

/// What was asked, as far as notes about the answer need it.
pub(super) struct Asked {
    /// One line.
    text: String,
    tools: Vec<String>,
    /// Messages with the role of a tool, and no kind.
    tool_messages: bool,
    limit: Option<u32>,
    offset: u32,
}

impl Asked {
    pub(super) fn of(args: &SearchArgs) -> Self {
        Self {
            text: args.words.join(" "),
            tools: args.tool.clone(),
            tool_messages: args.role.contains(&Role::Tool) && args.kind.is_empty(),
            limit: args.limit,
            offset: args.offset,
        }
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
            0 if !self.tools.is_empty() => format!(
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
        if answer.read_as == i32::from(pb::QueryMode::Query) {
            note.push_str(" (read as a query; --plain reads words)");
        }
        note
    }

    /// What may have been meant instead.
    pub(super) async fn hints(&self, store: &Connection) -> Vec<String> {
        let mut hints = Vec::new();
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
