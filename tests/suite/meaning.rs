//! Search by meaning, with a model endpoint that the test plays: its hits, and the effects of a
//! failing model, a restart and an erasure.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use futures::StreamExt;
use serde_json::{Value, json};
use treering::{domain::*, engine::*};
use treering_embedders::EmbedderPlace;

use super::store::{append, call, message, ns, result};

/// Words of one topic mean the same.
const TOPICS: [&[&str]; 4] = [
    &["car", "automobile", "battery", "power"],
    &["pancake", "breakfast", "eggs"],
    &["invoice", "payment", "bank"],
    &["storm", "rain", "weather"],
];
const BROKEN: &str = "the automobile would not start because its battery was flat";

/// How the endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Works,
    Status(u16),
    Garbage,
    OtherDimensions,
    Hangs,
    /// Refuses requests with this word.
    Refuses(&'static str),
}

/// A model whose vectors have a dimension for each topic.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) url: String,
    state: Arc<Mutex<(Behaviour, BTreeMap<String, usize>)>>,
}

impl Model {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let model = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            state: Arc::new(Mutex::new((Behaviour::Works, BTreeMap::new()))),
        };
        let serving = model.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let model = serving.clone();
                thread::spawn(move || model.serve(socket.unwrap()));
            }
        });
        model
    }

    fn behave(&self, behaviour: Behaviour) {
        self.state.lock().unwrap().0 = behaviour;
    }

    /// Returns how often each text was embedded.
    fn embedded(&self) -> BTreeMap<String, usize> {
        self.state.lock().unwrap().1.clone()
    }

    fn serve(&self, mut socket: TcpStream) {
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let header = line.to_ascii_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let (status, answer) = self.answer(&serde_json::from_slice(&body).unwrap());
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            let answered = socket.write_all(format!("{head}{answer}").as_bytes());
            if answered.is_err() {
                return;
            }
        }
    }

    fn answer(&self, asked: &Value) -> (u16, String) {
        let behaviour = self.state.lock().unwrap().0;
        match behaviour {
            Behaviour::Works | Behaviour::OtherDimensions => {}
            Behaviour::Refuses(word) if !asked["input"].to_string().contains(word) => {}
            Behaviour::Refuses(_) => return (400, "not this text".to_owned()),
            Behaviour::Status(status) => return (status, "no".to_owned()),
            Behaviour::Garbage => return (200, "{}".to_owned()),
            Behaviour::Hangs => thread::sleep(Duration::from_secs(600)),
        }
        let texts = asked["input"].as_array().unwrap().iter();
        let vectors = texts.enumerate().map(|(index, text)| {
            let text = text.as_str().unwrap();
            let mut state = self.state.lock().unwrap();
            *state.1.entry(text.trim().to_owned()).or_default() += 1;
            let of = |words: &[&str]| words.iter().filter(|word| text.contains(*word)).count();
            let mut vector = TOPICS.map(|words| of(words) as f32 + 0.01).to_vec();
            if behaviour == Behaviour::OtherDimensions {
                vector.push(1.0);
            }
            json!({"index": index, "embedding": vector})
        });
        (
            200,
            json!({"data": vectors.collect::<Vec<_>>()}).to_string(),
        )
    }

    fn embedder(&self) -> Arc<dyn Embedder> {
        let place = EmbedderPlace {
            at: self.url.clone(),
            model: Some("topics".to_owned()),
            key: String::new(),
        };
        place.open().unwrap()
    }

    pub(super) async fn open(&self, dir: &Path) -> Engine {
        self.open_after(dir, None).await
    }

    async fn open_after(&self, dir: &Path, previous: Option<&Self>) -> Engine {
        let mut options = OpenOptions::new(dir);
        options.embedder = Some(self.embedder());
        options.previous_embedder = previous.map(Self::embedder);
        Engine::open(options).await.unwrap()
    }
}

