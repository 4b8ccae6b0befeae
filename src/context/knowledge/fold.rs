//! [`Knowledge`]: a fold over a branch's calls and results. Bounded: what does
//! not fit is counted, not kept.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{
    policy::{From, Gives, KnowledgePolicy, KnowledgeRule, TextForm, UNKNOWN_FILE},
    read::{Found, PATH_BYTES_MAX, Reading, below, clean, shell_cd},
};
use crate::domain::{EventBody, EventKind, EventRef, ToolCallRequested, ToolResultRecorded};

/// Texts of a call's arguments that are remembered until it returns.
const MENTIONS_MAX: usize = 16;
/// Files that one call's arguments can give.
const ARGUMENT_FILES_MAX: usize = 64;
/// Tools that the summary names as the last ones.
const RECENT_TOOLS: usize = 5;
/// What an item takes in memory beside its texts, in bytes.
const ITEM_BYTES: usize = 96;

/// What the results of a branch have shown so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Knowledge {
    pub(super) policy: Arc<KnowledgePolicy>,
    items_max: usize,
    pub(super) files: Vec<KnownFile>,
    file_places: HashMap<Arc<str>, usize>,
    pub(super) variables: Vec<FileVariables>,
    variable_places: HashMap<Arc<str>, usize>,
    variables_count: usize,
    directory: Option<WorkingDirectory>,
    outcomes: BTreeMap<String, ToolOutcomes>,
    asked: HashMap<String, Asked>,
    pub(super) recent: VecDeque<Arc<str>>,
    /// Results so far: what was met with a later one is more recent.
    results: u64,
    /// Results of other tools that worked with known files.
    pub(super) analyses: u64,
    left_out: u64,
    bytes: usize,
}

/// A file that a result has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// As the result wrote it.
    pub path: Arc<str>,
    /// The result that showed it first.
    pub event: EventRef,
    /// Whose result that was.
    pub tool: Arc<str>,
    /// The number of the result that showed or used it last.
    pub(super) recency: u64,
}

/// The variables of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVariables {
    /// As the call or its result wrote it, or [`UNKNOWN_FILE`].
    pub file: Arc<str>,
    /// In the order in which they were first seen.
    pub variables: Vec<Variable>,
    /// The last result that showed variables of the file.
    pub event: EventRef,
    /// Whose result that was.
    pub tool: Arc<str>,
    /// As [`KnownFile::recency`].
    pub(super) recency: u64,
}

/// A variable of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What was last said of it: JSON text, shortened when long.
    pub detail: String,
}

/// Where the tools work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingDirectory {
    /// The directory.
    pub path: String,
    /// The result that showed it.
    pub event: EventRef,
}

/// How often a tool has worked, and how often not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolOutcomes {
    /// Results that worked.
    pub succeeded: u64,
    /// Results that did not.
    pub failed: u64,
    /// The last of both.
    pub last: EventRef,
}

/// A call that has not returned: what its arguments give once it works.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    tool: Arc<str>,
    file: Option<String>,
    mentions: Vec<String>,
    gives_files: Vec<String>,
    directory: Option<(String, bool)>,
    left_out: u64,
}

impl Knowledge {
    /// The kinds of events that the fold looks at; others change nothing.
    pub const KINDS: [EventKind; 3] = [
        EventKind::ToolCallRequested,
        EventKind::ToolResultRecorded,
        EventKind::ToolCallCancelled,
    ];

