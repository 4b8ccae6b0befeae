//! [`Knowledge`]: a fold over a branch's calls and results. It is bounded: items above the limits
//! are counted but not kept.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{
    file_effects::{FileEffect, FileEffectForm, FileEffects, ParsedCall},
    files::{FileTable, KnownFile},
    policy::{From, KnowledgePolicy, KnowledgeRule, RuleOutput, TextForm, UNKNOWN_FILE},
    read::{
        ExtractedFacts, PATH_BYTES_MAX, ReadableResult, below, clean, is_rooted, names_in, shell_cd,
    },
};
use treering_context::steps;
use treering_domain::{
    ContentPart, ConversationCreated, EventBody, EventKind, EventRef, MessageAppended, Role,
    ToolCallRequested, ToolResultRecorded,
};

/// Maximum number of argument texts that are kept until a call returns.
const MENTIONS_MAX: usize = 16;
/// Maximum number of files that one call's arguments give.
const ARGUMENT_FILES_MAX: usize = 64;
/// Maximum number of recent tools that the summary names.
const RECENT_TOOLS: usize = 5;
/// Maximum number of files in one message of the model that are noted as planned.
const PLANNED_MAX: usize = 8;
/// Maximum length of a message's text that is searched for names of files, in bytes.
const PLAN_BYTES_MAX: usize = 16 << 10;
/// Keys by which sources name the working directory, in addition to the argument names.
const SOURCE_DIRECTORY: [&str; 1] = ["directory"];
/// Memory of an item without its texts, in bytes.
pub(super) const ITEM_BYTES: usize = 96;

/// What the results of a branch have shown so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Knowledge {
    pub(super) policy: Arc<KnowledgePolicy>,
    items_max: usize,
    pub(super) files: FileTable,
    /// Indices of the known files that the model's last message names, in its order.
    pub(super) planned: Vec<usize>,
    /// Tools that used an absolute path when they last named a file.
    pub(super) absolute_tools: HashSet<Arc<str>>,
    pub(super) variables: Vec<FileVariables>,
    variable_places: HashMap<Arc<str>, usize>,
    /// Index of each variable by name, for each entry of `variables`.
    name_places: Vec<HashMap<String, usize>>,
    variables_count: usize,
    directory: Option<WorkingDirectory>,
    outcomes: BTreeMap<String, ToolOutcomes>,
    asked: HashMap<String, OpenCall>,
    pub(super) recent: VecDeque<Arc<str>>,
    /// Number of results so far, used as the measure of recency.
    results: u64,
    /// Number of results of calls that used known files or variables, from tools whose results no
    /// rule reads.
    pub(super) analyses: u64,
    left_out: u64,
    bytes: usize,
}

/// The variables of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVariables {
    /// The path as the call or its result has it, or [`UNKNOWN_FILE`].
    pub file: Arc<str>,
    /// In the order in which they were first seen.
    pub variables: Vec<Variable>,
    /// The last result that showed variables of the file.
    pub event: EventRef,
    /// The tool of that result.
    pub tool: Arc<str>,
    /// As [`KnownFile::recency`].
    pub(super) recency: u64,
}

/// A variable of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The newest detail: JSON text, shortened if it is long.
    pub detail: String,
}

/// The working directory of the tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingDirectory {
    /// The directory.
    pub path: String,
    /// The result that named it.
    pub event: EventRef,
}

/// How often a tool has succeeded and failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolOutcomes {
    /// Successful results.
    pub succeeded: u64,
    /// Failed results.
    pub failed: u64,
    /// The newest result, successful or not.
    pub last: EventRef,
}

/// A call without a result yet, with the facts that its arguments give if it succeeds.
#[derive(Clone, Debug, PartialEq)]
struct OpenCall {
    tool: Arc<str>,
    file: Option<String>,
    mentions: Vec<String>,
    gives_files: Vec<String>,
    directory: Option<(String, bool)>,
    /// How its files are read if it succeeds, and the arguments needed for that.
    touch: Option<(FileEffectForm, Value)>,
    left_out: u64,
}

impl Knowledge {
    /// The kinds of events that the fold reads. Others change nothing.
    pub const KINDS: [EventKind; 5] = [
        EventKind::ConversationCreated,
        EventKind::MessageAppended,
        EventKind::ToolCallRequested,
        EventKind::ToolResultRecorded,
        EventKind::ToolCallCancelled,
    ];

