//! Tests of items: equivalence to a map, cost, and lifetime.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{EraseCommand, EraseItem, EraseTarget, OpenOptions};
use treering_domain::{Limits, Revision};

fn name(path: &str, key: &str) -> ItemName {
    ItemName {
        path: path.split('/').map(str::to_owned).collect(),
        key: key.to_owned(),
    }
}

fn put(name: ItemName, value: &Value) -> ItemOp {
    ItemOp::Put {
        name,
        value: JsonText::from_checked(value.to_string().into()),
        ttl: None,
        text: None,
    }
}

fn lives(op: ItemOp, ms: u64) -> ItemOp {
    match op {
        ItemOp::Put {
            name, value, text, ..
        } => ItemOp::Put {
            name,
            value,
            ttl: Some(Duration::from_millis(ms)),
            text,
        },
        op => op,
    }
}

fn get(name: ItemName) -> ItemOp {
    let refresh = false;
    ItemOp::Get { name, refresh }
}

fn batch(ops: Vec<ItemOp>) -> ItemBatch {
    ItemBatch {
        namespace: Namespace::default(),
        ops,
        idempotency_key: None,
        key_life_seconds: None,
        actor: "ada".to_owned(),
        bytes_max: usize::MAX,
    }
}

async fn run(engine: &Engine, ops: Vec<ItemOp>) -> Vec<ItemAnswer> {
    engine.items(batch(ops)).await.unwrap().answers
}

async fn memory() -> Engine {
    Engine::in_memory(Limits::default()).await.unwrap()
}

fn value_of(item: &RememberedItem) -> Value {
    json_of(item.value.as_ref().unwrap().as_bytes()).unwrap()
}

fn got(answer: &ItemAnswer) -> Option<&RememberedItem> {
    match answer {
        ItemAnswer::Got(item) => item.as_ref(),
        other => panic!("{other:?}"),
    }
}

fn found(answer: &ItemAnswer) -> Vec<(String, String, Value)> {
    let ItemAnswer::Found { items, is_partial } = answer else {
        panic!("{answer:?}");
    };
    assert!(!is_partial);
    let told = |item: &RememberedItem| {
        (
            item.name.path.join("/"),
            item.name.key.clone(),
            value_of(item),
        )
    };
    items.iter().map(told).collect()
}

async fn search(engine: &Engine, search: ItemSearch) -> Vec<(String, String, Value)> {
    found(&run(engine, vec![ItemOp::Search(search)]).await[0])
}

fn under(path: &str) -> ItemSearch {
    ItemSearch {
        under: path
            .split('/')
            .filter(|p| !p.is_empty())
            .map(str::to_owned)
            .collect(),
        limit: 1_000,
        ..ItemSearch::default()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, usize, u8),
    Delete(usize, usize),
    /// Several changes at once; the last one counts.
    Batch(Vec<(usize, usize, Option<u8>)>),
}

const PATHS: [&str; 5] = ["a", "a/b", "a/b/c", "b", "a~/b"];
const KEYS: [&str; 4] = ["k", "b", "k/1", "~"];

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..PATHS.len(), 0..KEYS.len());
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|((p, k), v)| Step::Put(p, k, v)),
        1 => place().prop_map(|(p, k)| Step::Delete(p, k)),
        1 => prop::collection::vec(
            (place(), prop::option::of(any::<u8>())).prop_map(|((p, k), v)| (p, k, v)), 1..6)
            .prop_map(Step::Batch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // Items are put and deleted, under paths that are prefixes of others and with keys that look
    // like paths. Gets, searches under every path, filters and path lists must agree with a map.
    #[test]
    fn items_equal_a_map_model(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let engine = memory().await;
            let mut model: BTreeMap<ItemName, u8> = BTreeMap::new();
            for step in steps {
                let changes = match step {
                    Step::Put(p, k, v) => vec![(p, k, Some(v))],
                    Step::Delete(p, k) => vec![(p, k, None)],
                    Step::Batch(changes) => changes,
                };
                let mut ops = Vec::new();
                for (p, k, value) in changes {
                    let name = name(PATHS[p], KEYS[k]);
                    match value {
                        Some(value) => {
                            ops.push(put(name.clone(), &json!({"n": value})));
                            model.insert(name, value);
                        }
                        None => {
                            ops.push(ItemOp::Delete { name: name.clone() });
                            model.remove(&name);
                        }
                    }
                }
                run(&engine, ops).await;
            }
            check(&engine, &model).await;
        });
    }
}

