//! Recorded text reaches a terminal in many ways. It must never control it.

use std::collections::BTreeSet;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value,
};
use treering::{
    domain::EventKind,
    proto::{envelope, pb},
};

use super::{
    grpc::harness::TestServer,
    terminal::{CommandOutput, Shell},
};

/// Markup, and characters that end an attribute.
pub(super) const MARKUP: &str = "<u/\"'&>";
/// Clears the screen, sets the title and a colour, hides itself, changes the text direction,
/// contains markup, and begins a line that looks like the program's own.
pub(super) const NAME: &str = "evil\u{1b}[2J\u{1b}]0;t\u{7}\u{1b}[31mCOL<u/\"'&>\u{9b}8m\u{202e}\u{2066}\u{200f}\u{61c}\u{8}\u{b}\u{7f}\r\nFORGED";
/// The same as text of several lines, which may begin with anything.
const TEXT: &str = "said\u{1b}[2J\u{1b}]0;t\u{7}\u{1b}[31mCOL<u/\"'&>\u{9b}8m\u{202e}\u{2066}\u{8}\u{7f}\rover\nsecond \u{202d}line";
/// A branch's name cannot contain control characters.
pub(super) const BRANCH: &str = "br\u{202e}anch\u{2066}<u/\"'&>";

/// Fields with text of several lines; all others are names.
const TEXTS: [&str; 8] = [
    "text",
    "content",
    "description",
    "guidance",
    "summary",
    "comment",
    "error_message",
    "refusal",
];
/// Fields with JSON, or with maps of JSON.
const JSON: [&str; 9] = [
    "json",
    "arguments",
    "structured",
    "value",
    "input_schema",
    "source_meta",
    "parameters",
    "policies",
    "metadata",
];
/// Fields that an event needs unchanged: ids of other objects, and data from which providers'
/// shapes are restored.
const LEFT: [&str; 5] = [
    "parent",
    "raw",
    "conversation_id",
    "call_id",
    "set_metadata",
];

fn json(text: &str) -> String {
    serde_json::json!({ text: text }).to_string()
}

fn hostile(field: &FieldDescriptor) -> String {
    match field.name() {
        name if JSON.contains(&name) => json(NAME),
        name if TEXTS.contains(&name) => TEXT.to_owned(),
        _ => NAME.to_owned(),
    }
}

/// Sets each empty text field to a hostile text, also in nested messages.
fn fill(message: &mut DynamicMessage) {
    let fields: Vec<_> = message.descriptor().fields().collect();
    for field in fields {
        let other_is_set = field.containing_oneof().is_some_and(|oneof| {
            oneof
                .fields()
                .any(|other| other.name() != field.name() && message.has_field(&other))
        });
        if LEFT.contains(&field.name()) || other_is_set {
            continue;
        }
        let is_set = message.has_field(&field);
        if field.is_map() {
            let value = Value::String(hostile(&field));
            let entry = (MapKey::String(NAME.to_owned()), value);
            message.set_field(&field, Value::Map([entry].into()));
        } else if field.is_list() && is_set {
            let Value::List(parts) = message.get_field_mut(&field) else {
                continue;
            };
            for part in parts.iter_mut() {
                if let Value::Message(part) = part {
                    fill(part);
                }
            }
        } else if field.is_list() && field.kind() == Kind::String {
            message.set_field(&field, Value::List(vec![Value::String(NAME.to_owned())]));
        } else if let Kind::Message(of) = field.kind()
            && !field.is_list()
        {
            if of.full_name().starts_with("google.") {
                continue;
            }
            let Value::Message(inner) = message.get_field_mut(&field) else {
                continue;
            };
            fill(inner);
        } else if !is_set && field.kind() == Kind::String {
            message.set_field(&field, Value::String(hostile(&field)));
        } else if !is_set && field.kind() == Kind::Bytes && JSON.contains(&field.name()) {
            message.set_field(&field, Value::Bytes(hostile(&field).into()));
        }
    }
}