    /// Empty knowledge. Files, variables and tools are each limited to `items_max`.
    #[must_use]
    pub fn new(policy: Arc<KnowledgePolicy>, items_max: usize) -> Self {
        Self {
            policy,
            items_max,
            files: FileTable::default(),
            planned: Vec::new(),
            absolute_tools: HashSet::new(),
            variables: Vec::new(),
            variable_places: HashMap::new(),
            name_places: Vec::new(),
            variables_count: 0,
            directory: None,
            outcomes: BTreeMap::new(),
            asked: HashMap::new(),
            recent: VecDeque::new(),
            results: 0,
            analyses: 0,
            left_out: 0,
            bytes: 0,
        }
    }

    /// Applies an event of the branch.
    pub fn apply(&mut self, at: EventRef, body: &EventBody) {
        match body {
            EventBody::ConversationCreated(created) => self.apply_creation(at, created),
            EventBody::MessageAppended(message) if message.role == Role::Assistant => {
                self.apply_plan(message);
            }
            EventBody::ToolCallRequested(call) => {
                let asked = OpenCall::new(&self.policy, call);
                self.note_request(&asked);
                self.asked.insert(call.call_id.clone(), asked);
            }
            EventBody::ToolCallCancelled(cancelled) => {
                self.asked.remove(&cancelled.call_id);
            }
            EventBody::ToolResultRecorded(result) => {
                if let Some(asked) = self.asked.remove(&result.call_id) {
                    self.apply_result(at, &asked, result);
                }
            }
            _ => {}
        }
    }

    /// Files, in the order in which they were first seen.
    #[must_use]
    pub fn files(&self) -> &[KnownFile] {
        self.files.all()
    }

    /// Variables by file, in the order in which the files were first analysed.
    #[must_use]
    pub fn variables(&self) -> &[FileVariables] {
        &self.variables
    }

    /// The variables of one file.
    #[must_use]
    pub fn variables_of(&self, file: &str) -> Option<&FileVariables> {
        let place = self.variable_places.get(file)?;
        self.variables.get(*place)
    }