async fn check(engine: &Engine, model: &BTreeMap<ItemName, u8>) {
    for path in PATHS {
        for key in KEYS {
            let name = name(path, key);
            let answers = run(engine, vec![get(name.clone())]).await;
            let value = got(&answers[0]).map(value_of);
            assert_eq!(value, model.get(&name).map(|n| json!({"n": n})), "{name:?}");
        }
    }
    for path in PATHS.into_iter().chain([""]) {
        let asked = under(path);
        let has = |name: &ItemName| name.path.starts_with(&asked.under);
        for floor in [0, 128] {
            let mut asked = asked.clone();
            if floor > 0 {
                asked.filter.push(ItemCondition {
                    field: vec!["n".to_owned()],
                    comparison: Comparison::GreaterOrEqual,
                    value: json!(floor),
                });
            }
            let wanted: BTreeSet<_> = model
                .iter()
                .filter(|(name, n)| has(name) && **n >= floor)
                .map(|(name, n)| (name.path.join("/"), name.key.clone(), n.to_string()))
                .collect();
            let mut pages = Vec::new();
            for offset in (0..=wanted.len()).step_by(3) {
                let page = ItemSearch {
                    limit: 3,
                    offset,
                    ..asked.clone()
                };
                pages.extend(search(engine, page).await);
            }
            assert_eq!(pages, search(engine, asked).await);
            let told = pages
                .into_iter()
                .map(|(p, k, v)| (p, k, v["n"].to_string()));
            assert_eq!(told.collect::<BTreeSet<_>>(), wanted, "under {path:?}");
        }
    }
    for depth_max in 0..4 {
        for (matches, fits) in [
            (vec![], None),
            (vec![PathMatch::Prefix(vec!["a".into()])], Some(0)),
            (vec![PathMatch::Suffix(vec!["b".into()])], Some(1)),
        ] {
            let query = PathsQuery {
                matches: matches.clone(),
                depth_max,
                ..PathsQuery::default()
            };
            let wanted: BTreeSet<Vec<String>> = model
                .keys()
                .filter(|name| match fits {
                    Some(0) => name.path[0] == "a",
                    Some(_) => name.path.last().is_some_and(|last| last == "b"),
                    None => true,
                })
                .map(|name| match depth_max {
                    0 => name.path.clone(),
                    depth => name.path[..depth.min(name.path.len())].to_vec(),
                })
                .collect();
            let answers = run(engine, vec![ItemOp::Paths(query)]).await;
            let paths = wanted.into_iter().collect();
            let is_partial = false;
            assert_eq!(
                answers[0],
                ItemAnswer::Paths { paths, is_partial },
                "{matches:?}"
            );
        }
    }
}

// A batch is one step: its reads see the state before it, the last of several changes to an item
// counts, the times are those of the first and last put, and deleting a missing item does nothing.
#[tokio::test]
async fn item_batch_is_atomic() {
    let engine = memory().await;
    let item = || name("users/ada", "likes");
    let answers = run(
        &engine,
        vec![put(item(), &json!(1)), get(item()), put(item(), &json!(2))],
    )
    .await;
    assert_eq!(answers[1], ItemAnswer::Got(None));
    let first = got(&run(&engine, vec![get(item())]).await[0])
        .unwrap()
        .clone();
    assert_eq!(value_of(&first), json!(2));
    assert_eq!(first.created_at, first.updated_at);
    let revision = first.at.revision;
    assert_eq!(
        revision,
        Revision(2),
        "one event, and the conversation's first"
    );
    run(&engine, vec![put(item(), &json!(3))]).await;
    let second = got(&run(&engine, vec![get(item())]).await[0])
        .unwrap()
        .clone();
    assert_eq!(second.created_at, first.created_at);
    assert!(second.updated_at > first.updated_at);
    let gone = vec![
        ItemOp::Delete { name: item() },
        ItemOp::Delete {
            name: name("no", "no"),
        },
    ];
    assert!(
        engine
            .items(batch(gone.clone()))
            .await
            .unwrap()
            .position
            .is_some()
    );
    assert!(engine.items(batch(gone)).await.unwrap().position.is_none());
    assert_eq!(
        run(&engine, vec![get(item())]).await[0],
        ItemAnswer::Got(None)
    );
    run(&engine, vec![put(item(), &json!(4))]).await;
    let again = got(&run(&engine, vec![get(item())]).await[0])
        .unwrap()
        .clone();
    assert!(again.created_at > first.created_at);
}

// A lost answer must not lose later puts: a retry with the same key changes nothing, even if there
// was another put in between.
#[tokio::test]
async fn repeated_item_batch_changes_nothing() {
    let engine = memory().await;
    let asked = |value: i32| ItemBatch {
        idempotency_key: Some("once".to_owned()),
        ..batch(vec![put(name("a", "k"), &json!(value))])
    };
    assert!(!engine.items(asked(1)).await.unwrap().repeated_key);
    run(&engine, vec![put(name("a", "k"), &json!(2))]).await;
    assert!(engine.items(asked(1)).await.unwrap().repeated_key);
    let answers = run(&engine, vec![get(name("a", "k"))]).await;
    assert_eq!(got(&answers[0]).map(value_of), Some(json!(2)));
}

