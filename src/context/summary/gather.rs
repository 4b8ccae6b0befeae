//! What there is to tell of a conversation: gathered from its events in one pass.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    extract::repeated,
    facts::{Facts, open_tasks},
    harness::{as_said, is_said},
    result_summary,
    text::{clip, one_line},
};
use crate::{
    context::{
        digest::tells_failure,
        knowledge::{Touch, touch},
        steps,
        window::WindowEvent,
    },
    domain::{
        ContentPart, Decision, EventBody, MessageAppended, Role, ToolCallRequested,
        ToolResultRecorded,
    },
};

/// A shorter message right after an imported compaction is no summary, in bytes.
const SUMMARY_BYTES_MIN: usize = 400;
/// Of one message that is kept, in bytes.
const SAID_BYTES_MAX: usize = 64 << 10;
/// Failures and commands that are kept: the last.
const RUNS_MAX: usize = 16;
/// Decisions that are kept: the last.
const DECISIONS_MAX: usize = 40;
/// Ids that are named.
const IDS_MAX: usize = 24;
/// Longest command line that is quoted, in characters.
const COMMAND_CHARS_MAX: usize = 200;
/// How a result says that the user refused a call, and what the user said then.
const REFUSED: &str = "the user said:";

/// A quotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// Before it: empty, or what it was.
    pub label: &'static str,
    pub text: String,
}

/// What there is to tell.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// What the user asked and refused, in order.
    pub asked: Vec<Said>,
    /// The last answer of each turn.
    pub answers: Vec<Said>,
    /// What was said on the way and tells of a decision.
    pub decisions: Vec<Said>,
    /// Path, state, and when it was last changed.
    files: Vec<(String, Touch, usize)>,
    file_places: HashMap<String, usize>,
    reads: HashMap<String, u32>,
    read_order: Vec<String>,
    /// What failed and did not work later: what it was, what it said.
    pub failures: Vec<(String, String)>,
    /// Commands that worked, each as it was last run, with what it said.
    pub commands: Vec<(String, String)>,
    /// Tasks of the last list that are not done.
    pub open_tasks: Vec<String>,
    /// The question that the last answer ends with.
    pub offer: Option<String>,
    /// The last request has no answer.
    pub is_unanswered: bool,
    /// Ids that came up more than once.
    pub ids: Vec<String>,
    /// A summary that an import brought, which stands for what was before.
    pub imported_summary: Option<String>,
    failure_keys: Vec<String>,
    command_keys: Vec<String>,
    after_compaction: bool,
    changes: usize,
}

impl Gathered {
    pub fn of(events: &[Arc<WindowEvent>]) -> Self {
        let mut gathered = Self::default();
        let mut calls: HashMap<&str, &ToolCallRequested> = HashMap::new();
        let mut ids = Ids::default();
        for event in events {
            steps::note(1);
            match &event.body {
                EventBody::MessageAppended(message) => {
                    gathered.message(message, &mut ids);
                }
                EventBody::ToolCallRequested(call) => {
                    gathered.tasks_of(call);
                    ids.note(call.arguments.as_str());
                    calls.insert(&call.call_id, call);
                }
                EventBody::ToolResultRecorded(result) => {
                    if let Some(call) = calls.remove(result.call_id.as_str()) {
                        gathered.result(call, result);
                    }
                    gathered.after_compaction = false;
                }
                EventBody::ApprovalDecided(decided) if decided.decision == Decision::Denied => {
                    gathered.refused(&decided.reason);
                }
                EventBody::Compacted(compacted) => {
                    gathered.after_compaction = compacted.summary.is_empty();
                }
                EventBody::EntitiesNoted { entities } => {
                    for entity in entities {
                        ids.noted(&entity.id, &entity.name);
                    }
                }
                _ => {}
            }
        }
        gathered.ids = ids.again();
        gathered
    }

