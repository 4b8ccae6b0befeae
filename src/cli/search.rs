//! `search`: full-text search in messages, tool calls and results.

mod empty_result;
mod query_notes;
mod reasoning;

use std::{borrow::Cow, ops::Range, time::Duration};

use clap::{Args, ValueHint};

use super::{
    branch_args::{FoundBranch, find_if_named},
    connect::Connection,
    error::ClientError,
    json,
    kind_arg::KindArg,
    output::{BarUnit, Out, Paint, Tone, progress},
    pb, read,
    safe::tell,
    text::{address, count, first_line, printable, printable_lines, short_id, things},
    text_arg::FreeWord,
    time_arg::TimeRange,
};
use treering_client::names;
use treering_domain::PROJECT_LABEL;
use treering_present::hit as hit_text;

use query_notes::QueryNotes;
pub(super) use reasoning::{Voice, heading, voices};

/// Maximum time that a search waits for the index, so that recent appends are included.
const WAIT_DEFAULT: Duration = Duration::from_secs(2);
/// Default number of hits.
const HITS_DEFAULT: u32 = 10;
/// Columns of the line number before a line of context.
const CONTEXT_MARGIN: usize = 8;
/// Interval at which `--complete` checks the index.
const WAIT_STEP: Duration = Duration::from_millis(500);

/// Search in messages, tool calls and results
///
/// Type words, or paste a line, which may begin with a dash. Names, whole lines and adjacent words
/// come first. If the whole text consists of query syntax ("exact phrases", prefixes (pre*), AND,
/// OR, NOT, +must and -mustnot), it is read as a query; so are a few words with NOT between them
/// (disk NOT quota). In any other text, these are words. Punctuation alone is searched for
/// literally. No hits are not an error: the exit code is 0.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering search connection refused
  treering log CONVERSATION#57                    then: read around a hit
  treering search 'go test ./... -run TestExplain -v'
  treering search -n 3 --tool bash --failed '\"permission denied\"'
  treering search --path 'src/**/*.rs' --since '2 days' parse_config
  treering search --path '**/parser.rs'           who touched this file?
  treering search --kind tool_call_requested 'rm -rf'
  treering search --regex -C 3 'error\\[E\\d+\\]'
  treering search --regex -i 'token|secret'
  treering search '--- FAIL: TestExplain (0.03s)'
  treering search --by meaning 'the car would not start'
  treering search --conversation ID --branch retry 'parse* AND config'
  treering search --json -n 20 timeout | jq -r '[.conversation, .revision, .line] | @tsv'")]
