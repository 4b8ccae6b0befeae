//! Measures how calls slow down as a store grows: each call runs in three stores, of which each has
//! ten times as many conversations as the one before.

use std::collections::BTreeMap;

use super::{
    Setup,
    child::Child,
    failed,
    folder::TempFolder,
    rounds::{median, timed},
    row::{Row, Target, Unit},
    stores::{self, Filler},
};
use treering::{
    domain::{
        BranchForked, BranchId, BranchName, ContentPart, ConversationCreated, ConversationId,
        EventBody, NewEvent, Revision,
    },
    proto::pb,
};
use treering_client::{connect::Connection, error::ClientError};

/// Conversations in the smallest store.
const CONVERSATIONS: u64 = 10_000;
const CONVERSATIONS_QUICK: u64 = 200;
/// Each larger store has this many times as many as the one before.
const GROWTH: u64 = 10;
/// Real conversations that are copied. Each copy gets a different line in every tool result.
const LIVES_MAX: usize = 4_000;
/// Events that are taken from each.
const EVENTS_MAX: usize = 11;
/// One in this many conversations has a second branch.
const FORKED_EVERY: u64 = 20;
/// One in this many conversations has a rare label, and a common and a rare word in its title.
const RARE_EVERY: u64 = 1_000;
/// Conversations on one screen.
const PAGE: usize = 20;
/// Calls of each kind.
const CALLS: usize = 15;

/// Measures the rows of this group. Returns none if there are no real conversations.
///
/// # Errors
/// When a store cannot be filled, or a call fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let lives = lives(setup)?;
    if lives.is_empty() {
        setup.left_out("growth", "real conversations");
        return Ok(Vec::new());
    }
    let number = setup.or_quick(CONVERSATIONS, CONVERSATIONS_QUICK);
    let small = GrownStore::fill(setup, &lives, number)
        .await?
        .times(setup)
        .await?;
    let middle = GrownStore::fill(setup, &lives, number * GROWTH)
        .await?
        .times(setup)
        .await?;
    let conversations = number * GROWTH * GROWTH;
    let large = GrownStore::fill(setup, &lives, conversations)
        .await?
        .times(setup)
        .await?;
    let row = |id, what, unit, figure: &dyn Fn(&GrownTimes) -> f64| {
        let [small, middle, whole] = [&small, &middle, &large].map(figure);
        Row::new(id, what, whole, unit)
            .beside("a tenth of it", middle, whole / middle)
            .note(format!(
                "over gRPC, p50 of {CALLS}; {small:.3} in a hundredth of it; {conversations} \
                 conversations, {} events",
                large.events
            ))
    };
    let calls = calls(ConversationId::default()).into_iter().enumerate();
    let mut rows: Vec<Row> = calls
        .map(|(at, call)| {
            row(call.id, call.what, Unit::Milliseconds, &|of| of.millis[at])
                .aim(Target::AtMost(call.goal_ms))
        })
        .collect();
    rows.push(row(
        "growth.memory",
        "memory after these calls",
        Unit::Mebibytes,
        &|of| of.memory_mib,
    ));
    rows.push(row(
        "growth.anonymous",
        "– of it, not backed by files",
        Unit::Mebibytes,
        &|of| of.anonymous_mib,
    ));
    Ok(rows)
}

fn lives(setup: &Setup) -> Result<Vec<Vec<NewEvent>>, ClientError> {
    let files = setup.trajectory_files();
    let mut lives = Vec::new();
    for file in &files {
        let found = stores::conversations_of(file)?.map(|events| {
            let first = events.into_iter().take(EVENTS_MAX);
            first.collect::<Vec<_>>()
        });
        // Truncation could remove the events that a fork needs.
        let found = found.filter(|events| !events.iter().any(is_fork));
        lives.extend(found.take(LIVES_MAX / files.len()));
    }
    Ok(lives)
}

fn is_fork(event: &NewEvent) -> bool {
    matches!(event.body, EventBody::BranchForked(_))
}

/// Returns a copy of a real conversation under another id.
fn conversation(life: &[NewEvent], id: ConversationId, number: u64) -> Vec<NewEvent> {
    let mut events: Vec<NewEvent> = life.to_vec();
    for event in &mut events {
        event.conversation = id;
        match &mut event.body {
            EventBody::ConversationCreated(created) => describe(created, number),
            EventBody::ToolResultRecorded(result) => {
                result
                    .parts
                    .push(ContentPart::Text(format!("run {number}")));
            }
            _ => {}
        }
    }
    events
}