    /// Files that were changed, the last one first.
    pub fn changed(&self) -> impl Iterator<Item = (&str, Touch, usize)> {
        let mut changed: Vec<_> = self
            .files
            .iter()
            .filter(|(_, touch, _)| touch.changes())
            .map(|(path, touch, at)| (path.as_str(), *touch, *at))
            .collect();
        changed.sort_by_key(|(.., at)| std::cmp::Reverse(*at));
        changed.into_iter()
    }

    /// Files that were read more than once and not changed.
    pub fn read_again(&self) -> impl Iterator<Item = &str> {
        let is_unchanged = |path: &&String| {
            let place = self.file_places.get(path.as_str());
            place.is_none_or(|place| !self.files[*place].1.changes())
        };
        let again = |path: &&String| self.reads.get(path.as_str()).is_some_and(|n| *n > 1);
        self.read_order
            .iter()
            .filter(again)
            .filter(is_unchanged)
            .map(String::as_str)
    }

    fn message(&mut self, message: &MessageAppended, ids: &mut Ids) {
        let texts: Vec<&str> = message.parts.iter().filter_map(ContentPart::text).collect();
        let text = texts.join("\n");
        let text = &text[..text.floor_char_boundary(SAID_BYTES_MAX)];
        match message.role {
            Role::User => {
                let is_next = std::mem::take(&mut self.after_compaction);
                if is_continuation(text) || is_next && text.len() >= SUMMARY_BYTES_MIN {
                    self.imported_summary = Some(text.to_owned());
                    return;
                }
                if !is_said(text) {
                    return;
                }
                let text = as_said(text).into_owned();
                ids.note(&text);
                // A message that was broken off and sent again, longer.
                let again = |said: &Said| said.label.is_empty() && text.starts_with(&said.text);
                if self.asked.last().is_some_and(again) {
                    self.asked.pop();
                }
                self.asked.push(Said { label: "", text });
                self.is_unanswered = true;
                self.offer = None;
            }
            Role::Assistant if !text.trim().is_empty() => {
                ids.note(text);
                self.answered(text);
            }
            _ => {}
        }
    }

    fn answered(&mut self, text: &str) {
        let is_same_turn = !self.is_unanswered && !self.answers.is_empty();
        self.is_unanswered = false;
        let tasks = open_tasks(text);
        if !tasks.is_empty() {
            self.open_tasks = tasks;
        }
        let last_line = text
            .lines()
            .rev()
            .map(one_line)
            .find(|line| !line.is_empty());
        self.offer = last_line
            .filter(|line| line.ends_with('?'))
            .map(|line| clip(&line, 400));
        let said = Said {
            label: "",
            text: text.to_owned(),
        };
        if is_same_turn && let Some(before) = self.answers.last_mut() {
            let before = std::mem::replace(before, said);
            self.decided(&before.text);
        } else {
            self.answers.push(said);
        }
    }

    /// Sentences of something said on the way that tell of a decision.
    fn decided(&mut self, text: &str) {
        for sentence in sentences(text).filter(|sentence| tells_decision(sentence)) {
            let text = one_line(sentence);
            let known = self
                .decisions
                .iter()
                .rev()
                .take(8)
                .any(|said| said.text == text);
            if !known {
                self.decisions.push(Said { label: "", text });
            }
        }
        let over = self.decisions.len().saturating_sub(DECISIONS_MAX);
        self.decisions.drain(..over);
    }

    fn refused(&mut self, reason: &str) {
        if !reason.trim().is_empty() {
            self.asked.push(Said {
                label: "refused: ",
                text: reason.to_owned(),
            });
        }
    }

