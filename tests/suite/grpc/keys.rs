//! Keys on a running server: what each may do on every path, and how they become invalid.

use std::{collections::BTreeSet, path::Path, time::Duration};

use futures::StreamExt;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use treering::{
    access::{self, Grant, GrantScope, KeyLimits, KeyStore, NewKey},
    domain::*,
    proto::pb::{self, append_stream_response::Outcome},
    server::{NAMESPACE_KEY, ServeOptions},
};

use super::harness::*;
use crate::suite::child;

/// Nothing here takes this long; beyond it, something hangs.
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn guarded(dir: &Path) -> TestServer {
    let options = ServeOptions {
        grace: GRACE,
        keys: Some(KeyStore::open(dir).unwrap()),
        ..ServeOptions::default()
    };
    TestServer::serving(dir, Limits::default(), options).await
}

pub fn key(dir: &Path, name: &str, roles: &[&str]) -> String {
    limited(dir, name, roles, KeyLimits::default())
}

fn limited(dir: &Path, name: &str, roles: &[&str], limits: KeyLimits) -> String {
    let roles = roles.iter().map(|role| {
        let (role, namespace) = role.split_once(':').unwrap();
        Grant {
            role: role.parse().unwrap(),
            namespace: GrantScope::try_from(namespace.to_owned()).unwrap(),
        }
    });
    let new = NewKey {
        name: name.into(),
        roles: roles.collect(),
        expires_in: None,
        limits,
        by: String::new(),
    };
    access::create(dir, new).unwrap().token.reveal().to_owned()
}

pub fn keyed<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, why: &str) {
    let status = answer.expect_err(why);
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (code, why),
        "{status:?}"
    );
}

fn subscribe(id: &str) -> pb::SubscribeRequest {
    pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Conversation(
            pb::ConversationSource {
                conversation_id: id.into(),
            },
        )),
        ..Default::default()
    }
}

// An agent must not approve its own calls. Neither an append nor a stream of appends may contain a
// decision without the approver role, and a refused one changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_require_the_approver_role_on_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let writer = key(dir.path(), "agent", &["writer:default"]);
    let approver = key(dir.path(), "console", &["approver:default"]);
    let arguments = r#"{"city": "Lisbon", "days": 2}"#;
    let decide = || batch(&id, [decision("call_1", arguments, Decision::Approved)]);
    let say = |text| batch(&id, [message(Role::User, text)]);
    let mut events = server.events();

    let denied = events.append(keyed(&writer, decide())).await;
    refused(denied, Code::PermissionDenied, "ROLE_MISSING");
    let both = batch(
        &id,
        [
            message(Role::User, "go on"),
            decision("call_1", arguments, Decision::Approved),
        ],
    );
    let denied = events.append(keyed(&writer, both)).await;
    refused(denied, Code::PermissionDenied, "ROLE_MISSING");
    let denied = events.append(keyed(&approver, say("I am the user"))).await;
    refused(denied, Code::PermissionDenied, "ROLE_MISSING");

    let requests = futures::stream::iter([decide(), say("hello")]);
    let answers = events
        .append_stream(keyed(&writer, requests))
        .await
        .unwrap();
    let answers: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
    assert!(
        matches!(&answers[0].outcome, Some(Outcome::Error(error))
            if error.reason == "ROLE_MISSING" && error.code == Code::PermissionDenied as i32),
        "{answers:?}"
    );
    assert!(matches!(answers[1].outcome, Some(Outcome::Appended(_))));

    events.append(keyed(&approver, decide())).await.unwrap();
    let request = pb::ReadRequest {
        source: Some(conversation_source(&id)),
        ..Default::default()
    };
    let mut read = events
        .read(keyed(&approver, request))
        .await
        .unwrap()
        .into_inner();
    let mut last = Vec::new();
    while let Some(page) = read.message().await.unwrap() {
        last.extend(page.events.into_iter().filter(|event| event.revision > 5));
    }
    let actors: Vec<_> = last.iter().map(|event| event.actor.as_str()).collect();
    assert_eq!(actors, ["agent", "console"], "{last:?}");
    let request = pb::ToolHistoryRequest {
        conversation_id: id.clone(),
        tool: "weather".into(),
        ..Default::default()
    };
    let calls = server
        .tools()
        .history(keyed(&writer, request))
        .await
        .unwrap();
    assert_eq!(calls.into_inner().calls[0].decided_by, "console: ada");
    server.stop().done().await;
}

