//! The OTLP receiver: turns spans of agents into conversations.
//!
//! `values` converts the spans of an exporter to plain values, the crate `otel` parses them and
//! computes what a conversation lacks, and `record` appends it. An answer means that everything is
//! on disk. An exporter that gets no answer sends the spans again; nothing is appended twice.

mod record;
mod split;
mod state_cache;
mod values;

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderName, HeaderValue};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess,
    trace_service_server::{TraceService, TraceServiceServer},
};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::{Request, Response, Status};

use super::{
    bounds::{ERROR_TEXT_BYTES_MAX, SPAN_FAULTS_TOLD, SPAN_VALUES_MAX, SPANS_MAX},
    call::{Call, ServiceContext},
};
pub(crate) use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use record::{Batch, RecordOutcome};
pub(crate) use split::SplitSpans;
pub(crate) use state_cache::Conversations;
use treering_otel as otel;
use treering_otel::{Span, SpanMeaning, ValueAllowance};

/// The files of the crate's descriptors that describe traces; the others belong to services that
/// are not served.
const FILES: [&str; 4] = [
    "opentelemetry/proto/common/v1/common.proto",
    "opentelemetry/proto/resource/v1/resource.proto",
    "opentelemetry/proto/trace/v1/trace.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

/// The metadata key by which a node of a cluster names the conversation of all spans of a request.
pub(super) const CONVERSATION_KEY: HeaderName =
    HeaderName::from_static("treering-spans-conversation");

/// Encodes an id for that header: ids may be non-ASCII, headers may not.
pub(super) fn conversation_word(id: &str) -> HeaderValue {
    // Base64 is valid in a header.
    HeaderValue::try_from(STANDARD_NO_PAD.encode(id)).unwrap_or(HeaderValue::from_static(""))
}

fn told_conversation<T>(request: &Request<T>) -> Option<String> {
    let word = request.metadata().get(CONVERSATION_KEY.as_str())?;
    String::from_utf8(STANDARD_NO_PAD.decode(word.as_bytes()).ok()?).ok()
}

/// Returns the descriptors of the service.
pub(super) fn descriptors() -> &'static [u8] {
    static DESCRIPTORS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        // A test would detect a damaged set, since the method would have no descriptor.
        let all = FileDescriptorSet::decode(opentelemetry_proto::DESCRIPTORS);
        let mut all = all.unwrap_or_default();
        all.file.retain(|file| FILES.contains(&file.name()));
        all.encode_to_vec()
    });
    &DESCRIPTORS
}

/// Returns the service, with empty caches.
pub(super) fn server(shared: ServiceContext) -> TraceServiceServer<SpansService> {
    TraceServiceServer::new(SpansService {
        shared,
        conversations: Conversations::default(),
    })
}

/// The OTLP trace service.
pub(super) struct SpansService {
    shared: ServiceContext,
    conversations: Conversations,
}

#[tonic::async_trait]
impl TraceService for SpansService {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let call = Call::of(&request)?;
        let conversation = told_conversation(&request);
        let request = request.into_inner();
        let read = tokio::task::spawn_blocking(move || ParsedSpans::of(request));
        let mut read = read
            .await
            .map_err(|_| Status::unavailable("reading the spans failed: send them again"))?;
        let mut batch = std::mem::take(&mut read.batch);
        if let Some(conversation) = conversation {
            batch.are_all_of(&conversation);
        }
        let recorded = record::record(&self.shared, &self.conversations, &call, batch).await?;
        Ok(Response::new(read.answer(recorded)))
    }
}

/// The parsed spans of a request.
#[derive(Default)]
struct ParsedSpans {
    batch: Batch,
    /// Names of invalid spans, and what is wrong with them.
    faults: Vec<(String, String)>,
    without_content: usize,
}

impl ParsedSpans {
    fn of(request: ExportTraceServiceRequest) -> Self {
        let mut read = Self::default();
        let mut room = ValueAllowance::new(SPAN_VALUES_MAX);
        let mut at = 0;
        for of_resource in request.resource_spans {
            let service = values::service(of_resource.resource.as_ref());
            let scopes = of_resource.scope_spans.into_iter();
            for span in scopes.flat_map(|scope| scope.spans) {
                if let Some((name, span)) = values::span(span) {
                    read.batch.next_at = at;
                    read.take(&service, name, &span, &mut room);
                }
                at += 1;
            }
        }
        read
    }

    fn take(&mut self, service: &str, name: String, span: &Span, room: &mut ValueAllowance) {
        if self.batch.len() >= SPANS_MAX {
            let why = format!("a request may have at most {SPANS_MAX} spans: send fewer at once");
            return self.faults.push((name, why));
        }
        match otel::read(span, room) {
            Ok(SpanMeaning::Chat(chat)) => self.batch.chat(service, name, *chat),
            Ok(SpanMeaning::Tool(run)) => self.batch.run(service, name, *run),
            Ok(SpanMeaning::WithoutContent) => self.without_content += 1,
            Ok(SpanMeaning::Other) => {}
            Err(fault) => self.faults.push((name, fault.to_string())),
        }
    }

    /// Returns the answer. Spans with any part that was not stored count as rejected; everything
    /// else is reported as a warning.
    fn answer(self, recorded: RecordOutcome) -> ExportTraceServiceResponse {
        let mut faults = self.faults;
        faults.extend(recorded.faults);
        let refused = i64::try_from(faults.len()).unwrap_or(i64::MAX);
        let mut told: Vec<_> = faults
            .iter()
            .take(SPAN_FAULTS_TOLD)
            .map(|(name, why)| format!("span {name:?}: {why}"))
            .collect();
        if faults.len() > told.len() {
            told.push(format!("and {} more", faults.len() - told.len()));
        }
        if self.without_content > 0 {
            told.push(format!(
                "{} model calls have no messages, so nothing of them is recorded: let the \
                 instrumentation capture content (usually with \
                 OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)",
                self.without_content
            ));
        }
        tracing::debug!(
            spans = recorded.spans,
            events = recorded.events,
            refused,
            without_content = self.without_content,
            "spans recorded"
        );
        let partial_success = (!told.is_empty()).then(|| ExportTracePartialSuccess {
            rejected_spans: refused,
            error_message: shortened(told.join("; ")),
        });
        ExportTraceServiceResponse { partial_success }
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > ERROR_TEXT_BYTES_MAX {
        let mut ends = (0..=ERROR_TEXT_BYTES_MAX).rev();
        let end = ends.find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}
