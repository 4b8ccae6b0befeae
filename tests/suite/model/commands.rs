//! Random commands. Branches, revisions and calls are chosen by number and resolved when the state
//! is known, so that most of the commands are valid and some are not.

use proptest::{collection::vec, option, prelude::*, strategy::Union};
use treering::{domain::*, proto::json};

use super::plain::Model;

/// Number of conversations in a run.
pub const CONVERSATIONS: u8 = 4;

#[derive(Clone, Debug)]
pub enum Command {
    Append(Batch),
    /// Repeats an earlier batch that has a key.
    Repeat(u8),
    /// Many messages, so that histories become longer than the interval of snapshots.
    Bulk(u8, u8, u16),
    Reopen,
    Rebuild,
}

#[derive(Clone, Debug)]
pub struct Batch {
    events: Vec<Drawn>,
    key: Option<u8>,
    expected: Option<(u8, u8, i8)>,
}

#[derive(Clone, Debug)]
pub struct Drawn {
    conversation: u8,
    branch: u8,
    what: What,
}

/// A random event. Its numbers choose a call, a branch, a revision or a name.
#[derive(Clone, Debug)]
enum What {
    Create(Option<(u8, u8, u16)>, bool),
    Message(Role),
    Call(u8, bool, Option<u16>),
    Decide(u8, Decision, bool),
    Start(u8),
    Result(u8, bool),
    Cancel(u8),
    Snapshot(u16),
    Annotate(Option<u16>),
    Summary(u16, u16),
    Compact(u16, u8),
    Fork(u8, u16, u8),
    Rename(u8),
    Archive,
    Activate,
    Seal,
    ContextSet(u8),
    ContextRemove(u8),
    Discover(u8),
    Guidance(u8),
    Entities(u8),
    Prompt(bool),
    Tools,
    Config(u8),
    Custom,
    Erase,
}

pub fn commands() -> impl Strategy<Value = Vec<Command>> {
    vec(any_command(), 1..60)
}

fn any_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        40 => batch().prop_map(Command::Append),
        4 => any::<u8>().prop_map(Command::Repeat),
        2 => (any::<u8>(), any::<u8>(), 100..300_u16).prop_map(|(c, b, n)| Command::Bulk(c, b, n)),
        1 => Just(Command::Reopen),
        1 => Just(Command::Rebuild),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let expected = (any::<u8>(), any::<u8>(), -2..=2_i8);
    (
        vec(drawn(), 1..5),
        option::weighted(0.3, 0..6_u8),
        option::weighted(0.3, expected),
    )
        .prop_map(|(events, key, expected)| Batch {
            events,
            key,
            expected,
        })
}

fn drawn() -> impl Strategy<Value = Drawn> {
    // Mostly the same conversation, so that its history grows.
    let conversation = prop_oneof![3 => Just(0_u8), 2 => any::<u8>()];
    (conversation, any::<u8>(), what()).prop_map(|(conversation, branch, what)| Drawn {
        conversation,
        branch,
        what,
    })
}

