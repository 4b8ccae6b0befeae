//! Ids are unique only within a namespace: no namespace's answers depend on another.

use futures::StreamExt;

use treering::{
    backup::{Backup, BackupOptions, BackupTarget, RestoreOptions, restore},
    context::provider::Provider,
    domain::*,
    engine::*,
    proto::json,
};

use super::store;

const PARENT: ConversationId = ConversationId(uuid::Uuid::from_u128(0x7000_8000_0000_0000_0001));
const FORK: ConversationId = ConversationId(uuid::Uuid::from_u128(0x7000_8000_0000_0000_0002));

fn namespaces() -> [Namespace; 2] {
    // The key contains a short name itself, and the hash of a long one.
    ["ours", "theirs-with-a-name-of-more-bytes"].map(|name| Namespace::new(name).unwrap())
}

/// Returns batches that create conversations with branches, labels and a waiting call. The texts
/// contain a word that identifies the namespace.
fn batches(word: &str) -> Vec<Vec<NewEvent>> {
    let first = NewEvent::new(
        PARENT,
        EventBody::ConversationCreated(ConversationCreated {
            title: format!("about {word}"),
            labels: [("team".to_owned(), word.to_owned())].into(),
            ..ConversationCreated::default()
        }),
    );
    let keyed = NewEvent {
        tags: Tags {
            key: "state".to_owned(),
            ..Tags::default()
        },
        ..store::message(PARENT, &format!("{word} has a key"))
    };
    let arguments = json::check(b"{}").unwrap();
    let call = EventBody::ToolCallRequested(ToolCallRequested {
        call_id: "call_1".to_owned(),
        tool: format!("tool_of_{word}"),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        needs_approval: true,
        ..ToolCallRequested::default()
    });
    let side = BranchName::new("side").unwrap();
    let heir = EventBody::ConversationCreated(ConversationCreated {
        title: format!("fork of {word}"),
        parent: Some(ParentRef {
            conversation: PARENT,
            branch: BranchId::MAIN,
            revision: Revision(3),
            call_id: String::new(),
        }),
        shares_history: true,
        ..ConversationCreated::default()
    });
    // At a revision before a snapshot, too.
    let many = (0..40).map(|n| store::message(PARENT, &format!("{word} {n}")));
    let forked = EventBody::BranchForked(BranchForked {
        name: side.clone(),
        parent: BranchId::MAIN,
        fork_revision: Revision(2),
        system_prompt: String::new(),
    });
    vec![
        vec![
            first,
            store::message(PARENT, &format!("{word} asks for common words")),
        ],
        vec![keyed],
        vec![NewEvent::new(PARENT, forked)],
        vec![store::message(PARENT, &format!("{word} aside")).on_branch(side)],
        many.collect(),
        vec![NewEvent::new(FORK, heir)],
        vec![store::message(FORK, &format!("{word} in the fork"))],
        vec![NewEvent::new(PARENT, call)],
    ]
}

/// Appends the batches of all namespaces alternately, so that each is decided while the others have
/// the same ids.
async fn fill(engine: &Engine, of: &[Namespace]) -> Position {
    let mut last = Position::default();
    let all: Vec<_> = of.iter().map(|of| batches(&of.as_str()[..4])).collect();
    for turn in 0..all[0].len() {
        for (namespace, batches) in of.iter().zip(&all) {
            let command = AppendCommand::new(namespace.clone(), batches[turn].clone());
            last = engine.append(command).await.unwrap().events[0].position;
        }
    }
    for namespace in of {
        let value = json::check(format!("{:?}", namespace.as_str()).as_bytes());
        let set = SetContext {
            namespace: namespace.clone(),
            scope: ContextScope::LongTerm,
            set: vec![ContextSet {
                key: "who".to_owned(),
                value: value.unwrap(),
                provider: String::new(),
            }],
            remove: Vec::new(),
            actor: String::new(),
            idempotency_key: None,
        };
        last = engine.set_context(set).await.unwrap().events[0].position;
    }
    last
}

fn told(events: &[NamedEvent]) -> Vec<String> {
    let told = |named: &NamedEvent| {
        let header = &named.event.header;
        let branch = named.branch.as_ref().map(BranchName::as_str);
        format!(
            "{} {} {branch:?} {} {}",
            header.conversation,
            header.revision,
            header.kind,
            String::from_utf8_lossy(&named.event.body),
        )
    };
    events.iter().map(told).collect()
}