// The recorded actor must be reliable: on no path may a client record another name.
#[tokio::test(flavor = "multi_thread")]
async fn actor_is_the_key_name_on_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let k = key(dir.path(), "agent", &["writer:default", "admin:default"]);
    let liar = || "the boss".to_owned();
    let mut request = batch("", opening());
    for event in &mut request.events {
        event.actor = liar();
    }
    let answer = server.events().append(keyed(&k, request)).await.unwrap();
    let id = answer.into_inner().events[0].conversation_id.clone();

    let request = pb::ForkRequest {
        conversation_id: id.clone(),
        name: "other".into(),
        actor: liar(),
        ..Default::default()
    };
    server
        .conversations()
        .fork(keyed(&k, request))
        .await
        .unwrap();
    let request = pb::SetContextRequest {
        conversation_id: id.clone(),
        set: vec![pb::ContextSet {
            key: "k".into(),
            value: "1".into(),
            ..Default::default()
        }],
        actor: liar(),
        ..Default::default()
    };
    server.contexts().set(keyed(&k, request)).await.unwrap();
    let start = pb::RecordResultStart {
        conversation_id: id.clone(),
        actor: liar(),
        result: Some(pb::ToolResultRecorded {
            call_id: "call_2".into(),
            success: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let item = pb::record_result_request::Item::Start(start);
    let items = futures::stream::iter([pb::RecordResultRequest { item: Some(item) }]);
    server
        .tools()
        .record_result(keyed(&k, items))
        .await
        .unwrap();
    let request = pb::SpawnRequest {
        conversation_id: id.clone(),
        purpose: "look".into(),
        actor: liar(),
        ..Default::default()
    };
    let child = server.contexts().spawn(keyed(&k, request)).await.unwrap();
    let child = child.into_inner().child_id;
    let request = pb::ReturnRequest {
        conversation_id: child.clone(),
        summary: "seen".into(),
        actor: liar(),
        ..Default::default()
    };
    server
        .contexts()
        .r#return(keyed(&k, request))
        .await
        .unwrap();
    let request = pb::CompactRequest {
        conversation_id: id.clone(),
        summary: "It went well.".into(),
        cut_revision: 3,
        actor: liar(),
        ..Default::default()
    };
    // It does not matter here whether there is something to cut.
    let compacted = server.contexts().compact(keyed(&k, request)).await;
    let request = pb::SealRequest {
        conversation_id: id.clone(),
        actor: liar(),
        ..Default::default()
    };
    server
        .conversations()
        .seal(keyed(&k, request))
        .await
        .unwrap();
    let target = pb::erase_request::Target::Revisions(pb::EraseRevisions {
        conversation_id: id.clone(),
        ranges: vec![pb::RevisionRange { first: 2, last: 2 }],
    });
    let request = pb::EraseRequest {
        target: Some(target),
        actor: liar(),
        ..Default::default()
    };
    let mut erased = server
        .conversations()
        .erase(keyed(&k, request))
        .await
        .unwrap()
        .into_inner();
    let mut receipt = String::new();
    while let Some(item) = erased.message().await.unwrap() {
        receipt.push_str(&format!("{item:?}"));
    }
    assert!(!receipt.contains("the boss"), "{receipt}");

    let mut seen = 0;
    for id in [&id, &child] {
        let request = pb::ReadRequest {
            source: Some(conversation_source(id)),
            ..Default::default()
        };
        let mut read = server
            .events()
            .read(keyed(&k, request))
            .await
            .unwrap()
            .into_inner();
        while let Some(page) = read.message().await.unwrap() {
            for event in page.events {
                seen += 1;
                assert_eq!(event.actor, "agent", "{event:?}");
            }
        }
    }
    assert!(seen >= 13 + usize::from(compacted.is_ok()), "{seen}");
    server.stop().done().await;
}

// A leaked key is revoked while a thief is reading. Its open streams must end soon, its next call
// must fail at once, and nobody else must notice. The error tells the holder the reason.
#[tokio::test(flavor = "multi_thread")]
async fn revoked_key_ends_its_open_streams() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let stolen = key(dir.path(), "stolen", &["writer:default"]);
    let sound = key(dir.path(), "sound", &["writer:default"]);

    let mut events = server.events();
    let mut followed = events
        .subscribe(keyed(&stolen, subscribe(&id)))
        .await
        .unwrap()
        .into_inner();
    let mut others = events
        .subscribe(keyed(&sound, subscribe(&id)))
        .await
        .unwrap()
        .into_inner();
    let (send, requests) = mpsc::channel(4);
    let appends = events.append_stream(keyed(&stolen, ReceiverStream::new(requests)));
    let mut appends = appends.await.unwrap().into_inner();
    send.send(batch(&id, [message(Role::User, "one")]))
        .await
        .unwrap();
    appends.message().await.unwrap().unwrap();
    let wait = pb::WaitForDecisionRequest {
        conversation_id: id.clone(),
        call_id: "call_1".into(),
        ..Default::default()
    };
    let mut tools = server.tools();
    let waiting = {
        let wait = keyed(&stolen, wait);
        tokio::spawn(async move { tools.wait_for_decision(wait).await })
    };

    access::revoke(dir.path(), "stolen", "ada").unwrap();
    let request = batch(&id, [message(Role::User, "two")]);
    let next = server
        .events()
        .append(keyed(&stolen, request.clone()))
        .await;
    refused(next, Code::Unauthenticated, "KEY_REVOKED");
    let ended = timeout(PATIENCE, async {
        loop {
            if let Err(status) = followed.message().await {
                return status;
            }
        }
    });
    refused::<()>(
        Err(ended.await.unwrap()),
        Code::Unauthenticated,
        "KEY_REVOKED",
    );
    let ended = timeout(PATIENCE, appends.message()).await.unwrap();
    refused(ended, Code::Unauthenticated, "KEY_REVOKED");
    let ended = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    refused(ended, Code::Unauthenticated, "KEY_REVOKED");

    server
        .events()
        .append(keyed(&sound, request))
        .await
        .unwrap();
    let heard = timeout(PATIENCE, async {
        loop {
            let item = others.message().await.unwrap().unwrap().item;
            if let Some(pb::subscribe_response::Item::Event(event)) = item
                && event.actor == "sound"
            {
                return;
            }
        }
    });
    heard.await.unwrap();
    drop((others, send));
    server.stop().done().await;
}

// Once there is a key, no call is admitted without one, and each error says what is wrong with the
// key. Health checks need none.
#[tokio::test(flavor = "multi_thread")]
async fn server_requires_keys_after_the_first_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let good = key(dir.path(), "reader", &["reader:default"]);
    let get = || pb::GetConversationRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let mut conversations = server.conversations();
    let typo = good.replace(&good[20..24], "0000");
    let stranger = access::KeyToken::generate().unwrap();
    for (key, why) in [
        (typo.as_str(), "KEY_MALFORMED"),
        ("sk-something", "KEY_MALFORMED"),
        (stranger.reveal(), "KEY_UNKNOWN"),
    ] {
        let answer = conversations.get(keyed(key, get())).await;
        refused(answer, Code::Unauthenticated, why);
    }
    let answer = conversations.get(get()).await;
    refused(answer, Code::Unauthenticated, "KEY_MISSING");
    conversations.get(keyed(&good, get())).await.unwrap();

    let elsewhere = |namespace: &str| {
        let mut request = keyed(&good, get());
        let value = namespace.parse().unwrap();
        request.metadata_mut().insert(NAMESPACE_KEY, value);
        request
    };
    let answer = conversations.get(elsewhere("other")).await;
    refused(answer, Code::PermissionDenied, "ROLE_MISSING");
    let answer = conversations.get(elsewhere("..")).await;
    refused(answer, Code::InvalidArgument, "MALFORMED");
    let append = batch(&id, [message(Role::User, "hello")]);
    let answer = server.events().append(keyed(&good, append)).await;
    refused(answer, Code::PermissionDenied, "ROLE_MISSING");
    let answer = server
        .admin()
        .verify(keyed(&good, pb::VerifyRequest::default()))
        .await;
    refused(answer.map(drop), Code::PermissionDenied, "ROLE_MISSING");

    let mut health = tonic_health::pb::health_client::HealthClient::new(server.channel.clone());
    let check = tonic_health::pb::HealthCheckRequest::default();
    health.check(check).await.unwrap();
    server.stop().done().await;
}