pub(crate) struct SearchArgs {
    /// What to search for; several words are one query. Without words but with a filter: everything
    /// that passes it, newest first
    #[arg(value_name = "QUERY", value_hint = ValueHint::Other)]
    #[arg(allow_hyphen_values = true, value_parser = FreeWord)]
    first: Option<String>,
    /// More words of the query
    #[arg(value_name = "WORDS", value_hint = ValueHint::Other)]
    more: Vec<String>,
    /// Words after `--`, which may each begin with a dash
    #[arg(last = true, value_name = "WORDS", value_hint = ValueHint::Other)]
    behind: Vec<String>,
    /// Read it as a query: "phrases", pre*, AND, OR, NOT, +must, -mustnot, (groups)
    #[arg(long)]
    query: bool,
    /// Read it as words, without query syntax
    #[arg(long, conflicts_with = "query")]
    plain: bool,
    /// Read it as a regular expression, matched against stored texts, newest first
    #[arg(long, conflicts_with_all = ["query", "plain"])]
    regex: bool,
    /// With --regex: ignore case, as for words
    #[arg(long, short)]
    ignore_case: bool,
    /// Search by words, by meaning, or both
    ///
    /// A search by meaning also finds texts with other words. It needs an embedder: the server's
    /// (treering serve --embedder), or for a folder the one that $TREERING_EMBEDDER names.
    #[arg(long, value_enum, default_value_t = By::Words, hide_default_value = true)]
    #[arg(conflicts_with_all = ["regex", "count", "by_conversation", "count_all"])]
    by: By,
    /// Instead of words: find texts that are similar in meaning to this event: 5d0c3c0e#19
    #[arg(long, value_name = "ADDRESS")]
    #[arg(conflicts_with_all = ["first", "more", "behind", "by", "regex", "count", "by_conversation"])]
    similar_to: Option<String>,
    /// Maximum number of hits, or conversations [default: 10 hits, all conversations]
    #[arg(short = 'n', short_alias = 'k', long = "limit", value_name = "N")]
    limit: Option<u32>,
    /// Skip this many hits, or conversations
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u32,
    /// Only calls and results of this tool, in any case; '"Bash"' is exact (may be given again)
    #[arg(long, short, value_name = "NAME")]
    tool: Vec<String>,
    /// Only calls with such a path, and their results: src/**/*.rs (may be given again)
    ///
    /// The pattern is compared with whole names of files and folders: manual_commit.go,
    /// '*manual_commit*'.
    #[arg(long, value_name = "GLOB")]
    path: Vec<String>,
    /// Only what happened at or after this time: '2 days', 3h, yesterday, 2026-01-31, a time in RFC
    /// 3339
    ///
    /// Also '2026-01-31 08:00', 2026-01 and 'last week'. Days are in UTC. An event without its own
    /// time counts from its recording, which for an import is the time of the import.
    #[arg(long, value_name = "TIME")]
    since: Option<TimeRange>,
    /// Only what happened at or before this time; for a day or month, up to its end
    #[arg(long, value_name = "TIME")]
    until: Option<TimeRange>,
    /// Only conversations from this source: claude-code, openai-chat … (may be given again)
    #[arg(long, value_name = "NAME")]
    source: Vec<String>,
    /// Only conversations with this label (may be given again: with all of them)
    #[arg(long, value_name = "NAME[=VALUE]")]
    label: Vec<String>,
    /// Only conversations of this project: the name of the folder that an imported session worked
    /// in
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only messages of this role (may be given again). Tool results are not messages: use --kind
    /// tool_result_recorded
    #[arg(long, value_name = "ROLE")]
    role: Vec<Role>,
    /// Only this conversation: an id or its beginning, @last, or words of its title
    #[arg(long, short, value_name = "ID")]
    conversation: Option<String>,
    /// Only the history of this branch
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Also search the conversation's sub-contexts
    #[arg(long, requires = "conversation")]
    sub_contexts: bool,
    /// Only these kinds: tool_result_recorded, tool_call_requested, message_appended …
    #[arg(long, visible_alias = "kinds", value_name = "KIND")]
    #[arg(value_enum, value_delimiter = ',', hide_possible_values = true)]
    kind: Vec<KindArg>,
    /// Show this many lines before and after each match
    #[arg(short = 'C', long = "context", value_name = "N")]
    context: Option<u32>,
    /// Print only the number of hits
    #[arg(long)]
    count: bool,
    /// Print the conversations with hits, best first, with their numbers of hits
    #[arg(long, visible_alias = "files", conflicts_with = "count")]
    by_conversation: bool,
    /// With hits, print the total number even above 1,000 (as --count does)
    #[arg(long)]
    count_all: bool,
    /// Show events with equal text as separate hits
    ///
    /// Otherwise, events of one kind with equal text (a file that was read twice, a session that
    /// was imported twice) are one hit, which says where the others are, and what a memory tool
    /// quoted is only found if nothing else is.
    #[arg(long)]
    copies: bool,
    /// Only results of calls that succeeded
    #[arg(long, conflicts_with = "failed")]
    success: bool,
    /// Only results of calls that failed, according to the recorded outcome
    ///
    /// The text of a result is not considered: a command that ends in `| tail` succeeds although
    /// its tests fail. If this excludes a clearly better hit, a line says so.
    #[arg(long)]
    failed: bool,
    /// Wait until everything is indexed, with a progress bar, and keep the index
    ///
    /// Otherwise a search waits for two seconds, answers with what is indexed by then, and says how
    /// much is missing.
    #[arg(long)]
    complete: bool,
}

/// What a search compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// The words of the query
    #[default]
    Words,
    /// Its meaning
    Meaning,
    /// Both, with the hits in one order
    Both,
}

impl By {
    /// Returns its number in the API.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Words => pb::SearchBy::Words,
            Self::Meaning => pb::SearchBy::Meaning,
            Self::Both => pb::SearchBy::Both,
        }
        .into()
    }
}

