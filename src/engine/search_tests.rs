//! What a search says of its hits: whole names, copies, reasoning, what a filter hides.

use super::{query::*, test_events::*, *};
use crate::domain::*;

/// A call and its result.
fn ran(id: ConversationId, call_id: &str, result: ToolResultRecorded) -> [NewEvent; 2] {
    let arguments = crate::codec::json::check(b"{}").unwrap();
    let call = ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: "bash".to_owned(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    };
    let bodies = [
        EventBody::ToolCallRequested(call),
        EventBody::ToolResultRecorded(ToolResultRecorded {
            call_id: call_id.to_owned(),
            ..result
        }),
    ];
    bodies.map(|body| NewEvent::new(id, body))
}

async fn engine_with(events: Vec<NewEvent>) -> (Engine, Position) {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let command = AppendCommand::new(ns(), events);
    let appended = engine.append(command).await.unwrap();
    let last = appended.events.last().unwrap().position;
    (engine, last)
}

fn asked(text: &str, at_least: Position) -> SearchRequest {
    SearchRequest {
        at_least: Some(at_least),
        ..SearchRequest::new(ns(), text, 10)
    }
}

fn revisions(answer: &SearchAnswer) -> Vec<u64> {
    answer.hits.iter().map(|hit| hit.revision.0).collect()
}

// A name that nothing has was answered by texts with its parts, and nothing told that from
// an answer; one with `::` or `_` in it came behind texts that have its parts in a row.
#[tokio::test]
async fn whole_names_come_first_and_their_lack_is_told() {
    let id = ConversationId::generate();
    let filler = "the rest of a long page about something else. ".repeat(30);
    let parts = "foo bar, foo bar: foo bar and foo bar";
    let long = format!("{filler} foo::bar {filler}");
    let flags = "feature flags, feature flags, get feature flags";
    let (engine, last) = engine_with(vec![
        created(id),
        said(id, parts),
        said(id, format!("{parts} again")),
        said(id, &long),
        said(id, flags),
        said(id, format!("{filler} get_feature_flags {filler}")),
    ])
    .await;
    for (text, first, parts_only) in [
        ("foo::bar", 4, false),
        ("where is foo::bar", 4, false),
        ("get_feature_flags", 6, false),
        ("feature_flags", 6, false),
        ("foo.bar", 0, true),
        ("flags_feature", 0, true),
        ("feature", 0, false),
        ("set_feature_flags", 0, true),
        ("where is set_feature_flags", 0, false),
    ] {
        let answer = engine.search(asked(text, last)).await.unwrap();
        assert!(!answer.hits.is_empty(), "{text}");
        assert_eq!(answer.parts_only, parts_only, "{text}");
        assert!(
            answer.hits.is_sorted_by(|a, b| a.score >= b.score),
            "{text}"
        );
        if first > 0 {
            assert_eq!(revisions(&answer)[0], first, "{text}");
        }
        // Pages follow each other without a gap.
        let mut paged = Vec::new();
        for offset in 0..answer.hits.len() {
            let page = SearchRequest {
                offset,
                limit: 1,
                ..asked(text, last)
            };
            let page = engine.search(page).await.unwrap();
            assert_eq!(page.parts_only, parts_only, "{text}");
            paged.extend(revisions(&page));
        }
        assert_eq!(paged, revisions(&answer), "{text}");
    }
}