// An agent in a loop must not take the capacity of others. Over its limit of calls or bytes, it is
// told when to retry, and nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_of_a_key_are_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let loops = KeyLimits {
        requests_per_second: 5,
        ..KeyLimits::default()
    };
    let loops = limited(dir.path(), "loop", &["reader:default"], loops);
    let floods = KeyLimits {
        bytes_per_second: 1_000,
        ..KeyLimits::default()
    };
    let floods = limited(dir.path(), "flood", &["writer:default"], floods);
    let other = key(dir.path(), "other", &["writer:default"]);
    let get = || pb::GetConversationRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let mut conversations = server.conversations();
    let mut refusals = Vec::new();
    for _ in 0..50 {
        refusals.extend(conversations.get(keyed(&loops, get())).await.err());
        conversations.get(keyed(&other, get())).await.unwrap();
    }
    assert!((1..50).contains(&refusals.len()), "{}", refusals.len());
    for status in refusals {
        let wait = status
            .get_error_details()
            .retry_info()
            .and_then(|retry| retry.retry_delay);
        assert!(
            wait.is_some_and(|wait| wait <= Duration::from_secs(1)),
            "{status:?}"
        );
        refused::<()>(Err(status), Code::ResourceExhausted, "RATE_LIMITED");
    }

    // A request larger than one second's allowance passes, and delays the next one.
    let say = |length: usize| batch(&id, [message(Role::User, &"x".repeat(length))]);
    let mut events = server.events();
    events.append(keyed(&floods, say(100_000))).await.unwrap();
    let next = events.append(keyed(&floods, say(1))).await;
    refused(next, Code::ResourceExhausted, "RATE_LIMITED");
    let stream = futures::stream::iter([say(1)]);
    let mut answers = events
        .append_stream(keyed(&floods, stream))
        .await
        .unwrap()
        .into_inner();
    let next = answers.message().await;
    refused(next, Code::ResourceExhausted, "RATE_LIMITED");
    events.append(keyed(&other, say(100_000))).await.unwrap();
    server.stop().done().await;
}