    fn result(&mut self, call: &ToolCallRequested, result: &ToolResultRecorded) {
        if !result.success && self.is_refusal(result) {
            return;
        }
        let line = touch::command_line(call);
        let failed = tells_failure(result);
        let mut paths: Vec<String> = Vec::new();
        if result.success {
            for (path, how) in touch::touched_by(call, result) {
                self.touch(&path, how);
                paths.push(path);
            }
        }
        let keys = keys_of(call, line.as_deref());
        let what = match &line {
            Some(line) => clip(&one_line(line), COMMAND_CHARS_MAX),
            None => clip(&one_line(call.arguments.as_str()), COMMAND_CHARS_MAX / 2),
        };
        if failed {
            // What comes last in a line is what it was for.
            if let Some(key) = keys.last().filter(|_| !touch::only_looks(call)) {
                let said = result_summary(result, 300);
                note_run(&mut self.failures, &mut self.failure_keys, key, what, said);
            }
            return;
        }
        while let Some(at) = self
            .failure_keys
            .iter()
            .position(|known| keys.contains(known))
        {
            self.failure_keys.remove(at);
            self.failures.remove(at);
        }
        if line.is_some() && !keys.is_empty() {
            let said = last_words(result);
            let key = keys.join("; ");
            note_run(&mut self.commands, &mut self.command_keys, &key, what, said);
        }
    }

    /// Notes what the user said when a call was refused.
    fn is_refusal(&mut self, result: &ToolResultRecorded) -> bool {
        let texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
        let text = texts.join("\n");
        let said = if text.is_empty() {
            &result.error_message
        } else {
            &text
        };
        let refused = said.contains("doesn't want to proceed") || said.contains("user rejected");
        if refused && let Some((_, reason)) = said.split_once(REFUSED) {
            self.refused(reason.trim());
        }
        refused
    }

    fn touch(&mut self, path: &str, how: Touch) {
        if how == Touch::Read {
            let count = self.reads.entry(path.to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                self.read_order.push(path.to_owned());
            }
        }
        if !how.changes() {
            return;
        }
        self.changes += 1;
        let at = self.changes;
        if let Some(place) = self.file_places.get(path) {
            let (_, known, last) = &mut self.files[*place];
            *known = touch::and_then(*known, how);
            *last = at;
        } else {
            self.file_places.insert(path.to_owned(), self.files.len());
            self.files.push((path.to_owned(), how, at));
        }
    }

    /// A list of tasks, as agents keep them.
    fn tasks_of(&mut self, call: &ToolCallRequested) {
        let arguments = call.arguments.as_str();
        if !["\"todos\"", "\"plan\"", "\"tasks\""]
            .iter()
            .any(|key| arguments.contains(key))
        {
            return;
        }
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return;
        };
        let list = ["todos", "plan", "tasks"]
            .iter()
            .find_map(|key| arguments.get(*key)?.as_array());
        let Some(list) = list else { return };
        let open = list.iter().filter_map(|task| {
            let status = task.get("status")?.as_str()?;
            let is_done = matches!(status, "completed" | "done" | "cancelled" | "complete");
            let text = ["content", "step", "title", "text", "description"]
                .iter()
                .find_map(|key| task.get(*key)?.as_str())?;
            (!is_done).then(|| clip(&format!("{} ({status})", one_line(text)), 200))
        });
        self.open_tasks = open.take(20).collect();
    }
}

/// A run is kept as it was last, at the place of its last time.
fn note_run(
    runs: &mut Vec<(String, String)>,
    keys: &mut Vec<String>,
    key: &str,
    what: String,
    said: String,
) {
    if let Some(at) = keys.iter().position(|known| known == key) {
        keys.remove(at);
        runs.remove(at);
    }
    keys.push(key.to_owned());
    runs.push((what, said));
    if runs.len() > RUNS_MAX {
        keys.remove(0);
        runs.remove(0);
    }
}

/// What the same call another time would be: its programs that do more than look,
/// or the tool and the file.
fn keys_of(call: &ToolCallRequested, line: Option<&str>) -> Vec<String> {
    if let Some(line) = line {
        let mut programs = touch::programs(line);
        programs.retain(|program| !is_quiet(program));
        return programs;
    }
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
    let file = ["file_path", "path", "filename"]
        .iter()
        .find_map(|key| arguments.get(*key)?.as_str());
    vec![format!("{} {}", call.tool, file.unwrap_or_default())]
}

