//! Splits the spans of a request by conversation, so that the owner of each conversation's shard
//! records its own. One node does this for a namespace, so that it knows the traces.

use std::collections::HashMap;

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
    trace::v1::{ResourceSpans, ScopeSpans},
};

use super::{ParsedSpans, record, shortened, state_cache::Conversations};
use treering_domain::Namespace;

/// The spans of a request, by conversation.
pub(crate) struct SplitSpans {
    /// The ids of the conversations at their source, and their spans.
    pub(crate) parts: Vec<(String, ExportTraceServiceRequest)>,
    read: ParsedSpans,
}

impl SplitSpans {
    /// Splits a request.
    pub(crate) fn of(
        conversations: &Conversations,
        namespace: &Namespace,
        request: ExportTraceServiceRequest,
    ) -> Self {
        let mut read = ParsedSpans::of(request.clone());
        let batch = std::mem::take(&mut read.batch);
        let mut places = HashMap::new();
        let mut names = Vec::new();
        for (name, spans) in record::by_conversation(conversations, namespace, batch) {
            places.extend(spans.iter().map(|span| (span.at, names.len())));
            names.push(name);
        }
        let mut parts = vec![ExportTraceServiceRequest::default(); names.len()];
        let mut at = 0;
        for of_resource in request.resource_spans {
            for of_scope in of_resource.scope_spans {
                for span in of_scope.spans {
                    if let Some(part) = places.get(&at).and_then(|part| parts.get_mut(*part)) {
                        part.resource_spans.push(ResourceSpans {
                            resource: of_resource.resource.clone(),
                            scope_spans: vec![ScopeSpans {
                                spans: vec![span],
                                ..ScopeSpans::default()
                            }],
                            ..ResourceSpans::default()
                        });
                    }
                    at += 1;
                }
            }
        }
        let parts = names.into_iter().zip(parts).collect();
        Self { parts, read }
    }

    /// Returns the answer to the whole request. `recorded` are those to its parts.
    pub(crate) fn answer(
        self,
        recorded: impl IntoIterator<Item = ExportTraceServiceResponse>,
    ) -> ExportTraceServiceResponse {
        let own = self.read.answer(record::RecordOutcome::default());
        let all = recorded.into_iter().chain([own]);
        let mut refused = 0;
        let mut told = Vec::new();
        for part in all.filter_map(|answer| answer.partial_success) {
            refused += part.rejected_spans;
            told.push(part.error_message);
        }
        let partial_success = (!told.is_empty()).then(|| ExportTracePartialSuccess {
            rejected_spans: refused,
            error_message: shortened(told.join("; ")),
        });
        ExportTraceServiceResponse { partial_success }
    }
}
