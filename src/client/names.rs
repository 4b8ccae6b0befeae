//! Resolves the names of conversations on the command line. All commands use this one resolver, and
//! it uses the same calls as any client.
//!
//! A name is one of these:
//!
//! - a complete UUID or source id;
//! - a prefix or suffix of one, if it matches only one conversation and its agents;
//! - `@last`, `@2` and so on, in the order of `ls`, not counting the long-term context;
//! - several words of a title, or the whole title.
//!
//! A single word is often a mistyped id, so it only yields suggestions. `NAME#REVISION`, as
//! commands print it, names one event.

mod mistyped;

use std::collections::{BTreeSet, HashMap};

use strsim::jaro_winkler;
use tonic::Code;

use super::{
    connect::Connection,
    error::ClientError,
    pb, read,
    text::{first_line, printable, short_id},
};
use treering_engine::LONG_TERM_LABEL;

/// Conversations per page, the same as in `ls`, so that both agree on which one is `@last`.
const PAGE: u32 = 500;
/// Maximum number of conversations that are requested for a part of an id.
const NAMED_MAX: u32 = 100;
/// Minimum length, in bytes, of a part of an id or of words of a title.
const PART_BYTES_MIN: usize = 2;
/// Minimum number of characters of an id that are shown when short forms are equal.
const APART_CHARS_MIN: usize = 8;
/// Maximum number of conversations that an error lists.
const LISTED_MAX: usize = 6;
/// Maximum number of similar names that an error suggests.
const NEAR_MAX: usize = 3;
/// Ids in an error are cut to this many characters; nobody types a longer one.
const ID_CHARS: usize = 120;
/// Titles in an error are cut to this many characters.
const TITLE_CHARS: usize = 40;
/// Minimum similarity, from 0 to 1, at which a name is suggested for another.
const NEAR: f64 = 0.82;
/// Prefix of references to results.
pub const SCHEME: &str = "treering:";

/// A conversation, and optionally one event of it.
#[derive(Clone, Debug)]
pub struct FoundConversation {
    /// The conversation's id, as every call accepts it.
    pub id: String,
    /// The revision that was named with it.
    pub revision: Option<u64>,
    /// The state of the conversation; `None`: it exists but cannot be read completely.
    pub state: Option<pb::ConversationState>,
}

impl FoundConversation {
    /// Returns the name of the conversation for messages.
    #[must_use]
    pub fn called(&self) -> String {
        let summary = self.state.as_ref().and_then(|state| state.summary.as_ref());
        let called = summary.map_or(self.id.as_str(), |summary| {
            short_id(&summary.source_id, &summary.conversation_id)
        });
        printable(called)
    }
}

/// Finds the conversation that a text names.
///
/// # Errors
/// [`ClientError::NotFound`] with similar names; [`ClientError::Usage`] when several match; errors
/// of the store.
pub async fn find(store: &Connection, text: &str) -> Result<FoundConversation, ClientError> {
    if let Some(found) = exactly(store, text, None).await? {
        return Ok(found);
    }
    let (name, revision) = match split(text) {
        Some((name, revision)) => (name, Some(revision)),
        None => (text, None),
    };
    let found = match by_name(store, name).await {
        Err(error @ ClientError::NotFound { .. }) => {
            // Perhaps the conversation exists, and only the part after its name is wrong.
            let Some((name, rest)) = mistyped::halves(text) else {
                return Err(error);
            };
            return Err(match by_name(store, name).await {
                Ok(found) => mistyped::no_such_revision(text, rest, &found),
                Err(_) => error,
            });
        }
        found => found?,
    };
    if revision == Some(0) {
        return Err(mistyped::no_zeroth(&found));
    }
    Ok(FoundConversation { revision, ..found })
}

/// Like [`find`], for a name in an address: an id, a part of one, or `@last`, but not words of a
/// title.
///
/// # Errors
/// As [`find`].
pub async fn find_by_id(store: &Connection, text: &str) -> Result<FoundConversation, ClientError> {
    resolved(store, text, ByTitle::Never).await
}

/// Whether the words of a title can name a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByTitle {
    Never,
    Several,
}

/// Finds the conversation for a name without a revision.
async fn by_name(store: &Connection, name: &str) -> Result<FoundConversation, ClientError> {
    resolved(store, name, ByTitle::Several).await
}

