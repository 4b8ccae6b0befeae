//! Collects the facts for an extract from the events, in one pass.

mod ids;
mod runs;

use std::{collections::HashMap, sync::Arc};

use self::{
    ids::Ids,
    runs::{RunKind, keys_of, last_words, note_run},
};
use super::{
    calls,
    facts::open_tasks,
    result::result_summary,
    shape::members,
    tasks::TaskList,
    text::{clip, one_line, says_something, whole_or_ends},
};
use crate::{
    knowledge::{FileEffect, file_effects},
    result::tells_failure,
    user_text::{self, without_reminders},
};
use treering_context::{heuristics::Reply, steps, window::WindowEvent};
use treering_domain::{
    CompactionTrigger, ContentPart, Decision, EventBody, MessageAppended, Role, ToolCallRequested,
    ToolResultRecorded,
};

/// Minimum size of the message after an imported compaction for it to count as the summary, in
/// bytes.
const SUMMARY_BYTES_MIN: usize = 400;
/// Maximum number of bytes kept of a message.
const SAID_BYTES_MAX: usize = 64 << 10;
/// Maximum number of decisions; the last ones are kept.
const DECISIONS_MAX: usize = 40;
/// Maximum length of a quoted command line, in characters.
const COMMAND_CHARS_MAX: usize = 200;
/// Maximum number of calls with effects; the last ones are kept.
const ACTS_MAX: usize = 40;
/// Maximum lengths of such a call's arguments and outcome, in characters.
const ACT_CHARS_MAX: usize = 400;
const OUTCOME_CHARS_MAX: usize = 1_000;
/// Maximum length of a call's arguments in its description, in characters.
const NAMED_CHARS_MAX: usize = 80;
/// Label of requests from before an imported summary.
const BEFORE_SUMMARY: &str = "before that summary";
const SKILLS_MAX: usize = 20;

/// A quotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quotation {
    /// Context of the quotation, or empty.
    pub label: String,
    pub text: String,
    /// Its position in the events.
    pub at: usize,
}

/// The facts for an extract.
#[derive(Debug, Default)]
pub(super) struct SummaryMaterial {
    /// Requests and refusals of the user, in order.
    pub asked: Vec<Quotation>,
    /// The last answer of each turn.
    pub answers: Vec<Quotation>,
    /// Earlier texts of the model that contain a decision.
    pub decisions: Vec<Quotation>,
    /// Path, state, and position of the last change.
    files: Vec<(String, FileEffect, usize)>,
    file_places: HashMap<String, usize>,
    reads: HashMap<String, u32>,
    read_order: Vec<String>,
    /// Failures that were not fixed later: the call and the error.
    pub failures: Vec<(String, String)>,
    /// Successful commands, each with its last run and output.
    pub commands: Vec<(String, String)>,
    /// Calls with effects outside files and the shell, and their outcomes.
    pub acts: Vec<(String, String)>,
    /// Skills that were used, in order.
    pub skills: Vec<String>,
    /// Open tasks of the last task list.
    pub open_tasks: Vec<String>,
    /// The question at the end of the last answer.
    pub offer: Option<String>,
    /// Whether the last request has no answer.
    pub is_unanswered: bool,
    /// Ids that occurred more than once.
    pub ids: Vec<String>,
    /// An imported summary of earlier events.
    pub imported_summary: Option<String>,
    /// Whether there is an earlier summary, which contains the task.
    pub goes_on: bool,
    failure_keys: Vec<String>,
    command_keys: Vec<String>,
    tasks: TaskList,
    after_compaction: bool,
    changes: usize,
    /// Number of messages so far.
    said: usize,
}