/// An event that creates a second branch.
fn fork(id: ConversationId) -> NewEvent {
    let forked = BranchForked {
        name: BranchName::new("try").unwrap_or_default(),
        parent: BranchId::MAIN,
        fork_revision: Revision(2),
        system_prompt: String::new(),
    };
    NewEvent::new(id, EventBody::BranchForked(forked))
}

fn describe(created: &mut ConversationCreated, number: u64) {
    let label = |name: &str, value: String| (name.to_owned(), value);
    created.source = format!("source-{}", number % 3);
    created.source_id = format!("session-{number:09}");
    created.labels = BTreeMap::from([label("team", format!("team-{}", number % 10))]);
    if number.is_multiple_of(RARE_EVERY) {
        created.labels.extend([label("case", "rare".to_owned())]);
        created.title = format!("error, Zanzibar: {}", created.title);
    }
    created.metadata = BTreeMap::from([label("run", (number % 1_000).to_string())]);
}

struct GrownStore {
    folder: TempFolder,
    /// The conversation in the middle of the store.
    middle: ConversationId,
}

/// Measurements of one store.
struct GrownTimes {
    /// In the order of `calls`.
    millis: Vec<f64>,
    events: u64,
    memory_mib: f64,
    anonymous_mib: f64,
}

impl GrownStore {
    async fn fill(
        setup: &Setup,
        lives: &[Vec<NewEvent>],
        conversations: u64,
    ) -> Result<Self, ClientError> {
        let folder = setup.folder()?;
        let engine = stores::open_dense(folder.path()).await?;
        let mut filler = Filler::new(&engine);
        let (mut middle, mut forked) = (ConversationId::default(), Vec::new());
        for number in 0..conversations {
            if number.is_multiple_of(1_000) {
                setup.doing(&format!(
                    "growth: {number} of {conversations} conversations"
                ));
            }
            let id = ConversationId::generate();
            if number == conversations / 2 {
                middle = id;
            }
            // The step mixes conversations of all files, in a small store too.
            let life = &lives[number as usize * 7_919 % lives.len()];
            filler.append(conversation(life, id, number)).await?;
            if number.is_multiple_of(FORKED_EVERY) {
                forked.push(id);
            }
        }
        // A fork point must be stored before the fork.
        filler.settle().await?;
        for id in forked {
            filler.append(vec![fork(id)]).await?;
        }
        filler.settle().await?;
        setup.doing("growth: indexing");
        stores::indexed(&engine).await?;
        engine.close().await;
        Ok(Self { folder, middle })
    }

    async fn times(self, setup: &Setup) -> Result<GrownTimes, ClientError> {
        let child = Child::serve(self.folder.path()).await?;
        let server = child.connect().await?;
        let mut millis = Vec::new();
        for call in calls(self.middle) {
            setup.doing(&format!("growth: {}", call.what));
            let mut times = Vec::new();
            // The first call warms up.
            for round in 0..=CALLS {
                let (answer, micros) = timed(call.request.run(call.what, &server)).await;
                answer?;
                if round > 0 {
                    times.push(micros / 1e3);
                }
            }
            millis.push(median(&times));
        }
        let stats = server.admin().stats(pb::StatsRequest::default()).await?;
        let head = stats.into_inner().head;
        Ok(GrownTimes {
            millis,
            events: head.map_or(0, |head| head.offset),
            memory_mib: child.resident_mib().unwrap_or_default(),
            anonymous_mib: child.anonymous_mib().unwrap_or_default(),
        })
    }
}

struct GrowthCall {
    id: &'static str,
    what: &'static str,
    goal_ms: f64,
    request: GrowthRequest,
}

enum GrowthRequest {
    Search(Box<pb::SearchRequest>),
    /// Fetches pages until [`PAGE`] conversations are found.
    List(pb::ListConversationsRequest),
    Find(String),
    Get(String),
}

impl GrowthRequest {
    async fn run(&self, what: &'static str, server: &Connection) -> Result<(), ClientError> {
        let is_found = match self {
            Self::Search(request) => {
                let found = server.search().search(request.as_ref().clone()).await?;
                !found.into_inner().hits.is_empty()
            }
            Self::List(request) => {
                let (mut request, mut found) = (request.clone(), 0);
                loop {
                    let page = server.conversations().list(request.clone()).await?;
                    let page = page.into_inner();
                    found += page.conversations.len();
                    if found >= PAGE || page.next_page_token.is_empty() {
                        break found > 0;
                    }
                    request.page_token = page.next_page_token;
                }
            }
            Self::Find(part) => {
                let request = pb::FindConversationsRequest {
                    id_part: part.clone(),
                    ..Default::default()
                };
                let found = server.conversations().find(request).await?;
                !found.into_inner().conversations.is_empty()
            }
            Self::Get(id) => {
                let request = pb::GetConversationRequest {
                    conversation_id: id.clone(),
                    ..Default::default()
                };
                server.conversations().get(request).await?;
                true
            }
        };
        match is_found {
            true => Ok(()),
            // An empty page would be fast but wrong.
            false => Err(failed(what, "it found nothing")),
        }
    }
}