// A session that was resumed came back as another conversation: ten hits were five.
#[tokio::test]
async fn equal_texts_are_one_hit_that_names_the_others() {
    let (one, other) = (ConversationId::generate(), ConversationId::generate());
    let text = "the watcher was fixed in watch.rs";
    let (engine, _) = engine_with(vec![
        created(one),
        said(one, text),
        said(one, "something else about a watcher"),
    ])
    .await;
    let again = vec![created(other), said(other, text), said(other, text)];
    let appended = engine
        .append(AppendCommand::new(ns(), again))
        .await
        .unwrap();
    let last = appended.events.last().unwrap().position;
    let answer = engine.search(asked("watcher fixed", last)).await.unwrap();
    assert_eq!((answer.hits.len(), answer.total), (2, 2));
    let hit = &answer.hits[0];
    assert_eq!((hit.conversation, hit.revision), (one, Revision(2)));
    let copies = hit.copies_at.iter();
    let copies: Vec<_> = copies
        .map(|copy| (copy.conversation, copy.revision))
        .collect();
    assert_eq!(copies, [(other, Revision(2)), (other, Revision(3))]);
    assert_eq!((hit.copies, answer.hits[1].copies), (2, 0));
    // Filters hold for the others, too.
    let within = SearchRequest {
        conversation: Some(other),
        ..asked("watcher fixed", last)
    };
    let answer = engine.search(within).await.unwrap();
    assert_eq!((answer.total, answer.hits[0].copies), (1, 1));
    for regex in [false, true] {
        let all = SearchRequest {
            every_copy: true,
            regex,
            ..asked("watcher", last)
        };
        let answer = engine.search(all).await.unwrap();
        assert_eq!((answer.hits.len(), answer.total), (4, 4));
        let folded = SearchRequest {
            regex,
            ..asked("watcher", last)
        };
        let answer = engine.search(folded).await.unwrap();
        assert_eq!((answer.hits.len(), answer.total), (2, 2));
        assert_eq!(answer.hits.iter().map(|hit| hit.copies).sum::<u64>(), 2);
    }
}

// A page of hits names a handful of conversations, and a common word is in twenty thousand: each
// one's title was looked up for it, which took seconds. Those that are told are the best.
#[tokio::test]
async fn only_the_best_conversations_are_told() {
    let ids: Vec<_> = (0..5).map(|_| ConversationId::generate()).collect();
    let engine = memory().await;
    let mut last = Position::default();
    for (n, id) in ids.iter().enumerate() {
        let mut events = vec![created(*id)];
        events.extend((0..=n).map(|at| said(*id, format!("watcher {n} {at}"))));
        let appended = append(&engine, events).await;
        last = appended.events.last().unwrap().position;
    }
    for regex in [false, true] {
        let best = |max| {
            let request = SearchRequest {
                regex,
                by_conversation: true,
                conversations_max: max,
                ..asked("watcher", last)
            };
            let engine = engine.clone();
            async move {
                let answer = engine.search(request).await.unwrap();
                let told = answer.conversations.into_iter();
                told.map(|of| (of.conversation, of.hits))
                    .collect::<Vec<_>>()
            }
        };
        let all = best(usize::MAX).await;
        assert_eq!(all.len(), 5);
        assert_eq!(best(2).await, all[..2]);
        assert!(!regex || all[0] == (ids[4], 5), "{all:?}");
    }
}

// What a model considered and gave up was shown as what it said.
#[tokio::test]
async fn reasoning_is_told_apart() {
    let id = ConversationId::generate();
    let thought = Reasoning {
        text: "maybe the scheduler is to blame".into(),
        ..Reasoning::default()
    };
    let parts = vec![
        ContentPart::Reasoning(thought),
        ContentPart::Text("The watcher is to blame.".into()),
    ];
    let message = MessageAppended::new(Role::Assistant, parts);
    let event = NewEvent::new(id, EventBody::MessageAppended(message));
    let (engine, last) = engine_with(vec![created(id), event]).await;
    for (text, in_reasoning) in [("scheduler", true), ("watcher", false)] {
        let answer = engine.search(asked(text, last)).await.unwrap();
        assert_eq!(answer.hits[0].in_reasoning, in_reasoning, "{text}");
    }
}