/// A role on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    fn number(self) -> i32 {
        match self {
            Self::System => pb::Role::System,
            Self::Developer => pb::Role::Developer,
            Self::User => pb::Role::User,
            Self::Assistant => pb::Role::Assistant,
            Self::Tool => pb::Role::Tool,
        }
        .into()
    }
}

impl SearchArgs {
    /// Returns true if it waits for the whole index and keeps the index entries that it adds.
    pub(crate) fn waits(&self) -> bool {
        self.complete
    }

    /// Returns true if it needs an embedder.
    pub(crate) fn compares_meanings(&self) -> bool {
        self.by != By::Words || self.similar_to.is_some()
    }

    fn is_narrowed(&self) -> bool {
        let lists = [&self.tool, &self.path, &self.source, &self.label];
        self.conversation.is_some()
            || self.project.is_some()
            || self.success
            || self.failed
            || self.since.is_some()
            || self.until.is_some()
            || !self.role.is_empty()
            || !self.kind.is_empty()
            || lists.iter().any(|list| !list.is_empty())
    }

    fn mode(&self) -> pb::QueryMode {
        match (self.query, self.plain) {
            (true, _) => pb::QueryMode::Query,
            (_, true) => pb::QueryMode::Plain,
            _ => pb::QueryMode::Unspecified,
        }
    }

