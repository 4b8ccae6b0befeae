use std::{collections::VecDeque, convert::Infallible, io::Write, task::Waker};

use tonic::Code;

use super::{
    super::budget::{Account, Pool},
    *,
};
use crate as server;
use treering_domain::Limits;

const UNARY: &str = "/treering.v1.Search/Search";
const BIDI: &str = "/treering.v1.Events/AppendStream";
const COLLECTING: &str = "/treering.v1.Tools/RecordResult";

/// The pieces that a client sends; if `open`, nothing follows and the body does not end.
struct Pieces {
    pieces: VecDeque<Bytes>,
    open: bool,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

fn message(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], content].concat()
}

fn intake(path: &str, bytes: &[u8], piece: usize, open: bool) -> (BoundedBody, Arc<Pool>) {
    let methods = Arc::new(
        Methods::read(
            &server::served(&server::ServeOptions::default()),
            &Limits::default(),
            usize::MAX,
        )
        .unwrap(),
    );
    let pool = Pool::new(1 << 30);
    let charge = Arc::new(Charge::new(Account::new(Arc::clone(&pool))));
    let pieces = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
    let inner = tonic::body::Body::new(Pieces { pieces, open });
    let method = methods.get(path);
    let encoding = Some(Encoding::Gzip);
    let body = BoundedBody::new(inner, methods, method, encoding, charge);
    (body, pool)
}

async fn next(body: &mut BoundedBody) -> Option<Result<Bytes, Status>> {
    let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap()))
}

async fn all(mut body: BoundedBody) -> Result<Vec<Vec<u8>>, Status> {
    let mut messages = Vec::new();
    while let Some(next) = next(&mut body).await {
        messages.push(next?.to_vec());
    }
    Ok(messages)
}

// However the network cuts them, messages must arrive whole, in order and byte for byte: a message
// lost or torn here is lost for good.
#[tokio::test]
async fn messages_are_reassembled_from_any_pieces() {
    let contents: Vec<Vec<u8>> = [0, 1, 4, 5, 6, 300, 40_000, 0, 0, 17]
        .map(|length| vec![7; length])
        .into();
    let messages: Vec<_> = contents.iter().map(|content| message(content)).collect();
    let wire = messages.concat();
    for piece in [1, 2, 3, 5, 7, 16, 1_000, 16_384, wire.len()] {
        let (body, _) = intake(BIDI, &wire, piece, false);
        assert_eq!(all(body).await.unwrap(), messages, "in pieces of {piece}");
    }
    // The length comes first: a message that is too long is refused before it arrives.
    let start = [&[0][..], &u32::MAX.to_be_bytes()].concat();
    for piece in [1, 5] {
        let (body, _) = intake(BIDI, &start, piece, true);
        assert_eq!(all(body).await.unwrap_err().code(), Code::OutOfRange);
    }
    let (body, _) = intake(BIDI, &wire[..wire.len() - 1], 1_000, false);
    let status = all(body).await.unwrap_err();
    assert!(status.message().contains("in the middle"), "{status:?}");
}

// A compressed message must equal the same message uncompressed, small ones at once and large ones
// from their thread.
#[tokio::test]
async fn compressed_messages_are_decompressed() {
    for length in [0, 10, 900_000] {
        let plain: Vec<u8> = (0..length)
            .map(|n: u32| (n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut wire = message(&gzip.finish().unwrap());
        wire[0] = 1;
        let (body, _) = intake(BIDI, &wire, 1_000, false);
        assert_eq!(all(body).await.unwrap(), [message(&plain)]);
    }
}

// A method that takes one message must not be kept busy with a stream of them.
#[tokio::test]
async fn second_message_of_a_unary_call_is_refused() {
    let wire = message(b"").repeat(2);
    let (mut body, _) = intake(UNARY, &wire, 5, false);
    assert!(next(&mut body).await.unwrap().is_ok());
    let status = next(&mut body).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(next(&mut body).await.is_none(), "an error is the end");
}

// A request that trickles in, or stops, holds memory and a slot for a call: it must end, and one
// that arrives steadily must not.
#[tokio::test(start_paused = true)]
async fn stalled_request_is_cancelled() {
    let wire = message(&[0; 10_000]);
    for path in [UNARY, BIDI] {
        let (body, _) = intake(path, &wire[..9_000], 100, true);
        let status = all(body).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{path}");
    }
    // A whole message without an end: a stream may wait forever, a single call must not.
    let (mut body, _) = intake(UNARY, &wire, 100, true);
    assert!(next(&mut body).await.unwrap().is_ok());
    let status = next(&mut body).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let (mut body, _) = intake(BIDI, &wire, 100, true);
    assert!(next(&mut body).await.unwrap().is_ok());
    let day = Duration::from_secs(24 * 3_600);
    assert!(tokio::time::timeout(day, next(&mut body)).await.is_err());
}

// Bytes are counted until they are handled: a pipelined message until the next one is requested,
// all others until the call ends.
#[tokio::test]
async fn held_bytes_are_counted_until_handled() {
    let wire = message(&[0; 1_000]).repeat(3);
    for (path, held) in [(BIDI, 1_005..2_000), (COLLECTING, 3_015..9_000)] {
        let (mut body, pool) = intake(path, &wire, 1_005, true);
        for _ in 0..3 {
            assert!(next(&mut body).await.unwrap().is_ok());
        }
        assert!(held.contains(&pool.held()), "{path}: {}", pool.held());
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
        if path == BIDI {
            assert_eq!(pool.held(), 0);
        }
        drop(body);
        assert_eq!(pool.held(), 0, "{path}");
    }
}