// Exports, and following a whole namespace, must be in the audit, whether the client reports them
// or not. An agent that reads its own conversations must not fill it.
#[tokio::test(flavor = "multi_thread")]
async fn exports_and_full_reads_are_in_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let ops = key(dir.path(), "ops", &["admin:*"]);
    let agent = key(dir.path(), "agent", &["reader:default"]);
    let whole = |id: &str| pb::ReadRequest {
        source: Some(conversation_source(id)),
        ..Default::default()
    };
    let read = async |key: &str, request: pb::ReadRequest| {
        let mut pages = server
            .events()
            .read(keyed(key, request))
            .await?
            .into_inner();
        while pages.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    for _ in 0..10 {
        read(&agent, whole(&id)).await.unwrap();
    }
    let exported = pb::ReadRequest {
        exports: true,
        ..whole(&id)
    };
    read(&agent, exported).await.unwrap();
    let all = pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Log(pb::LogSource {})),
        ..Default::default()
    };
    let followed = server.events().subscribe(keyed(&agent, all)).await.unwrap();
    drop(followed);
    let deeds = audited(&server, &ops).await;
    let text =
        |deed: &serde_json::Value, name: &str| deed[name].as_str().unwrap_or_default().to_owned();
    let deeds: Vec<_> = deeds
        .iter()
        .map(|deed| ["deed", "key", "conversation_id"].map(|name| text(deed, name)))
        .map(|[deed, key, id]| (deed, key, id))
        .collect();
    let of = |deed: &str, key: &str, id: &str| (deed.to_owned(), key.to_owned(), id.to_owned());
    let expected = [of("export", "agent", &id), of("read_all", "agent", "")];
    assert_eq!(deeds, expected);
    server.stop().done().await;
}