    /// The file, if it is known.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&KnownFile> {
        let place = self.files.find(path, self.directory());
        let place = place.or_else(|| self.files.shown_as(path))?;
        self.files.all().get(place)
    }

    /// The directory that relative paths start at.
    fn directory(&self) -> Option<&str> {
        let known = self.directory.as_ref().map(|known| known.path.as_str());
        known.or_else(|| self.files.root())
    }

    /// The working directory, if it is known.
    #[must_use]
    pub fn working_directory(&self) -> Option<&WorkingDirectory> {
        self.directory.as_ref()
    }

    /// Successes and failures of each tool, by name.
    #[must_use]
    pub fn outcomes(&self) -> &BTreeMap<String, ToolOutcomes> {
        &self.outcomes
    }

    /// Whether a call of the tool has succeeded.
    #[must_use]
    pub fn has_succeeded(&self, tool: &str) -> bool {
        self.outcomes.get(tool).is_some_and(|o| o.succeeded > 0)
    }

    /// Files, variables and tools that were omitted because of the limits. Each occurrence counts.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Estimated memory, in bytes.
    #[must_use]
    pub fn estimated_bytes(&self) -> usize {
        self.bytes + (self.asked.len() + self.outcomes.len()) * 2 * ITEM_BYTES
    }

    /// Takes the working directory from the source's own description of the conversation.
    fn apply_creation(&mut self, at: EventRef, created: &ConversationCreated) {
        let described: Value =
            serde_json::from_str(created.source_meta.as_str()).unwrap_or_default();
        let names = self.policy.directory_arguments.iter().map(String::as_str);
        let given = names
            .chain(SOURCE_DIRECTORY)
            .find_map(|name| described.get(name)?.as_str());
        if let Some(path) = given.map(str::to_owned) {
            self.set_directory(&path, false, at);
        }
    }

    /// Notes the known files that the model's message names: it is likely to use them next.
    fn apply_plan(&mut self, message: &MessageAppended) {
        let mut left = PLAN_BYTES_MAX;
        self.planned.clear();
        for text in message.parts.iter().filter_map(ContentPart::text) {
            let text = &text[..text.floor_char_boundary(left)];
            left -= text.len();
            for name in names_in(text) {
                steps::note(1);
                let place = self.files.find(name, self.directory());
                let place = place.or_else(|| self.files.newest_ending_with(name));
                let Some(place) = place.filter(|place| !self.planned.contains(place)) else {
                    continue;
                };
                self.planned.push(place);
                if self.planned.len() == PLANNED_MAX {
                    return;
                }
            }
        }
    }

    /// Notes which known files a call is about to use, and removes them from the planned files.
    fn note_request(&mut self, asked: &OpenCall) {
        for text in &asked.mentions {
            if !is_rooted(text) {
                self.absolute_tools.remove(&asked.tool);
            } else if self.absolute_tools.len() < self.items_max {
                self.absolute_tools.insert(Arc::clone(&asked.tool));
            }
            if let Some(place) = self.files.find(text, self.directory()) {
                self.files.note_use(place, self.results + 1);
                self.planned.retain(|planned| *planned != place);
            }
        }
    }

    fn apply_result(&mut self, at: EventRef, asked: &OpenCall, result: &ToolResultRecorded) {
        self.results += 1;
        self.count(at, &asked.tool, result.success);
        if !result.success {
            return;
        }
        self.left_out += asked.left_out;
        if self.recent.len() == RECENT_TOOLS {
            self.recent.pop_front();
        }
        self.recent.push_back(Arc::clone(&asked.tool));
        let uses_known = self.mention(&asked.mentions);
        for path in &asked.gives_files {
            self.add_file(path, at, &asked.tool, FileEffect::Listed);
        }
        if let Some((path, relative)) = &asked.directory {
            self.set_directory(path, *relative, at);
        }
        let policy = Arc::clone(&self.policy);
        let mut reading = None;
        self.touch(at, asked, result);
        for rule in policy.rules_of(&asked.tool) {
            let is_touched = asked.touch.is_some() && rule.is_by_prefix();
            if rule.from == From::Result && !is_touched {
                let reading = reading.get_or_insert_with(|| ReadableResult::of(result));
                self.apply_rule(at, asked, rule, reading);
            }
        }
        let shows = policy
            .rules_of(&asked.tool)
            .any(|rule| rule.from == From::Result);
        if !shows && uses_known && !self.variables.is_empty() {
            self.analyses += 1;
        }
    }

    /// Records what a successful call did to files.
    fn touch(&mut self, at: EventRef, asked: &OpenCall, result: &ToolResultRecorded) {
        let Some((form, arguments)) = &asked.touch else {
            return;
        };
        let output = output_text(*form, result);
        let spoken = ParsedCall {
            arguments,
            output: &output,
        };
        let touched = FileEffects::of(*form, spoken);
        steps::note(touched.files.len());
        self.left_out += touched.left_out;
        for (path, touch) in &touched.files {
            self.add_file(path, at, &asked.tool, *touch);
        }
        // A rule of the policy that reads the directory takes precedence.
        if let Some(directory) = touched
            .directory
            .as_ref()
            .filter(|_| asked.directory.is_none())
        {
            self.set_directory(directory, true, at);
        }
    }

    fn apply_rule(
        &mut self,
        at: EventRef,
        asked: &OpenCall,
        rule: &KnowledgeRule,
        reading: &ReadableResult,
    ) {
        match rule.gives {
            RuleOutput::Files => {
                let found = ExtractedFacts::files(reading, rule);
                self.left_out += found.left_out;
                for path in &found.names {
                    self.add_file(path, at, &asked.tool, FileEffect::Listed);
                }
            }
            RuleOutput::Variables => {
                let policy = Arc::clone(&self.policy);
                let found = ExtractedFacts::variables(reading, rule, &policy.file_arguments);
                self.left_out += found.left_out;
                let named = found.file.as_deref();
                let named = named.and_then(|file| clean(file, PATH_BYTES_MAX));
                let file = asked.file.as_deref().or(named).unwrap_or(UNKNOWN_FILE);
                self.add_variables(file, &found.variables, at, &asked.tool);
            }
            RuleOutput::WorkingDirectory => {
                if let Some(path) = ExtractedFacts::directory(reading, rule) {
                    self.set_directory(&path, rule.relative, at);
                }
            }
            // Read when a request is built (`names`).
            RuleOutput::Tools | RuleOutput::Entities => {}
        }
    }

    fn count(&mut self, at: EventRef, tool: &str, success: bool) {
        if !self.outcomes.contains_key(tool) && self.outcomes.len() >= self.items_max {
            self.left_out += 1;
            return;
        }
        let outcomes = self
            .outcomes
            .entry(tool.to_owned())
            .or_insert(ToolOutcomes {
                succeeded: 0,
                failed: 0,
                last: at,
            });
        outcomes.succeeded += u64::from(success);
        outcomes.failed += u64::from(!success);
        outcomes.last = at;
    }

    /// Marks the known files and variables that a call uses as recent. Returns true if there are
    /// any.
    fn mention(&mut self, mentions: &[String]) -> bool {
        let mut known = false;
        for text in mentions {
            if let Some(place) = self.files.find(text, self.directory()) {
                self.name_file(place, text);
                self.files.note_use(place, self.results);
                known = true;
            }
            if let Some(place) = self.variable_places.get(text.as_str()) {
                self.variables[*place].recency = self.results;
                known = true;
            }
        }
        known
    }

    fn add_file(&mut self, path: &str, event: EventRef, tool: &Arc<str>, touch: FileEffect) {
        if let Some(place) = self.files.find(path, self.directory()) {
            self.name_file(place, path);
            self.files.note_effect(place, touch, self.results);
        } else if self.files.all().len() < self.items_max {
            let place = self.files.add(path, event, tool, touch, self.results);
            self.bytes += path.len() + 2 * ITEM_BYTES;
            self.name_file(place, path);
        } else {
            self.left_out += 1;
        }
    }

    /// Records one more name of a file.
    fn name_file(&mut self, place: usize, path: &str) {
        let directory = self.directory().map(str::to_owned);
        self.bytes += self.files.name(place, path, directory.as_deref());
    }

    fn add_variables(
        &mut self,
        file: &str,
        found: &[(String, String)],
        event: EventRef,
        tool: &Arc<str>,
    ) {
        if found.is_empty() {
            return;
        }
        let place = match self.variable_places.get(file) {
            Some(place) => *place,
            None if self.variables_count >= self.items_max => {
                self.left_out += found.len() as u64;
                return;
            }
            None => {
                let file: Arc<str> = file.into();
                self.bytes += file.len() + 2 * ITEM_BYTES;
                self.variable_places
                    .insert(Arc::clone(&file), self.variables.len());
                self.name_places.push(HashMap::new());
                self.variables.push(FileVariables {
                    file,
                    variables: Vec::new(),
                    event,
                    tool: Arc::clone(tool),
                    recency: self.results,
                });
                self.variables.len() - 1
            }
        };
        let of_file = &mut self.variables[place];
        of_file.event = event;
        of_file.tool = Arc::clone(tool);
        of_file.recency = self.results;
        let places = &mut self.name_places[place];
        for (name, detail) in found {
            steps::note(1);
            if let Some(place) = places.get(name) {
                let known = &mut of_file.variables[*place].detail;
                self.bytes = self.bytes + detail.len() - known.len();
                known.clone_from(detail);
            } else if self.variables_count < self.items_max {
                self.variables_count += 1;
                self.bytes += 2 * name.len() + detail.len() + 2 * ITEM_BYTES;
                places.insert(name.clone(), of_file.variables.len());
                of_file.variables.push(Variable {
                    name: name.clone(),
                    detail: detail.clone(),
                });
            } else {
                self.left_out += 1;
            }
        }
    }

    fn set_directory(&mut self, path: &str, relative: bool, event: EventRef) {
        let known = self.directory.as_ref().filter(|_| relative);
        let path = below(known.map(|known| known.path.as_str()), path);
        if clean(&path, PATH_BYTES_MAX).is_none() {
            self.left_out += 1;
            return;
        }
        if self.directory().is_none() && is_rooted(&path) {
            self.bytes += self.files.begin_at(&path);
        }
        self.directory = Some(WorkingDirectory { path, event });
    }
}

