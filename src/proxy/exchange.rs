//! A forwarded request with its answer, and the call that is recorded from them.

use bytes::Bytes;
use serde_json::{Map, Value};
use treering_domain::TimestampMicros;
use treering_import::model_call::{CallFormat, ModelCall};

use super::{answer, decode::decoded, session};

/// A request, as its client sent it.
#[derive(Clone, Debug)]
pub(crate) struct SentRequest {
    pub(crate) format: CallFormat,
    pub(crate) body: Bytes,
    /// The `content-encoding` of the body.
    pub(crate) encoding: String,
    /// The conversation that its header names.
    pub(crate) conversation: Option<String>,
    /// The program that sent it, from `user-agent`.
    pub(crate) client: String,
    pub(crate) sent_at: TimestampMicros,
}

/// A request and its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) request: SentRequest,
    /// The body of the answer, as far as it arrived.
    pub(crate) answer: Bytes,
    /// Its `content-encoding`.
    pub(crate) encoding: String,
    /// Its `content-type`.
    pub(crate) content_type: String,
    pub(crate) answered_at: TimestampMicros,
}

/// The call in an exchange.
#[derive(Debug)]
pub(crate) struct RecordedCall {
    pub(crate) call: ModelCall,
    /// The id by which the client names its conversation.
    pub(crate) session: Option<String>,
    /// Facts about the client, for the conversation's metadata.
    pub(crate) meta: Map<String, Value>,
    pub(crate) sent_at: TimestampMicros,
    pub(crate) answered_at: TimestampMicros,
    pub(crate) is_interrupted: bool,
}

impl Exchange {
    /// Returns its size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.request.body.len() + self.answer.len()
    }

    /// Reads the exchange. `None` if it is not a call, or has no answer.
    pub(crate) fn read(self) -> Option<RecordedCall> {
        let format = self.request.format;
        let request = decoded(&self.request.body, &self.request.encoding)?;
        let request: Value = serde_json::from_slice(&request).ok()?;
        let body = decoded(&self.answer, &self.encoding)?;
        let is_stream = self.content_type.starts_with("text/event-stream");
        let answer = answer::read(format, &body, is_stream)?;
        let mut call = format.read(&request, &answer.value)?;
        call.answer.as_ref()?;
        let is_interrupted = !answer.is_complete;
        if is_interrupted {
            call.interrupt();
        }
        let mut meta = Map::new();
        meta.insert("api".into(), format.name().into());
        if !self.request.client.is_empty() {
            meta.insert("client".into(), self.request.client.into());
        }
        let named = || session::of_request(format, &request);
        Some(RecordedCall {
            call,
            session: self.request.conversation.or_else(named),
            meta,
            sent_at: self.request.sent_at,
            answered_at: self.answered_at,
            is_interrupted,
        })
    }
}
