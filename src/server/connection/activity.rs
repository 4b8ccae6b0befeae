//! The activity of a connection: its running calls, or when it became idle.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use tokio::{sync::Notify, time::Instant};
use tracing::Span;

use crate::{guard::TrafficCounter, measures::CallWatch};

/// Shared by a connection, its calls and the acceptor.
#[derive(Debug)]
pub(super) struct Activity {
    calls: Mutex<Calls>,
    ending: AtomicBool,
    shaking: AtomicBool,
    pub(crate) asked_to_end: Notify,
    pub(crate) accepted: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Calls {
    running: usize,
    ever: bool,
    /// The end of the last call; before the first one, the start of the connection.
    since: Instant,
}

/// When a connection became idle. If there are too many connections, the one with the smallest
/// value is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IdleSince {
    /// Whether it ever had a call; false sorts first.
    pub(crate) ever_called: bool,
    pub(crate) since: Instant,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        let now = Instant::now();
        let calls = Calls {
            running: 0,
            ever: false,
            since: now,
        };
        Arc::new(Self {
            calls: Mutex::new(calls),
            ending: AtomicBool::new(false),
            shaking: AtomicBool::new(false),
            asked_to_end: Notify::new(),
            accepted: now,
        })
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the connection became idle, or `None` while a call runs.
    pub(crate) fn idle(&self) -> Option<IdleSince> {
        let calls = *self.calls();
        (calls.running == 0).then_some(IdleSince {
            ever_called: calls.ever,
            since: calls.since,
        })
    }

    /// Starts a call, which ends when the returned value is dropped.
    pub(crate) fn call(self: &Arc<Self>) -> RunningCall {
        let mut calls = self.calls();
        calls.running += 1;
        calls.ever = true;
        RunningCall(Arc::clone(self))
    }

    /// Asks the connection to end. Returns false when it was asked before.
    pub(crate) fn end(&self) -> bool {
        let first = !self.ending.swap(true, Ordering::Relaxed);
        self.asked_to_end.notify_one();
        first
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Records that its TLS handshake begins or has ended.
    pub(crate) fn shake_hands(&self, begins: bool) {
        self.shaking.store(begins, Ordering::Relaxed);
    }

    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.shaking.load(Ordering::Relaxed)
    }
}

/// A running call, until its answer is complete.
#[derive(Debug)]
pub(crate) struct RunningCall(Arc<Activity>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.0.calls();
        calls.running -= 1;
        calls.since = Instant::now();
    }
}

/// An answer; its call runs until it is sent or abandoned.
pub(crate) struct Answer {
    body: tonic::body::Body,
    _running: RunningCall,
    watch: Option<CallWatch>,
    /// The key that receives it, or `None` without keys.
    reader: Option<TrafficCounter>,
}

impl Answer {
    pub(super) fn new(
        body: tonic::body::Body,
        running: RunningCall,
        watch: Option<CallWatch>,
    ) -> Self {
        Self {
            body,
            _running: running,
            watch,
            reader: None,
        }
    }

    /// Counts the answer as read with this key.
    pub(super) fn to(self, reader: Option<TrafficCounter>) -> Self {
        Self { reader, ..self }
    }
}

impl Body for Answer {
    type Data = bytes::Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        // A stream does its work while it is polled.
        let span = self.watch.as_ref().map_or_else(Span::none, CallWatch::span);
        let polled = span.in_scope(|| Pin::new(&mut self.body).poll_frame(cx));
        if let (Poll::Ready(Some(Ok(frame))), Some(watch)) = (&polled, &mut self.watch) {
            match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => watch.sends(data.len()),
                (None, Some(trailers)) => watch.trailers(trailers),
                (None, None) => {}
            }
        }
        if let (Poll::Ready(Some(Ok(frame))), Some(reader)) = (&polled, &self.reader)
            && let Some(data) = frame.data_ref()
        {
            reader.sends(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
