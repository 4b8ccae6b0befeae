//! Items: values under a path and a key.

use tonic::Code;
use treering::{
    proto::pb::{self, item_op::Op, item_result::Result as Answer},
    server::bounds::LOOKUP_BYTES_MAX,
};

use super::harness::*;

fn path(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|label| (*label).to_owned()).collect()
}

pub fn put(labels: &[&str], key: &str, value: &str) -> pb::ItemOp {
    pb::ItemOp {
        op: Some(Op::Put(pb::PutItem {
            path: path(labels),
            key: key.into(),
            value: value.to_owned().into(),
            ..Default::default()
        })),
    }
}

fn get(labels: &[&str], key: &str, refresh_ttl: bool) -> pb::ItemOp {
    pb::ItemOp {
        op: Some(Op::Get(pb::GetItem {
            path: path(labels),
            key: key.into(),
            refresh_ttl,
        })),
    }
}

fn search(search: pb::SearchItems) -> pb::ItemOp {
    pb::ItemOp {
        op: Some(Op::Search(search)),
    }
}

fn asked(ops: Vec<pb::ItemOp>) -> pb::ItemsRequest {
    pb::ItemsRequest {
        ops,
        actor: "ada".into(),
        ..Default::default()
    }
}

async fn run(server: &TestServer, ops: Vec<pb::ItemOp>) -> Vec<Answer> {
    let answer = server.items().batch(asked(ops)).await.unwrap();
    let results = answer.into_inner().results.into_iter();
    results.map(|result| result.result.unwrap()).collect()
}

fn item(answer: &Answer) -> Option<&pb::Item> {
    match answer {
        Answer::Got(got) => got.item.as_ref(),
        other => panic!("{other:?}"),
    }
}

fn keys(answer: &Answer) -> Vec<&str> {
    match answer {
        Answer::Found(found) => found.items.iter().map(|item| item.key.as_str()).collect(),
        other => panic!("{other:?}"),
    }
}

// One batch over the wire. Values are returned byte for byte, a search by their content finds the
// matching ones, paths are listed, and the history names the actor.
#[tokio::test(flavor = "multi_thread")]
async fn item_values_round_trip_and_are_searched() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let value = r#"{ "answers": "short",  "level": 3.0 }"#;
    run(
        &server,
        vec![
            put(&["users", "ada"], "likes", value),
            put(&["users", "bob"], "likes", r#"{"level": 1}"#),
        ],
    )
    .await;
    let condition = pb::ItemCondition {
        field: vec!["level".into()],
        comparison: pb::ItemComparison::GreaterOrEqual.into(),
        value: "2".into(),
    };
    let listed = pb::ListItemPaths {
        matches: vec![pb::PathMatch {
            end: pb::PathEnd::Suffix.into(),
            path: vec!["bob".into()],
        }],
        ..Default::default()
    };
    let answers = run(
        &server,
        vec![
            get(&["users", "ada"], "likes", false),
            get(&["users"], "likes", false),
            search(pb::SearchItems {
                under: path(&["users"]),
                filter: vec![condition],
                ..Default::default()
            }),
            pb::ItemOp {
                op: Some(Op::ListPaths(listed)),
            },
        ],
    )
    .await;
    let found = item(&answers[0]).unwrap();
    assert_eq!(found.value, value);
    assert_eq!(
        (found.path.join("/"), found.key.as_str()),
        ("users/ada".into(), "likes")
    );
    assert_eq!(item(&answers[1]), None);
    let Answer::Found(fits) = &answers[2] else {
        panic!("{answers:?}")
    };
    assert_eq!(fits.items.len(), 1);
    assert_eq!(fits.items[0].path, ["users", "ada"]);
    let Answer::Paths(paths) = &answers[3] else {
        panic!("{answers:?}")
    };
    assert_eq!(paths.paths[0].path, ["users", "bob"]);
    let events = server.read_all(&found.conversation_id).await;
    let event = events.iter().find(|event| event.revision == found.revision);
    assert_eq!(event.unwrap().actor, "ada");
    let words = pb::SearchItems {
        query: "short".into(),
        ..Default::default()
    };
    assert_eq!(keys(&run(&server, vec![search(words)]).await[0]), ["likes"]);
    server.stop().done().await;
}

// A reader must not change anything, not even by extending a value's life. An invalid operation is
// reported with its index, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn item_reads_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let head = server.events_stored();
    let deleted = pb::ItemOp {
        op: Some(Op::Delete(pb::DeleteItem::default())),
    };
    let refreshed = search(pb::SearchItems {
        refresh_ttl: true,
        ..Default::default()
    });
    for op in [
        put(&["a"], "k", "1"),
        deleted,
        get(&["a"], "k", true),
        refreshed,
    ] {
        let ops = vec![get(&["a"], "k", false), op];
        let request = pb::ReadItemsRequest { ops };
        let status = server.items().read(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), "ops[1]");
    }
    let bad = [
        (put(&["a"], "k", "{"), "ops[1].put.value"),
        (put(&[], "k", "1"), "ops[1]"),
        (put(&["a", "*"], "k", "1"), "ops[1]"),
        (pb::ItemOp::default(), "ops[1]"),
        (
            search(pb::SearchItems {
                filter: vec![pb::ItemCondition {
                    value: "1".into(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            "ops[1].search.filter[0].comparison",
        ),
    ];
    for (op, field) in bad {
        let ops = vec![put(&["a"], "k", "1"), op];
        let status = server.items().batch(asked(ops)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert_eq!(bad_field(&status), field);
    }
    assert_eq!(server.events_stored(), head);
    server.stop().done().await;
}

// An answer fits into the 4 MiB that clients accept. Values that do not fit are named, and can be
// read one by one.
#[tokio::test(flavor = "multi_thread")]
async fn large_item_values_are_returned_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let large = format!("\"{}\"", "x".repeat(LOOKUP_BYTES_MAX - 1_000));
    run(
        &server,
        vec![put(&["a"], "1", &large), put(&["a"], "2", &large)],
    )
    .await;
    let all = search(pb::SearchItems::default());
    let answers = run(&server, vec![all]).await;
    let Answer::Found(found) = &answers[0] else {
        panic!("{answers:?}")
    };
    let left_out: Vec<_> = found.items.iter().map(|item| item.value_left_out).collect();
    assert_eq!(left_out, [false, true]);
    let alone = run(&server, vec![get(&["a"], &found.items[1].key, false)]).await;
    assert_eq!(item(&alone[0]).unwrap().value, large);
    server.stop().done().await;
}