/// Returns an event in which each text field that was not given is hostile.
fn event<M: Message + prost::Name>(
    pool: &DescriptorPool,
    kind: EventKind,
    body: &M,
) -> pb::NewEvent {
    let descriptor = pool.get_message_by_name(&M::full_name()).unwrap();
    let mut message = DynamicMessage::new(descriptor);
    message.transcode_from(body).unwrap();
    fill(&mut message);
    pb::NewEvent {
        actor: NAME.into(),
        correlation_id: NAME.into(),
        key: NAME.into(),
        attributes: [(NAME.to_owned(), NAME.to_owned())].into(),
        body: Some(envelope::new_arm(kind, message.encode_to_vec().into())),
        ..Default::default()
    }
}

/// Returns parts of each kind.
fn parts() -> Vec<pb::ContentPart> {
    use pb::content_part::Part;
    let media = || pb::Media {
        source: Some(pb::media::Source::Uri(NAME.into())),
        ..Default::default()
    };
    [
        Part::Text(TEXT.into()),
        Part::Reasoning(pb::Reasoning::default()),
        Part::Image(media()),
        Part::File(media()),
        Part::Audio(media()),
        Part::Refusal(TEXT.into()),
        Part::Json(json(NAME)),
    ]
    .map(|part| pb::ContentPart { part: Some(part) })
    .into()
}