async fn resolved(
    store: &Connection,
    name: &str,
    by_title: ByTitle,
) -> Result<FoundConversation, ClientError> {
    if let Some(found) = exactly(store, name, None).await? {
        return Ok(found);
    }
    let id = match counted(name) {
        Some(number) => newest(store, number).await?,
        None if is_no_number(name) => {
            return Err(ClientError::Usage {
                what: format!("`{}` is not a conversation", printable(name)),
                hint: "@last or @1 is the newest, @2 the one before it".into(),
            });
        }
        None => by_part(store, name, by_title).await?,
    };
    let found = exactly(store, &id, None).await?;
    found.ok_or_else(|| not_found(name, &[]))
}

/// Splits `NAME#REVISION` or a reference to a result into name and revision.
#[must_use]
pub fn split(text: &str) -> Option<(&str, u64)> {
    let (name, revision) = match text.strip_prefix(SCHEME) {
        Some(reference) => reference
            .rsplit_once('/')
            .or_else(|| reference.rsplit_once('#'))?,
        None => text.rsplit_once('#')?,
    };
    let revision = revision.trim_start_matches('#').parse().ok()?;
    let name = name.trim_end();
    (!name.is_empty()).then_some((name, revision))
}

/// Returns the number in a name such as `@2`; `@last` is 1.
fn counted(name: &str) -> Option<usize> {
    match name.strip_prefix('@')? {
        "last" => Some(1),
        number => number.parse().ok().filter(|number| *number > 0),
    }
}

/// Returns true for `@` and a number, as in `@0` or `@-1`. Such a name is a mistyped `@2`, never
/// words of a title.
fn is_no_number(name: &str) -> bool {
    let number = name.strip_prefix('@').map(str::parse::<i128>);
    number.is_some_and(|number| number.is_ok())
}

/// Finds the conversation with exactly this name, if any.
async fn exactly(
    store: &Connection,
    name: &str,
    revision: Option<u64>,
) -> Result<Option<FoundConversation>, ClientError> {
    match read::state(store, name, "", 0).await {
        Ok(state) => {
            let summary = state.summary.as_ref();
            Ok(Some(FoundConversation {
                id: summary.map_or_else(|| name.to_owned(), |s| s.conversation_id.clone()),
                revision,
                state: Some(state),
            }))
        }
        Err(ClientError::Status(status)) if status.code() == Code::NotFound => Ok(None),
        // It exists: the command that follows reports the damage.
        Err(ClientError::Status(status)) if status.code() == Code::DataLoss => {
            Ok(Some(FoundConversation {
                id: name.to_owned(),
                revision,
                state: None,
            }))
        }
        Err(error) => Err(error),
    }
}

/// Returns true for the conversation that holds the long-term context. It may change at any time
/// and is not a session, so `@last` skips it.
#[must_use]
pub fn is_long_term(summary: &pb::ConversationSummary) -> bool {
    summary.labels.contains_key(LONG_TERM_LABEL)
}

/// Returns the id at position `number` of the list, from 1.
async fn newest(store: &Connection, number: usize) -> Result<String, ClientError> {
    let mut seen = 0;
    let mut page_token = String::new();
    loop {
        let page = page(store, page_token).await?;
        let mut had = page.conversations.iter().filter(|one| !is_long_term(one));
        if let Some(summary) = had.nth(number - seen - 1) {
            return Ok(summary.conversation_id.clone());
        }
        seen += page
            .conversations
            .iter()
            .filter(|one| !is_long_term(one))
            .count();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Err(ClientError::NotFound {
                what: format!("no conversation @{number}: the store has {seen}"),
                hint: "`treering ls` lists them, @last first".into(),
            });
        }
    }
}

async fn page(
    store: &Connection,
    page_token: String,
) -> Result<pb::ListConversationsResponse, ClientError> {
    let request = pb::ListConversationsRequest {
        page_size: PAGE,
        page_token,
        order: pb::ListOrder::Happened.into(),
        ..Default::default()
    };
    Ok(store.conversations().list(request).await?.into_inner())
}