// Sixteen programs concurrently put the first items under one label: all must be stored.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_puts_are_all_stored() {
    let engine = memory().await;
    let puts = (0..16).map(|n| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let key = n.to_string();
            let ops = vec![
                put(name("a", &key), &json!(n)),
                put(name("b", &key), &json!(n)),
            ];
            engine.items(batch(ops)).await.unwrap();
        })
    });
    for put in puts.collect::<Vec<_>>() {
        put.await.unwrap();
    }
    assert_eq!(search(&engine, under("a")).await.len(), 16);
    assert_eq!(search(&engine, under("")).await.len(), 32);
}

// An expired item must disappear from every answer. An item refreshed in time must stay, otherwise
// unchanged.
#[tokio::test]
async fn expired_items_disappear_and_refreshed_items_stay() {
    const TTL_MS: u64 = 3_600_000;
    let engine = memory().await;
    let item = || name("a", "k");
    run(&engine, vec![lives(put(item(), &json!("short")), 1)]).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(
        run(&engine, vec![get(item())]).await[0],
        ItemAnswer::Got(None)
    );
    assert!(search(&engine, under("a")).await.is_empty());
    let answers = run(&engine, vec![ItemOp::Paths(PathsQuery::default())]).await;
    let (paths, is_partial) = (Vec::new(), false);
    assert_eq!(answers[0], ItemAnswer::Paths { paths, is_partial });

    run(&engine, vec![lives(put(item(), &json!("long")), TTL_MS)]).await;
    let first = got(&run(&engine, vec![get(item())]).await[0])
        .unwrap()
        .clone();
    let read = ItemOp::Get {
        name: item(),
        refresh: true,
    };
    assert!(
        engine
            .items(batch(vec![read]))
            .await
            .unwrap()
            .position
            .is_some()
    );
    let second = got(&run(&engine, vec![get(item())]).await[0])
        .unwrap()
        .clone();
    assert!(second.expires_at > first.expires_at);
    assert_eq!(second.created_at, first.created_at);
    assert_eq!(second.updated_at, first.updated_at);
    assert_eq!(value_of(&second), json!("long"));
    let refreshing = ItemSearch {
        refresh: true,
        ..under("a")
    };
    let answers = engine.items(batch(vec![ItemOp::Search(refreshing)])).await;
    assert!(answers.unwrap().position.is_some());
    // An item without expiry needs no refresh.
    run(&engine, vec![put(item(), &json!(0))]).await;
    let read = ItemOp::Get {
        name: item(),
        refresh: true,
    };
    assert!(
        engine
            .items(batch(vec![read]))
            .await
            .unwrap()
            .position
            .is_none()
    );
}

