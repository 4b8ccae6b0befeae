//! Tests that texts in pieces come back whole, and that ranges are exact.

use futures::stream;
use proptest::prelude::*;

use super::*;

fn lines(first: u64, last: u64) -> pb::GetResultRequest {
    pb::GetResultRequest {
        line_first: first,
        line_last: last,
        ..Default::default()
    }
}

fn part(text: &str, request: &pb::GetResultRequest) -> Option<String> {
    let range = Range::of(request).unwrap();
    range.bytes_of(text).map(|bytes| text[bytes].to_owned())
}

// An off-by-one line range shows the wrong code to an agent. Lines count from 1, both ends are
// included, and the last line may lack a newline.
#[test]
fn line_ranges_start_at_one() {
    let text = "one\ntwo\n\nfour";
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(part(text, &lines(1, 1)), some("one\n"));
    assert_eq!(part(text, &lines(0, 2)), some("one\ntwo\n"));
    assert_eq!(part(text, &lines(2, 3)), some("two\n\n"));
    assert_eq!(part(text, &lines(4, 0)), some("four"));
    assert_eq!(part(text, &lines(3, 99)), some("\nfour"));
    assert_eq!(part(text, &lines(5, 0)), None);
    assert_eq!(part("a\n", &lines(2, 0)), None);
    assert_eq!(part(text, &lines(u64::MAX, 0)), None);
    assert_eq!(part("", &lines(1, 0)), some(""));
}

// A byte range past the end must be an error, not answered with something else.
#[test]
fn byte_ranges_are_exact() {
    let bytes = |byte_start, byte_length| pb::GetResultRequest {
        byte_start,
        byte_length,
        ..Default::default()
    };
    assert_eq!(part("abcdef", &bytes(0, 0)).unwrap(), "abcdef");
    assert_eq!(part("abcdef", &bytes(2, 3)).unwrap(), "cde");
    assert_eq!(part("abcdef", &bytes(4, u64::MAX)).unwrap(), "ef");
    assert_eq!(part("abcdef", &bytes(6, 1)).unwrap(), "");
    assert_eq!(part("abcdef", &bytes(7, 1)), None);
    let both = pb::GetResultRequest {
        byte_start: 1,
        ..lines(1, 1)
    };
    assert_eq!(Range::of(&both).unwrap_err().field, "line_first");
    assert_eq!(Range::of(&lines(3, 2)).unwrap_err().field, "line_last");
}

fn start() -> Result<pb::RecordResultRequest, Status> {
    let start = pb::RecordResultStart {
        result: Some(pb::ToolResultRecorded {
            call_id: "c".into(),
            success: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    Ok(pb::RecordResultRequest {
        item: Some(Item::Start(start)),
    })
}

fn chunk(bytes: &[u8]) -> Result<pb::RecordResultRequest, Status> {
    let chunk = Bytes::copy_from_slice(bytes);
    Ok(pb::RecordResultRequest {
        item: Some(Item::Chunk(chunk)),
    })
}

type Requests = Vec<Result<pb::RecordResultRequest, Status>>;

// Invalid text must be refused before anything is appended, and an endless stream must not fill the
// memory.
#[tokio::test]
async fn invalid_result_streams_are_refused() {
    let nothing = || Ok(pb::RecordResultRequest { item: None });
    let cases: Vec<(&str, Requests)> = vec![
        ("start", vec![]),
        ("start", vec![nothing()]),
        ("start", vec![chunk(b"a")]),
        ("chunk", vec![start(), start()]),
        ("chunk", vec![start(), nothing()]),
        ("chunk", vec![start(), chunk(b"ok \xff")]),
        ("chunk", vec![start(), chunk(b"\xe2\x82")]),
        (
            "body_bytes_max",
            vec![start(), chunk(&[b'a'; 8]), chunk(b"b")],
        ),
    ];
    for (word, requests) in cases {
        let result = assemble(stream::iter(requests), 8).await;
        let status = result.expect_err(word);
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{word}");
        assert!(status.message().contains(word), "{status:?}");
    }
    let broken = vec![start(), Err(Status::cancelled("gone"))];
    let status = assemble(stream::iter(broken), 8).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Cancelled);
}

// A result without its parts must be refused with the field's name.
#[test]
fn incomplete_result_is_refused() {
    let id = ConversationId::generate();
    let empty = pb::RecordResultStart::default();
    let fault = command(Namespace::default(), id, empty, String::new()).unwrap_err();
    assert_eq!(fault.field, "start.result");
    let unnamed = pb::RecordResultStart {
        result: Some(pb::ToolResultRecorded::default()),
        ..Default::default()
    };
    let fault = command(Namespace::default(), id, unnamed, String::new()).unwrap_err();
    assert_eq!(fault.field, "start.result.call_id");
}

proptest! {
    // Chunks may split a character: cut anywhere, the text must be whole again.
    #[test]
    fn text_chunks_are_joined(text in "\\PC{0,80}", size in 1_usize..5) {
        let mut requests = vec![start()];
        requests.extend(text.as_bytes().chunks(size).map(chunk));
        let assembled = assemble(stream::iter(requests), 1_000);
        let (_, back) = futures::executor::block_on(assembled).unwrap();
        prop_assert_eq!(back, text);
    }

    // Every line range is the text between its newlines.
    #[test]
    fn line_ranges_agree_with_splitting(text in "[a\n]{0,30}", first in 1_u64..9, more in 0_u64..9) {
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let from = usize::try_from(first - 1).unwrap();
        let to = (from + usize::try_from(more).unwrap() + 1).min(all.len());
        let expected = match all.get(from..to) {
            Some(lines) if from < all.len() => Some(lines.concat()),
            _ => (first == 1 && text.is_empty()).then(String::new),
        };
        prop_assert_eq!(part(&text, &lines(first, first + more)), expected);
    }
}
