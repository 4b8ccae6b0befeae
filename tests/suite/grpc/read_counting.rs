//! Each method that reads is counted as reading.

use std::collections::BTreeSet;

use prost::Message;
use prost_reflect::DescriptorPool;
use treering::{access::KeyStore, domain::*, proto::pb, server::ServeOptions};

use super::{harness::*, keys::key};

/// Methods that return nothing of a conversation's content, and why.
const NO_READING: [(&str, &str); 21] = [
    ("Events/Append", "appends"),
    ("Events/AppendStream", "appends"),
    (
        "Events/KnownKeys",
        "says yes or no of keys that the caller knows",
    ),
    (
        "Conversations/Find",
        "lists ids, as List does without values",
    ),
    ("Conversations/Fork", "appends"),
    ("Conversations/RenameBranch", "appends"),
    ("Conversations/ArchiveBranch", "appends"),
    ("Conversations/ActivateBranch", "appends"),
    ("Conversations/Seal", "appends"),
    (
        "Conversations/Erase",
        "is noted by itself, and names events only",
    ),
    ("Contexts/Compact", "appends"),
    ("Contexts/Set", "appends"),
    ("Contexts/Spawn", "appends"),
    ("Contexts/Return", "appends"),
    ("Tools/RecordResult", "appends"),
    ("Admin/Stats", "numbers"),
    ("Admin/Verify", "names damage"),
    ("Admin/Rebuild", "numbers"),
    (
        "Backups/ShipLog",
        "is noted by itself, and counted by its bytes",
    ),
    ("Backups/NoteBackup", "answers nothing"),
    ("Shards/CountTerms", "numbers"),
];