/// Finds the only conversation that matches a part of an id, or words of a title.
async fn by_part(store: &Connection, name: &str, by_title: ByTitle) -> Result<String, ClientError> {
    if name.len() < PART_BYTES_MIN {
        return Err(ClientError::Usage {
            what: format!(
                "`{}` is too short to identify a conversation",
                printable(name)
            ),
            hint: "type more of an id, or words of a title; `treering ls` lists them".into(),
        });
    }
    let small = name.to_lowercase();
    let parts = [Some(name), Some(&*small).filter(|small| *small != name)];
    for part in parts.into_iter().flatten() {
        let request = pb::FindConversationsRequest {
            id_part: part.to_owned(),
            limit: NAMED_MAX,
        };
        let found = store.conversations().find(request).await?.into_inner();
        if !found.conversations.is_empty() {
            return only(part, &found.conversations, found.more);
        }
    }
    // No id matches, so the titles of all conversations are searched.
    let mut meant = NameMatches::new(name);
    let mut page_token = String::new();
    loop {
        let page = page(store, page_token).await?;
        for summary in page.conversations {
            meant.look_at(summary);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return meant.only(by_title);
        }
    }
}

/// Conversations whose titles match the name.
struct NameMatches<'a> {
    name: &'a str,
    /// The words of the name, in lower case.
    words: Vec<String>,
    found: Vec<pb::ConversationSummary>,
    /// Similar names with their scores, used if nothing matches.
    near: Vec<(f64, pb::ConversationSummary)>,
}

impl<'a> NameMatches<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            name,
            words: words(name).collect(),
            found: Vec::new(),
            near: Vec::new(),
        }
    }

    fn look_at(&mut self, summary: pb::ConversationSummary) {
        if self.is_in_title(&summary) {
            self.found.push(summary);
        } else if self.found.is_empty() {
            let near = nearness(self.name, &summary);
            if near >= NEAR {
                self.near.push((near, summary));
                self.near.sort_by(|one, other| other.0.total_cmp(&one.0));
                self.near.truncate(NEAR_MAX);
            }
        }
    }

    /// True when the title has all words of the name.
    fn is_in_title(&self, summary: &pb::ConversationSummary) -> bool {
        let mut of_title = words(&summary.title).collect::<Vec<_>>();
        of_title.sort_unstable();
        let has = |word: &String| of_title.binary_search(word).is_ok();
        !self.words.is_empty() && self.words.iter().all(has)
    }

    fn only(self, by_title: ByTitle) -> Result<String, ClientError> {
        if self.found.is_empty() {
            let near: Vec<_> = self.near.into_iter().map(|(_, summary)| summary).collect();
            return Err(not_found(self.name, &near));
        }
        let several = self.name.split_whitespace().nth(1).is_some();
        let is_whole =
            |one: &pb::ConversationSummary| one.title.trim().eq_ignore_ascii_case(self.name.trim());
        let names_one = several || self.found.iter().any(is_whole);
        if by_title == ByTitle::Never || !names_one {
            let near = &self.found[..self.found.len().min(NEAR_MAX)];
            return Err(not_found(self.name, near));
        }
        only(self.name, &self.found, false)
    }
}

/// Returns the only match, or an error that lists the matches. With `more`, the list is incomplete.
fn only(name: &str, found: &[pb::ConversationSummary], more: bool) -> Result<String, ClientError> {
    if let (Some(only), false) = (one_of(found), more) {
        return Ok(only.conversation_id.clone());
    }
    let more = if more { "more than " } else { "" };
    Err(ClientError::Usage {
        what: format!(
            "`{}` matches {more}{} conversations",
            printable(name),
            found.len()
        ),
        hint: format!("type more of it: {}", listed(name, found)),
    })
}