impl OpenCall {
    fn new(policy: &KnowledgePolicy, call: &ToolCallRequested) -> Self {
        let mut asked = Self {
            tool: call.tool.as_str().into(),
            file: None,
            mentions: Vec::new(),
            gives_files: Vec::new(),
            directory: None,
            touch: None,
            left_out: 0,
        };
        let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
        let touches = policy.touches.values();
        let form = touches
            .filter(|rule| rule.matches(&call.tool))
            .map(|rule| rule.form)
            .next();
        asked.touch = form.map(|form| (form, slim(form, &arguments)));
        let text = |name: &String| arguments.get(name).and_then(Value::as_str);
        for name in &policy.file_arguments {
            if let Some(path) = text(name).and_then(|path| clean(path, PATH_BYTES_MAX)) {
                asked.file.get_or_insert_with(|| path.to_owned());
                asked.mentions.push(path.to_owned());
            }
        }
        asked.mentions.truncate(MENTIONS_MAX);
        for rule in policy.rules_of(&call.tool) {
            if rule.from == From::Arguments {
                let given = rule.arguments.iter().find_map(|name| {
                    let value = arguments.get(name)?;
                    (!value.is_null()).then_some(value)
                });
                if let Some(value) = given {
                    asked.take(rule, value);
                }
            }
        }
        asked
    }

