//! A connection that reads so much at a time.
//!
//! The HTTP/2 library reads all that there is before it starts the calls in it,
//! and ends the connection of a client whose calls were cancelled meanwhile in
//! great number. Told that there is no more for now, it starts those it has.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::server::bounds::CONNECTION_TURN_BYTES;

/// How much may still be read in this turn, and how much ever was. Used by one
/// task only.
#[derive(Debug, Default)]
pub(super) struct Turn {
    left: AtomicUsize,
    starved: AtomicUsize,
    read: AtomicU64,
}

impl Turn {
    /// Bytes that were ever read.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// As if so many bytes were read.
    #[cfg(test)]
    pub fn having_read(bytes: u64) -> Self {
        let turn = Self::default();
        turn.read.store(bytes, Ordering::Relaxed);
        turn
    }

    /// Runs a connection turn by turn.
    pub async fn by_turns<T>(&self, connection: &mut (impl Future<Output = T> + Unpin)) -> T {
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
    turn: Arc<Turn>,
    /// The first byte, while it is known and not read.
    first: Option<u8>,
}

impl<IO> TurnIo<IO> {
    pub fn new(io: IO, turn: Arc<Turn>) -> Self {
        Self {
            io,
            turn,
            first: None,
        }
    }
}

impl<IO: AsyncRead + Unpin> TurnIo<IO> {
    /// Waits until the client has begun, or is gone. What it sent is read later.
    pub async fn begins(&mut self) {
        let mut first = [0];
        if let Ok(1) = self.io.read(&mut first).await {
            self.first = Some(first[0]);
        }
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
            // Whoever runs the turns wakes the task.
            self.turn.starved.store(1, Ordering::Relaxed);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = match self.first.take() {
            Some(first) => {
                buffer.put_slice(&[first]);
                Poll::Ready(Ok(()))
            }
            None => Pin::new(&mut self.io).poll_read(cx, buffer),
        };
        let read = buffer.filled().len() - before;
        let left = left.saturating_sub(read);
        self.turn.left.store(left, Ordering::Relaxed);
        self.turn.read.fetch_add(read as u64, Ordering::Relaxed);
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