// A test run that ended in `| tail` was recorded as a success: looking among failures
// showed something else, and nothing said that the right one was hidden.
#[tokio::test]
async fn a_filter_says_what_it_hides() {
    let id = ConversationId::generate();
    let failing = "--- FAIL: TestExplain (0.03s)\nexit code 1";
    let mut events = vec![created(id)];
    events.extend(ran(id, "a", ToolResultRecorded::text("a", failing)));
    events.extend(ran(
        id,
        "b",
        ToolResultRecorded::failure("b", "TestOther failed"),
    ));
    let (engine, last) = engine_with(events).await;
    let failed = |text: &str, success| SearchRequest {
        success,
        ..asked(text, last)
    };
    let line = "FAIL: TestExplain (0.03s)";
    let answer = engine.search(failed(line, Some(false))).await.unwrap();
    let hidden = answer.hidden.expect("the better one is told");
    assert_eq!((hidden.revision, hidden.success), (Revision(3), Some(true)));
    assert!(hidden.together > 0.99);
    for (text, success) in [
        ("TestOther failed", Some(false)),
        (line, Some(true)),
        (line, None),
    ] {
        let answer = engine.search(failed(text, success)).await.unwrap();
        assert!(answer.hidden.is_none(), "{text}");
    }
}

// "where did we fix the watcher" found what had "where did we" and "the" most often.
#[tokio::test]
async fn small_words_do_not_decide() {
    let id = ConversationId::generate();
    let chatter = "where did we leave the car, and where did we go, and how did we do it: \
                   that is what we did. did we? where?";
    let (engine, last) = engine_with(vec![
        created(id),
        said(id, chatter),
        said(id, format!("{chatter} the fix, the fix, the fix")),
        said(id, "a fix for a watcher"),
    ])
    .await;
    let answer = engine
        .search(asked("where did we fix the watcher", last))
        .await
        .unwrap();
    assert_eq!(revisions(&answer), [4, 3]);
    let answer = engine.search(asked("where did we", last)).await.unwrap();
    assert_eq!(answer.total, 2);
}

/// An event that says when it happened, in seconds.
fn then(event: NewEvent, seconds: i64) -> NewEvent {
    NewEvent {
        occurred_at: Some(TimestampMicros(seconds * 1_000_000)),
        ..event
    }
}

// "Newest first" was the order of import: sessions of last year that were imported after those of
// today came first. What was imported without a time has the time of the event beside it.
#[tokio::test]
async fn listings_and_patterns_begin_with_what_happened_last() {
    let (new, old, live) = (
        ConversationId::generate(),
        ConversationId::generate(),
        ConversationId::generate(),
    );
    let engine = memory().await;
    append(
        &engine,
        vec![
            created(new),
            then(said(new, "needle of this year"), 2_000),
            then(said(new, "needle a second later"), 2_001),
        ],
    )
    .await;
    let appended = append(
        &engine,
        vec![
            created(old),
            said(old, "needle before any time"),
            then(said(old, "needle of last year"), 1_000),
            said(old, "needle without a time"),
            then(said(old, "needle at its end"), 1_001),
        ],
    )
    .await;
    let last = appended.events.last().unwrap().position;
    let expected = [(new, 3), (new, 2), (old, 5), (old, 4), (old, 3), (old, 2)];
    let list = |answer: &SearchAnswer| -> Vec<(ConversationId, u64)> {
        let hits = answer.hits.iter();
        hits.map(|hit| (hit.conversation, hit.revision.0)).collect()
    };
    let listing = SearchRequest {
        kinds: vec![EventKind::MessageAppended],
        ..asked("", last)
    };
    let pattern = SearchRequest {
        regex: true,
        ..asked("needle", last)
    };
    for request in [listing, pattern] {
        let all = engine.search(request.clone()).await.unwrap();
        assert_eq!(list(&all), expected);
        let mut paged = Vec::new();
        for offset in 0..expected.len() {
            let page = SearchRequest {
                offset,
                limit: 1,
                ..request.clone()
            };
            paged.extend(list(&engine.search(page).await.unwrap()));
        }
        assert_eq!(paged, expected);
    }
    // What is recorded live happens when it is recorded.
    let appended = append(&engine, vec![created(live), said(live, "needle now")]).await;
    let now = appended.events.last().unwrap().position;
    let answer = engine.search(SearchRequest {
        regex: true,
        ..asked("needle", now)
    });
    assert_eq!(list(&answer.await.unwrap())[0], (live, 2));
}

