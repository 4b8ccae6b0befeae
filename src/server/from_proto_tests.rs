//! Invalid fields are refused by name and never guessed.

use super::*;
use treering_domain::{ConversationId, Namespace, ShardId, limits::BRANCH_NAME_BYTES_MAX};

// A misread field reads or writes the wrong thing. Each bad value must be refused with the field's
// name.
#[test]
fn invalid_fields_are_refused_by_name() {
    let long = "x".repeat(SHORT_TEXT_BYTES_MAX + 1);
    let key = "k".repeat(IDEMPOTENCY_KEY_BYTES_MAX + 1);
    let name = "b".repeat(BRANCH_NAME_BYTES_MAX + 1);
    let nested = Bytes::from([vec![b'['; 4_096], vec![b']'; 4_096]].concat());
    let far = Timestamp {
        seconds: i64::MAX,
        nanos: 0,
    };
    let cases: Vec<(&str, Result<(), InvalidField>)> = vec![
        ("a", required("a", "")),
        ("b", check_short("b", &long)),
        ("c", optional("c", long).map(drop)),
        ("d", branch("d", &name).map(drop)),
        ("e", branch("e", " padded ").map(drop)),
        ("f", branch("f", "new\nline").map(drop)),
        ("idempotency_key", idempotency_key(key).map(drop)),
        ("kinds[1]", kinds(&[28, 0]).map(drop)),
        ("kinds[0]", kinds(&[-1]).map(drop)),
        ("kinds[0]", kinds(&[65_536 + 28]).map(drop)),
        ("g", time("g", Some(&far)).map(drop)),
        ("h", json("h", Bytes::new()).map(drop)),
        ("i", json("i", Bytes::from_static(b"{'a':1}")).map(drop)),
        ("j", json("j", Bytes::from_static(b"\"\xff\"")).map(drop)),
        ("k", json("k", nested).map(drop)),
        ("page_token", page_token("zz").map(drop)),
        ("page_token", page_token("-1").map(drop)),
        ("page_token", page_token("+f").map(drop)),
        ("page_token", page_token("ffffffffffffffffff").map(drop)),
    ];
    for (field, result) in cases {
        let fault = result.expect_err(field);
        assert_eq!(fault.field, field);
        assert!(fault.message.len() < 200, "{fault}");
    }
}

// Valid values must be accepted, and empty ones mean their default.
#[test]
fn valid_fields_are_accepted() {
    assert_eq!(branch("b", ""), Ok(None));
    assert_eq!(branch("b", "main"), Ok(Some(BranchName::default())));
    assert_eq!(revision(0), None);
    assert_eq!(revision(3), Some(Revision(3)));
    assert_eq!(idempotency_key(String::new()), Ok(None));
    assert_eq!(kinds(&[28]), Ok(vec![EventKind::MessageAppended]));
    assert_eq!(page(0, 10, 100), 10);
    assert_eq!(page(7, 10, 100), 7);
    assert_eq!(page(u32::MAX, 10, 100), 100);
    assert_eq!(time("t", None), Ok(None));
    for first_offset in [0, 1, 255, u64::MAX] {
        for time in [0, -1, 7, i64::MAX, i64::MIN] {
            let place = ListPlace {
                happened_to: TimestampMicros(time),
                first_offset,
            };
            let token = crate::to_proto::page_token(Some(place));
            assert_eq!(page_token(&token), Ok(Some(place)));
        }
    }
    assert_eq!(page_token(""), Ok(None));
    for wrong in ["@", "1@", "@1", "1@0", "1@x", "01", "1@2@3"] {
        assert!(page_token(wrong).is_err(), "{wrong}");
    }
}