pub(super) async fn filled(engine: &Engine) -> ConversationId {
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let events = vec![
        NewEvent::new(id, created),
        call(id, "c1", "read"),
        result(id, "c1", BROKEN),
        message(id, "pancake with eggs for breakfast"),
        message(id, "the bank refused the payment"),
    ];
    append(engine, events).await.unwrap();
    id
}

async fn vectors(engine: &Engine) -> VectorStats {
    engine.stats(&ns()).await.unwrap().vectors.unwrap()
}

/// Waits until all passages have vectors.
pub(super) async fn embedded(engine: &Engine) -> VectorStats {
    engine.wait_indexed(engine.head()).await.unwrap();
    loop {
        let stats = vectors(engine).await;
        if stats.embedded == stats.passages && stats.failure.is_empty() {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn request(text: &str, by: SearchBy) -> SearchRequest {
    SearchRequest {
        by,
        ..SearchRequest::new(ns(), text, 10)
    }
}

// A result must be found by its meaning, with none of its words.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_meant_is_found_in_other_words() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    let id = filled(&engine).await;
    let stats = embedded(&engine).await;
    assert_eq!((stats.passages, stats.vectors), (3, 3));
    assert_eq!(stats.model, format!("topics at {}", model.url));

    let text = "car has no power";
    let words = engine.search(request(text, SearchBy::Words)).await.unwrap();
    assert_eq!(words.hits.len(), 0);
    let found = engine
        .search(request(text, SearchBy::Meaning))
        .await
        .unwrap();
    assert!(found.complete, "{:?}", found.lagging);
    let hit = &found.hits[0];
    assert_eq!(
        (hit.found.conversation, hit.found.revision),
        (id, Revision(3))
    );
    assert_eq!(hit.details.snippet, BROKEN);
    assert!(hit.found.scores.meaning > 0.0 && hit.found.scores.words <= 0.0);
    // Both: a word of one text, the meaning of another.
    let both = engine
        .search(request("refused car", SearchBy::Both))
        .await
        .unwrap();
    let first: Vec<u64> = both.hits[..2]
        .iter()
        .map(|hit| hit.found.revision.0)
        .collect();
    assert!(first.contains(&3) && first.contains(&5), "{first:?}");
    // Filters apply.
    let mut failed = request(text, SearchBy::Meaning);
    failed.filters.kinds = vec![EventKind::MessageAppended];
    let found = engine.search(failed).await.unwrap();
    assert!(
        found
            .hits
            .iter()
            .all(|hit| hit.found.revision != Revision(3))
    );
    let other = SearchRequest {
        namespace: Namespace::new("other").unwrap(),
        ..request(text, SearchBy::Meaning)
    };
    assert_eq!(engine.search(other).await.unwrap().hits.len(), 0);
    engine.close().await;
}

// From one error to similar ones, without the event itself and its copies.
#[tokio::test(flavor = "multi_thread")]
async fn events_like_one_are_found_without_its_copies() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    let id = filled(&engine).await;
    let other = filled(&engine).await;
    let events = vec![message(other, "no power in the car again")];
    append(&engine, events).await.unwrap();
    embedded(&engine).await;
    let like = |revision| SearchRequest {
        similar_to: Some(EventRef {
            conversation: id,
            revision: Revision(revision),
        }),
        ..request("", SearchBy::Meaning)
    };
    let found = engine.search(like(3)).await.unwrap();
    let first = &found.hits[0].found;
    assert_eq!((first.conversation, first.revision), (other, Revision(6)));
    let is_itself = |hit: &SearchHit| hit.details.snippet == BROKEN;
    assert!(!found.hits.iter().any(is_itself), "{:?}", found.hits);
    // A title, a call without arguments, and an event that does not exist have no text.
    for revision in [1, 2, 99] {
        let refused = engine.search(like(revision)).await;
        assert!(
            matches!(refused, Err(SearchError::Query { .. })),
            "{revision}"
        );
    }
    engine.close().await;
}

// Agents keep what they learn as items, and ask for it in words of their own.
#[tokio::test(flavor = "multi_thread")]
async fn items_are_found_in_other_words() {
    use treering::engine::items::*;
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    let batch = |ops| ItemBatch {
        namespace: ns(),
        ops,
        idempotency_key: None,
        key_life_seconds: None,
        actor: "ada".to_owned(),
        bytes_max: usize::MAX,
    };
    let search = |by| ItemSearch {
        query: "car has no power".to_owned(),
        by,
        ..ItemSearch::default()
    };
    let put = |key: &str, text: &str| ItemOp::Put {
        name: ItemName {
            path: vec!["facts".to_owned()],
            key: key.to_owned(),
        },
        value: JsonText::from_checked(json!({ "text": text }).to_string().into()),
        ttl: None,
        text: None,
    };
    let texts = [
        ("trip", BROKEN),
        ("food", "eggs for breakfast"),
        ("old", "the battery is new"),
    ];
    let puts = texts.map(|(key, text)| put(key, text)).to_vec();
    engine.items(batch(puts)).await.unwrap();
    // An earlier value has the meaning, but the item has it no longer.
    let later = vec![put("old", "rain")];
    engine.items(batch(later)).await.unwrap();
    embedded(&engine).await;
    for (by, first, count) in [
        (SearchBy::Words, None, 0),
        (SearchBy::Meaning, Some("trip"), 3),
        (SearchBy::Both, Some("trip"), 3),
    ] {
        let asked = batch(vec![ItemOp::Search(search(by))]);
        let answers = engine.items(asked).await.unwrap().answers;
        let ItemAnswer::Found { items, .. } = &answers[0] else {
            panic!("{answers:?}")
        };
        let found = items.first().map(|item| item.name.key.as_str());
        assert_eq!((found, items.len()), (first, count), "{by:?}");
    }
    // A filter may reject more items than a search by meaning finds.
    let many = (0..1_100).map(|at| put(&format!("car-{at}"), &format!("car {at}")));
    let many: Vec<ItemOp> = many.collect();
    for some in many.chunks(550) {
        engine.items(batch(some.to_vec())).await.unwrap();
    }
    embedded(&engine).await;
    let rejected = ItemSearch {
        filter: vec![ItemCondition {
            field: vec!["kind".to_owned()],
            comparison: Comparison::Equal,
            value: json!("none"),
        }],
        ..search(SearchBy::Meaning)
    };
    let asked = batch(vec![ItemOp::Search(rejected)]);
    let answers = engine.items(asked).await.unwrap().answers;
    assert!(
        matches!(&answers[0], ItemAnswer::Found { items, is_partial: true } if items.is_empty()),
        "{answers:?}"
    );
    engine.close().await;
    let engine = super::store::open(dir.path()).await;
    let asked = batch(vec![ItemOp::Search(search(SearchBy::Meaning))]);
    let refused = engine.items(asked).await.unwrap_err();
    assert!(
        matches!(refused, ItemsError::Search(SearchError::NoEmbedder)),
        "{refused}"
    );
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn search_by_meaning_refuses_what_only_words_can_do() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    filled(&engine).await;
    let regex = SearchRequest {
        regex: true,
        ..request("car", SearchBy::Both)
    };
    let refused = engine.search(regex).await;
    assert!(matches!(refused, Err(SearchError::Query { message }) if message.contains("regular")));
    let blank = engine.search(request("  ", SearchBy::Meaning)).await;
    assert!(matches!(blank, Err(SearchError::EmptyQuery)));
    engine.close().await;
    let engine = super::store::open(dir.path()).await;
    let off = engine.search(request("car", SearchBy::Meaning)).await;
    assert!(matches!(off, Err(SearchError::NoEmbedder)));
    assert_eq!(engine.stats(&ns()).await.unwrap().vectors, None);
    engine.close().await;
}

// Embedding a large store by a new model takes hours. Until then, searches use the previous one.
#[tokio::test(flavor = "multi_thread")]
async fn previous_model_serves_until_the_new_one_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Model::start(), Model::start());
    let engine = old.open(dir.path()).await;
    let id = filled(&engine).await;
    embedded(&engine).await;
    engine.close().await;

    new.behave(Behaviour::Status(503));
    let engine = new.open_after(dir.path(), Some(&old)).await;
    append(&engine, vec![message(id, "rain and storm")])
        .await
        .unwrap();
    engine.wait_indexed(engine.head()).await.unwrap();
    let search = || engine.search(request("car has no power", SearchBy::Meaning));
    let found = search().await.unwrap();
    assert_eq!(found.hits[0].details.snippet, BROKEN);
    // The message has no vector of the old model.
    assert!(!found.complete && found.lagging.is_some(), "{found:?}");
    let stats = vectors(&engine).await;
    assert_eq!(stats.previous_model, format!("topics at {}", old.url));
    assert_eq!((stats.embedded, stats.passages), (0, 4));
    // Erasing removes vectors of both models, and leaves the others.
    let other = filled(&engine).await;
    erase(&engine, other).await;
    assert_eq!(search().await.unwrap().hits[0].details.snippet, BROKEN);

    new.behave(Behaviour::Works);
    embedded(&engine).await;
    let last = |model: &Model| model.embedded().get("car has no power").copied();
    let asked = last(&old);
    // The previous model is left at the next look for passages.
    while !vectors(&engine).await.previous_model.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = search().await.unwrap();
    assert_eq!(found.hits[0].details.snippet, BROKEN);
    assert!(found.complete);
    assert_eq!((last(&old), last(&new)), (asked, Some(1)));
    engine.close().await;
    let models = fs::read_dir(dir.path().join("vectors")).unwrap().count();
    assert_eq!(models, 1);
}