/// Returns all answers to a namespace, without positions, event ids and times.
async fn answers(engine: &Engine, namespace: &Namespace) -> Vec<String> {
    let mut all = Vec::new();
    for (id, past) in [(PARENT, 30), (FORK, 1)] {
        let whole = EventSource::Conversation(id);
        let branch = EventSource::Branch {
            conversation: id,
            branch: None,
        };
        for source in [whole, branch.clone()] {
            let query = ReadQuery::all(namespace.clone(), source);
            all.extend(told(&engine.read_all(query).await.unwrap()));
        }
        let mut followed = engine.subscribe(SubscribeQuery {
            namespace: namespace.clone(),
            source: branch,
            start: StartAfter::Place(0),
            kinds: Vec::new(),
        });
        while let Some(Ok(SubscriptionItem::Event(event))) = followed.next().await {
            all.extend(told(&[*event]));
        }
        let address = BranchAddress::active(namespace.clone(), id);
        let view = engine.conversation(&address, Some(Revision(past))).await;
        let view = view.unwrap();
        all.push(format!("{:?} {:?}", view.summary.info, view.branch));
        all.push(format!("{:?}", engine.lineage(&address).await.unwrap()));
        let built = engine.build(BuildQuery::new(address, Provider::Anthropic));
        all.push(String::from_utf8(built.await.unwrap().request).unwrap());
    }
    let side = BranchName::new("side").unwrap();
    let diff = engine.diff(namespace, PARENT, None, Some(&side), 100, false);
    let diff = diff.await.unwrap();
    all.push(format!("{:?}", diff.ancestor));
    all.extend(told(&diff.left));
    all.extend(told(&diff.right));
    let query = LatestQuery {
        namespace: namespace.clone(),
        conversations: vec![PARENT, FORK],
        branch: None,
        wanted: vec![EventSelector::Key("state".to_owned())],
        as_of: None,
        headers_only: false,
        bytes_max: 1 << 20,
    };
    for latest in engine.latest(query).await.unwrap() {
        all.extend(told(&latest.got.event.into_iter().collect::<Vec<_>>()));
    }
    for call in engine.pending(namespace, None, None, 10).await.unwrap() {
        all.push(format!("{} {} waits", call.conversation, call.tool));
    }
    for (label, branch, by_conversation) in [(true, false, true), (false, true, false)] {
        let mut request = SearchRequest::new(namespace.clone(), "common words", 10);
        request.within.labels = match label {
            true => vec![format!("team={}", &namespace.as_str()[..4])],
            false => Vec::new(),
        };
        if branch {
            request.within.conversation = Some(PARENT);
            request.within.branch = Some(side.clone());
        }
        request.conversations_max = by_conversation.then_some(usize::MAX);
        request.at_least = Some(engine.head());
        let answer = engine.search(request).await.unwrap();
        let hits = answer.hits.iter();
        all.extend(hits.map(|hit| {
            let found = &hit.found;
            format!("{} {} {}", found.conversation, found.revision, hit.title)
        }));
        let counts = answer.conversations.iter();
        all.extend(counts.map(|of| format!("{} {} {}", of.conversation, of.hits, of.title)));
    }
    let values = engine.context_values(namespace, &ContextScope::LongTerm, Vec::new(), 1 << 20);
    all.push(format!("{:?}", values.await.unwrap()));
    all
}

// A tenant that uses the id of another's conversation must neither learn that it exists nor block
// or take it. Two tenants with the same ids must each get the answers that they get alone: live,
// after rebuilds and restarts, in a backup, and when the other one erases everything.
#[tokio::test]
async fn answers_do_not_depend_on_other_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let both = namespaces();
    let mut alone = Vec::new();
    for (at, namespace) in both.iter().enumerate() {
        let engine = store::open(&dir.path().join(format!("alone{at}"))).await;
        fill(&engine, std::slice::from_ref(namespace)).await;
        alone.push(answers(&engine, namespace).await);
        assert!(alone[at].len() > 100, "{}", alone[at].len());
        engine.close().await;
    }
    assert_ne!(alone[0], alone[1]);

    let data = dir.path().join("data");
    let mut engine = store::open(&data).await;
    fill(&engine, &both).await;
    for round in 0..4 {
        for (namespace, alone) in both.iter().zip(&alone) {
            let told = answers(&engine, namespace).await;
            assert_eq!(&told, alone, "{namespace}, round {round}");
            store::assert_sound(&engine).await;
        }
        match round {
            0 => {
                let mut items = engine.rebuild(true, true);
                while let Some(item) = items.next().await {
                    item.unwrap();
                }
            }
            1 => engine.pack_log().await.unwrap(),
            2 => {
                engine.close().await;
                engine = store::open(&data).await;
            }
            _ => {}
        }
    }

    let backup = dir.path().join("backup");
    let target = BackupTarget::to_write(backup.to_str().unwrap()).unwrap();
    let options = BackupOptions::default();
    let mut writing = Backup::start(&engine, &target, &options).await.unwrap();
    writing.run(|_| {}).await.unwrap();

    let mut erasing = engine.erase(EraseCommand {
        namespace: both[1].clone(),
        target: EraseTarget::Namespace,
        keep_derived: false,
        dry_run: false,
        reason: "asked for".to_owned(),
        actor: String::new(),
    });
    while let Some(item) = erasing.next().await {
        item.unwrap();
    }
    assert_eq!(answers(&engine, &both[0]).await, alone[0]);
    store::assert_sound(&engine).await;
    let query = ReadQuery::all(both[1].clone(), EventSource::Conversation(PARENT));
    let left = told(&engine.read_all(query).await.unwrap());
    assert!(!left.iter().any(|event| event.contains("asks for")));
    engine.close().await;

    let out = dir.path().join("out");
    let target = BackupTarget::to_read(backup.to_str().unwrap()).unwrap();
    let options = RestoreOptions::default();
    restore(&target, &out, &options, |_| {}).await.unwrap();
    let engine = store::open(&out).await;
    for (namespace, alone) in both.iter().zip(&alone) {
        assert_eq!(&answers(&engine, namespace).await, alone, "{namespace}");
        store::assert_sound(&engine).await;
    }
    engine.close().await;
}