    /// Nothing is known yet. At most `items_max` files, as many variables, and as
    /// many tools are kept.
    #[must_use]
    pub fn new(policy: Arc<KnowledgePolicy>, items_max: usize) -> Self {
        Self {
            policy,
            items_max,
            files: Vec::new(),
            file_places: HashMap::new(),
            variables: Vec::new(),
            variable_places: HashMap::new(),
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

    /// Folds an event of the branch in.
    pub fn apply(&mut self, at: EventRef, body: &EventBody) {
        match body {
            EventBody::ToolCallRequested(call) => {
                let asked = Asked::new(&self.policy, call);
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
        &self.files
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
        self.files.get(*self.file_places.get(path)?)
    }

    /// Where the tools work, if that is known.
    #[must_use]
    pub fn working_directory(&self) -> Option<&WorkingDirectory> {
        self.directory.as_ref()
    }

    /// What came of each tool's calls, by name.
    #[must_use]
    pub fn outcomes(&self) -> &BTreeMap<String, ToolOutcomes> {
        &self.outcomes
    }

    /// True when a call of the tool has returned what was asked.
    #[must_use]
    pub fn has_succeeded(&self, tool: &str) -> bool {
        self.outcomes.get(tool).is_some_and(|o| o.succeeded > 0)
    }

    /// Files, variables and tools that were left out because of the bounds; one
    /// that came several times counts each time.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// About how much memory it takes, in bytes.
    #[must_use]
    pub fn estimated_bytes(&self) -> usize {
        self.bytes + (self.asked.len() + self.outcomes.len()) * 2 * ITEM_BYTES
    }

    fn apply_result(&mut self, at: EventRef, asked: &Asked, result: &ToolResultRecorded) {
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
            self.add_file(path, at, &asked.tool);
        }
        if let Some((path, relative)) = &asked.directory {
            self.set_directory(path, *relative, at);
        }
        let policy = Arc::clone(&self.policy);
        let mut reading = None;
        for rule in policy.rules_of(&asked.tool) {
            if rule.from == From::Result {
                let reading = reading.get_or_insert_with(|| Reading::of(result));
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

    fn apply_rule(&mut self, at: EventRef, asked: &Asked, rule: &KnowledgeRule, reading: &Reading) {
        match rule.gives {
            Gives::Files => {
                let found = Found::files(reading, rule);
                self.left_out += found.left_out;
                for path in &found.names {
                    self.add_file(path, at, &asked.tool);
                }
            }
            Gives::Variables => {
                let policy = Arc::clone(&self.policy);
                let found = Found::variables(reading, rule, &policy.file_arguments);
                self.left_out += found.left_out;
                let named = found.file.as_deref();
                let named = named.and_then(|file| clean(file, PATH_BYTES_MAX));
                let file = asked.file.as_deref().or(named).unwrap_or(UNKNOWN_FILE);
                self.add_variables(file, &found.variables, at, &asked.tool);
            }
            Gives::WorkingDirectory => {
                if let Some(path) = Found::directory(reading, rule) {
                    self.set_directory(&path, rule.relative, at);
                }
            }
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

    /// Notes that a call has used what is known. True when it has.
    fn mention(&mut self, mentions: &[String]) -> bool {
        let mut known = false;
        for text in mentions {
            if let Some(place) = self.file_places.get(text.as_str()) {
                self.files[*place].recency = self.results;
                known = true;
            }
            if let Some(place) = self.variable_places.get(text.as_str()) {
                self.variables[*place].recency = self.results;
                known = true;
            }
        }
        known
    }

    fn add_file(&mut self, path: &str, event: EventRef, tool: &Arc<str>) {
        if let Some(place) = self.file_places.get(path) {
            self.files[*place].recency = self.results;
            return;
        }
        if self.files.len() >= self.items_max {
            self.left_out += 1;
            return;
        }
        let path: Arc<str> = path.into();
        self.bytes += path.len() + 2 * ITEM_BYTES;
        self.file_places.insert(Arc::clone(&path), self.files.len());
        self.files.push(KnownFile {
            path,
            event,
            tool: Arc::clone(tool),
            recency: self.results,
        });
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
        let mut places: HashMap<String, usize> = of_file
            .variables
            .iter()
            .enumerate()
            .map(|(place, variable)| (variable.name.clone(), place))
            .collect();
        for (name, detail) in found {
            if let Some(place) = places.get(name) {
                let known = &mut of_file.variables[*place].detail;
                self.bytes = self.bytes + detail.len() - known.len();
                known.clone_from(detail);
            } else if self.variables_count < self.items_max {
                self.variables_count += 1;
                self.bytes += name.len() + detail.len() + ITEM_BYTES;
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
        if path.len() > PATH_BYTES_MAX {
            self.left_out += 1;
            return;
        }
        self.directory = Some(WorkingDirectory { path, event });
    }
}

impl Asked {
    fn new(policy: &KnowledgePolicy, call: &ToolCallRequested) -> Self {
        let mut asked = Self {
            tool: call.tool.as_str().into(),
            file: None,
            mentions: Vec::new(),
            gives_files: Vec::new(),
            directory: None,
            left_out: 0,
        };
        let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
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
            Gives::WorkingDirectory => {
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
            Gives::Files => {
                for text in texts {
                    match clean(text, PATH_BYTES_MAX) {
                        Some(path) if self.gives_files.len() < ARGUMENT_FILES_MAX => {
                            self.gives_files.push(path.to_owned());
                        }
                        _ => self.left_out += 1,
                    }
                }
            }
            // A name without a result says nothing about a variable.
            Gives::Variables => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{
        CancelReason, ContentHash, ConversationId, JsonText, Revision, ToolCallCancelled,
    };

    /// (tool, arguments, result text); arguments with a member `fail` fail.
    pub type Call<'a> = (&'a str, &'a str, &'a str);

    fn at(revision: u64) -> EventRef {
        EventRef {
            conversation: ConversationId::default(),
            revision: Revision(revision),
        }
    }

    fn request(call_id: &str, tool: &str, arguments: &str) -> EventBody {
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: call_id.to_owned(),
            tool: tool.to_owned(),
            arguments: JsonText::from_checked(bytes::Bytes::copy_from_slice(arguments.as_bytes())),
            arguments_hash: ContentHash([0; 32]),
            message_revision: None,
            needs_approval: false,
        })
    }

    fn answer(call_id: &str, arguments: &str, text: &str) -> EventBody {
        let mut result = ToolResultRecorded::text(call_id, text);
        result.success = !arguments.contains("\"fail\"");
        EventBody::ToolResultRecorded(result)
    }

    fn events(calls: &[Call<'_>]) -> Vec<(EventRef, EventBody)> {
        let mut events = Vec::new();
        for (place, (tool, arguments, text)) in calls.iter().enumerate() {
            let revision = place as u64 * 2 + 1;
            events.push((at(revision), request("c", tool, arguments)));
            events.push((at(revision + 1), answer("c", arguments, text)));
        }
        events
    }

    fn fold(mut knowledge: Knowledge, events: &[(EventRef, EventBody)]) -> Knowledge {
        for (at, body) in events {
            knowledge.apply(*at, body);
        }
        knowledge
    }

    pub fn with_policy(policy: &str, calls: &[Call<'_>]) -> Knowledge {
        let policy = Arc::new(KnowledgePolicy::merged(policy).unwrap());
        fold(Knowledge::new(policy, 10_000), &events(calls))
    }

    pub fn told(calls: &[Call<'_>]) -> Knowledge {
        with_policy("", calls)
    }

    fn paths(knowledge: &Knowledge) -> Vec<&str> {
        knowledge.files().iter().map(|file| &*file.path).collect()
    }

    // What failed, what was cancelled and what no rule is about gives nothing; the
    // first event that showed a file is the one that is named.
    #[test]
    fn only_results_that_worked_give_knowledge() {
        let knowledge = told(&[
            (
                "list_files",
                r#"{"fail": 1, "cwd": "/no"}"#,
                r#"["no.txt"]"#,
            ),
            ("read_file", "{}", r#"["no.txt"]"#),
            ("list_files", r#"{"cwd": "/yes"}"#, r#"["b.txt", "a.txt"]"#),
            ("find_files", "not json", r#"["a.txt", "c.txt"]"#),
            ("cd", r#"{"path": "sub/../data"}"#, ""),
        ]);
        assert_eq!(paths(&knowledge), ["b.txt", "a.txt", "c.txt"]);
        assert_eq!(knowledge.file("a.txt").unwrap().event, at(6));
        assert_eq!(&*knowledge.file("c.txt").unwrap().tool, "find_files");
        assert_eq!(knowledge.working_directory().unwrap().path, "/yes/data");
        let outcomes = knowledge.outcomes()["list_files"];
        assert_eq!((outcomes.succeeded, outcomes.failed), (1, 1));
        assert_eq!(outcomes.last, at(6));

        let cancelled = EventBody::ToolCallCancelled(ToolCallCancelled {
            call_id: "c".into(),
            reason: CancelReason::Interrupted,
            detail: String::new(),
        });
        let mut knowledge = told(&[]);
        knowledge.apply(at(1), &request("c", "list_files", "{}"));
        knowledge.apply(at(2), &cancelled);
        knowledge.apply(at(3), &answer("c", "{}", r#"["late.txt"]"#));
        assert!(knowledge.files().is_empty() && knowledge.outcomes().is_empty());
    }

    // Variables belong to the file that the call or its result names; the last
    // word on one counts, and what was known of others stays.
    #[test]
    fn variables_gather_by_file() {
        let knowledge = told(&[
            (
                "inspect_file",
                r#"{"filename": "a"}"#,
                r#"{"t": 1, "u": 2}"#,
            ),
            ("analyze_file", r#"{"path": "a"}"#, r#"{"u": 3, "v": 4}"#),
            ("inspect_it", "{}", r#"{"file": "b", "w": 5}"#),
            ("inspect_it", "{}", r#"{"x": 6}"#),
        ]);
        let a: Vec<_> = knowledge
            .variables_of("a")
            .unwrap()
            .variables
            .iter()
            .map(|v| format!("{}={}", v.name, v.detail))
            .collect();
        assert_eq!(a, ["t=1", "u=3", "v=4"]);
        assert_eq!(&*knowledge.variables_of("a").unwrap().tool, "analyze_file");
        assert_eq!(knowledge.variables_of("b").unwrap().variables[0].name, "w");
        assert_eq!(
            knowledge.variables_of(UNKNOWN_FILE).unwrap().variables[0].name,
            "x"
        );
    }

    // Tools of coding agents follow no naming rule: a policy must reach them, from
    // arguments, from grep's lines, and from `cd` in a shell command.
    #[test]
    fn a_policy_reaches_other_tools() {
        let policy = r#"{"rules": {
            "glob": {"tools": {"names": ["Glob"]}},
            "grep": {"tools": {"names": ["Grep"]}, "text": "before_colon"},
            "edited": {"tools": {"names": ["Read"]}, "from": "arguments", "arguments": ["file_path"]},
            "shell": {"tools": {"suffixes": ["ash"]}, "gives": "working_directory", "from": "arguments",
                      "arguments": ["command"], "text": "shell_cd", "relative": true},
            "nested": {"tools": {"names": ["api"]}, "pointers": ["/data/found"], "name_keys": ["id"]}}}"#;
        let knowledge = with_policy(
            policy,
            &[
                ("Glob", "{}", "/r/a.go\n/r/b.go"),
                ("Grep", "{}", "c.go:12:x: y\nc.go:13:z"),
                ("Read", r#"{"file_path": "d.go"}"#, "package d"),
                ("Bash", r#"{"command": "cd /r && ls"}"#, ""),
                ("Bash", r#"{"command": "cd sub"}"#, ""),
                (
                    "api",
                    "{}",
                    r#"{"data": {"found": [{"id": "e.go"}], "other": [{"id": "f.go"}]}}"#,
                ),
            ],
        );
        assert_eq!(
            paths(&knowledge),
            ["/r/a.go", "/r/b.go", "c.go", "d.go", "e.go"]
        );
        assert_eq!(knowledge.working_directory().unwrap().path, "/r/sub");
    }

    // A tool that lists without end must not fill the memory: the first items are
    // kept, the others counted.
    #[test]
    fn bounds_hold_and_count() {
        let policy = Arc::new(KnowledgePolicy::default());
        let list: Vec<String> = (0..50).map(|n| format!("{n}.txt")).collect();
        let list = serde_json::to_string(&list).unwrap();
        let variables = r#"{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}"#;
        let calls: Vec<Call<'_>> = vec![
            ("list_files", "{}", &list),
            ("inspect_a", r#"{"file": "x"}"#, variables),
            ("inspect_a", r#"{"file": "y"}"#, variables),
            ("list_more", "{}", "[]"),
            ("list_b", "{}", "[]"),
            ("list_c", "{}", "[]"),
            ("list_d", "{}", "[]"),
        ];
        let knowledge = fold(Knowledge::new(policy, 5), &events(&calls));
        assert_eq!(
            paths(&knowledge),
            ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt"]
        );
        assert_eq!(knowledge.variables().len(), 1);
        assert_eq!(knowledge.variables()[0].variables.len(), 5);
        assert_eq!(knowledge.outcomes().len(), 5);
        assert_eq!(knowledge.left_out(), 45 + 2 + 7 + 1);
    }

    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(r#"["a.txt", "b/a.txt"]"#.to_owned()),
            Just(r#"{"files": [{"path": "c.txt"}], "variables": {"t": 1}}"#.to_owned()),
            Just("d.txt\ne.txt".to_owned()),
            proptest::collection::vec("[a-d]{1,2}\\.txt", 0..6)
                .prop_map(|names| serde_json::to_string(&names).unwrap_or_default()),
            "\\PC{0,40}",
            proptest::collection::vec(any::<char>(), 0..40).prop_map(|c| c.into_iter().collect()),
        ]
    }

    fn any_call() -> impl Strategy<Value = (String, String, String)> {
        let tool = prop_oneof![
            Just("list_files"),
            Just("inspect_file"),
            Just("read_file"),
            Just("cd"),
            Just("pwd"),
        ];
        let arguments = prop_oneof![
            Just(r#"{"path": "a.txt"}"#),
            Just(r#"{"filename": "c.txt", "cwd": "/w"}"#),
            Just(r#"{"fail": 1}"#),
            Just("{}"),
            Just(r#"{"path": "../x"}"#),
            Just("[]"),
        ];
        (tool, arguments, any_text())
            .prop_map(|(tool, arguments, text)| (tool.into(), arguments.into(), text))
    }

    fn borrowed(calls: &[(String, String, String)]) -> Vec<Call<'_>> {
        calls
            .iter()
            .map(|(t, a, r)| (t.as_str(), a.as_str(), r.as_str()))
            .collect()
    }

    proptest! {
        // The engine extends what it has; a restart folds from the start: both must
        // know the same, wherever the cut was, also between a call and its result.
        #[test]
        fn extending_is_folding_again(
            calls in proptest::collection::vec(any_call(), 0..12), cut in 0_usize..25,
        ) {
            let events = events(&borrowed(&calls));
            let cut = cut.min(events.len());
            let empty = told(&[]);
            let first = fold(empty.clone(), &events[..cut]);
            let extended = fold(first.clone(), &events[cut..]);
            let whole = fold(empty, &events);
            prop_assert_eq!(&extended, &whole);
            prop_assert_eq!(extended.summary_text(), whole.summary_text());
        }

        // Calls of one batch return in any order: what is known in the end, and how
        // often each tool worked, must not depend on it.
        #[test]
        fn results_may_come_in_any_order(
            calls in proptest::collection::vec(any_call(), 0..8).prop_shuffle(), seed in any::<u64>(),
        ) {
            let known = |calls: &[(String, String, String)]| {
                let knowledge = told(&borrowed(calls));
                let mut files: Vec<String> = knowledge.files().iter().map(|f| f.path.to_string()).collect();
                files.sort();
                let mut variables: Vec<String> = knowledge.variables().iter()
                    .flat_map(|f| f.variables.iter().map(|v| format!("{}/{}", f.file, v.name)))
                    .collect();
                variables.sort();
                let outcomes: Vec<_> = knowledge.outcomes().iter()
                    .map(|(tool, o)| (tool.clone(), o.succeeded, o.failed)).collect();
                (files, variables, outcomes, knowledge.left_out())
            };
            let mut other = calls.clone();
            if !other.is_empty() {
                let by = usize::try_from(seed % other.len() as u64).unwrap_or_default();
                other.rotate_left(by);
                other.reverse();
            }
            prop_assert_eq!(known(&calls), known(&other));
        }

        // Whatever tools return: nothing grows past its bound, no text can break a
        // line of a prompt, and all that is told is bounded.
        #[test]
        fn nothing_passes_its_bound(
            calls in proptest::collection::vec(any_call(), 0..20), items_max in 0_usize..6,
        ) {
            let policy = Arc::new(KnowledgePolicy::default());
            let knowledge = fold(Knowledge::new(policy, items_max), &events(&borrowed(&calls)));
            prop_assert!(knowledge.files().len() <= items_max);
            let variables: usize = knowledge.variables().iter().map(|f| f.variables.len()).sum();
            prop_assert!(variables <= items_max);
            let names = knowledge.files().iter().map(|f| f.path.to_string())
                .chain(knowledge.variables().iter().map(|f| f.file.to_string()))
                .chain(knowledge.working_directory().map(|d| d.path.clone()));
            for name in names {
                prop_assert!(!name.is_empty() && name.len() <= PATH_BYTES_MAX);
                prop_assert!(!name.chars().any(char::is_control));
            }
            let summary = knowledge.summary_text();
            prop_assert!(summary.chars().count() <= 2_000);
            prop_assert!(summary.lines().count() <= 9);
            prop_assert!(knowledge.guidance(&[]).chars().count() <= 2_000);
            let suggested = knowledge.suggest_arguments(r#"{"path": null, "column": ""}"#, None);
            let arguments = suggested.unwrap().arguments;
            prop_assert!(serde_json::from_str::<Value>(&arguments).unwrap().is_object());
        }
    }
}