// Embedding a large store takes hours: neither a restart nor a rebuild of the index may repeat it.
#[tokio::test(flavor = "multi_thread")]
async fn restart_and_rebuild_embed_nothing_again() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    filled(&engine).await;
    filled(&engine).await;
    embedded(&engine).await;
    // The second conversation has equal texts.
    let once = model.embedded();
    assert!(
        once.len() == 3 && once.values().all(|count| *count == 1),
        "{once:?}"
    );
    engine.close().await;
    let engine = model.open(dir.path()).await;
    let stats = embedded(&engine).await;
    assert_eq!((stats.passages, stats.embedded), (6, 6));
    let mut rebuild = engine.rebuild(false, true);
    while let Some(item) = rebuild.next().await {
        item.unwrap();
    }
    embedded(&engine).await;
    assert_eq!(model.embedded(), once);
    engine.close().await;
}

// A failing model must cost only time. Appends and searches by words continue, and missing vectors
// are added later.
#[tokio::test(flavor = "multi_thread")]
async fn failing_model_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    filled(&engine).await;
    let before = embedded(&engine).await;
    for behaviour in [
        Behaviour::Status(429),
        Behaviour::Status(401),
        Behaviour::Garbage,
        Behaviour::OtherDimensions,
    ] {
        model.behave(behaviour);
        let id = ConversationId::generate();
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let text = format!("rain and storm, {behaviour:?}");
        let events = vec![NewEvent::new(id, created), message(id, &text)];
        append(&engine, events).await.unwrap();
        let words = SearchRequest {
            at_least: Some(engine.head()),
            ..request("storm", SearchBy::Words)
        };
        assert!(!engine.search(words).await.unwrap().hits.is_empty());
        let failure = loop {
            let stats = vectors(&engine).await;
            assert_eq!(stats.passages, stats.embedded + 1);
            if !stats.failure.is_empty() {
                break stats.failure;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let expected = match behaviour {
            Behaviour::OtherDimensions => "5 dimensions, and others of the model have 4",
            Behaviour::Status(429) => "status 429",
            Behaviour::Status(_) => "status 401",
            _ => "unusable",
        };
        assert!(failure.contains(expected), "{failure}");
        let asked = engine.search(request("car", SearchBy::Meaning)).await;
        assert!(
            matches!(asked, Err(SearchError::Embedder { .. })),
            "{asked:?}"
        );
        model.behave(Behaviour::Works);
        embedded(&engine).await;
    }
    let after = embedded(&engine).await;
    assert_eq!(after.vectors, before.vectors + 4);
    let found = engine
        .search(request("weather", SearchBy::Meaning))
        .await
        .unwrap();
    assert!(found.complete && found.hits[0].details.snippet.contains("storm"));
    // Closing does not wait for a model that never answers.
    model.behave(Behaviour::Hangs);
    append(&engine, vec![message(ConversationId::generate(), "x")])
        .await
        .unwrap_err();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    append(
        &engine,
        vec![NewEvent::new(id, created), message(id, "rain")],
    )
    .await
    .unwrap();
    engine.wait_indexed(engine.head()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let closed = tokio::time::timeout(Duration::from_secs(30), engine.close()).await;
    assert!(closed.is_ok());
}

// One text that an endpoint never accepts must not keep all later ones from being embedded. But an
// endpoint that refuses everything must not make all texts count as embedded.
#[tokio::test(flavor = "multi_thread")]
async fn refused_text_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    model.behave(Behaviour::Status(400));
    let engine = model.open(dir.path()).await;
    filled(&engine).await;
    while vectors(&engine).await.failure.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(vectors(&engine).await.embedded, 0);
    model.behave(Behaviour::Refuses("pancake"));
    let stats = embedded(&engine).await;
    assert_eq!((stats.passages, stats.vectors), (3, 2));
    let found = engine.search(request("breakfast", SearchBy::Meaning)).await;
    let found = found.unwrap();
    assert!(found.complete, "{:?}", found.lagging);
    let has_pancake = |hit: &SearchHit| hit.details.snippet.contains("pancake");
    assert!(!found.hits.iter().any(has_pancake));
    engine.close().await;
}

fn vector_bytes(dir: &Path) -> u64 {
    let mut bytes = 0;
    for folder in fs::read_dir(dir.join("vectors")).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            bytes += file.unwrap().metadata().unwrap().len();
        }
    }
    bytes
}