/// Returns a call of each reading method, for a conversation as `everything` makes it.
fn readings(id: &str) -> Vec<(&'static str, Vec<u8>)> {
    let conversation_id = || id.to_owned();
    let source = || pb::ConversationSource {
        conversation_id: id.to_owned(),
    };
    let build = pb::BuildRequest {
        conversation_id: conversation_id(),
        provider: pb::Provider::Anthropic.into(),
        model: "claude-sonnet-4-5".into(),
        ..Default::default()
    };
    let items = vec![pb::ItemOp {
        op: Some(pb::item_op::Op::Get(pb::GetItem {
            path: vec!["boats".into()],
            key: "oldest".into(),
            ..Default::default()
        })),
    }];
    vec![
        (
            "Events/Read",
            pb::ReadRequest {
                source: Some(pb::read_request::Source::Conversation(source())),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Events/Latest",
            pb::LatestRequest {
                conversations: vec![conversation_id()],
                kinds: vec![EventKind::MessageAppended.number().into()],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Events/GetMany",
            pb::GetManyRequest {
                events: vec![pb::EventName {
                    by: Some(pb::event_name::By::Place(pb::EventPlace {
                        conversation_id: conversation_id(),
                        revision: 2,
                    })),
                }],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Events/Subscribe",
            pb::SubscribeRequest {
                source: Some(pb::subscribe_request::Source::Conversation(source())),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Conversations/Get",
            pb::GetConversationRequest {
                conversation_id: conversation_id(),
                with_values: true,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Conversations/List",
            pb::ListConversationsRequest {
                with_values: true,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Conversations/ListBranches",
            pb::ListBranchesRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Conversations/Lineage",
            pb::LineageRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Conversations/Diff",
            pb::DiffRequest {
                conversation_id: conversation_id(),
                left_branch: "main".into(),
                right_branch: "other".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("Contexts/Build", build.encode_to_vec()),
        ("Contexts/Explain", build.encode_to_vec()),
        (
            "Contexts/PlanCompaction",
            pb::PlanCompactionRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Contexts/Expand",
            pb::ExpandRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Contexts/Get",
            pb::GetContextRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Contexts/Watch",
            pb::WatchContextRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Items/Read",
            pb::ReadItemsRequest { ops: items.clone() }.encode_to_vec(),
        ),
        (
            "Items/Batch",
            pb::ItemsRequest {
                ops: items,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/History",
            pb::ToolHistoryRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/Pending",
            pb::PendingRequest::default().encode_to_vec(),
        ),
        (
            "Tools/WaitForDecision",
            pb::WaitForDecisionRequest {
                conversation_id: conversation_id(),
                call_id: "call_3".into(),
                timeout_ms: 1,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/GetResult",
            pb::GetResultRequest {
                conversation_id: conversation_id(),
                which: Some(pb::get_result_request::Which::CallId("call_2".into())),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/Recorded",
            pb::RecordedRequest {
                conversation_id: conversation_id(),
                tool: "clock".into(),
                arguments: "{}".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/Knowledge",
            pb::KnowledgeRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/SuggestArguments",
            pb::SuggestArgumentsRequest {
                conversation_id: conversation_id(),
                tool: "clock".into(),
                arguments: "{}".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/MissingPrerequisites",
            pb::MissingPrerequisitesRequest {
                conversation_id: conversation_id(),
                tool: "clock".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/Guidance",
            pb::GuidanceRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Tools/Snapshots",
            pb::SnapshotsRequest {
                conversation_id: conversation_id(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Search/Search",
            pb::SearchRequest {
                query: "Lisbon".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Shards/SearchPart",
            pb::SearchPartRequest {
                search: Some(pb::SearchRequest {
                    query: "Lisbon".into(),
                    ..Default::default()
                }),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "Shards/ListPart",
            pb::ListConversationsRequest {
                with_values: true,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        // The last one, because it removes events that others read.
        (
            "Conversations/Rewind",
            pb::RewindRequest {
                conversation_id: conversation_id(),
                to_revision: 2,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
    ]
}

/// Creates a conversation about which each method has something to return.
async fn everything(server: &TestServer) -> String {
    let id = server.conversation().await;
    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        name: "other".into(),
        ..Default::default()
    };
    server.conversations().fork(fork).await.unwrap();
    let arguments = r#"{"city": "Lisbon", "days": 2}"#;
    let mut bodies = vec![
        decision("call_1", arguments, Decision::Approved),
        result("call_1", "rain"),
        result("call_2", "noon"),
    ];
    for turn in 0..6 {
        bodies.push(message(Role::Assistant, &format!("Boat {turn} is at sea.")));
        bodies.push(message(Role::User, &format!("And boat {turn}?")));
    }
    let made = server.append(batch(&id, bodies)).await;
    let compact = pb::CompactRequest {
        conversation_id: id.clone(),
        keep_turns: Some(2),
        summary: "boats".into(),
        ..Default::default()
    };
    server.contexts().compact(compact).await.unwrap();
    let asked = call("call_3", "weather", "{}", true);
    server.append(batch(&id, [asked])).await;
    let put = pb::ItemsRequest {
        ops: vec![pb::ItemOp {
            op: Some(pb::item_op::Op::Put(pb::PutItem {
                path: vec!["boats".into()],
                key: "oldest".into(),
                value: "{}".into(),
                ..Default::default()
            })),
        }],
        ..Default::default()
    };
    server.items().batch(put).await.unwrap();
    // Waits until the index has it.
    let search = pb::SearchRequest {
        query: "Lisbon".into(),
        at_least: made.events[0].position,
        ..Default::default()
    };
    server.search().search(search).await.unwrap();
    id
}

/// Calls a method, and waits for the first message of its answer.
async fn called(server: &TestServer, key: &str, method: &str, message: &[u8]) -> (String, usize) {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0], &length[..], message].concat();
    let request = http::Request::builder()
        .method("POST")
        .uri(format!("http://{}/treering.v1.{method}", server.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {key}"));
    let body = tonic::body::Body::new(http_body_util::Full::new(bytes::Bytes::from(body)));
    let request = request.body(body).unwrap();
    let answer = tower::ServiceExt::oneshot(server.channel.clone(), request);
    let answer = answer.await.unwrap();
    let status = answer.headers().get("grpc-status").map(|it| it.to_str());
    if let Some(status) = status {
        let why = answer.headers().get("grpc-message").map(|it| it.to_str());
        return (format!("{status:?} {why:?}"), 0);
    }
    let mut body = answer.into_body();
    let first = http_body_util::BodyExt::frame(&mut body);
    let first = first.await.unwrap().unwrap();
    (String::new(), first.data_ref().map_or(0, bytes::Bytes::len))
}

// A thief could use a reading method that is not counted. This test must list each method of the
// services: as a reading one, which must be counted, or as another one, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn every_reading_method_is_counted_for_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let keys = KeyStore::open(dir.path()).unwrap();
    let options = ServeOptions {
        grace: GRACE,
        keys: Some(keys.clone()),
        ..ServeOptions::default()
    };
    let server = TestServer::serving(dir.path(), Limits::default(), options).await;
    let id = everything(&server).await;
    let readings = readings(&id);
    let known = readings.iter().map(|(method, _)| *method);
    let known = known.chain(NO_READING.iter().map(|(method, _)| *method));
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    let pool = DescriptorPool::decode(treering::proto::DESCRIPTORS).unwrap();
    let methods = pool.services().flat_map(|service| {
        let name = service.name().to_owned();
        let methods: Vec<_> = service.methods().collect();
        methods
            .into_iter()
            .map(move |method| format!("{name}/{}", method.name()))
    });
    let methods: BTreeSet<String> = methods.collect();
    assert_eq!(
        known, methods,
        "a method is to be in readings() or in NO_READING"
    );
    for (method, message) in readings {
        let name = method.replace('/', ".");
        let key = key(dir.path(), &name, &["writer:default"]);
        let (refused, bytes) = called(&server, &key, method, &message).await;
        assert_eq!(refused, "", "{method}");
        let holder = keys.holder(&key).unwrap();
        assert!(holder.reads().conversations() > 0, "{method}");
        assert!(holder.reads().bytes() >= bytes as u64, "{method}");
        assert!(bytes > 0, "{method}");
    }
    server.stop().done().await;
}