// Four searches with a label ran among the short reads and took all of their places: a Get waited
// 15 s. Searches that may take long have places of their own, and say what they waited for.
#[tokio::test(flavor = "multi_thread")]
async fn long_searches_leave_room_for_short_reads() {
    let id = ConversationId::generate();
    let (engine, last) = engine_with(vec![created(id), said(id, "needle")]).await;
    let mut held = Vec::new();
    for _ in 0..work::LONG_SEARCHES_MAX {
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let (started, starts) = tokio::sync::oneshot::channel();
        let engine = engine.clone();
        let job = tokio::spawn(async move {
            let block = async move {
                started.send(()).unwrap();
                let _ = waits.recv();
            };
            engine.inner.work.run(work::Lane::Search, block).await
        });
        starts.await.unwrap();
        held.push((go_on, job));
    }
    let long = [
        SearchRequest {
            labels: vec!["team".to_owned()],
            ..asked("needle", last)
        },
        SearchRequest {
            sources: vec!["other".to_owned()],
            ..asked("needle", last)
        },
        SearchRequest {
            active_branches_only: true,
            ..asked("needle", last)
        },
        SearchRequest {
            not_sealed: true,
            ..asked("needle", last)
        },
        SearchRequest {
            paths: vec!["*.rs".to_owned()],
            ..asked("needle", last)
        },
        SearchRequest {
            regex: true,
            ..asked("needle", last)
        },
        SearchRequest {
            count_all: true,
            ..asked("needle", last)
        },
    ];
    let moment = std::time::Duration::from_millis(50);
    for request in &long {
        let late = engine.search_within(request.clone(), moment).await;
        let late = late.expect_err("it ran among the short reads");
        assert_eq!(late.stage, SearchStage::Turn, "{request:?}");
        assert!(
            late.to_string().contains("waited 0.05 s for its turn"),
            "{late}"
        );
    }
    let waiting = long.map(|request| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.search(request).await })
    });
    let by_its_end = tokio::spawn({
        let (engine, end) = (engine.clone(), id.to_string()[30..].to_owned());
        async move { engine.find_by_part(&ns(), &end, 10).await }
    });
    let address = BranchAddress {
        namespace: ns(),
        conversation: id,
        branch: None,
    };
    engine.conversation(&address, None).await.unwrap();
    append(&engine, vec![said(id, "more")]).await;
    let short = engine.search(asked("needle", last)).await.unwrap();
    assert_eq!(short.hits.len(), 1);
    let part = &id.to_string()[..30];
    let begun = engine.find_by_part(&ns(), part, 10).await.unwrap();
    assert_eq!(begun.conversations.len(), 1);
    assert!(!by_its_end.is_finished(), "it reads the keys of all");
    for (go_on, job) in held {
        drop(go_on);
        job.await.unwrap().unwrap();
    }
    for search in waiting {
        search.await.unwrap().unwrap();
    }
    assert_eq!(by_its_end.await.unwrap().unwrap().conversations.len(), 1);
}

// Globs of a few KB took 670 MiB. Over a bound they are refused, before anything is waited for.
#[tokio::test]
async fn too_many_bytes_of_globs_are_refused() {
    let id = ConversationId::generate();
    let (engine, last) = engine_with(vec![created(id), said(id, "needle")]).await;
    let request = |globs: usize| SearchRequest {
        paths: (0..globs)
            .map(|at| format!("**/*a*b*c*{at:03}/**"))
            .collect(),
        ..asked("needle", last)
    };
    assert!(engine.search(request(256)).await.unwrap().hits.is_empty());
    let refused = engine.search(request(1_000)).await.unwrap_err();
    assert!(matches!(refused, SearchError::Query { .. }), "{refused}");
    assert!(refused.to_string().contains("at most 8192"), "{refused}");
}
