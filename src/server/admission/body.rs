//! The request body of a call. Passes on each message once it has arrived, is decompressed, and is
//! known to decode within its limits.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, Sleep},
};
use tonic::Status;

use super::{
    budget::{Charge, ConnectionFull},
    inflate::{Encoding, InflateFault, inflate},
    methods::{Method, Methods},
    refusal,
};
use crate::{
    bounds::{INFLATE_HERE_BYTES_MAX, MESSAGE_BYTES_PER_SECOND_MIN, MESSAGE_WAIT},
    guard::TrafficCounter,
};

/// gRPC's message prefix: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Initial buffer for a message that arrives in pieces.
const GATHER_BYTES_MIN: usize = 16 << 10;

type InflateTask = JoinHandle<Result<Bytes, Status>>;

/// A limited request body; see the module.
pub(super) struct BoundedBody {
    inner: tonic::body::Body,
    methods: Arc<Methods>,
    method: Method,
    encoding: Option<Encoding>,
    charge: Arc<Charge>,
    counted: Option<TrafficCounter>,
    /// Data received in one piece, not examined yet.
    rest: Bytes,
    /// The beginning of an incomplete message.
    gathered: BytesMut,
    /// The message being decompressed: its received bytes and the task.
    inflating: Option<(usize, InflateTask)>,
    /// The part of the charge for the message that was passed on.
    handed_on: usize,
    messages: usize,
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl BoundedBody {
    pub(crate) fn new(
        inner: tonic::body::Body,
        methods: Arc<Methods>,
        method: Method,
        encoding: Option<Encoding>,
        charge: Arc<Charge>,
    ) -> Self {
        Self {
            inner,
            methods,
            method,
            encoding,
            charge,
            counted: None,
            rest: Bytes::new(),
            gathered: BytesMut::new(),
            inflating: None,
            handed_on: 0,
            messages: 0,
            since: Instant::now(),
            timer: None,
            ended: false,
        }
    }

    /// Counts the messages for their sender.
    pub(crate) fn counted(mut self, counted: Option<TrafficCounter>) -> Self {
        self.counted = counted;
        self
    }

    /// Returns the next frame for the services. The caller updates the state when the body ends.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Status>> {
        loop {
            if let Some((received, inflating)) = &mut self.inflating {
                let inflated = ready!(Pin::new(inflating).poll(cx));
                let received = *received;
                self.inflating = None;
                let plain = inflated.map_err(|_| refusal::broken("decompression failed"))??;
                let held = received + plain.len();
                return Poll::Ready(self.hand_on(plain, held).map(Some));
            }
            if let Some(whole) = self.next_whole()? {
                if let Some(frame) = self.open(whole)? {
                    return Poll::Ready(Ok(Some(frame)));
                }
                continue;
            }
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.take(data)?,
                    Err(trailers) => return Poll::Ready(Ok(Some(trailers))),
                },
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                Poll::Ready(None) if self.gathered.is_empty() => return Poll::Ready(Ok(None)),
                Poll::Ready(None) => {
                    let what = "the stream ended in the middle of a message";
                    return Poll::Ready(Err(refusal::broken(what)));
                }
                Poll::Pending => return self.poll_patience(cx),
            }
        }
    }

    /// Takes received data. Pieces are joined, so that a message of many small pieces takes no more
    /// memory than its bytes.
    fn take(&mut self, data: Bytes) -> Result<(), Status> {
        self.charge.note_received(data.len());
        let grown = self.charge.grow(data.len());
        grown.map_err(|ConnectionFull| refusal::too_many_bytes())?;
        if self.gathered.is_empty() {
            if self.method.streams {
                self.since = Instant::now();
            }
            self.rest = data;
            return Ok(());
        }
        let have = self.gathered.len();
        let whole = prefix(&self.gathered).map_or(have, |length| PREFIX_BYTES + length);
        if self.gathered.capacity() - have < data.len() {
            // Double the buffer, but not beyond the message.
            let more = whole.saturating_sub(have).min(have.max(GATHER_BYTES_MIN));
            self.gathered.reserve(more.max(data.len()));
        }
        self.gathered.put_slice(&data);
        let have = self.gathered.len();
        if prefix(&self.gathered).is_some_and(|length| have >= PREFIX_BYTES + length) {
            self.rest = std::mem::take(&mut self.gathered).freeze();
        }
        Ok(())
    }

    /// Returns the next complete message with its prefix, and keeps the rest.
    fn next_whole(&mut self) -> Result<Option<Bytes>, Status> {
        if self.rest.is_empty() {
            if let Some(length) = prefix(&self.gathered) {
                self.check(length)?;
            }
            return Ok(None);
        }
        if let Some(length) = prefix(&self.rest) {
            self.check(length)?;
            if self.rest.len() - PREFIX_BYTES >= length {
                return Ok(Some(self.rest.split_to(PREFIX_BYTES + length)));
            }
        }
        let start = std::mem::take(&mut self.rest);
        self.gathered.reserve(start.len().max(GATHER_BYTES_MIN));
        self.gathered.put_slice(&start);
        Ok(None)
    }

    fn check(&self, length: usize) -> Result<(), Status> {
        if self.messages > 0 && !self.method.streams {
            return Err(refusal::second_message());
        }
        if length > self.method.bytes_max {
            return Err(refusal::too_large(length, self.method.bytes_max));
        }
        Ok(())
    }

    /// Returns a message for the services, or `None` while it is being decompressed.
    fn open(&mut self, whole: Bytes) -> Result<Option<Frame<Bytes>>, Status> {
        self.messages += 1;
        let received = whole.len();
        if let Some(counted) = &self.counted {
            counted.take(received)?;
        }
        let Some(encoding) = self.encoding.filter(|_| whole[0] == 1) else {
            // A message marked as compressed without an encoding is refused by the services.
            return self.hand_on(whole, received).map(Some);
        };
        let bounds = (PREFIX_BYTES, self.method.bytes_max);
        let charge = Arc::clone(&self.charge);
        let open = move || inflated(encoding, &whole[PREFIX_BYTES..], bounds, &charge);
        if received > INFLATE_HERE_BYTES_MAX {
            self.inflating = Some((received, tokio::task::spawn_blocking(open)));
            return Ok(None);
        }
        let plain = open()?;
        let held = received + plain.len();
        self.hand_on(plain, held).map(Some)
    }

    /// Charges the memory for decoding a message beyond `held`, which was charged before, and
    /// passes the message on.
    fn hand_on(&mut self, whole: Bytes, held: usize) -> Result<Frame<Bytes>, Status> {
        let cost = self.methods.cost(self.method, &whole[PREFIX_BYTES..]);
        let cost = cost.map_err(|much| refusal::decodes_too_large(much.max))?;
        let more = cost.saturating_sub(held);
        self.charge
            .grow(more)
            .map_err(|ConnectionFull| refusal::too_many_bytes())?;
        self.handed_on = held + more;
        Ok(Frame::data(whole))
    }

    /// Returns an error when the message takes too long to arrive.
    fn poll_patience(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, Status>> {
        if self.method.streams && self.gathered.is_empty() {
            return Poll::Pending;
        }
        let received = self.gathered.len();
        let seconds = received / MESSAGE_BYTES_PER_SECOND_MIN;
        let wait = MESSAGE_WAIT + Duration::from_secs(seconds as u64);
        let until = self.since + wait;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= until {
                return Poll::Ready(Err(refusal::too_slow(received)));
            }
            timer.as_mut().reset(until);
        }
    }
}