    fn take(&mut self, rule: &KnowledgeRule, value: &Value) {
        let texts: Vec<&str> = match value {
            Value::String(text) => vec![text],
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            _ => return,
        };
        match rule.gives {
            RuleOutput::WorkingDirectory => {
                let Some(text) = texts.first() else { return };
                let path = match rule.text {
                    TextForm::ShellCd => shell_cd(text),
                    _ => Some((*text).to_owned()),
                };
                match path.as_deref().map(|path| clean(path, PATH_BYTES_MAX)) {
                    Some(Some(path)) => self.directory = Some((path.to_owned(), rule.relative)),
                    Some(None) => self.left_out += 1,
                    None => {}
                }
            }
            RuleOutput::Files => {
                for text in texts {
                    match clean(text, PATH_BYTES_MAX) {
                        Some(path) if self.gives_files.len() < ARGUMENT_FILES_MAX => {
                            self.gives_files.push(path.to_owned());
                        }
                        _ => self.left_out += 1,
                    }
                }
            }
            // The arguments alone say nothing about these.
            RuleOutput::Variables | RuleOutput::Tools | RuleOutput::Entities => {}
        }
    }
}

/// Longest argument text that is kept until the call returns, in bytes, for command lines and
/// patches. Other texts are paths, and have the limit of paths.
const LINE_BYTES_MAX: usize = 256 << 10;

/// The arguments that say which files a call touches, without the text of a file that it writes.
fn slim(form: FileEffectForm, arguments: &Value) -> Value {
    let bytes_max = match form {
        FileEffectForm::Shell | FileEffectForm::Patch => LINE_BYTES_MAX,
        _ => PATH_BYTES_MAX,
    };
    fn kept(value: &Value, bytes_max: usize, depth: usize) -> Option<Value> {
        Some(match value {
            Value::String(text) if text.len() > bytes_max => return None,
            Value::Array(items) if depth < 3 => {
                let items = items.iter().take(ARGUMENT_FILES_MAX);
                Value::Array(
                    items
                        .filter_map(|item| kept(item, bytes_max, depth + 1))
                        .collect(),
                )
            }
            Value::Object(members) if depth < 3 => {
                let members = members.iter().take(ARGUMENT_FILES_MAX);
                let kept = members.filter_map(|(key, value)| {
                    Some((key.clone(), kept(value, bytes_max, depth + 1)?))
                });
                Value::Object(kept.collect())
            }
            Value::Array(_) | Value::Object(_) => return None,
            value => value.clone(),
        })
    }
    kept(arguments, bytes_max, 0).unwrap_or_default()
}

/// The text of a result. For JSON, the names that it lists or the output of a program.
pub(super) fn output_text(form: FileEffectForm, result: &ToolResultRecorded) -> String {
    let lists = matches!(
        form,
        FileEffectForm::List | FileEffectForm::Glob | FileEffectForm::Search
    );
    match ReadableResult::of(result) {
        ReadableResult::Text(text) => text,
        ReadableResult::TooLarge => String::new(),
        ReadableResult::Json(Value::String(text)) => text,
        reading if lists => {
            let rule = KnowledgeRule::of_files();
            ExtractedFacts::files(&reading, &rule).names.join("\n")
        }
        ReadableResult::Json(Value::Object(members)) => {
            let output = ["output", "stdout", "content", "result", "text"]
                .iter()
                .find_map(|key| members.get(*key)?.as_str());
            output.unwrap_or_default().to_owned()
        }
        ReadableResult::Json(_) => String::new(),
    }
}