/// A word that occurs in many results.
const COMMON: &str = "error";

fn calls(middle: ConversationId) -> Vec<GrowthCall> {
    let search = |id, what, goal_ms, query: &str, change: fn(&mut pb::SearchRequest)| {
        let mut request = pb::SearchRequest {
            query: query.to_owned(),
            limit: 10,
            ..Default::default()
        };
        change(&mut request);
        GrowthCall {
            id,
            what,
            goal_ms,
            request: GrowthRequest::Search(Box::new(request)),
        }
    };
    let list = |id, what, change: fn(&mut pb::ListConversationsRequest)| {
        let mut request = pb::ListConversationsRequest {
            page_size: PAGE as u32,
            order: pb::ListOrder::Happened.into(),
            ..Default::default()
        };
        change(&mut request);
        GrowthCall {
            id,
            what,
            goal_ms: 2.0,
            request: GrowthRequest::List(request),
        }
    };
    let id = middle.to_string();
    let tail = id[id.len() - 8..].to_owned();
    vec![
        search("growth.common", "search a common word", 5.0, COMMON, |_| {}),
        search("growth.source", "– of one source", 5.0, COMMON, |asked| {
            asked.sources = vec!["source-1".to_owned()];
        }),
        search("growth.label", "– with a label", 5.0, COMMON, |asked| {
            asked.labels = vec!["team=team-3".to_owned()];
        }),
        search(
            "growth.rare_label",
            "– with a rare label",
            5.0,
            COMMON,
            |asked| {
                asked.labels = vec!["case=rare".to_owned()];
            },
        ),
        search("growth.not_sealed", "– not sealed", 5.0, COMMON, |asked| {
            asked.not_sealed = true;
        }),
        search(
            "growth.active",
            "– on active branches",
            5.0,
            COMMON,
            |asked| {
                asked.active_branches_only = true;
            },
        ),
        search("growth.rare", "search a rare word", 2.0, "zanzibar", |_| {}),
        search(
            "growth.regex_rare",
            "search by a rare regex",
            30.0,
            "[Zz]anzibar:",
            |asked| {
                asked.regex = true;
            },
        ),
        search(
            "growth.regex_common",
            "search by a common regex",
            50.0,
            "err(or)?[: ]",
            |asked| {
                asked.regex = true;
            },
        ),
        search("growth.newest", "newest results", 3.0, "", |asked| {
            asked.kinds = vec![pb::EventKind::ToolResultRecorded.into()];
        }),
        search(
            "growth.grouped",
            "search by conversation",
            5.0,
            COMMON,
            |asked| {
                asked.by_conversation = true;
                asked.conversations_max = 10;
            },
        ),
        search(
            "growth.path",
            "search a word with a path",
            3.0,
            COMMON,
            |asked| {
                asked.paths = vec!["**/*".to_owned()];
            },
        ),
        search(
            "growth.path_only",
            "all texts with a path",
            3.0,
            "",
            |asked| {
                asked.paths = vec!["**/*".to_owned()];
            },
        ),
        list("growth.list", "list conversations", |_| {}),
        list("growth.list_label", "– with a label", |asked| {
            asked.labels.insert("team".to_owned(), "team-3".to_owned());
        }),
        list("growth.list_rare", "– with a rare label", |asked| {
            asked.labels.insert("case".to_owned(), "rare".to_owned());
        }),
        list("growth.list_metadata", "– with metadata", |asked| {
            asked.metadata.insert("run".to_owned(), "7".to_owned());
        }),
        list("growth.list_title", "– with a title", |asked| {
            asked.title = "zanzibar".to_owned();
        }),
        GrowthCall {
            id: "growth.tail",
            what: "find the tail of an id",
            goal_ms: 1.0,
            request: GrowthRequest::Find(tail),
        },
        GrowthCall {
            id: "growth.get",
            what: "get a conversation",
            goal_ms: 1.0,
            request: GrowthRequest::Get(id),
        },
    ]
}