async fn erase(engine: &Engine, id: ConversationId) {
    let mut erasing = engine.erase(EraseCommand {
        namespace: ns(),
        target: EraseTarget::Conversation(id),
        keep_derived: false,
        dry_run: false,
        reason: String::new(),
        actor: String::new(),
    });
    while let Some(item) = erasing.next().await {
        item.unwrap();
    }
}

// A vector reveals what a text was about, so it must be erased with the text.
#[tokio::test(flavor = "multi_thread")]
async fn erased_text_leaves_no_vector() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    let id = filled(&engine).await;
    let other = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let kept = "rain all day, and then a storm";
    let events = vec![NewEvent::new(other, created), message(other, kept)];
    append(&engine, events).await.unwrap();
    assert_eq!(embedded(&engine).await.vectors, 4);
    let before = vector_bytes(dir.path());
    erase(&engine, id).await;
    let stats = vectors(&engine).await;
    assert_eq!((stats.vectors, stats.embedded), (1, 1));
    assert!(vector_bytes(dir.path()) < before);
    let found = engine
        .search(request("car", SearchBy::Meaning))
        .await
        .unwrap();
    assert_eq!(found.hits.len(), 1);
    assert_eq!(found.hits[0].found.conversation, other);
    // The other text was not embedded again.
    assert_eq!(model.embedded()[kept], 1);
    engine.close().await;
    // Without an embedder it is unknown which vectors belong to erased text.
    let engine = super::store::open(dir.path()).await;
    erase(&engine, other).await;
    assert!(!dir.path().join("vectors").exists());
    engine.close().await;
}