/// Returns the entries of the audit that are not about keys.
async fn audited(server: &TestServer, ops: &str) -> Vec<serde_json::Value> {
    let mut deeds = audit_entries(server, ops).await;
    deeds.retain(|deed| !deed["deed"].as_str().unwrap().starts_with("key_"));
    deeds
}

// Keys are created while the server runs, and used. The command must print all of it, oldest first;
// in a cluster, from several shards.
#[tokio::test(flavor = "multi_thread")]
async fn audit_has_new_keys_and_their_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(server.conversation().await);
    }
    let ops = key(dir.path(), "ops", &["admin:*"]);
    let approver = key(dir.path(), "approver", &["approver:default"]);
    let made = async {
        let is_made = |deed: &serde_json::Value| deed["deed"] == "key_made";
        while audit_entries(&server, &ops)
            .await
            .iter()
            .filter(|deed| is_made(deed))
            .count()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, made).await.unwrap();
    let arguments = r#"{"city": "Lisbon", "days": 2}"#;
    for id in &ids {
        let decide = batch(id, [decision("call_1", arguments, Decision::Approved)]);
        let decided = server.events().append(keyed(&approver, decide)).await;
        decided.unwrap();
    }
    let url = format!("http://{}", server.address);
    let token = [("TREERING_TOKEN", ops.as_str())];
    let printed = child::run_with(&["audit", "--server", &url], &token).await;
    assert!(printed.status.success(), "{printed:?}");
    let lines = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| -> Vec<_> {
        let texts = lines
            .iter()
            .map(|line| line[name].as_str().unwrap_or_default());
        texts.map(str::to_owned).collect()
    };
    let deeds = [
        "key_made", "key_made", "decide", "decide", "decide", "decide",
    ];
    assert_eq!(of("deed"), deeds, "{lines:?}");
    assert_eq!(of("conversation_id")[2..], ids, "{lines:?}");
    server.stop().done().await;
}

// An approver may decide a hundred calls in one batch and disconnect. Each decision that is stored
// must be in the audit, once, also if the batch is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn decision_is_in_the_audit_if_the_client_disconnects() {
    const CALLS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let call_id = |at: usize| format!("call_{at}");
    let asked = (0..=CALLS).map(|at| call(&call_id(at), "boat", "{}", true));
    let opening = std::iter::once(created("boat")).chain(asked);
    let made = server.append(batch("", opening)).await;
    let id = made.events[0].conversation_id.clone();
    let ops = key(dir.path(), "ops", &["admin:*"]);
    let approver = key(
        dir.path(),
        "approver",
        &["approver:default", "writer:default"],
    );
    let decisions = (0..CALLS).map(|at| decision(&call_id(at), "{}", Decision::Approved));
    let request = pb::AppendRequest {
        idempotency_key: "all of them".into(),
        ..batch(&id, decisions)
    };
    let mut client = server.events();
    let hung_up = client.append(keyed(&approver, request.clone()));
    // The request is being processed when the caller disconnects.
    let waited = tokio::time::timeout(Duration::from_millis(20), hung_up).await;
    drop(waited);
    let decided = server.events().append(keyed(&approver, request)).await;
    decided.unwrap();
    let deeds = audited(&server, &ops).await;
    let calls: BTreeSet<_> = deeds
        .iter()
        .map(|deed| deed["call_id"].to_string())
        .collect();
    assert_eq!((deeds.len(), calls.len()), (CALLS, CALLS));

    // If the first event of a batch is already stored, the decision is still recorded, and only
    // once if the whole batch is stored.
    let mut said = batch(&id, [message(Role::User, "go on")]);
    said.events[0].id = EventId::generate().to_string();
    let mut both = batch(&id, [decision(&call_id(CALLS), "{}", Decision::Denied)]);
    both.events.splice(0..0, said.events.clone());
    both.events[1].id = EventId::generate().to_string();
    both.skip_known = true;
    for request in [said, both.clone(), both] {
        server
            .events()
            .append(keyed(&approver, request))
            .await
            .unwrap();
    }
    let deeds = audited(&server, &ops).await;
    assert_eq!(deeds.len(), CALLS + 1);
    assert_eq!(deeds[CALLS]["call_id"], call_id(CALLS));
    server.stop().done().await;
}