    /// Refuses combinations of options that cannot match anything.
    fn check(&self) -> Result<(), ClientError> {
        if let (None, Some(branch)) = (&self.conversation, &self.branch) {
            return Err(ClientError::Usage {
                what: format!("--branch {} needs a conversation", printable(branch)),
                hint: "name it with --conversation".into(),
            });
        }
        match (self.since, self.until) {
            (Some(since), Some(until)) if since.is_after(until) => Err(ClientError::Usage {
                what: "--since is later than --until".into(),
                hint: "give the earlier time to --since".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns all words on one line.
    fn typed(&self) -> String {
        [self.first.as_slice(), &self.more, &self.behind]
            .concat()
            .join(" ")
    }

    /// Returns the query text; empty to list everything that passes the filters.
    fn text(&self) -> String {
        let text = self.typed();
        let is_anything = matches!(text.trim(), "" | "*");
        if is_anything && !self.regex && self.is_narrowed() {
            return String::new();
        }
        match self.regex && self.ignore_case {
            true => format!("(?i){text}"),
            false => text,
        }
    }

    fn request(self, place: FoundBranch, similar_to: Option<pb::EventRef>) -> pb::SearchRequest {
        let project = self.project.as_ref();
        let project = project.map(|name| format!("{PROJECT_LABEL}={name}"));
        pb::SearchRequest {
            similar_to,
            mode: self.mode().into(),
            by: self.by.number(),
            query: self.text(),
            regex: self.regex,
            by_conversation: self.by_conversation,
            // Counts need no hits.
            limit: if self.count || self.by_conversation {
                1
            } else {
                self.limit.unwrap_or(HITS_DEFAULT).max(1)
            },
            // All conversations are requested; the offset is applied to the answer.
            offset: if self.by_conversation { 0 } else { self.offset },
            conversation_id: place.conversation,
            branch: place.branch,
            include_sub_contexts: self.sub_contexts,
            tools: self.tool,
            paths: self.path,
            sources: self.source,
            labels: self.label.into_iter().chain(project).collect(),
            roles: self.role.iter().map(|role| role.number()).collect(),
            happened_from: self.since.map(TimeRange::beginning),
            happened_to: self.until.map(TimeRange::end),
            success: match (self.success, self.failed) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            kinds: self.kind.iter().map(|kind| kind.number()).collect(),
            count_all: self.count_all || self.count,
            every_copy: self.copies,
            context_lines: self.context.unwrap_or_default(),
            // Set by `run`.
            at_least: None,
            wait_max: None,
            // All conversations are counted.
            conversations_max: 0,
            // `happened_from` and `happened_to` use an event's own time, or its time of recording
            // if it has none.
            recorded_from: None,
            recorded_to: None,
            active_branches_only: false,
            not_sealed: false,
        }
    }
}

/// Returns the event at an address.
async fn event_at(address: &str, store: &Connection) -> Result<pb::EventRef, ClientError> {
    let found = names::find(store, address).await?;
    let Some(revision) = found.revision else {
        return Err(ClientError::Usage {
            what: format!("{} names no event", printable(address)),
            hint: format!("add its revision: {}#19", found.called()),
        });
    };
    Ok(pb::EventRef {
        conversation_id: found.id,
        revision,
    })
}

/// Prints the hits, best first.
pub(crate) async fn run(
    args: SearchArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    args.check()?;
    let (conversation, branch) = (args.conversation.as_deref(), args.branch.as_deref());
    let place = find_if_named(store, conversation, branch).await?;
    let similar_to = match &args.similar_to {
        Some(address) => Some(event_at(address, store).await?),
        None => None,
    };
    let (wait, only_count, grouped) = (args.complete, args.count, args.by_conversation);
    let compares_meanings = args.compares_meanings();
    let mut asked = QueryNotes::of(&args);
    // The search includes everything that is in the store now, even if the index lags behind.
    let stats = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
    if wait {
        wait_for_index(&stats, store).await?;
        if compares_meanings {
            wait_for_vectors(store).await?;
        }
    }
    let mut request = pb::SearchRequest {
        at_least: stats.head,
        wait_max: WAIT_DEFAULT.try_into().ok(),
        ..args.request(place, similar_to)
    };
    let mut answer = read::search(&mut request, store).await?;
    asked.is_listing = request.query.is_empty() && !compares_meanings;
    asked.is_regex = request.regex || asked.is_listing;
    answer.hits.truncate(asked.hits_max());
    let is_nothing = answer.total == 0 && answer.conversations.is_empty();
    if only_count {
        out.line(answer.total)?;
    } else if grouped && !is_nothing {
        let shown = asked.conversations(&answer.conversations);
        for hits in shown {
            print_conversation(hits, out)?;
        }
        if shown.len() < answer.conversations.len() && !out.json {
            let all = things(
                answer.conversations.len() as u64,
                "conversation",
                "conversations",
            );
            out.note(format!("{} of {all}", count(shown.len() as u64)))?;
        }
    } else if out.json {
        for hit in &answer.hits {
            out.line(json::hit(hit))?;
        }
    } else {
        for hit in &answer.hits {
            let voices = match hit.context.is_empty() {
                true => Vec::new(),
                false => reasoning::of_hit(hit, store).await?,
            };
            print(hit, &voices, asked.is_regex, out)?;
        }
        out.note(asked.note(&answer))?;
    }
    let mut hints = asked.told(&answer);
    hints.extend(asked.hints(store).await);
    if is_nothing {
        hints.extend(empty_result::nothing_found(&request, store).await?);
    }
    for hint in hints {
        if out.json || only_count {
            tell!("{hint}");
        } else {
            out.note(hint)?;
        }
    }
    let missing = missing(&answer);
    if let Some(missing) = missing {
        if out.json || only_count {
            tell!("{missing}");
        } else {
            out.row(out.paint.text(Tone::Wait, missing))?;
        }
    }
    Ok(())
}

/// Shows the progress of the index, until it has everything that is in the store now.
pub(super) async fn wait_for_index(
    stats: &pb::StatsResponse,
    store: &Connection,
) -> Result<(), ClientError> {
    let offset = |position: Option<pb::Position>| position.map_or(0, |position| position.offset);
    let head = offset(stats.head);
    let bar = progress("indexing", Some(head), BarUnit::Things);
    loop {
        let request = pb::SearchRequest {
            query: "index".to_owned(),
            limit: 1,
            at_least: stats.head,
            wait_max: WAIT_STEP.try_into().ok(),
            ..Default::default()
        };
        let answer = store.search().search(request).await?.into_inner();
        bar.set_position(offset(answer.indexed_to));
        if answer.events_missing == 0 || !answer.lagging.is_empty() {
            bar.finish_and_clear();
            return Ok(());
        }
    }
}

/// Shows the progress of the embedder, until all passages are embedded or it fails.
async fn wait_for_vectors(store: &Connection) -> Result<(), ClientError> {
    let bar = progress("embedding", None, BarUnit::Things);
    loop {
        let stats = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
        let Some(vectors) = stats.vectors else { break };
        bar.set_length(vectors.passages);
        bar.set_position(vectors.embedded);
        if vectors.embedded >= vectors.passages || !vectors.failure.is_empty() {
            break;
        }
        tokio::time::sleep(WAIT_STEP).await;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns what the answer lacks, with advice.
fn missing(answer: &pb::SearchResponse) -> Option<String> {
    if !answer.lagging.is_empty() {
        return Some(format!("The search index lags behind: {}", answer.lagging));
    }
    let indexed = answer.indexed_to.map_or(0, |position| position.offset);
    let all = indexed + answer.events_missing;
    (answer.events_missing > 0).then(|| {
        format!(
            "Not everything is searched: {} of {} events ({} %) are not yet indexed; --complete \
             waits for them",
            count(answer.events_missing),
            count(all),
            answer.events_missing * 100 / all.max(1),
        )
    })
}

fn print_conversation(hits: &pb::ConversationHits, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json::of(hits))?);
    }
    let paint = out.paint;
    let number = things(hits.hits, "hit", "hits");
    let title = first_line(&hits.title, out.width.saturating_sub(40));
    out.row(format!(
        "{}  {number:>12}  {title}",
        paint.text(Tone::Name, short_id(&hits.source_id, &hits.conversation_id)),
    ))?;
    Ok(())
}

fn print(
    hit: &pb::SearchHit,
    voices: &[Voice],
    is_regex: bool,
    out: &mut Out,
) -> Result<(), ClientError> {
    let paint = out.paint;
    let tone = match hit.success {
        Some(false) => Tone::Bad,
        _ => Tone::Tool,
    };
    let when = out.when(hit.happened_at.as_ref());
    // The event was imported without a time.
    let is_recorded = !hit.source_id.is_empty() && hit.happened_at == hit.recorded_at;
    let mut place = vec![
        match is_recorded {
            true => format!("recorded {when}"),
            false => when,
        },
        format!("on {}", hit.branch),
        format!("line {}", hit.line),
    ];
    if !is_regex {
        place.push(format!("score {:.1}", hit.score));
    }
    if hit.success == Some(false) {
        place.push("failed".to_owned());
    }
    out.row_around(
        &paint.text(tone, printable(&hit_text::what(hit, str::to_owned))),
        &paint.text(
            Tone::Name,
            address(&hit.source_id, &hit.conversation_id, hit.revision),
        ),
        &paint.text(Tone::Dim, place.join(", ")),
    )?;
    if hit.copies > 0 {
        out.note(format!("  {}", copies(hit)))?;
    }
    for about in hit_text::about(hit, out.width.saturating_sub(6)) {
        out.note(format!("  {about}"))?;
    }
    if hit.context.is_empty() {
        for line in highlighted(hit, paint).lines() {
            out.row(format!("    {line}"))?;
        }
    } else {
        print_context(hit, voices, out)?;
    }
    Ok(out.line("")?)
}

/// Prints the lines around a match. A line that is too long for the terminal is shown around its
/// match.
fn print_context(hit: &pb::SearchHit, voices: &[Voice], out: &mut Out) -> Result<(), ClientError> {
    let paint = out.paint;
    let columns = out.columns().saturating_sub(CONTEXT_MARGIN);
    for (number, line) in (hit.context_line..).zip(hit.context.lines()) {
        let is_first = number == hit.context_line;
        if let Some(voice) = reasoning::heading(voices, number, is_first) {
            out.note(format!("        ({voice})"))?;
        }
        if number == hit.line {
            let line = printable(&around_match(line, match_in(hit, line), columns));
            out.row(paint.text(Tone::Wait, format!("{number:>6}: {line}")))?;
        } else {
            let line = printable(line);
            out.row(format!("{number:>6}  {line}"))?;
        }
    }
    Ok(())
}

/// Returns the range of a hit's match in a line. It is located with the snippet, which is part of
/// the same text.
fn match_in(hit: &pb::SearchHit, line: &str) -> Option<Range<usize>> {
    hit.highlights.iter().find_map(|range| {
        let (start, end) = (range.start as usize, range.end as usize);
        let before = hit.snippet.get(..start)?;
        let from = before.rfind('\n').map_or(0, |end| end + 1);
        let piece = hit.snippet.get(from..end)?;
        let at = line.find(piece)?;
        Some(at + (start - from)..at + piece.len())
    })
}

/// Returns the line from its start, or from shortly before the match if the match would not be
/// visible.
fn around_match(line: &str, found: Option<Range<usize>>, columns: usize) -> Cow<'_, str> {
    let Some(found) = found else {
        return line.into();
    };
    let chars = |text: &str| text.chars().count();
    if chars(&line[..found.end]) < columns {
        return line.into();
    }
    let before = columns.saturating_sub(chars(&line[found.clone()])) / 3;
    let start = line[..found.start].char_indices().rev().nth(before);
    let start = start.map_or(0, |(start, c)| start + c.len_utf8());
    format!("…{}", &line[start..]).into()
}

/// Returns the places of other events with this text.
fn copies(hit: &pb::SearchHit) -> String {
    let (mut places, others) = hit_text::copies(hit, usize::MAX);
    if others > 0 {
        places.push(things(others, "more", "more"));
    }
    format!("the same at {}", places.join(", "))
}

/// Returns the snippet with its matches in colour.
fn highlighted(hit: &pb::SearchHit, paint: Paint) -> String {
    let pieces = hit_text::pieces(&hit.snippet, &hit.highlights);
    let pieces = pieces.into_iter().map(|(piece, is_match)| match is_match {
        true => paint.text(Tone::Wait, printable(piece)),
        false => printable_lines(piece),
    });
    pieces.collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Command, StoreCommand};

    // A pasted line that begins with a dash, even `-c foo`, must be read as query text, not as an
    // option. A single word with a dash is a mistyped option unless it follows `--`.
    #[test]
    fn pasted_line_is_a_query_and_mistyped_option_is_an_error() {
        let typed = |line: &[&str]| {
            let line = ["treering", "search"].iter().chain(line);
            let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
            match cli.command {
                Command::OnStore(StoreCommand::Search(args)) => Ok(args.typed()),
                other => Err(format!("{other:?}")),
            }
        };
        for text in [
            "--- FAIL: TestShadow (6.88s)",
            "- name: checkout",
            "-\told := x",
            "-name \"*.go\"",
            "-c foo",
            "-C 3 lines",
        ] {
            assert_eq!(typed(&[text]).unwrap(), text);
            let among = ["--json", text, "-n3", "--failed", "two"];
            assert_eq!(typed(&among).unwrap(), format!("{text} two"));
        }
        let second = typed(&["one", "--- FAIL: TestShadow"]).unwrap_err();
        assert!(second.contains("use '-- "), "{second}");
        let behind = ["git", "-n", "3", "--", "--no-verify", "-y"];
        assert_eq!(typed(&behind).unwrap(), "git --no-verify -y");
        for wrong in ["--limt", "-exec", "-n5", "-1"] {
            let said = typed(&[wrong, "foo"]).unwrap_err();
            assert!(said.contains(&format!("use '-- {wrong}'")), "{said}");
        }
    }

    // A line of a JSON file may have a thousand characters. Its match must be visible even if it is
    // far from the start.
    #[test]
    fn long_line_is_cut_around_its_match() {
        let line = format!(
            "{{\"id\":\"{}\",\"text\":\"the two-hit combo\"}}",
            "é9".repeat(80)
        );
        let snippet = format!("a line before\n{}", &line[10..]);
        let start = snippet.find("two-hit combo").unwrap();
        let end = u32::try_from(start + "two-hit combo".len()).unwrap();
        let hit = pb::SearchHit {
            snippet,
            highlights: vec![pb::Highlight {
                start: u32::try_from(start).unwrap(),
                end,
            }],
            ..Default::default()
        };
        let found = match_in(&hit, &line);
        assert_eq!(
            found.clone().map(|found| &line[found]),
            Some("two-hit combo")
        );
        let shown = around_match(&line, found.clone(), 60);
        let visible: String = shown.chars().take(60).collect();
        assert!(
            visible.starts_with('…') && visible.contains("two-hit combo"),
            "{visible}"
        );
        assert_eq!(around_match(&line, found, 400), line);
        assert_eq!(around_match(&line, None, 60), line);
    }

    /// An invalid range (beyond the end, inside a character) must not break the output. The text
    /// must still be shown once.
    #[test]
    fn invalid_highlight_ranges_are_ignored() {
        let range = |start, end| pb::Highlight { start, end };
        let hit = pb::SearchHit {
            snippet: "äb cd".into(),
            highlights: vec![range(1, 2), range(2, 3), range(4, 99)],
            ..Default::default()
        };
        assert_eq!(highlighted(&hit, Paint(false)), "äb cd");
        assert!(highlighted(&hit, Paint(true)).contains("\u{1b}["));
    }
}
