//! Limits of one search: its memory, and its time after cancellation.

use super::{
    conversation_set::each_number,
    schema::column,
    sweep::{StopCheck, each_match},
    *,
};
use treering_base::cancel::{CancelToken, WorkScope};
use treering_domain::{
    BranchId, ConversationId, EventKind, Namespace, Position, Revision, TimestampMicros,
};

/// Conversations, with one event each.
const MANY: u64 = 3_000;

fn namespace() -> Namespace {
    Namespace::new("default").unwrap()
}

fn conversation(number: u64) -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(u128::from(number)))
}

fn event(number: u64) -> SearchableEvent {
    SearchableEvent {
        namespace: namespace(),
        conversation: conversation(number),
        branch: BranchId::MAIN,
        revision: Revision(2),
        position: Position::local(number),
        kind: EventKind::MessageAppended,
        role: None,
        tool: String::new(),
        paths: Vec::new(),
        success: None,
        recalled: false,
        recorded_at: TimestampMicros(0),
        happened_at: TimestampMicros(0),
        text: format!("the needle of {number}"),
    }
}

fn index() -> SearchIndex {
    let index = SearchIndex::in_memory().unwrap();
    let events: Vec<_> = (1..=MANY).map(event).collect();
    index.add(&events, Position::local(MANY)).unwrap();
    index.commit().unwrap();
    index
}

fn query(text: &str) -> SearchQuery {
    SearchQuery::new(namespace(), text)
}

fn within(bytes: usize, text: &str) -> SearchQuery {
    SearchQuery {
        memory: SearchMemory::of(bytes),
        ..query(text)
    }
}

// Four searches once took a server from 44 MB to 2.3 GB. Memory that grows with the store must be
// bounded, and a search over the limit must say what exceeds it and what to do.
#[test]
fn search_memory_is_limited() {
    let index = index();
    let refused = |error: IndexSearchError, advice: &str| {
        let is_refused = matches!(error, IndexSearchError::TooMuchMemory { .. });
        assert!(is_refused, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    };
    let counted = index.by_conversation(&within(20_000, "needle"));
    refused(counted.unwrap_err(), "conversations_max");
    let counted = index.by_conversation(&within(1 << 20, "needle")).unwrap();
    assert_eq!(counted.len() as u64, MANY);

    let pattern = Pattern::new("needle of [0-9]+").unwrap();
    let candidates = index.candidates(&pattern, &within(20_000, ""));
    refused(candidates.map(drop).unwrap_err(), "a longer word");
    let words = index.candidates(&pattern, &within(100, ""));
    refused(words.map(drop).unwrap_err(), "a longer word");
    let memory = SearchMemory::of(1 << 20);
    let candidates = index.candidates(
        &pattern,
        &SearchQuery {
            memory: memory.clone(),
            ..query("")
        },
    );
    drop(candidates.unwrap());
    memory
        .holding(ExceededBound::Candidates)
        .more(1 << 20)
        .unwrap();

    // Counting still returns a lower bound.
    let all = SearchQuery {
        count_all: true,
        ..query("needle")
    };
    let counted = index.search(&all).unwrap();
    assert_eq!((counted.total, counted.more_than_total), (MANY, false));
    let memory = SearchMemory::of(20_000);
    let counted = index.search(&SearchQuery { memory, ..all }).unwrap();
    assert!(counted.more_than_total, "{}", counted.total);
    assert!((100..MANY).contains(&counted.total), "{}", counted.total);
}

// A search must end when its caller is gone, and not visit all matches first while it holds its
// slot and memory.
#[test]
fn cancelled_search_stops() {
    let index = index();
    let asked = query("needle");
    let stop = CancelToken::new(&std::sync::Arc::default());
    let _working = WorkScope::on(stop.clone());
    let mut caller = Some(stop.guard());
    let mut looked_at = 0;
    let all = index.planner(&asked).all();
    let ended = each_match(&index.published(), all.as_ref(), |_, _| {
        looked_at += 1;
        caller.take();
        Ok(())
    });
    assert!(matches!(ended, Err(IndexSearchError::Stopped)), "{ended:?}");
    assert!(looked_at <= StopCheck::EVERY, "{looked_at}");
    // This holds for every operation.
    let pattern = Pattern::new("needle").unwrap();
    for (what, ended) in [
        ("search", index.search(&asked).map(drop)),
        ("count", index.by_conversation(&asked).map(drop)),
        ("candidates", index.candidates(&pattern, &asked).map(drop)),
        ("copies", index.copies(&asked, &[]).map(drop)),
    ] {
        let is_stopped = matches!(ended, Err(IndexSearchError::Stopped));
        assert!(is_stopped, "{what}: {ended:?}");
    }
}

// A filter with many conversations must not look up each one in each segment: many are merged with
// the segment's list, few are looked up, and both find the same.
#[test]
fn conversation_filter_finds_its_numbers_in_a_segment() {
    let index = index();
    let published = index.published();
    let reader = &published.searcher.segment_readers()[0];
    let column = reader.fast_fields().bytes(column::CONVERSATION);
    let column = column.unwrap().unwrap();
    let numbers = |ids: &[ConversationId]| {
        let mut numbers = Vec::new();
        let add = |id: ConversationId, number| {
            numbers.push((id, number));
            Ok(())
        };
        each_number(&column, ids, add).unwrap();
        numbers
    };
    let ids = |wanted: &[u64]| wanted.iter().copied().map(conversation).collect::<Vec<_>>();
    let few = [0, 1, 700, MANY, MANY + 1];
    assert!(few.len() < MANY as usize / 64);
    let known = [(1, 0), (700, 699), (MANY, MANY - 1)];
    let known = known.map(|(id, number)| (conversation(id), number));
    assert_eq!(numbers(&ids(&few)), known);
    let many: Vec<u64> = (0..MANY).map(|number| number * 2).collect();
    let expected = (1..=MANY / 2).map(|half| (conversation(half * 2), half * 2 - 1));
    assert_eq!(numbers(&ids(&many)), expected.collect::<Vec<_>>());
    assert!(numbers(&[]).is_empty());
}

// 100,000 copies of a text must not all be in memory for each of its hits.
#[test]
fn duplicates_are_counted_and_only_the_nearest_kept() {
    let index = SearchIndex::in_memory().unwrap();
    let events: Vec<_> = (1..=50)
        .map(|number| SearchableEvent {
            text: "one needle".to_owned(),
            ..event(number)
        })
        .collect();
    index.add(&events, Position::local(50)).unwrap();
    index.commit().unwrap();
    let asked = query("needle");
    let found = index.search(&asked).unwrap();
    let [hit] = &found.hits[..] else {
        panic!("{} hits", found.hits.len());
    };
    let at = |offset| Hit {
        window: None,
        position: Position::local(offset),
        ..hit.clone()
    };
    let copies = index.copies(&asked, &[at(1), at(20)]).unwrap();
    let nearest = |copies: &HitDuplicates| -> Vec<u64> {
        let places = copies.nearest.iter();
        places.map(|place| place.position.offset).collect()
    };
    assert_eq!((copies[0].count, nearest(&copies[0])), (49, vec![2, 3, 4]));
    assert_eq!(
        (copies[1].count, nearest(&copies[1])),
        (49, vec![19, 21, 18])
    );
}
