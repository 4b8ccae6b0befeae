//! Tests of search answers: whole names, collapsed duplicates, reasoning, and hidden results.

use super::{query::*, test_events::*, *};
use treering_domain::*;
use treering_search::{RecalledTexts, SearchMemory};

/// Creates a call and its result.
fn ran(id: ConversationId, call_id: &str, result: ToolResultRecorded) -> [NewEvent; 2] {
    let arguments = treering_proto::json::check(b"{}").unwrap();
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
    answer.hits.iter().map(|hit| hit.found.revision.0).collect()
}

/// Creates a call of a tool and its result.
fn asked_tool(id: ConversationId, tool: &str, call_id: &str, text: &str) -> [NewEvent; 2] {
    let mut events = ran(id, call_id, ToolResultRecorded::text(call_id, text));
    if let EventBody::ToolCallRequested(call) = &mut events[0].body {
        tool.clone_into(&mut call.tool);
    }
    events
}

// Sessions that search for an error quote the original output. If the quotes ranked above it, every
// use of the memory would make its next answer worse.
#[tokio::test]
async fn quotes_from_a_memory_do_not_hide_the_original() {
    let original = ConversationId::generate();
    let [recent, renamed, typed] = [(); 3].map(|()| ConversationId::generate());
    let error = "error: no space left on device: the cache partition is full";
    let quote = format!("1 of 1 hits\n\n1. 5d0c3c0e#3  bash  line 1\n> {error}\n");
    let marked = format!("{}\n{quote}", treering_search::RECALL_MARK);
    let mut events = vec![created(original)];
    events.extend(ran(original, "a", ToolResultRecorded::text("a", error)));
    let (engine, _) = engine_with(events).await;
    let [call, answer] = asked_tool(recent, "mcp__treering__search", "b", &quote);
    append(&engine, vec![created(recent), call, answer]).await;
    let [call, answer] = asked_tool(renamed, "lookup", "c", &marked);
    append(&engine, vec![created(renamed), call, answer]).await;
    let appended = append(&engine, vec![created(typed), said(typed, &marked)]).await;
    let last = appended.events.last().unwrap().position;
    let places = |answer: &SearchAnswer| -> Vec<_> {
        let places = answer.hits.iter();
        places.map(|hit| hit.found.conversation).collect()
    };
    for text in [
        "cache partition full",
        "\"no space left\"",
        "partition AND cache",
    ] {
        let answer = engine.search(asked(text, last)).await.unwrap();
        assert_eq!(places(&answer), [original], "{text}");
        assert_eq!(answer.total, 1, "{text}");
    }
    let counted = SearchRequest {
        conversations_max: Some(10),
        ..asked("cache partition", last)
    };
    assert_eq!(engine.search(counted).await.unwrap().conversations.len(), 1);
    let pattern = SearchRequest {
        regex: true,
        ..asked("cache part", last)
    };
    assert_eq!(places(&engine.search(pattern).await.unwrap()), [original]);
    // All of them are found on request, and each names the event that it quotes.
    let mut all = asked("cache partition", last);
    all.filters.recalled = RecalledTexts::Included;
    let answer = engine.search(all).await.unwrap();
    assert_eq!(answer.total, 4);
    for hit in &answer.hits {
        let quotes = match hit.found.conversation == original {
            true => "",
            false => "5d0c3c0e#3",
        };
        assert_eq!(hit.details.quotes, quotes);
    }
    // Listings include everything that the filter allows.
    let mut listing = asked("", last);
    listing.within = ConversationFilters::only(recent);
    assert!(!engine.search(listing).await.unwrap().hits.is_empty());
}