fn message(role: pb::Role) -> pb::MessageAppended {
    pb::MessageAppended {
        role: role.into(),
        parts: parts(),
        usage: Some(pb::Usage {
            input_tokens: 1,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn call(number: u32, approval: pb::ApprovalRequirement) -> pb::ToolCallRequested {
    pb::ToolCallRequested {
        call_id: format!("{NAME}{number}"),
        approval: approval.into(),
        ..Default::default()
    }
}

/// Returns a conversation with an event of nearly every kind.
fn events(pool: &DescriptorPool) -> Vec<pb::NewEvent> {
    use EventKind as K;
    use pb::ApprovalRequirement::{NotRequired, Pending};
    let id = |number: u32| format!("{NAME}{number}");
    let tool = pb::ToolDefinition::default();
    let result = |number| pb::ToolResultRecorded {
        call_id: id(number),
        success: number == 2,
        parts: parts(),
        ..Default::default()
    };
    let decided = pb::ApprovalDecided {
        call_id: id(5),
        decision: pb::Decision::Denied.into(),
        arguments_hash: blake3::hash(json(NAME).as_bytes())
            .as_bytes()
            .to_vec()
            .into(),
        ..Default::default()
    };
    vec![
        event(
            pool,
            K::ConversationCreated,
            &pb::ConversationCreated::default(),
        ),
        event(pool, K::SystemPromptSet, &pb::SystemPromptSet::default()),
        event(pool, K::UserPromptSet, &pb::UserPromptSet::default()),
        event(pool, K::ConfigChanged, &pb::ConfigChanged::default()),
        event(
            pool,
            K::ToolsDefined,
            &pb::ToolsDefined { tools: vec![tool] },
        ),
        event(pool, K::ToolsDiscovered, &pb::ToolsDiscovered::default()),
        event(
            pool,
            K::GuidanceGiven,
            &pb::GuidanceGiven {
                guidance: vec![pb::Guidance::default()],
            },
        ),
        event(pool, K::MessageAppended, &message(pb::Role::User)),
        event(pool, K::MessageAppended, &message(pb::Role::Assistant)),
        event(pool, K::ToolCallRequested, &call(1, Pending)),
        event(pool, K::ToolCallRequested, &call(2, NotRequired)),
        event(pool, K::ToolCallRequested, &call(3, NotRequired)),
        event(pool, K::ToolCallRequested, &call(4, NotRequired)),
        event(pool, K::ToolCallRequested, &call(5, Pending)),
        event(
            pool,
            K::ToolCallStarted,
            &pb::ToolCallStarted {
                call_id: id(2),
                ..Default::default()
            },
        ),
        event(pool, K::ToolResultRecorded, &result(2)),
        event(pool, K::ToolResultRecorded, &result(3)),
        event(
            pool,
            K::ToolCallCancelled,
            &pb::ToolCallCancelled {
                call_id: id(4),
                reason: pb::CancelReason::Interrupted.into(),
                ..Default::default()
            },
        ),
        event(pool, K::ApprovalDecided, &decided),
        event(pool, K::ContextSet, &pb::ContextSet::default()),
        event(
            pool,
            K::ContextSet,
            &pb::ContextSet {
                key: id(2),
                ..Default::default()
            },
        ),
        event(pool, K::ContextRemoved, &pb::ContextRemoved { key: id(2) }),
        event(
            pool,
            K::EntitiesNoted,
            &pb::EntitiesNoted {
                entities: vec![pb::Entity::default()],
            },
        ),
        event(
            pool,
            K::SummaryRecorded,
            &pb::SummaryRecorded {
                from_revision: 1,
                to_revision: 2,
                ..Default::default()
            },
        ),
        event(pool, K::AnnotationAdded, &pb::AnnotationAdded::default()),
        event(pool, K::Custom, &pb::Custom::default()),
        event(
            pool,
            K::ConversationChanged,
            &pb::ConversationChanged::default(),
        ),
    ]
}

/// Commands that show no recorded text, never end, or have their own test.
const NOT_RUN: [&str; 14] = [
    "append",
    "cluster",
    "completions",
    "config",
    "demo",
    "init",
    "items-rm",
    "keys",
    "mcp",
    "proxy",
    "repair",
    "salvage",
    "serve",
    "upgrade",
];

/// Creates a store in which every text is hostile, and returns command lines that show it: one for
/// each command that is not in [`NOT_RUN`].
pub(super) async fn filled() -> (Shell, Vec<(&'static str, Vec<String>)>) {
    let shell = Shell::new();
    let server = TestServer::start(shell.path("store").as_ref()).await;
    let pool = DescriptorPool::decode(treering::proto::DESCRIPTORS).unwrap();
    let request = pb::AppendRequest {
        events: events(&pool),
        ..Default::default()
    };
    let answer = server.append(request).await;
    let id = answer.events[0].conversation_id.clone();
    server.stop().done().await;
    let revision = |place: usize| format!("{id}#{}", answer.events[place].revision);
    let words = |line: &str| -> Vec<String> {
        let put = |word: &str| match word {
            "C" => id.clone(),
            "NAME" => NAME.to_owned(),
            "TEXT" => TEXT.to_owned(),
            "BRANCH" => BRANCH.to_owned(),
            "CALL" => format!("{NAME}1"),
            "RESULT" => revision(15),
            "REQUEST" => revision(10),
            "JSON" => json(NAME),
            "FILE" => shell.path("file.jsonl"),
            "COPY" => shell.path("copy"),
            "BACK" => shell.path("back"),
            "NEW" => shell.path("new"),
            "@RECEIPT" => shell.path("receipt"),
            word => word.to_owned(),
        };
        line.split(' ').map(put).collect()
    };
    let line = serde_json::json!({"id": NAME, "source": NAME, "messages": [
        {"role": "user", "content": TEXT, "name": NAME},
        {"role": NAME, "content": TEXT},
    ]});
    std::fs::write(shell.path("file.jsonl"), format!("{line}\n{NAME}\n")).unwrap();
    let lines = LINES.iter().map(|(command, line)| (*command, words(line)));
    let lines = lines.collect();
    (shell, lines)
}

/// Command lines by command, in an order in which all can be run.
const LINES: [(&str, &str); 81] = [
    ("fork", "fork C --at 9 --name BRANCH"),
    (
        "sub spawn",
        "sub spawn C --purpose TEXT --title NAME --label NAME=NAME",
    ),
    ("sub ls", "sub ls C"),
    ("ls", "ls"),
    ("ls", "ls --absolute --source NAME"),
    ("ls", "ls --source nosuch"),
    ("show", "show C --branch main"),
    ("show", "show NAME"),
    ("show", "show evil"),
    ("log", "log C --branch main"),
    ("log", "log C --branch main --full"),
    ("log", "log C --all"),
    ("log", "log C --branch nosuch"),
    ("log", "log C --key NAME"),
    ("branch ls", "branch ls C"),
    ("branch activate", "branch activate C BRANCH"),
    ("branch rename", "branch rename C nosuch other"),
    ("branch archive", "branch archive C BRANCH --reason TEXT"),
    ("branch activate", "branch activate C main"),
    ("replay", "replay C --branch main"),
    ("diff", "diff C main BRANCH"),
    ("diff", "diff C main BRANCH --full"),
    ("search", "search evil"),
    ("search", "search said --context 2"),
    ("search", "search said --count"),
    ("search", "search said --limit 1"),
    (
        "search",
        "search said --tool NAME --branch BRANCH --conversation C",
    ),
    ("search", "search nosuch --tool NAME"),
    ("search", "search --regex sai. --conversation C"),
    ("tools", "tools C --branch main"),
    ("tools", "tools C --branch main --stats"),
    ("tools", "tools C --branch main --snapshots"),
    ("tools", "tools C --branch main --offered"),
    ("tools", "tools C --branch main --tool nosuch"),
    ("result", "result REQUEST --branch main"),
    ("result", "result RESULT"),
    ("knowledge", "knowledge C --branch main"),
    ("knowledge guidance", "knowledge C guidance"),
    ("knowledge suggest", "knowledge C suggest NAME {}"),
    ("knowledge prerequisites", "knowledge C prerequisites NAME"),
    ("context", "context C --branch main"),
    ("context", "context C --branch main --explain"),
    ("context", "context C --branch main --provider gemini"),
    ("context", "context C --branch main --budget 1"),
    ("compact", "compact C --branch main"),
    (
        "compact plan",
        "compact C --branch main plan --keep-turns 0 --material",
    ),
    ("items put", "items put users/ada NAME JSON --text TEXT"),
    ("items get", "items get users/ada NAME"),
    ("items search", "items search users"),
    ("items ls", "items ls"),
    ("set", "set C NAME JSON --branch main"),
    ("watch", "watch C --once --branch main"),
    ("append", "append C --branch BRANCH message user TEXT"),
    ("append", "append C --branch main result CALL TEXT"),
    (
        "annotate",
        "annotate C --branch main --label NAME --by NAME",
    ),
    ("label", "label C NAME=NAME --title NAME"),
    ("pending", "pending"),
    ("approve", "approve C nosuch --reason TEXT"),
    ("deny", "deny C CALL --branch main --reason TEXT --by NAME"),
    (
        "approve",
        "approve C CALL --branch main --reason TEXT --by NAME",
    ),
    ("rewind", "rewind C --to 24 --branch main"),
    (
        "compact apply",
        "compact C --branch main apply --keep-turns 0 --summary TEXT",
    ),
    ("compact expand", "compact C --branch main expand"),
    ("sub return", "sub return evil --summary TEXT"),
    ("import", "import FILE"),
    ("import", "import FILE --strict"),
    ("export", "export C --format openai-chat"),
    ("export", "export C --format markdown --branch main"),
    ("export", "export C --format html --branch main"),
    ("export", "export C --format claude-code --branch main"),
    ("verify", "verify --deep"),
    ("heads", "heads"),
    ("stats", "stats"),
    ("audit", "audit"),
    ("backup", "backup BACK"),
    ("backup ls", "backup ls BACK"),
    ("backup verify", "backup verify BACK"),
    ("backup prune", "backup prune BACK --keep 1 --yes"),
    ("restore", "restore BACK --to NEW"),
    ("erase", "erase C --dry-run"),
    ("rebuild", "rebuild"),
];

/// Returns true for characters that a terminal obeys, reorders or hides, except line breaks and
/// tabs.
pub(super) fn is_obeyed(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the unsafe lines in the output of a command.
fn faults(line: &[String], ended: &CommandOutput) -> Vec<String> {
    // Through a pipe, `result` prints the result unchanged.
    let is_content = line[0] == "result" && !line.iter().any(|word| word == "--json");
    // In an exported file, recorded text may begin a line.
    let is_file = line[0] == "export";
    let mut faults = Vec::new();
    for (stream, text) in [("out", &ended.out), ("err", &ended.err)] {
        if is_content && stream == "out" {
            continue;
        }
        for shown in text.lines() {
            // Recorded text of several lines is indented, so none of its lines looks like one of
            // ours.
            let forged = !is_file && shown.starts_with("FORGED");
            if forged || shown.contains(is_obeyed) {
                faults.push(format!("{} {stream}: {shown:?}", line.join(" ")));
            }
        }
    }
    faults
}

/// Runs a line with additional options.
async fn run(shell: &Shell, command: &str, line: &[String], more: &[&str]) -> CommandOutput {
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let ended = shell.run(&[&words[..], more].concat()).await;
    assert!(!ended.err.contains("panicked"), "{command}: {}", ended.err);
    // If the line were not accepted, nothing would be tested.
    assert!(!ended.err.contains("Usage:"), "{command}: {}", ended.err);
    ended
}

// A title or tool name could clear the screen, and draw another call above the one that waits for a
// decision. Every command must print recorded content as text only.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_text_cannot_control_the_terminal() {
    let (shell, lines) = filled().await;
    let mut wrong = Vec::new();
    for (command, line) in &lines {
        for more in [&[][..], &["--json"]] {
            // A command that changes something succeeds only once.
            let ended = run(&shell, command, line, more).await;
            wrong.extend(faults(line, &ended));
            if more == ["--json"] {
                for shown in ended.out.lines() {
                    let json = serde_json::from_str::<serde_json::Value>(shown);
                    if line[0] != "export" && line[0] != "context" {
                        assert!(json.is_ok(), "{command}: {shown:?}");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} lines: {wrong:#?}", wrong.len());
}

/// Returns the text without our own colours. After colours in recorded text, `COL` follows.
fn without_colors(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (codes, rest) = piece.split_once('m').unwrap_or(("", piece));
        let is_code = |code: &str| {
            let code: Result<u8, _> = code.parse();
            code.is_ok_and(|code| matches!(code, 0..=2 | 31..=36 | 90..=96))
        };
        let is_ours = codes.split(';').all(is_code) && !rest.starts_with("COL");
        plain.push_str(if is_ours { rest } else { "\u{1b}[" });
        if !is_ours {
            plain.push_str(piece);
        }
    }
    plain
}

// With colours, a terminal cannot tell our codes from recorded ones, which could hide text. Only
// our own codes may be in the output, also with `--color always` into a pipe.
#[tokio::test(flavor = "multi_thread")]
async fn only_own_color_codes_reach_the_terminal() {
    let (shell, lines) = filled().await;
    let mut wrong = Vec::new();
    let mut colored = 0;
    for (command, line) in &lines {
        let mut ended = run(&shell, command, line, &["--color", "always"]).await;
        colored += usize::from(ended.out.contains("\u{1b}["));
        ended.out = without_colors(&ended.out);
        ended.err = without_colors(&ended.err);
        wrong.extend(faults(line, &ended));
    }
    assert!(colored > 15, "{colored} commands had colours");
    assert!(wrong.is_empty(), "{} lines: {wrong:#?}", wrong.len());
}

// The shell inserts a completed word into the next command line. A branch name with `;` could run a
// command, and a control character could act when it is listed. Only plain words may be offered;
// conversations with other names have their ids.
#[tokio::test(flavor = "multi_thread")]
async fn shell_completion_offers_only_plain_words() {
    let (shell, _) = filled().await;
    let ids = [
        "$(id)", "x;id", "a b", "`id`", "-x", "~root", "tau/3-0", "日本",
    ];
    let lines = ids.map(|id| {
        let said = [serde_json::json!({"role": "user", "content": TEXT})];
        serde_json::json!({"id": id, "source": NAME, "messages": said}).to_string()
    });
    std::fs::write(shell.path("ids.jsonl"), lines.join("\n")).unwrap();
    shell.ok(&["import", &shell.path("ids.jsonl")]).await;
    for name in [BRANCH, "b;id", "$(id)", "a b", "plain", "main~7"] {
        shell.ok(&["fork", "tau/3-0", "--name", name]).await;
    }
    let data = shell.path("store");
    let is_plain = |word: &str| {
        !word.starts_with(['-', '~'])
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./:~".contains(c))
    };
    for name in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let completed = async |words: &[&str]| {
            let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_treering"))
                .env("COMPLETE", name)
                .env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string())
                .env("_CLAP_COMPLETE_COMP_TYPE", "9")
                .env("_CLAP_COMPLETE_SPACE", "false")
                .env("_CLAP_IFS", "\n")
                .args(["--", "treering", "--data", &data])
                .args(words)
                .output()
                .await
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let offered = async |words: &[&str]| {
            let text = completed(words).await;
            assert!(!text.contains(is_obeyed), "{name}: {text:?}");
            // The description follows the word: in zsh after a colon, else after a tab.
            let word = |line: &str| match name {
                "zsh" => line.split(':').next().unwrap().to_owned(),
                _ => line.split('\t').next().unwrap().to_owned(),
            };
            let words: Vec<String> = text.lines().map(word).collect();
            let odd = words
                .iter()
                .find(|word| !is_plain(word) && !word.starts_with("--"));
            assert!(odd.is_none(), "{name}: {odd:?} in {text:?}");
            words
        };
        let conversations = offered(&["log", ""]).await;
        assert!(conversations.contains(&"tau/3-0".to_owned()), "{name}");
        assert!(conversations.contains(&"日本".to_owned()), "{name}");
        // The others are offered by UUID.
        let ids = conversations.iter().filter(|id| !id.starts_with("--"));
        assert_eq!(ids.count(), 9, "{name}: {conversations:?}");
        let branches = offered(&["log", "tau/3-0", "--branch", ""]).await;
        for branch in ["main", "plain", "main~7"] {
            assert!(
                branches.contains(&branch.to_owned()),
                "{name}: {branches:?}"
            );
        }
        assert_eq!(branches.len(), 3, "{name}: {branches:?}");
        assert!(
            offered(&["log", "tau/3-0", "--branch", "b"])
                .await
                .is_empty()
        );
    }
}

// Each new command must get an output test.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_an_output_test() {
    let shell = Shell::new();
    shell.ok(&["man", &shell.path("man")]).await;
    let pages = std::fs::read_dir(shell.path("man")).unwrap();
    let commands: BTreeSet<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| {
            Some(
                name.strip_prefix("treering-")?
                    .strip_suffix(".1")?
                    .to_owned(),
            )
        })
        .collect();
    let has_commands = |command: &String| {
        let below = format!("{command}-");
        commands.iter().any(|other| other.starts_with(&below))
    };
    let looked_at = |command: &String| {
        let is_it = |other: &str| other.replace(' ', "-") == *command;
        LINES.iter().any(|(line, _)| is_it(line))
            || NOT_RUN
                .iter()
                .any(|name| command == name || command.split('-').next() == Some(name))
    };
    let missing: Vec<_> = commands
        .iter()
        .filter(|command| !looked_at(command) && !has_commands(command))
        .collect();
    assert!(commands.len() > 40, "{commands:?}");
    assert!(missing.is_empty(), "no line in LINES for {missing:?}");
}