/// Returns the decompressed message with a prefix.
fn inflated(
    encoding: Encoding,
    compressed: &[u8],
    bounds: (usize, usize),
    charge: &Charge,
) -> Result<Bytes, Status> {
    let plain = inflate(encoding, compressed, bounds, charge);
    let mut plain = plain.map_err(|fault| match fault {
        InflateFault::TooLarge => refusal::inflates_too_large(bounds.1),
        InflateFault::Broken => refusal::broken("the message cannot be decompressed"),
        InflateFault::NoRoom => refusal::too_many_bytes(),
    })?;
    let length = u32::try_from(plain.len() - PREFIX_BYTES);
    let length = length.map_err(|_| refusal::inflates_too_large(bounds.1))?;
    plain[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(plain.into())
}

/// Returns the length in a message's prefix, or `None` before it has arrived.
fn prefix(bytes: &[u8]) -> Option<usize> {
    let length: [u8; 4] = bytes.get(1..PREFIX_BYTES)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.method.pipelined && self.handed_on > 0 {
            // A request for more means that the last message is done.
            let done = std::mem::take(&mut self.handed_on);
            self.charge.shrink(done);
        }
        let next = ready!(self.poll_next(cx)).transpose();
        if !matches!(next, Some(Ok(_))) {
            // Release its memory before the answer.
            self.ended = true;
            self.rest = Bytes::new();
            self.gathered = BytesMut::new();
        }
        Poll::Ready(next)
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