// In many agents the tool of a memory is only called `search`. Its call has the words of the
// question, and ranked before the text that answers it; only the result tells that it is a memory.
#[tokio::test]
async fn call_of_a_memory_is_known_by_its_result() {
    let original = ConversationId::generate();
    let [at_once, later] = [(); 2].map(|()| ConversationId::generate());
    let error = "error: no space left on device: the cache partition is full";
    let marked = format!(
        "{}\n1. 5d0c3c0e#3\n> {error}\n",
        treering_search::RECALL_MARK
    );
    let mut events = vec![created(original)];
    events.extend(ran(original, "a", ToolResultRecorded::text("a", error)));
    let (engine, _) = engine_with(events).await;
    let arguments = treering_proto::json::check(br#"{"query": "cache partition full"}"#).unwrap();
    let question = |conversation, id: &str| {
        let [mut call, answer] = asked_tool(conversation, "search", id, &marked);
        if let EventBody::ToolCallRequested(call) = &mut call.body {
            call.arguments_hash = ContentHash(blake3::hash(arguments.as_bytes()).into());
            call.arguments = arguments.clone();
        }
        [call, answer]
    };
    let [call, answer] = question(at_once, "b");
    append(&engine, vec![created(at_once), call, answer]).await;
    // The call is indexed before its result arrives.
    let [call, answer] = question(later, "c");
    let called = append(&engine, vec![created(later), call]).await;
    let position = called.events.last().unwrap().position;
    let before = engine.search(asked("cache partition full", position)).await;
    let is_found = |hit: &SearchHit| hit.found.conversation == later;
    assert!(before.unwrap().hits.iter().any(is_found));
    let appended = append(&engine, vec![answer]).await;
    let last = appended.events.last().unwrap().position;
    let answer = engine.search(asked("cache partition full", last)).await;
    let answer = answer.unwrap();
    assert_eq!(
        (answer.hits.len(), answer.total),
        (1, 1),
        "{:?}",
        answer.hits
    );
    assert_eq!(answer.hits[0].found.conversation, original);
    let mut all = asked("cache partition full", last);
    all.filters.recalled = RecalledTexts::Included;
    all.copies = treering_search::DuplicateHandling::Each;
    assert_eq!(engine.search(all).await.unwrap().hits.len(), 5);
}

// The memory of another machine may quote events that this store does not have. Then the quote must
// be found.
#[tokio::test]
async fn a_quote_is_found_when_nothing_else_is() {
    let id = ConversationId::generate();
    let mut events = vec![created(id), said(id, "what was it with the cache?")];
    let quote = "the partition was full";
    events.extend(asked_tool(id, "mcp__mem0__search_memories", "a", quote));
    let (engine, last) = engine_with(events).await;
    let answer = engine.search(asked("partition", last)).await.unwrap();
    assert_eq!(revisions(&answer), [4]);
    assert!(answer.hits[0].found.recalled && answer.hits[0].details.quotes.is_empty());
    let answer = engine.search(asked("cache", last)).await.unwrap();
    assert_eq!(revisions(&answer), [2]);
    assert!(!answer.hits[0].found.recalled);
}

// A search for a name that no text contains must say so, because hits with the parts of the name
// look like matches. A text with the whole name, such as `a::b` or `a_b`, must rank above texts
// with the parts in a row.
#[tokio::test]
async fn whole_names_rank_first_and_misses_are_reported() {
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
            answer
                .hits
                .is_sorted_by(|a, b| a.found.score >= b.found.score),
            "{text}"
        );
        if first > 0 {
            assert_eq!(revisions(&answer)[0], first, "{text}");
        }
        // Pages must follow each other without gaps.
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

// A resumed session is imported as another conversation, which repeats the texts of the first.
#[tokio::test]
async fn equal_texts_are_collapsed_into_one_hit() {
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
    assert_eq!(
        (hit.found.conversation, hit.found.revision),
        (one, Revision(2))
    );
    let copies = hit.copies_at.iter();
    let copies: Vec<_> = copies
        .map(|copy| (copy.conversation, copy.revision))
        .collect();
    assert_eq!(copies, [(other, Revision(2)), (other, Revision(3))]);
    assert_eq!((hit.copies, answer.hits[1].copies), (2, 0));
    // Filters also apply to the duplicates.
    let within = SearchRequest {
        within: ConversationFilters::only(other),
        ..asked("watcher fixed", last)
    };
    let answer = engine.search(within).await.unwrap();
    assert_eq!((answer.total, answer.hits[0].copies), (1, 1));
    for regex in [false, true] {
        let all = SearchRequest {
            copies: DuplicateHandling::Each,
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

// A common word may be in twenty thousand conversations, and looking up all their titles takes
// seconds. Only the best conversations may be returned.
#[tokio::test]
async fn only_the_top_conversations_are_returned() {
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
                conversations_max: Some(max),
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

// The best hits may all be of one conversation. The next best conversations must follow it, and not
// those with the most hits.
#[tokio::test]
async fn conversation_with_all_the_best_hits_does_not_hide_the_next_ones() {
    let ids: Vec<_> = (0..4).map(|_| ConversationId::generate()).collect();
    let engine = memory().await;
    let mut last = Position::default();
    let texts = [
        "watcher",
        "a watcher",
        "the watcher of all of this",
        "a watcher of this",
    ];
    for ((id, text), hits) in ids.iter().zip(texts).zip([200, 1, 300, 1]) {
        let said = (0..hits).map(|_| said(*id, text.to_owned()));
        let events = std::iter::once(created(*id)).chain(said).collect();
        last = append(&engine, events)
            .await
            .events
            .last()
            .unwrap()
            .position;
    }
    let request = SearchRequest {
        conversations_max: Some(3),
        ..asked("watcher", last)
    };
    let answer = engine.search(request).await.unwrap();
    let told = answer.conversations.into_iter();
    let told: Vec<_> = told.map(|of| (of.conversation, of.hits)).collect();
    assert_eq!(told, [(ids[0], 200), (ids[1], 1), (ids[3], 1)]);
}

// A hit in the model's reasoning must be marked, or a rejected idea looks like a statement.
#[tokio::test]
async fn hit_in_reasoning_is_marked() {
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
        assert_eq!(answer.hits[0].details.in_reasoning, in_reasoning, "{text}");
    }
}

// A failing test run that ends in `| tail` is recorded as a success. A search among failures must
// report that its filter hides this result.
#[tokio::test]
async fn answer_reports_a_hit_hidden_by_the_filter() {
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
        filters: SearchFilters {
            success,
            ..SearchFilters::default()
        },
        ..asked(text, last)
    };
    let line = "FAIL: TestExplain (0.03s)";
    let answer = engine.search(failed(line, Some(false))).await.unwrap();
    let hidden = answer.hidden.expect("the better one is told");
    let hidden = hidden.found;
    assert_eq!((hidden.revision, hidden.success), (Revision(3), Some(true)));
    assert!(hidden.phrase_score > 0.99);
    for (text, success) in [
        ("TestOther failed", Some(false)),
        (line, Some(true)),
        (line, None),
    ] {
        let answer = engine.search(failed(text, success)).await.unwrap();
        assert!(answer.hidden.is_none(), "{text}");
    }
}

// The query "where did we fix the watcher" must not rank texts by how often they have "where did
// we" and "the".
#[tokio::test]
async fn stop_words_do_not_decide_the_ranking() {
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

/// Sets when an event happened, in seconds.
fn then(event: NewEvent, seconds: i64) -> NewEvent {
    NewEvent {
        occurred_at: Some(TimestampMicros(seconds * 1_000_000)),
        ..event
    }
}

// "Newest first" means the time of the event, not the order of import. An imported event without a
// time has the time of its neighbour.
#[tokio::test]
async fn listings_and_patterns_are_newest_first() {
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
        hits.map(|hit| (hit.found.conversation, hit.found.revision.0))
            .collect()
    };
    let listing = SearchRequest {
        filters: SearchFilters {
            kinds: vec![EventKind::MessageAppended],
            ..SearchFilters::default()
        },
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
    // The time of a live event is its recording time.
    let appended = append(&engine, vec![created(live), said(live, "needle now")]).await;
    let now = appended.events.last().unwrap().position;
    let answer = engine.search(SearchRequest {
        regex: true,
        ..asked("needle", now)
    });
    assert_eq!(list(&answer.await.unwrap())[0], (live, 2));
}

type Occupant = (
    std::sync::mpsc::Sender<()>,
    tokio::task::JoinHandle<Result<(), ReadError>>,
);

/// Occupies slots of a priority class. Each is held until its sender is dropped.
async fn occupied(engine: &Engine, lane: work::PriorityClass, places: usize) -> Vec<Occupant> {
    let mut held = Vec::new();
    for _ in 0..places {
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let (started, starts) = tokio::sync::oneshot::channel();
        let engine = engine.clone();
        let job = tokio::spawn(async move {
            let block = async move {
                started.send(()).unwrap();
                let _ = waits.recv();
            };
            engine.inner.work.run(lane, block).await
        });
        starts.await.unwrap();
        held.push((go_on, job));
    }
    held
}

// Four searches with a label ran among the short reads and took all of their slots: a Get waited 15
// s. Long searches must have their own slots, and report what they waited for.
#[tokio::test(flavor = "multi_thread")]
async fn long_searches_leave_slots_for_short_reads() {
    let id = ConversationId::generate();
    let (engine, last) = engine_with(vec![created(id), said(id, "needle")]).await;
    let held = occupied(
        &engine,
        work::PriorityClass::Search,
        work::LONG_SEARCHES_MAX,
    )
    .await;
    let long = [
        SearchRequest {
            within: ConversationFilters {
                labels: vec!["team".to_owned()],
                ..ConversationFilters::default()
            },
            ..asked("needle", last)
        },
        SearchRequest {
            within: ConversationFilters {
                sources: vec!["other".to_owned()],
                ..ConversationFilters::default()
            },
            ..asked("needle", last)
        },
        SearchRequest {
            within: ConversationFilters {
                active_branches_only: true,
                ..ConversationFilters::default()
            },
            ..asked("needle", last)
        },
        SearchRequest {
            within: ConversationFilters {
                not_sealed: true,
                ..ConversationFilters::default()
            },
            ..asked("needle", last)
        },
        SearchRequest {
            filters: SearchFilters {
                paths: vec!["*.rs".to_owned()],
                ..SearchFilters::default()
            },
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
        assert_eq!(late.stage, SearchStage::TurnOfLong, "{request:?}");
        assert!(
            late.to_string().contains("was not started within 0.05 s"),
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
    // For a named conversation only its own labels are read.
    for (labels, hits) in [(vec![], 1), (vec!["team".to_owned()], 0)] {
        let own = SearchRequest {
            within: ConversationFilters {
                labels,
                not_sealed: true,
                ..ConversationFilters::only(id)
            },
            ..asked("needle", last)
        };
        let own = engine.search_within(own, std::time::Duration::from_secs(60));
        let own = own.await.expect("it waits for long searches").unwrap();
        assert_eq!(own.hits.len(), hits);
    }
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

// Globs of a few KB took 670 MiB. Above a limit they must be refused before any waiting.
#[tokio::test]
async fn globs_over_the_size_limit_are_refused() {
    let id = ConversationId::generate();
    let (engine, last) = engine_with(vec![created(id), said(id, "needle")]).await;
    let request = |globs: usize| SearchRequest {
        filters: SearchFilters {
            paths: (0..globs)
                .map(|at| format!("**/*a*b*c*{at:03}/**"))
                .collect(),
            ..SearchFilters::default()
        },
        ..asked("needle", last)
    };
    assert!(engine.search(request(256)).await.unwrap().hits.is_empty());
    let refused = engine.search(request(1_000)).await.unwrap_err();
    assert!(matches!(refused, SearchError::Query { .. }), "{refused}");
    assert!(
        refused.to_string().contains("the maximum is 8192"),
        "{refused}"
    );
}

// A word search that waited among the short reads reported that long searches were running,
// although there were none.
#[tokio::test(flavor = "multi_thread")]
async fn late_search_reports_what_it_waited_for() {
    let id = ConversationId::generate();
    let (engine, last) = engine_with(vec![created(id), said(id, "needle")]).await;
    let places = engine.inner.options.limits.short_reads_max;
    let held = occupied(&engine, work::PriorityClass::Short, places).await;
    let moment = std::time::Duration::from_millis(50);
    let late = engine.search_within(asked("needle", last), moment).await;
    let late = late.expect_err("there was a place");
    assert_eq!(late.stage, SearchStage::Turn);
    assert!(late.to_string().contains("busy with other reads"), "{late}");
    for (go_on, job) in held {
        drop(go_on);
        job.await.unwrap().unwrap();
    }
    let late = |stage| SearchTimeout {
        stage,
        waited: moment,
    };
    let of_index = late(SearchStage::NewIndex).to_string();
    assert!(of_index.contains("index was damaged"), "{of_index}");
}

// A label that all conversations have was held in memory several times for each of them. A search's
// memory must be bounded, and the refusal must name the filter that exceeds the limit.
#[tokio::test]
async fn filter_that_selects_too_many_is_refused() {
    let engine = memory().await;
    let mut last = Position::default();
    for _ in 0..20 {
        let id = ConversationId::generate();
        let created = EventBody::ConversationCreated(ConversationCreated {
            labels: [("team".to_owned(), "a".to_owned())].into(),
            ..ConversationCreated::default()
        });
        let events = vec![NewEvent::new(id, created), said(id, "needle")];
        let appended = append(&engine, events).await;
        last = appended.events.last().unwrap().position;
    }
    let request = |text: &str| SearchRequest {
        within: ConversationFilters {
            labels: vec!["team=a".to_owned()],
            ..ConversationFilters::default()
        },
        filters: SearchFilters {
            kinds: vec![EventKind::MessageAppended],
            ..SearchFilters::default()
        },
        ..asked(text, last)
    };
    engine.wait_indexed(last).await.unwrap();
    for text in ["needle", ""] {
        let search = |bytes| {
            let (request, memory) = (request(text).or_listing(), SearchMemory::of(bytes));
            engine.inner.search(request, None, last.offset, memory)
        };
        let refused = search(16 * 19).await.unwrap_err();
        assert!(matches!(refused, SearchError::Query { .. }), "{refused}");
        assert!(
            refused.to_string().contains("use a rarer label"),
            "{refused}"
        );
        assert_eq!(search(1 << 20).await.unwrap().total, 1);
    }
}

// Four clients that listed a thousand conversations per page took all slots of the short reads, and
// a Get waited ten times as long as on an idle server.
#[tokio::test(flavor = "multi_thread")]
async fn large_pages_leave_slots_for_short_reads() {
    let id = ConversationId::generate();
    let (engine, _) = engine_with(vec![created(id), said(id, "needle")]).await;
    let held = occupied(
        &engine,
        work::PriorityClass::Bulk,
        engine.inner.options.limits.bulk_reads_max,
    )
    .await;
    let page = |limit| ListQuery {
        namespace: ns(),
        limit,
        after: None,
        source: None,
        order: Default::default(),
        ascending: false,
    };
    let sealed = ListFilter {
        sealed: Some(true),
        ..ListFilter::default()
    };
    let moment = std::time::Duration::from_millis(50);
    for (page, filter) in [(page(1_000), ListFilter::default()), (page(10), sealed)] {
        let listed = engine.list_where(page, filter);
        let listed = tokio::time::timeout(moment, listed).await;
        assert!(listed.is_err(), "it is read among the short ones");
    }
    assert_eq!(engine.list(page(100)).await.unwrap().conversations.len(), 1);
    for (go_on, job) in held {
        drop(go_on);
        job.await.unwrap().unwrap();
    }
}