fn what() -> impl Strategy<Value = What> {
    use What as W;
    let byte = any::<u8>;
    let word = any::<u16>;
    let role =
        prop_oneof![4 => Just(Role::User), 5 => Just(Role::Assistant), 1 => Just(Role::System)];
    let decision = prop_oneof![
        3 => Just(Decision::Approved),
        1 => Just(Decision::Denied),
        1 => Just(Decision::Expired)
    ];
    let parent = option::weighted(0.7, (byte(), byte(), word()));
    let weighted: Vec<(u32, BoxedStrategy<What>)> = vec![
        (
            6,
            (parent, any::<bool>())
                .prop_map(|(p, s)| W::Create(p, s))
                .boxed(),
        ),
        (24, role.prop_map(W::Message).boxed()),
        (
            10,
            (byte(), any::<bool>(), option::weighted(0.2, word()))
                .prop_map(|(c, a, m)| W::Call(c, a, m))
                .boxed(),
        ),
        (
            6,
            (byte(), decision, prop::bool::weighted(0.8))
                .prop_map(|(c, d, g)| W::Decide(c, d, g))
                .boxed(),
        ),
        (4, byte().prop_map(W::Start).boxed()),
        (
            10,
            (byte(), prop::bool::weighted(0.7))
                .prop_map(|(c, s)| W::Result(c, s))
                .boxed(),
        ),
        (3, byte().prop_map(W::Cancel).boxed()),
        (1, word().prop_map(W::Snapshot).boxed()),
        (1, option::of(word()).prop_map(W::Annotate).boxed()),
        (
            1,
            (word(), word()).prop_map(|(a, b)| W::Summary(a, b)).boxed(),
        ),
        (
            5,
            (word(), byte())
                .prop_map(|(at, kept)| W::Compact(at, kept))
                .boxed(),
        ),
        (
            9,
            (byte(), word(), byte())
                .prop_map(|(p, r, n)| W::Fork(p, r, n))
                .boxed(),
        ),
        (2, byte().prop_map(W::Rename).boxed()),
        (2, Just(W::Archive).boxed()),
        (3, Just(W::Activate).boxed()),
        (1, Just(W::Seal).boxed()),
        (3, byte().prop_map(W::ContextSet).boxed()),
        (2, byte().prop_map(W::ContextRemove).boxed()),
        (1, byte().prop_map(W::Discover).boxed()),
        (1, byte().prop_map(W::Guidance).boxed()),
        (1, byte().prop_map(W::Entities).boxed()),
        (1, any::<bool>().prop_map(W::Prompt).boxed()),
        (1, Just(W::Tools).boxed()),
        (1, byte().prop_map(W::Config).boxed()),
        (1, Just(W::Custom).boxed()),
        (1, Just(W::Erase).boxed()),
    ];
    Union::new_weighted(weighted)
}