/// Returns the only conversation, or the parent of all the others. The id of an agent of a Claude
/// Code session begins with the session's id and `/`.
fn one_of(found: &[pb::ConversationSummary]) -> Option<&pb::ConversationSummary> {
    let is_of = |agent: &pb::ConversationSummary, session: &pb::ConversationSummary| {
        let more = agent.source_id.strip_prefix(&session.source_id);
        !session.source_id.is_empty() && more.is_some_and(|more| more.starts_with('/'))
    };
    match found {
        [only] => Some(only),
        several => several.iter().find(|session| {
            let mut others = several.iter().filter(|one| one != session);
            others.all(|other| is_of(other, session))
        }),
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// Returns the similarity of a name to the most similar name of a conversation, from 0 to 1.
fn nearness(name: &str, summary: &pb::ConversationSummary) -> f64 {
    let head = |id: &str| -> String { id.chars().take(name.chars().count().max(4)).collect() };
    [
        jaro_winkler(name, &summary.source_id),
        jaro_winkler(name, &head(&summary.source_id)),
        jaro_winkler(name, &head(&summary.conversation_id)),
        jaro_winkler(&name.to_lowercase(), &summary.title.to_lowercase()),
    ]
    .into_iter()
    .fold(0.0, f64::max)
}

fn not_found(name: &str, near: &[pb::ConversationSummary]) -> ClientError {
    ClientError::NotFound {
        what: format!("no conversation {}", printable(name)),
        hint: match near {
            [] => "`treering ls` lists the conversations; @last is the newest, and the beginning \
                   of an id suffices"
                .into(),
            near => format!("did you mean {}", listed(name, near)),
        },
    }
}

/// Returns a short name for each conversation, lengthened where two would be equal.
pub fn distinct_names(summaries: &[pb::ConversationSummary]) -> Vec<String> {
    let short = |summary: &pb::ConversationSummary| {
        short_id(&summary.source_id, &summary.conversation_id).to_owned()
    };
    let mut times: HashMap<String, u32> = HashMap::new();
    let mut uuids: BTreeSet<&str> = BTreeSet::new();
    for summary in summaries {
        *times.entry(short(summary)).or_default() += 1;
        uuids.insert(&summary.conversation_id);
    }
    summaries
        .iter()
        .map(|summary| match short(summary) {
            short if times.get(&short) == Some(&1) => printable(&short),
            _ => beginning(&summary.conversation_id, &uuids).to_owned(),
        })
        .collect()
}

/// Returns the shortest prefix of an id that no other id has, of at least [`APART_CHARS_MIN`]
/// characters.
fn beginning<'a>(id: &'a str, others: &BTreeSet<&str>) -> &'a str {
    let before = others.range(..id).next_back();
    let after = others.range(id..).find(|other| **other != id);
    let alike = before.into_iter().chain(after).map(|other| {
        let alike = id.bytes().zip(other.bytes());
        alike.take_while(|(own, other)| own == other).count()
    });
    let chars = alike
        .max()
        .map_or(0, |alike| alike + 1)
        .max(APART_CHARS_MIN);
    id.get(..chars).unwrap_or(id)
}

/// Formats the first conversations with their titles, each by an id that contains the name, so that
/// the user sees what to type.
fn listed(name: &str, summaries: &[pb::ConversationSummary]) -> String {
    let called = summaries
        .iter()
        .zip(distinct_names(summaries))
        .take(LISTED_MAX);
    let shown = called.map(|(summary, called)| {
        let id = match id_with(name, summary) {
            Some(id) if !called.contains(name) => first_line(id, ID_CHARS),
            _ => called,
        };
        match first_line(&summary.title, TITLE_CHARS).as_str() {
            "" => id,
            title => format!("{id} (\"{}\")", title.replace('"', "'")),
        }
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if summaries.len() > LISTED_MAX {
        text.push_str(" …");
    }
    text
}

/// Returns that id of the conversation which contains the part.
fn id_with<'a>(part: &str, summary: &'a pb::ConversationSummary) -> Option<&'a str> {
    let own = summary.conversation_id.as_str();
    let ids = [&summary.source_id, short_id("", own), own];
    ids.into_iter().find(|id| id.contains(part))
}

/// Returns the branch to use for a revision. This is `branch` as given (`None`: the active branch)
/// if its history has the revision. Otherwise, if none was given, it is the branch that the
/// revision was appended to.
///
/// # Errors
/// [`ClientError::NotFound`] says where the revision is.
pub async fn branch_of(
    store: &Connection,
    found: &FoundConversation,
    branch: Option<&str>,
    revision: u64,
) -> Result<Option<String>, ClientError> {
    let one = |request: pb::ReadRequest| pb::ReadRequest {
        from_revision: revision,
        to_revision: revision,
        headers_only: true,
        ..request
    };
    let in_history = one(read::of_branch(&found.id, branch.unwrap_or("")));
    if first(store, in_history).await?.is_some() {
        return Ok(branch.map(str::to_owned));
    }
    let anywhere = first(store, one(read::of_conversation(&found.id))).await?;
    let summary = found
        .state
        .as_ref()
        .and_then(|state| state.summary.as_ref());
    match (anywhere, branch) {
        (Some(event), None) => Ok(Some(event.branch)),
        (Some(event), Some(branch)) => Err(ClientError::NotFound {
            what: format!(
                "#{revision} is not in the history of {}, but on {}",
                printable(branch),
                printable(&event.branch)
            ),
            hint: format!(
                "omit --branch, or use --branch {}",
                printable(&event.branch)
            ),
        }),
        // Events inherited from another conversation keep its revisions, so this one may exist.
        (None, _) if summary.is_none_or(|summary| summary.shares_history) => {
            Ok(branch.map(str::to_owned))
        }
        (None, _) => {
            let head = summary.map_or(0, |summary| summary.head);
            Err(ClientError::NotFound {
                what: format!(
                    "no event #{revision} in {}: its last event is #{head}",
                    found.called()
                ),
                hint: "`treering log` lists its events, `treering show` its branches".into(),
            })
        }
    }
}

