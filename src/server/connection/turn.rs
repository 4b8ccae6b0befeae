//! Limits how much a connection reads at a time.
//!
//! The HTTP/2 library reads all available data before it starts the calls in it, and disconnects a
//! client if too many of them were cancelled meanwhile. If it is told that there is no more data
//! for now, it starts the calls that it has.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::bounds::CONNECTION_TURN_BYTES;

/// The bytes that may still be read in this turn, and all bytes read. Used by one task only.
#[derive(Debug, Default)]
pub(super) struct ReadTurn {
    left: AtomicUsize,
    starved: AtomicUsize,
    read: AtomicU64,
    begun: OnceLock<Instant>,
}

impl ReadTurn {
    /// Returns all bytes read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Returns when the first byte was read, or `None` before that.
    pub(crate) fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    fn note_read(&self, bytes: usize) {
        if bytes > 0 {
            self.begun.get_or_init(Instant::now);
        }
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns a turn as if this many bytes were read.
    #[cfg(test)]
    pub(crate) fn having_read(bytes: u64) -> Self {
        let turn = Self::default();
        turn.note_read(usize::try_from(bytes).unwrap());
        turn
    }

    /// Runs a connection turn by turn.
    pub(crate) async fn by_turns<T>(
        &self,
        connection: &mut (impl Future<Output = T> + Unpin),
    ) -> T {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            self.left.store(CONNECTION_TURN_BYTES, Ordering::Relaxed);
            self.starved.store(0, Ordering::Relaxed);
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() && self.starved.load(Ordering::Relaxed) > 0 {
                cx.waker().wake_by_ref();
            }
            polled
        })
        .await
    }
}

/// The transport of a connection.
pub(super) struct TurnIo<IO> {
    io: IO,
    turn: Arc<ReadTurn>,
}

impl<IO> TurnIo<IO> {
    pub(crate) fn new(io: IO, turn: Arc<ReadTurn>) -> Self {
        Self { io, turn }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for TurnIo<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.turn.left.load(Ordering::Relaxed);
        if left == 0 {
            // `by_turns` wakes the task.
            self.turn.starved.store(1, Ordering::Relaxed);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        let read = buffer.filled().len() - before;
        let left = left.saturating_sub(read);
        self.turn.left.store(left, Ordering::Relaxed);
        self.turn.note_read(read);
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for TurnIo<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