// Mixing up "no check" and "must not exist" would overwrite data, or refuse every append.
#[test]
fn expected_revisions_are_parsed() {
    use pb::expected_revision::{Any, Expected, NoStream};
    let read = |e| expected(Some(pb::ExpectedRevision { expected: e }));
    assert_eq!(expected(None), ExpectedRevision::Any);
    assert_eq!(read(None), ExpectedRevision::Any);
    assert_eq!(read(Some(Expected::Any(Any {}))), ExpectedRevision::Any);
    assert_eq!(
        read(Some(Expected::NoStream(NoStream {}))),
        ExpectedRevision::NoStream
    );
    let exact = |n| ExpectedRevision::Exact(Revision(n));
    assert_eq!(read(Some(Expected::Revision(0))), exact(0));
    assert_eq!(read(Some(Expected::Revision(9))), exact(9));
}

fn query_of(source: EventSource, request: pb::ReadRequest) -> Result<ReadQuery, InvalidField> {
    read_query(&request, ReadQuery::all(Namespace::default(), source))
}

// `from` is the first event returned: reading backward, it is the upper bound.
#[test]
fn read_range_follows_the_direction() {
    let source = || EventSource::Conversation(ConversationId::default());
    let request = pb::ReadRequest {
        from_revision: 10,
        to_revision: 4,
        backward: true,
        ..Default::default()
    };
    let query = query_of(source(), request).unwrap();
    assert_eq!((query.from, query.to, query.limit), (4, 10, u64::MAX));

    let request = pb::ReadRequest {
        from_revision: 4,
        limit: 2,
        ..Default::default()
    };
    let query = query_of(source(), request).unwrap();
    assert_eq!((query.from, query.to, query.limit), (4, u64::MAX, 2));

    let request = pb::ReadRequest {
        from_offset: 50,
        backward: true,
        ..Default::default()
    };
    let query = query_of(EventSource::Log, request.clone()).unwrap();
    assert_eq!((query.from, query.to), (0, 50));
    assert_eq!(
        query_of(source(), request).unwrap_err().field,
        "from_offset"
    );
    let request = pb::ReadRequest {
        to_revision: 1,
        ..Default::default()
    };
    let fault = query_of(EventSource::Log, request).unwrap_err();
    assert_eq!(fault.field, "from_revision");
}

// A subscription that starts at the wrong place loses events or repeats them.
#[test]
fn subscription_start_is_parsed() {
    use pb::subscribe_request::Source as S;
    let log = || Some(S::Log(pb::LogSource {}));
    let one = || Some(S::Conversation(pb::ConversationSource::default()));
    let ask = |source, after_revision, after_offset, from_now| {
        start(&pb::SubscribeRequest {
            source,
            after_revision,
            after_offset,
            from_now,
            ..Default::default()
        })
        .map_err(|fault| fault.field)
    };
    assert_eq!(ask(log(), 0, None, false), Ok(StartAfter::Place(0)));
    assert_eq!(ask(log(), 0, Some(7), false), Ok(StartAfter::Place(7)));
    assert_eq!(ask(one(), 5, None, false), Ok(StartAfter::Place(5)));
    assert_eq!(ask(one(), 0, None, true), Ok(StartAfter::Now));
    assert_eq!(ask(one(), 5, None, true), Err("from_now".into()));
    assert_eq!(ask(log(), 5, None, false), Err("after_revision".into()));
    assert_eq!(ask(one(), 0, Some(0), false), Err("after_offset".into()));
    let go_on = |source, after_offset, from_now| {
        start(&pb::SubscribeRequest {
            source,
            after_offset,
            from_now,
            after_cursor: LogCursor([(ShardId(0), 7)].into()).encode(),
            ..Default::default()
        })
        .map_err(|fault| fault.field)
    };
    assert_eq!(go_on(log(), None, false), Ok(StartAfter::Place(7)));
    assert_eq!(go_on(log(), Some(7), false), Err("after_cursor".into()));
    assert_eq!(go_on(log(), None, true), Err("from_now".into()));
    assert_eq!(go_on(one(), None, false), Err("after_cursor".into()));
}