pub fn conversation(number: u8) -> ConversationId {
    let number = u128::from(number % CONVERSATIONS) + 1;
    ConversationId(uuid(0x0190_0000_0000_7000_8000_0000_0000_0000 + number))
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

/// Returns an existing branch, the active one, or sometimes one that does not exist.
fn branch(model: &Model, id: ConversationId, number: u8) -> Option<BranchName> {
    if number < 80 || !model.conversations.contains_key(&id) {
        return None;
    }
    if number == 80 {
        return Some(BranchName::new("nowhere").unwrap());
    }
    let branches = model.branches(id);
    let name = model.name(id, branches[number as usize % branches.len()]);
    Some(BranchName::new(&name).unwrap())
}

fn branch_id(model: &Model, id: ConversationId, number: u8) -> u64 {
    if !model.conversations.contains_key(&id) {
        return 0;
    }
    match number {
        0 => 999,
        // In half of the cases, the active one.
        1..120 => model.active(id),
        _ => {
            let branches = model.branches(id);
            branches[number as usize % branches.len()]
        }
    }
}

/// Returns a revision of a branch's history in its conversation; sometimes any number.
fn revision(model: &Model, id: ConversationId, branch: u64, number: u16) -> Revision {
    let history = model.history(id, branch).unwrap_or_default();
    let own: Vec<_> = history.iter().filter(|(at, _)| *at == id).collect();
    if own.is_empty() || number.is_multiple_of(16) {
        let there = model.conversations.get(&id).map_or(0, Vec::len);
        return Revision(u64::from(number / 16) % (there as u64 + 3));
    }
    // Recent revisions are more likely.
    let back = (number / 16) as usize % own.len();
    let back = if number.is_multiple_of(3) {
        back
    } else {
        back % 6
    };
    Revision(own[own.len() - 1 - back.min(own.len() - 1)].1)
}

fn name(number: u8) -> BranchName {
    BranchName::new(&format!("branch {}", number % 12)).unwrap()
}

const ARGUMENTS: [&str; 2] = [r#"{"path": "src", "n": 1.50}"#, "{}"];

fn hash(call: u8) -> ContentHash {
    let arguments = ARGUMENTS[call as usize % 2];
    ContentHash(blake3::hash(arguments.as_bytes()).into())
}

fn call_id(number: u8) -> String {
    format!("call {}", number % 4)
}

/// Returns the command that appends a batch.
pub fn command(model: &Model, batch: &Batch) -> AppendCommand {
    let events = batch.events.iter().map(|drawn| event(model, drawn));
    let expectations = batch.expected.iter().map(|(number, of, off)| {
        let id = conversation(*number);
        let branch = branch(model, id, *of);
        let name = branch.as_ref().map(BranchName::as_str);
        let known = model.conversations.contains_key(&id);
        let at = known.then(|| model.branch_named(id, name)).flatten();
        let head = at.map(|at| model.history(id, at).unwrap().last().unwrap().1);
        let expected = match (head, off) {
            (Some(head), -1..=1) => ExpectedRevision::Exact(Revision(head)),
            (Some(head), 2) => ExpectedRevision::Exact(Revision(head + 1)),
            (None, 0) => ExpectedRevision::Exact(Revision(1)),
            _ => ExpectedRevision::NoStream,
        };
        Expectation {
            conversation: id,
            branch,
            expected,
        }
    });
    AppendCommand {
        create_if_missing: None,
        expected_keys: Vec::new(),
        skip_known: false,
        namespace: Namespace::default(),
        expectations: expectations.collect(),
        idempotency_key: batch.key.map(|key| format!("key {key}")),
        key_life_seconds: None,
        events: events.collect(),
    }
}

/// Returns enough messages for a snapshot.
pub fn bulk(model: &Model, number: u8, of: u8, count: u16) -> AppendCommand {
    let id = conversation(number);
    let branch = branch(model, id, of);
    let event = |index: u16| {
        let role = [Role::User, Role::Assistant][index as usize % 2];
        let body = EventBody::MessageAppended(MessageAppended::text(role, format!("n {index}")));
        NewEvent {
            branch: branch.clone(),
            ..NewEvent::new(id, body)
        }
    };
    AppendCommand::new(Namespace::default(), (0..count).map(event).collect())
}

fn event(model: &Model, drawn: &Drawn) -> NewEvent {
    let id = conversation(drawn.conversation);
    let name = branch(model, id, drawn.branch);
    let known = model.conversations.contains_key(&id);
    let on = known
        .then(|| model.branch_named(id, name.as_ref().map(BranchName::as_str)))
        .flatten();
    NewEvent {
        branch: name,
        ..NewEvent::new(id, body(model, id, on.unwrap_or(0), &drawn.what))
    }
}

fn body(model: &Model, id: ConversationId, on: u64, what: &What) -> EventBody {
    use EventBody as B;
    let short = |number: u8| (number % 5).to_string();
    match what {
        What::Message(role) => B::MessageAppended(MessageAppended::text(*role, "words")),
        What::Annotate(at) => B::AnnotationAdded(AnnotationAdded {
            // A body names the whole branch by giving no revision.
            target: at
                .map(|at| revision(model, id, on, at))
                .filter(|at| *at != Revision::NONE),
            score: Some(0.5),
            ..Default::default()
        }),
        What::Summary(from, to) => B::SummaryRecorded(SummaryRecorded {
            content: "short".into(),
            from_revision: revision(model, id, on, *from),
            to_revision: revision(model, id, on, *to),
        }),
        What::Compact(at, kept) => B::Compacted(Compacted {
            summary: "shorter".into(),
            cut_revision: revision(model, id, on, *at),
            kept_turns: (*kept % 3).into(),
            tokens_before: 100,
            tokens_after: 10,
            trigger: CompactionTrigger::Manual,
            raw: None,
        }),
        What::Archive => B::BranchArchived {
            reason: String::new(),
        },
        What::Activate => B::BranchActivated,
        What::Rename(new) => B::BranchRenamed(name(*new)),
        What::Seal => B::ConversationSealed {
            reason: "done".into(),
            summary: String::new(),
        },
        What::ContextSet(key) => B::ContextSet(ContextSet {
            key: short(*key),
            value: json::check(b"[1, 2]").unwrap(),
            provider: String::new(),
        }),
        What::ContextRemove(key) => B::ContextRemoved { key: short(*key) },
        What::Discover(number) => B::ToolsDiscovered {
            names: vec![short(*number), short(number % 5 + 1)],
        },
        What::Guidance(number) => B::GuidanceGiven {
            guidance: vec![Guidance {
                tool: short(*number),
                text: "careful".into(),
            }],
        },
        What::Entities(number) => B::EntitiesNoted {
            entities: [*number, number % 5 + 1].map(entity).into(),
        },
        What::Prompt(system) => {
            let prompt = PromptSet {
                id: String::new(),
                content: "be brief".into(),
            };
            if *system {
                B::SystemPromptSet(prompt)
            } else {
                B::UserPromptSet(prompt)
            }
        }
        What::Tools => B::ToolsDefined { tools: Vec::new() },
        What::Config(number) => B::ConfigChanged(Config {
            model_id: short(*number),
            ..Default::default()
        }),
        What::Custom => B::Custom(Custom {
            type_name: "mine".into(),
            content_type: String::new(),
            data: vec![0, 255].into(),
            text: String::new(),
            delta_of: String::new(),
        }),
        What::Erase => B::ContentErased {
            revisions: vec![Revision(1)],
            reason: "no".into(),
            stubs: None,
            signed_by: None,
        },
        What::Create(..) | What::Fork(..) => place(model, id, what),
        _ => tool(model, id, on, what),
    }
}

fn entity(number: u8) -> Entity {
    Entity {
        id: (number % 5).to_string(),
        kind: "file".into(),
        name: String::new(),
    }
}

fn place(model: &Model, id: ConversationId, what: &What) -> EventBody {
    match what {
        What::Create(parent, shares) => {
            let parent = parent.map(|(number, of, at)| {
                let parent = conversation(number);
                let branch = branch_id(model, parent, of);
                ParentRef {
                    conversation: parent,
                    branch: BranchId(branch),
                    revision: revision(model, parent, branch, at),
                    call_id: String::new(),
                }
            });
            EventBody::ConversationCreated(ConversationCreated {
                title: "random".into(),
                shares_history: *shares && parent.is_some(),
                parent,
                ..Default::default()
            })
        }
        What::Fork(parent, at, new) => {
            let branch = branch_id(model, id, *parent);
            EventBody::BranchForked(BranchForked {
                name: name(*new),
                parent: BranchId(branch),
                fork_revision: revision(model, id, branch, *at),
                system_prompt: ["", "", "another"][*new as usize % 3].into(),
            })
        }
        other => unreachable!("{other:?} is no place"),
    }
}

fn tool(model: &Model, id: ConversationId, on: u64, what: &What) -> EventBody {
    use EventBody as B;
    match what {
        What::Call(call, needs_approval, message) => B::ToolCallRequested(ToolCallRequested {
            call_id: call_id(*call),
            tool: format!("tool {}", call % 3),
            arguments: json::check(ARGUMENTS[*call as usize % 2].as_bytes()).unwrap(),
            arguments_hash: hash(*call),
            message_revision: message.map(|at| Revision(revision(model, id, on, at).0.max(1))),
            needs_approval: *needs_approval,
            ..ToolCallRequested::default()
        }),
        What::Decide(call, decision, right) => B::ApprovalDecided(ApprovalDecided {
            call_id: call_id(*call),
            decision: *decision,
            arguments_hash: if *right {
                hash(*call)
            } else {
                hash(call.wrapping_add(1))
            },
            decided_by: "ada".into(),
            reason: String::new(),
        }),
        What::Start(call) => B::ToolCallStarted(ToolCallStarted {
            call_id: call_id(*call),
            executor: String::new(),
        }),
        What::Result(call, true) => {
            B::ToolResultRecorded(ToolResultRecorded::text(call_id(*call), "found"))
        }
        What::Result(call, false) => {
            B::ToolResultRecorded(ToolResultRecorded::failure(call_id(*call), "not found"))
        }
        What::Cancel(call) => B::ToolCallCancelled(ToolCallCancelled {
            call_id: call_id(*call),
            reason: CancelReason::Interrupted,
            detail: String::new(),
        }),
        What::Snapshot(at) => B::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: call_id(0),
            request_revision: revision(model, id, on, *at),
            summary: "in short".into(),
        }),
        other => unreachable!("{other:?} is about no call"),
    }
}