impl SummaryMaterial {
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
                    gathered.called(call, &mut ids);
                    calls.insert(&call.call_id, call);
                }
                EventBody::ToolResultRecorded(result) => {
                    if let Some(call) = calls.remove(result.call_id.as_str()) {
                        gathered.result(call, result);
                    }
                    gathered.after_compaction = false;
                }
                EventBody::ApprovalDecided(decided) if decided.decision == Decision::Denied => {
                    let call = calls.get(decided.call_id.as_str());
                    let call = call.map_or_else(|| "a call".to_owned(), |call| named(call));
                    gathered.replied(&call, &Reply::Refused(decided.reason.trim()));
                }
                EventBody::Compacted(compacted) => {
                    gathered.after_compaction = compacted.summary.is_empty();
                    // Requests from before the summary are marked, unless the import kept their
                    // turns.
                    if compacted.trigger == CompactionTrigger::Imported && compacted.kept_turns == 0
                    {
                        for said in &mut gathered.asked {
                            if said.label.is_empty() {
                                BEFORE_SUMMARY.clone_into(&mut said.label);
                            }
                        }
                    }
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

    /// Returns the files that were changed, last changed first.
    pub fn changed(&self) -> impl Iterator<Item = (&str, FileEffect, usize)> {
        let mut changed: Vec<_> = self
            .files
            .iter()
            .filter(|(_, touch, _)| touch.changes())
            .map(|(path, touch, at)| (path.as_str(), *touch, *at))
            .collect();
        changed.sort_by_key(|(.., at)| std::cmp::Reverse(*at));
        changed.into_iter()
    }

    /// Returns the files that were read more than once and not changed.
    pub(crate) fn read_again(&self) -> impl Iterator<Item = &str> {
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
        self.said += 1;
        match message.role {
            Role::User => {
                let is_next = std::mem::take(&mut self.after_compaction);
                if is_continuation(text) || is_next && text.len() >= SUMMARY_BYTES_MIN {
                    self.imported_summary = Some(text.to_owned());
                    return;
                }
                let Some(mut text) = user_text::of_message(message) else {
                    return;
                };
                text.truncate(text.floor_char_boundary(SAID_BYTES_MAX));
                ids.note(&text);
                // The user interrupted a message and sent it again with more text.
                let again =
                    |said: &Quotation| said.label.is_empty() && text.starts_with(&said.text);
                if self.asked.last().is_some_and(again) {
                    self.asked.pop();
                }
                self.asked.push(self.quote("", text));
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
        // Claude Code writes this in the model's role after a command run at the prompt.
        if text.trim() == "No response requested." {
            return;
        }
        let is_same_turn = !self.is_unanswered && !self.answers.is_empty();
        self.is_unanswered = false;
        let tasks = open_tasks(text);
        if !tasks.is_empty() {
            self.open_tasks = tasks;
        }
        self.offer = offer(text);
        let said = self.quote("", text.to_owned());
        if is_same_turn && let Some(before) = self.answers.last_mut() {
            let before = std::mem::replace(before, said);
            self.decided(&before.text, before.at);
        } else {
            self.answers.push(said);
        }
    }

    /// Keeps the sentences with a decision in an earlier text of a turn.
    fn decided(&mut self, text: &str, at: usize) {
        for text in decisions(text) {
            let known = self
                .decisions
                .iter()
                .rev()
                .take(8)
                .any(|said| said.text == text);
            if !known {
                self.decisions.push(Quotation {
                    label: String::new(),
                    text,
                    at,
                });
            }
        }
        let over = self.decisions.len().saturating_sub(DECISIONS_MAX);
        self.decisions.drain(..over);
    }

    fn quote(&self, label: &str, text: String) -> Quotation {
        Quotation {
            label: label.to_owned(),
            text,
            at: self.said,
        }
    }

    /// Keeps a comment of the user that takes the place of a result.
    fn replied(&mut self, call: &str, reply: &Reply<'_>) {
        self.said += 1;
        for (label, said) in reply.told(call) {
            self.asked.push(self.quote(&label, said.to_owned()));
        }
    }

    fn called(&mut self, call: &ToolCallRequested, ids: &mut Ids) {
        match file_effects::command_line(call) {
            Some(line) => ids.note(&line),
            None => ids.of_arguments(call.arguments.as_str()),
        }
        if call.tool.eq_ignore_ascii_case("skill") {
            let skill = calls::said_of(call.arguments.as_str(), 80, None);
            if !self.skills.contains(&skill) && self.skills.len() < SKILLS_MAX {
                self.skills.push(skill);
            }
        }
    }

    fn result(&mut self, call: &ToolCallRequested, result: &ToolResultRecorded) {
        let text = text_of(result);
        if let Some(reply) = user_text::reply(&text) {
            return self.replied(&named(call), &reply);
        }
        let (tool, arguments) = (&call.tool, call.arguments.as_str());
        if self.tasks.note(tool, arguments, &text, result.success) {
            self.open_tasks = self.tasks.open();
            return;
        }
        if calls::acts(tool) && !file_effects::is_of_files(tool) {
            return self.did(call, result);
        }
        let line = file_effects::command_line(call);
        // Another call of the batch failed, so this one did not run.
        if !result.success && text.contains("Sibling tool call errored") {
            return;
        }
        let failed = tells_failure(result);
        let mut paths: Vec<String> = Vec::new();
        if result.success && !file_effects::searches(call) {
            for (path, how) in file_effects::touched_by(call, result) {
                self.touch(&path, how);
                paths.push(path);
            }
        }
        let keys = keys_of(call, line.as_deref());
        let what = match &line {
            Some(line) => clip(&one_line(line), COMMAND_CHARS_MAX),
            None => named(call),
        };
        if failed {
            // The last program of a line shows its purpose.
            if let Some(key) = keys.last().filter(|_| !file_effects::only_looks(call)) {
                let said = result_summary(result, 300);
                note_run(&mut self.failures, &mut self.failure_keys, key, what, said);
            }
            return;
        }
        let puts_right = |known: &String| {
            let kind = RunKind::of(known);
            keys.contains(known)
                || kind.is_some() && keys.iter().any(|key| RunKind::ended_by(key) == kind)
        };
        while let Some(at) = self.failure_keys.iter().position(puts_right) {
            self.failure_keys.remove(at);
            self.failures.remove(at);
        }
        if line.is_some() && !keys.is_empty() {
            let said = last_words(result);
            // This line includes a command that ran alone before.
            let is_part = |known: &String| {
                let mut programs = known.split("; ");
                programs.all(|program| keys.iter().any(|key| key == program))
            };
            while let Some(at) = self.command_keys.iter().position(is_part) {
                self.command_keys.remove(at);
                self.commands.remove(at);
            }
            let key = keys.join("; ");
            note_run(&mut self.commands, &mut self.command_keys, &key, what, said);
        }
    }

    /// Keeps a call with effects outside files and the shell.
    fn did(&mut self, call: &ToolCallRequested, result: &ToolResultRecorded) {
        let arguments = calls::whole(call.arguments.as_str(), ACT_CHARS_MAX);
        let what = format!("{} {arguments}", calls::in_words(&call.tool));
        self.acts.retain(|(known, _)| *known != what);
        let came = match members(&text_of(result)) {
            Some(members) if result.success => {
                clip(&one_line(&members.join(", ")), OUTCOME_CHARS_MAX)
            }
            _ if result.success => outcome(&text_of(result)),
            _ => result_summary(result, OUTCOME_CHARS_MAX),
        };
        self.acts.push((what, came));
        let over = self.acts.len().saturating_sub(ACTS_MAX);
        self.acts.drain(..over);
    }

    fn touch(&mut self, path: &str, how: FileEffect) {
        if how == FileEffect::Read {
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
            *known = file_effects::and_then(*known, how);
            *last = at;
        } else {
            self.file_places.insert(path.to_owned(), self.files.len());
            self.files.push((path.to_owned(), how, at));
        }
    }
}

/// Describes a call: the tool's name as plain words, and its most important arguments.
fn named(call: &ToolCallRequested) -> String {
    let said = calls::said_of(call.arguments.as_str(), NAMED_CHARS_MAX, None);
    let tool = calls::in_words(&call.tool);
    format!("{tool} {said}").trim_end().to_owned()
}

/// Returns the outcome of a call from its result: the beginning, and the end, where reports have
/// their verdict.
fn outcome(text: &str) -> String {
    let told = |line: &&str| says_something(line) && !line.starts_with("agentId:");
    let lines: Vec<&str> = without_reminders(text).lines().filter(told).collect();
    match lines.is_empty() {
        true => "no output".to_owned(),
        false => whole_or_ends(&one_line(&lines.join(" / ")), OUTCOME_CHARS_MAX),
    }
}

/// Returns the text of a result, or its error message.
fn text_of(result: &ToolResultRecorded) -> String {
    let texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
    match texts.join("\n") {
        text if text.is_empty() => result.error_message.clone(),
        text => text,
    }
}

/// Returns the question at the end of a text. A short question (`What do you think?`) is returned
/// with the line before it, which has the subject.
fn offer(text: &str) -> Option<String> {
    const SAYS_ENOUGH: usize = 60;
    const OFFER_CHARS_MAX: usize = 400;
    let mut lines = text
        .lines()
        .rev()
        .map(one_line)
        .filter(|line| !line.is_empty());
    let question = lines.next().filter(|line| line.ends_with('?'))?;
    let before = lines
        .next()
        .filter(|_| question.chars().count() < SAYS_ENOUGH);
    let Some(before) = before else {
        return Some(clip(&question, OFFER_CHARS_MAX));
    };
    let before = clip(&before, OFFER_CHARS_MAX - SAYS_ENOUGH);
    Some(format!("{before} {question}"))
}

/// Returns the sentences that contain a decision. A remedy is joined with the sentence before it,
/// which has the cause.
fn decisions(text: &str) -> Vec<String> {
    let mut told = Vec::new();
    for line in text.lines() {
        let mut before: Option<&str> = None;
        for sentence in sentences(line) {
            if tells_decision(sentence) {
                let lower = sentence.to_lowercase();
                let is_remedy = lower.contains("the fix") || lower.contains("so we");
                let cause = before.filter(|before| is_remedy && !announces(before));
                told.push(match cause.filter(|cause| !tells_decision(cause)) {
                    Some(cause) => one_line(&format!("{cause} {sentence}")),
                    None => one_line(sentence),
                });
            }
            before = Some(sentence);
        }
    }
    told
}

/// Whether a text only announces the next step.
pub(super) fn only_announces(text: &str) -> bool {
    const CHARS_MAX: usize = 300;
    let text = text.trim();
    let announced = || sentences(text).all(announces);
    text.chars().count() <= CHARS_MAX
        && (text.ends_with(':') || announced())
        && sentences(text).next().is_some()
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
        .map(|sentence| sentence.trim().trim_start_matches(['-', '*', ' ']))
        .filter(|sentence| sentence.len() > 20 && sentence.len() < 600)
}

/// Whether a sentence announces the next call and is therefore not a decision.
fn announces(sentence: &str) -> bool {
    const ANNOUNCING: [&str; 9] = [
        "let me ",
        "i'll ",
        "i will ",
        "i'm going to ",
        "i am going to ",
        "now i",
        "next, ",
        "let's ",
        "i need to ",
    ];
    let lower = sentence.to_lowercase();
    let begins = lower.trim_start_matches(|c: char| !c.is_alphabetic());
    // `Now implementing the fix.`
    let does = begins
        .strip_prefix("now ")
        .and_then(|rest| rest.split(' ').next())
        .is_some_and(|word| word.ends_with("ing"));
    let begins = ["no, ", "yes, ", "ok, ", "good, ", "actually, ", "now "]
        .iter()
        .find_map(|word| begins.strip_prefix(word))
        .unwrap_or(begins);
    does || lower.ends_with(':') || ANNOUNCING.iter().any(|start| begins.starts_with(start))
}

/// Whether a sentence has words that give reasons or reject alternatives.
fn tells_decision(sentence: &str) -> bool {
    const WORDS: [&str; 24] = [
        "instead",
        "because",
        "rather than",
        "root cause",
        "the cause",
        "caused by",
        "the reason",
        "the bug",
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
    !announces(sentence)
        && !lower.contains("to be decided")
        && WORDS.iter().any(|word| lower.contains(word))
}

/// Whether a text begins like a summary written by a harness.
fn is_continuation(text: &str) -> bool {
    text.trim_start()
        .starts_with("This session is being continued from a previous conversation")
}