/// Programs that only look, or only print.
fn is_quiet(program: &str) -> bool {
    const QUIET: [&str; 31] = [
        "cat", "ls", "grep", "rg", "find", "head", "tail", "sed", "awk", "echo", "pwd", "cd",
        "which", "wc", "sort", "uniq", "true", "less", "tree", "fd", "jq", "cut", "tr", "xargs",
        "diff", "file", "stat", "sleep", "printf", "test", "export",
    ];
    let mut words = program.split(' ');
    let name = words.next().unwrap_or("");
    let looks = [
        "status", "log", "diff", "show", "blame", "branch", "ls-files",
    ];
    QUIET.contains(&name) || name == "git" && words.next().is_some_and(|verb| looks.contains(&verb))
}

/// The last line of a result that says something.
fn last_words(result: &ToolResultRecorded) -> String {
    let texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
    let text = texts.join("\n");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| super::says_something(line))
        .collect();
    match lines.as_slice() {
        [] => "no output".to_owned(),
        [only] => clip(&one_line(only), 240),
        [first, .., last] => format!(
            "{} … {}",
            clip(&one_line(first), 140),
            clip(&one_line(last), 140)
        ),
    }
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let ends = |line: &str| -> Vec<usize> {
        let ends = line.match_indices(['.', '!', '?']);
        let before_blank = |at: &usize| line[at + 1..].starts_with(' ');
        ends.map(|(at, _)| at).filter(before_blank).collect()
    };
    text.lines()
        .flat_map(move |line| {
            let mut start = 0;
            let mut all = Vec::new();
            for end in ends(line).into_iter().map(|at| at + 1).chain([line.len()]) {
                all.push(&line[start..end]);
                start = end;
            }
            all
        })
        .map(str::trim)
        .filter(|sentence| sentence.len() > 20 && sentence.len() < 600)
}

/// Words with which people and models tell why, and of what they gave up.
fn tells_decision(sentence: &str) -> bool {
    const WORDS: [&str; 20] = [
        "instead",
        "because",
        "rather than",
        "root cause",
        "the issue is",
        "the issue was",
        "the problem is",
        "the problem was",
        "decided",
        "turns out",
        "doesn't work",
        "won't work",
        "can't use",
        "cannot",
        "suggests",
        "must not",
        "better to",
        "not possible",
        "so we",
        "the fix",
    ];
    let lower = sentence.to_lowercase();
    WORDS.iter().any(|word| lower.contains(word))
}

/// How harnesses begin a summary that they wrote themselves.
fn is_continuation(text: &str) -> bool {
    text.trim_start()
        .starts_with("This session is being continued from a previous conversation")
}

/// Ids, with how often they came up.
#[derive(Default)]
struct Ids {
    counts: HashMap<String, u32>,
    order: Vec<String>,
    named: Vec<String>,
}

impl Ids {
    fn note(&mut self, text: &str) {
        let mut facts = Facts::new(64);
        facts.note(text);
        let mut seen = HashSet::new();
        for id in facts.ids {
            if !seen.insert(id.clone()) {
                continue;
            }
            let count = self.counts.entry(id.clone()).or_default();
            *count += 1;
            if *count == 1 {
                self.order.push(id);
            }
        }
    }

    fn noted(&mut self, id: &str, name: &str) {
        let told = match one_line(name) {
            name if name.is_empty() => one_line(id),
            name => format!("{} ({name})", one_line(id)),
        };
        self.named.push(clip(&told, 80));
    }

    /// Those that came up in more than one text, the last first seen last.
    fn again(self) -> Vec<String> {
        let mut all = repeated(&self.counts, &self.order);
        all.extend(self.named);
        let over = all.len().saturating_sub(IDS_MAX);
        all.drain(..over);
        all
    }
}