/// Returns the first event of a read.
///
/// # Errors
/// Those of the store.
pub async fn first(
    store: &Connection,
    request: pb::ReadRequest,
) -> Result<Option<pb::Event>, ClientError> {
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        if let Some(event) = batch.events.into_iter().next() {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Checks that a branch exists. The error names similar branches.
///
/// # Errors
/// [`ClientError::NotFound`]; [`ClientError::Usage`] for an empty name.
pub fn check_branch(found: &FoundConversation, branch: &str) -> Result<(), ClientError> {
    let Some(state) = &found.state else {
        return Ok(());
    };
    let names = state.branches.iter().map(|branch| branch.name.as_str());
    if branch.is_empty() {
        return Err(ClientError::Usage {
            what: "the branch name is empty".into(),
            hint: "omit --branch to use the active branch".into(),
        });
    }
    // The list may be incomplete; in that case the store checks the name.
    if state.more_branches || names.clone().any(|name| name == branch) {
        return Ok(());
    }
    let mut near: Vec<_> = names
        .map(|name| {
            let alike = if name.starts_with(branch) {
                1.0
            } else {
                jaro_winkler(name, branch)
            };
            (alike, name)
        })
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    let is_near = near.first().is_some_and(|(alike, _)| *alike >= NEAR);
    let shown: Vec<_> = near
        .iter()
        .take_while(|(alike, _)| !is_near || *alike >= NEAR)
        .take(LISTED_MAX)
        .map(|(_, name)| printable(name))
        .collect();
    let more = if near.len() > shown.len() && !is_near {
        " …"
    } else {
        ""
    };
    Err(ClientError::NotFound {
        what: format!("no branch {} in {}", printable(branch), found.called()),
        hint: if is_near {
            format!("did you mean {}", shown.join(" or "))
        } else {
            format!("its branches are {}{more}", shown.join(", "))
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(id: &str, source_id: &str, title: &str) -> pb::ConversationSummary {
        pb::ConversationSummary {
            conversation_id: id.into(),
            source_id: source_id.into(),
            title: title.into(),
            ..Default::default()
        }
    }

    fn meant(name: &str) -> Result<String, ClientError> {
        let mut meant = NameMatches::new(name);
        for known in [
            summary("aa11-77", "tau/3-0", "Fix the parser"),
            summary("aa12-78", "tau/3-1", "Fix the lexer, please"),
            summary("bb10-79", "", "Fix the parser in C"),
        ] {
            meant.look_at(known);
        }
        meant.only(ByTitle::Several)
    }

    // Users type words of the title. An ambiguous name must never resolve to one of its matches.
    #[test]
    fn ambiguous_title_words_resolve_to_no_conversation() {
        for (name, id) in [("lexer please", "aa12-78"), ("parser FIX c", "bb10-79")] {
            assert_eq!(meant(name).unwrap(), id, "{name}");
        }
        for several in ["the fix", "fix parser"] {
            let error = meant(several).unwrap_err();
            assert!(
                matches!(error, ClientError::Usage { .. }),
                "{several}: {error}"
            );
            assert!(error.hint().unwrap().contains("tau/3-"), "{several}");
        }
        for none in ["pars", "nothing like it", ""] {
            let error = meant(none).unwrap_err();
            assert!(
                matches!(error, ClientError::NotFound { .. }),
                "{none}: {error}"
            );
        }
        let typo = meant("tua/3-1").unwrap_err().hint().unwrap();
        assert!(
            typo.contains("did you mean tau/3-1 (\"Fix the lexer"),
            "{typo}"
        );
    }

    // `treering log nothing` must not show the only conversation with "nothing" in its title.
    #[test]
    fn single_word_of_a_title_is_only_a_proposal() {
        for name in ["lexer", "Lexer-fix"] {
            let error = meant(name).unwrap_err();
            assert!(
                matches!(error, ClientError::NotFound { .. }),
                "{name}: {error}"
            );
            let hint = error.hint().unwrap();
            assert!(hint.contains("did you mean tau/3-1"), "{name}: {hint}");
        }
        let mut of_address = NameMatches::new("fix the parser");
        of_address.look_at(summary("aa11-77", "tau/3-0", "Fix the parser"));
        let error = of_address.only(ByTitle::Never).unwrap_err();
        assert!(
            error.hint().unwrap().contains("did you mean tau/3-0"),
            "{error}"
        );
        let mut whole = NameMatches::new("parser");
        whole.look_at(summary("aa11-77", "tau/3-0", "Parser"));
        assert_eq!(whole.only(ByTitle::Several).unwrap(), "aa11-77");
    }

    // A session's short id is also a prefix of its agents' ids. It must name the session, because
    // `search` prints it and users type it again.
    #[test]
    fn short_id_resolves_to_the_session_before_its_agents() {
        let all = [
            summary("x1", "5d0c-1/a1", "List the crates"),
            summary("x2", "5d0c-1", "Why is the total wrong?"),
            summary("x3", "5d0c-1/c1", "Count the uses"),
        ];
        assert_eq!(only("5d0c", &all, false).unwrap(), "x2");
        assert!(only("5d0c", &all, true).is_err());
        let another = [&all[..], &[summary("x4", "5d0c-12", "Another")]].concat();
        assert!(only("5d0c", &another, false).is_err());
        assert!(only("5d0c", &another[..1], false).is_ok());
        assert!(one_of(&[]).is_none());
    }

    // Errors must list each match by an id that contains the typed prefix, and must not print all
    // 36 characters of an id if fewer are unique.
    #[test]
    fn suggested_names_can_be_typed() {
        let (one, other) = (
            "8c0a1c26-9708-4bd2-bbd5-9a3c977380c2",
            "8c0f3b54-9708-4bd2-bbd5-9a3c977380c2",
        );
        let all = [
            summary(one, "agentdojo/banking", "Pay the bill"),
            summary(other, "", ""),
            summary("x", "runs/8c0", "Wash"),
        ];
        assert_eq!(
            listed("8c0", &all),
            "8c0a1c26 (\"Pay the bill\"), 8c0f3b54, runs/8c0 (\"Wash\")"
        );
        assert_eq!(
            listed("8c0a1c26-97", &all[..1]),
            format!("{one} (\"Pay the bill\")")
        );
        assert_eq!(
            listed("bill", &all[..1]),
            "agentdojo/banking (\"Pay the bill\")"
        );
        let alike = "8c0a1c26-9708-4bd2-bbd5-000000000000";
        let both = [summary(one, "", ""), summary(alike, "", "")];
        assert_eq!(
            listed("nothing", &both),
            format!("{}, {}", &one[..25], &alike[..25])
        );
    }

    // Printed event references must be accepted as input: with a hash, or as a reference to a
    // result.
    #[test]
    fn printed_event_references_are_parsed() {
        assert_eq!(split("tau/3-0#14"), Some(("tau/3-0", 14)));
        assert_eq!(split("@last#2"), Some(("@last", 2)));
        assert_eq!(split("treering:tau/3-0/9"), Some(("tau/3-0", 9)));
        assert_eq!(split("tau/3-0 #14"), Some(("tau/3-0", 14)));
        for none in ["tau/3-0", "tau/9", "#4", "a#b", "treering:x"] {
            assert_eq!(split(none), None, "{none}");
        }
        assert_eq!((counted("@last"), counted("@2")), (Some(1), Some(2)));
        assert_eq!(
            (counted("@0"), counted("@x"), counted("last")),
            (None, None, None)
        );
    }

    // Ids printed by `ls` are typed again, so each must name one conversation. Ids with a common
    // prefix are lengthened until they differ.
    #[test]
    fn shortened_ids_are_unique() {
        let summary = |id: &str, source_id: &str| pb::ConversationSummary {
            conversation_id: id.into(),
            source_id: source_id.into(),
            ..Default::default()
        };
        let (one, two) = (
            "7ad31c26-9708-4bd2-bbd5-9a3c977380c2",
            "7ad31c26-9708-4bd2-bbd5-000000000000",
        );
        let short = distinct_names(&[summary(one, ""), summary("x", "tau/3")]);
        assert_eq!(short, ["7ad31c26", "tau/3"]);
        let alike = distinct_names(&[summary(one, ""), summary(two, "")]);
        assert_eq!(alike, [&one[..25], &two[..25]]);
    }
}