// Word searches must match an item's current value only: not an older value, not a deleted item,
// and not a value that is excluded from search.
#[tokio::test(flavor = "multi_thread")]
async fn search_matches_current_item_values_only() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let at = |key: &str| name("notes/ada", key);
    run(
        &engine,
        vec![
            put(at("1"), &json!({"says": "the lighthouse at night", "n": 1})),
            put(
                at("2"),
                &json!({"says": ["a lighthouse", {"and": "a harbour"}], "n": 2}),
            ),
            put(at("3"), &json!({"says": "a forest"})),
            put(name("other", "4"), &json!("the lighthouse keeper")),
        ],
    )
    .await;
    let keys = |query: &str, path: &str| {
        let asked = ItemSearch {
            query: query.to_owned(),
            ..under(path)
        };
        let engine = engine.clone();
        async move {
            let found = search(&engine, asked).await;
            found
                .into_iter()
                .map(|(_, key, _)| key)
                .collect::<BTreeSet<_>>()
        }
    };
    let set = |keys: &[&str]| {
        keys.iter()
            .map(|key| (*key).to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(keys("lighthouse", "notes").await, set(&["1", "2"]));
    assert_eq!(keys("lighthouse", "").await, set(&["1", "2", "4"]));
    assert_eq!(keys("harbour", "notes/ada").await, set(&["2"]));
    let filtered = ItemSearch {
        query: "lighthouse".to_owned(),
        filter: vec![ItemCondition {
            field: vec!["n".to_owned()],
            comparison: Comparison::Less,
            value: json!(2),
        }],
        ..under("notes")
    };
    assert_eq!(search(&engine, filtered).await.len(), 1);
    run(
        &engine,
        vec![
            put(at("1"), &json!("nothing of the kind")),
            ItemOp::Delete { name: at("2") },
            ItemOp::Put {
                name: at("3"),
                value: JsonText::from_checked(r#""lighthouse""#.into()),
                ttl: None,
                text: Some(String::new()),
            },
        ],
    )
    .await;
    assert_eq!(keys("lighthouse", "").await, set(&["4"]));
    assert_eq!(keys("nothing", "notes").await, set(&["1"]));
    engine.close().await;
}

// An erased item must be gone, and its older value must not come back. Other tenants must see none
// of it.
#[tokio::test(flavor = "multi_thread")]
async fn erased_items_do_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    run(&engine, vec![put(name("a", "k"), &json!("older"))]).await;
    run(&engine, vec![put(name("a", "k"), &json!("needleitemqzx"))]).await;
    run(&engine, vec![put(name("a", "other"), &json!("stays"))]).await;
    let mut other = batch(vec![get(name("a", "other"))]);
    other.namespace = Namespace::new("other").unwrap();
    let answers = engine.items(other).await.unwrap().answers;
    assert_eq!(answers[0], ItemAnswer::Got(None));
    let id = items_conversation(&Namespace::default());
    let mut brought = engine.erase(EraseCommand {
        namespace: Namespace::default(),
        target: EraseTarget::Revisions {
            conversation: id,
            revisions: vec![2..=3],
        },
        keep_derived: false,
        dry_run: false,
        reason: "asked for".to_owned(),
        actor: "ada".to_owned(),
    });
    let mut erased = 0;
    while let Some(item) = brought.next().await {
        erased += u64::from(matches!(item.unwrap(), EraseItem::Event(_)));
    }
    assert_eq!(erased, 2);
    assert_eq!(
        run(&engine, vec![get(name("a", "k"))]).await[0],
        ItemAnswer::Got(None)
    );
    let left = search(&engine, under("")).await;
    assert_eq!(left, [("a".to_owned(), "other".to_owned(), json!("stays"))]);
    engine.close().await;
}

// Invalid input must change nothing, and the error must name the operation.
#[tokio::test]
async fn invalid_item_operations_change_nothing() {
    let engine = memory().await;
    let good = || put(name("a", "k"), &json!(1));
    for bad in [
        put(name("", "k"), &json!(1)),
        put(name("a", ""), &json!(1)),
        put(name("*", "k"), &json!(1)),
        put(name("a", &"k".repeat(511)), &json!(1)),
        lives(put(name("a", "k"), &json!(1)), 0),
        ItemOp::Put {
            name: name("a", "k"),
            value: JsonText::from_checked("{".into()),
            ttl: None,
            text: None,
        },
        ItemOp::Search(under("a/*")),
        ItemOp::Search(ItemSearch {
            limit: 10_001,
            ..ItemSearch::default()
        }),
    ] {
        let refused = engine.items(batch(vec![good(), bad.clone()])).await;
        let is_told = matches!(refused, Err(ItemsError::Invalid { index: 1, .. }));
        assert!(is_told, "{bad:?}: {refused:?}");
    }
    let refused = engine.items(batch(vec![good(); ITEM_OPS_MAX + 1])).await;
    assert!(matches!(refused, Err(ItemsError::TooMany { .. })));
    let many = vec![ItemOp::Search(under("a")); ITEM_SEARCHES_MAX + 1];
    let refused = engine.items(batch(many)).await;
    assert!(matches!(
        refused,
        Err(ItemsError::Invalid { index: 100, .. })
    ));
    assert_eq!(
        run(&engine, vec![get(name("a", "k"))]).await[0],
        ItemAnswer::Got(None)
    );
}

// Answers are bounded: omitted values are marked, and the first value is always included.
#[tokio::test]
async fn values_over_the_limit_are_omitted_and_marked() {
    let engine = memory().await;
    let long = json!("x".repeat(1_000));
    run(
        &engine,
        vec![put(name("a", "1"), &long), put(name("a", "2"), &long)],
    )
    .await;
    let asked = ItemBatch {
        bytes_max: 500,
        ..batch(vec![get(name("a", "1")), get(name("a", "2"))])
    };
    let answers = engine.items(asked.clone()).await.unwrap().answers;
    assert!(got(&answers[0]).unwrap().value.is_some());
    assert!(got(&answers[1]).unwrap().value.is_none());
    let searched = ItemBatch {
        ops: vec![ItemOp::Search(under("a"))],
        ..asked
    };
    let answers = engine.items(searched).await.unwrap().answers;
    let ItemAnswer::Found { items, .. } = &answers[0] else {
        panic!("{answers:?}");
    };
    let told: Vec<_> = items.iter().map(|item| item.value.is_some()).collect();
    assert_eq!(told, [true, false]);
}
