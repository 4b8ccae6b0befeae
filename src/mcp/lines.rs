//! Messages as lines: the protocol's transport over standard input and output.
//!
//! Every line that requires an answer gets one, even if it is unreadable. When nobody reads the
//! answers any more, the session ends.

use std::io;

use rmcp::{
    RoleServer,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    bounds::{ANSWERS_WAITING, LAST_WORDS_MAX, MESSAGE_BYTES_MAX},
    message::{self, IncomingMessage},
};

/// A line to write, and the channel that reports when it was written.
type QueuedLine = (String, Option<oneshot::Sender<io::Result<()>>>);

/// One session.
pub(crate) struct Lines<R> {
    read: BufReader<R>,
    /// The part of the current line that was received.
    line: Vec<u8>,
    /// The line is too long, and the rest of it is skipped.
    is_too_long: bool,
    /// An answer that does not fit into the queue yet.
    unsent: Option<String>,
    to: Option<mpsc::Sender<QueuedLine>>,
    writing: Option<JoinHandle<()>>,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    /// Starts a session over these streams.
    pub(crate) fn new<W: AsyncWrite + Send + Unpin + 'static>(read: R, write: W) -> Self {
        let (to, lines) = mpsc::channel(ANSWERS_WAITING);
        Self {
            read: BufReader::new(read),
            line: Vec::new(),
            is_too_long: false,
            unsent: None,
            to: Some(to),
            writing: Some(tokio::spawn(write_lines(write, lines))),
        }
    }

    /// Reads to the end of a line; false at the end of input. Cancel safe: the next call continues.
    async fn fill(&mut self) -> bool {
        loop {
            let bytes = match self.read.fill_buf().await {
                Ok([]) | Err(_) => return false,
                Ok(bytes) => bytes,
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            self.is_too_long |= self.line.len() + taken > MESSAGE_BYTES_MAX;
            match self.is_too_long {
                true => self.line.clear(),
                false => self.line.extend_from_slice(&bytes[..taken]),
            }
            self.read.consume(taken);
            if end.is_some() {
                return true;
            }
        }
    }

    /// Parses the line that was read.
    fn taken(&mut self) -> IncomingMessage {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return IncomingMessage::Unread(message::too_long());
        }
        match line.trim_ascii() {
            [] => IncomingMessage::Nothing,
            line => message::read(line),
        }
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let to = self.to.clone();
        async move {
            let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
            let line = serde_json::to_string(&item)?;
            let (done, is_done) = oneshot::channel();
            let to = to.ok_or_else(gone)?;
            to.send((line, Some(done))).await.map_err(|_| gone())?;
            is_done.await.map_err(|_| gone())?
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let to = self.to.clone()?;
            if self.unsent.is_some() {
                let place = to.reserve().await.ok()?;
                if let Some(answer) = self.unsent.take() {
                    place.send((answer, None));
                }
            }
            let is_filled = tokio::select! {
                is_filled = self.fill() => is_filled,
                // Nobody reads the answers.
                () = to.closed() => false,
            };
            if !is_filled {
                return None;
            }
            match self.taken() {
                IncomingMessage::Message(message) => return Some(*message),
                IncomingMessage::Nothing => {}
                IncomingMessage::Unread(answer) => self.unsent = Some(answer),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.to = None;
        if let Some(writing) = self.writing.take() {
            // A client that does not read to the end is gone.
            let _ = tokio::time::timeout(LAST_WORDS_MAX, writing).await;
        }
        Ok(())
    }
}

/// Writes lines until there are no more, or the reader is gone.
async fn write_lines<W: AsyncWrite + Unpin>(mut write: W, mut lines: mpsc::Receiver<QueuedLine>) {
    while let Some((mut line, done)) = lines.recv().await {
        line.push('\n');
        let written = async {
            write.write_all(line.as_bytes()).await?;
            write.flush().await
        };
        let written = written.await;
        let is_over = written.is_err();
        if let Some(done) = done {
            // The receiver may be gone.
            let _ = done.send(written);
        }
        if is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{DuplexStream, duplex, split};

    use super::*;

    async fn next(from: &mut (impl AsyncBufReadExt + Unpin)) -> Value {
        let mut line = String::new();
        from.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn pair() -> (Lines<tokio::io::ReadHalf<DuplexStream>>, DuplexStream) {
        let (here, there) = duplex(1 << 16);
        let (read, write) = split(here);
        (Lines::new(read, write), there)
    }

    // A message in pieces, between noise: each noise line must be answered, and nothing may be lost
    // when a read is dropped midway.
    #[tokio::test]
    async fn invalid_lines_are_answered_and_messages_reassembled() {
        let (mut lines, there) = pair();
        let (from, mut to) = split(there);
        let mut from = BufReader::new(from);
        let huge = "x".repeat(MESSAGE_BYTES_MAX + 1);
        let talks = tokio::spawn(async move {
            for piece in [
                "{\n\n",
                &huge,
                "\n",
                "{\"jsonrpc\":\"2.0\",\"id\":1,",
                "\"method\":\"ping\"}\n",
            ] {
                to.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            to
        });
        let message = loop {
            tokio::select! {
                biased;
                message = lines.receive() => break message,
                () = tokio::task::yield_now() => {}
            }
        };
        assert!(matches!(
            message,
            Some(RxJsonRpcMessage::<RoleServer>::Request(_))
        ));
        assert_eq!(next(&mut from).await["error"]["code"], -32_700);
        assert_eq!(next(&mut from).await["error"]["code"], -32_600);
        drop(talks.await.unwrap());
        drop(from);
        assert!(lines.receive().await.is_none());
        lines.close().await.unwrap();
    }

    // An agent that can no longer read answers is gone, even if it keeps the other direction open.
    // The program must then end and not wait until it is killed.
    #[tokio::test]
    async fn receive_ends_when_the_output_is_closed() {
        let (read, _open) = duplex(64);
        let (write, closed) = duplex(64);
        drop(closed);
        let mut lines = Lines::new(read, write);
        lines.unsent = Some("x".repeat(1_000));
        assert!(lines.receive().await.is_none());
    }
}
