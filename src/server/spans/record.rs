//! Appends what spans add to their conversations.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::state_cache::Conversations;
use crate::{
    bounds::{SPAN_APPEND_BYTES, SPAN_EVENTS_MAX, SPAN_TRIES},
    call::{Call, ServiceContext},
    guard::Caller,
    status::Refusal,
};
use treering_domain::{
    AppendCommand, BranchName, ConversationId, EventBody, Expectation, ExpectedRevision, Namespace,
    NewEvent, Rejection, Revision, Rule,
};
use treering_engine::{AppendError, Engine, EventSource, ReadError, ReadQuery, derived_id};
use treering_otel as otel;
use treering_otel::{Chat, Merge, MergeState, SOURCE, Start, ToolRun, Unit};
use treering_proto::body::{self, EncodedBody};

/// Spans with content.
#[derive(Default)]
pub(super) struct Batch {
    spans: Vec<OneSpan>,
    /// The index of the next span in its request.
    pub(super) next_at: usize,
}

/// A span with content.
pub(super) struct OneSpan {
    /// Its index in the request.
    pub(super) at: usize,
    name: String,
    service: String,
    what: SpanContent,
}

enum SpanContent {
    Chat(Box<Chat>),
    Run(Box<ToolRun>),
}

/// The outcome of recording spans.
#[derive(Default)]
pub(super) struct RecordOutcome {
    pub(crate) spans: usize,
    pub(crate) events: usize,
    /// Names of refused spans, and why they were refused.
    pub(crate) faults: Vec<(String, String)>,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Makes all spans of one conversation, by its id at the source.
    pub(crate) fn are_all_of(&mut self, conversation: &str) {
        for span in &mut self.spans {
            let of_span = match &mut span.what {
                SpanContent::Chat(chat) => &mut chat.conversation,
                SpanContent::Run(run) => &mut run.conversation,
            };
            *of_span = Some(conversation.to_owned());
        }
    }

    pub(crate) fn chat(&mut self, service: &str, name: String, chat: Chat) {
        self.push(service, name, SpanContent::Chat(Box::new(chat)));
    }

    pub(crate) fn run(&mut self, service: &str, name: String, run: ToolRun) {
        self.push(service, name, SpanContent::Run(Box::new(run)));
    }

    fn push(&mut self, service: &str, name: String, what: SpanContent) {
        self.spans.push(OneSpan {
            at: self.next_at,
            name,
            service: service.to_owned(),
            what,
        });
    }
}

impl OneSpan {
    fn conversation(&self) -> Option<&str> {
        match &self.what {
            SpanContent::Chat(chat) => chat.conversation.as_deref(),
            SpanContent::Run(run) => run.conversation.as_deref(),
        }
    }

    fn trace(&self) -> &str {
        match &self.what {
            SpanContent::Chat(chat) => &chat.trace_id,
            SpanContent::Run(run) => &run.trace_id,
        }
    }

    /// Returns the sort key: model calls in order of time, then tool runs, then agents' summaries
    /// of both.
    fn order(&self) -> (u8, i64) {
        match &self.what {
            SpanContent::Chat(chat) if !chat.is_agent => (0, chat.start.0),
            SpanContent::Run(run) => (1, run.end.0),
            SpanContent::Chat(chat) => (2, chat.start.0),
        }
    }
}

/// Appends what is new in spans.
///
/// # Errors
/// When the store cannot accept appends now; the exporter retries.
pub(super) async fn record(
    shared: &ServiceContext,
    conversations: &Conversations,
    call: &Call,
    batch: Batch,
) -> Result<RecordOutcome, Refusal> {
    let mut recorded = RecordOutcome {
        spans: batch.len(),
        ..RecordOutcome::default()
    };
    let namespace = &call.namespace;
    for (source_id, spans) in by_conversation(conversations, namespace, batch) {
        let there = shared.engine.of_source(namespace, SOURCE, &source_id).await;
        let there = there.map_err(AppendError::from)?;
        let id = there.unwrap_or_else(|| derived_id(namespace, "source", &[SOURCE, &source_id]));
        let service = spans.first().map(|span| span.service.clone());
        let start = Start {
            conversation: id,
            source_id,
            service: service.unwrap_or_default(),
        };
        let one = SpanConversation {
            engine: &shared.engine,
            caller: &call.caller,
            namespace,
            start,
        };
        let key = namespace.key(id);
        let entry = conversations.entry(key);
        let mut known = entry.lock().await;
        // The state is taken out of the cache, so that it is read again after a cancellation.
        let (now, outcome) = one.record(known.take(), spans).await;
        let bytes = now.as_ref().map_or(0, MergeState::bytes);
        *known = now;
        drop(known);
        drop(entry);
        conversations.settle(key, bytes);
        let (events, faults) = outcome?;
        recorded.events += events;
        recorded.faults.extend(faults);
    }
    Ok(recorded)
}

/// Groups spans by the source id of their conversation.
pub(super) fn by_conversation(
    conversations: &Conversations,
    namespace: &Namespace,
    mut batch: Batch,
) -> BTreeMap<String, Vec<OneSpan>> {
    batch.spans.sort_by_key(OneSpan::order);
    for span in &batch.spans {
        if let Some(id) = span.conversation() {
            conversations.note_trace(namespace, span.trace(), id);
        }
    }
    let mut by_id: BTreeMap<String, Vec<OneSpan>> = BTreeMap::new();
    for span in batch.spans {
        let id = match span.conversation() {
            Some(id) => id.to_owned(),
            None => by_trace(conversations, namespace, &span),
        };
        by_id.entry(id).or_default().push(span);
    }
    by_id
}

/// Returns the conversation of a span that names none: that of its trace. A model call without a
/// parent continues the conversation that contains its history.
fn by_trace(conversations: &Conversations, namespace: &Namespace, span: &OneSpan) -> String {
    let trace = span.trace();
    let known = conversations.of_trace(namespace, trace);
    let SpanContent::Chat(chat) = &span.what else {
        return known.unwrap_or_else(|| trace.to_owned());
    };
    let ends = otel::histories(chat, &span.service);
    let id = known.unwrap_or_else(|| {
        let mut before = ends.before.iter().rev().filter(|_| chat.is_root);
        let said_in = before.find_map(|end| conversations.of_history(namespace, *end));
        said_in.unwrap_or_else(|| trace.to_owned())
    });
    if id != trace {
        conversations.note_trace(namespace, trace, &id);
    }
    if let Some(end) = ends.whole.filter(|_| chat.is_root) {
        conversations.note_history(namespace, end, &id);
    }
    id
}

/// A conversation that spans belong to.
struct SpanConversation<'a> {
    engine: &'a Engine,
    caller: &'a Caller,
    namespace: &'a Namespace,
    start: Start,
}

/// The number of events, and the refused spans.
type Outcome = Result<(usize, Vec<(String, String)>), Refusal>;

/// Why not everything was appended.
enum AppendStop {
    /// Another writer was first.
    Moved,
    /// The conversation refuses it.
    Refused(Box<AppendError>),
    /// The store cannot accept it now.
    Unable(Box<Refusal>),
}

impl SpanConversation<'_> {
    /// Appends what the spans add. Returns the conversation's state if it matches the store.
    async fn record(
        &self,
        mut known: Option<MergeState>,
        mut spans: Vec<OneSpan>,
    ) -> (Option<MergeState>, Outcome) {
        let mut events = 0;
        for attempt in 1.. {
            let shape = match self.read(known.take()).await {
                Ok(shape) => shape,
                Err(error) => return (None, Err(AppendError::from(error).into())),
            };
            let heads = shape.heads();
            let last = shape.last();
            let start = self.start.clone();
            let planned = tokio::task::spawn_blocking(move || {
                let (shape, units) = plan(shape, &start, &spans);
                (shape, units, spans)
            });
            let Ok((shape, units, back)) = planned.await else {
                let message = "comparing the spans failed: send them again";
                return (None, Err(Refusal::unable(message)));
            };
            spans = back;
            let planned: usize = units.iter().map(|unit| unit.events.len()).sum();
            let mut appending = UnitAppender {
                one: self,
                heads,
                last,
            };
            match appending.all(units).await {
                Ok(()) => return (Some(shape), Ok((events + planned, Vec::new()))),
                Err((AppendStop::Moved, _)) if attempt < SPAN_TRIES => {
                    events += usize::try_from(appending.last.0 - last.0).unwrap_or_default();
                }
                Err((AppendStop::Moved, _)) => {
                    let message =
                        "other writers kept appending to the conversation: send the spans again";
                    return (None, Err(Refusal::unable(message)));
                }
                Err((AppendStop::Unable(refusal), _)) => return (None, Err(*refusal)),
                Err((AppendStop::Refused(error), left)) => {
                    let why = format!("not recorded: {error}");
                    let left: HashSet<_> = left.into_iter().collect();
                    let faults = left.iter().map(|at| (spans[*at].name.clone(), why.clone()));
                    let appended = usize::try_from(appending.last.0 - last.0).unwrap_or_default();
                    return (None, Ok((events + appended, faults.collect())));
                }
            }
        }
        (None, Ok((events, Vec::new())))
    }

    /// Reads the current state of the conversation.
    async fn read(&self, known: Option<MergeState>) -> Result<MergeState, ReadError> {
        use futures::StreamExt;
        let mut known = known.unwrap_or_default();
        let source = EventSource::Conversation(self.start.conversation);
        let mut query = ReadQuery::all(self.namespace.clone(), source);
        query.from = known.last().0 + 1;
        let mut batches = self.engine.read(query);
        while let Some(batch) = batches.next().await {
            match batch {
                Ok(batch) => batch.iter().for_each(|event| known.add(&event.event)),
                Err(ReadError::ConversationNotFound { .. }) => return Ok(MergeState::default()),
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }
}

fn plan(mut known: MergeState, start: &Start, spans: &[OneSpan]) -> (MergeState, Vec<Unit>) {
    let runs = spans.iter().filter_map(|span| match &span.what {
        SpanContent::Run(run) if !run.call_id.is_empty() => Some((**run).clone()),
        _ => None,
    });
    let mut merge = Merge::new(&mut known, start, runs);
    for (number, span) in spans.iter().enumerate() {
        merge.of_span(number, span.trace());
        match &span.what {
            SpanContent::Chat(chat) => merge.chat(chat),
            SpanContent::Run(run) => merge.tool(run),
        }
    }
    let units = merge.finish();
    (known, units)
}

/// Appends units to the store.
struct UnitAppender<'a> {
    one: &'a SpanConversation<'a>,
    /// The last event of each branch.
    heads: HashMap<BranchName, Revision>,
    last: Revision,
}

impl UnitAppender<'_> {
    /// Appends all units in as few batches as possible. On failure, returns the spans that are not
    /// fully appended.
    async fn all(&mut self, units: Vec<Unit>) -> Result<(), (AppendStop, Vec<usize>)> {
        let mut batch: Vec<NewEvent> = Vec::new();
        let mut bytes = 0;
        let mut spans: Vec<usize> = units.iter().map(|unit| unit.span).collect();
        let mut of_batch = 0;
        for unit in units {
            let size: usize = unit
                .events
                .iter()
                .map(|event| body::encode(&event.body).len())
                .sum();
            let is_full = batch.len() + unit.events.len() > SPAN_EVENTS_MAX
                || bytes + size > SPAN_APPEND_BYTES;
            if !batch.is_empty() && (unit.forks || is_full) {
                let next = std::mem::take(&mut batch);
                if let Err(stopped) = self.append(next).await {
                    return Err((stopped, spans));
                }
                spans.drain(..std::mem::take(&mut of_batch));
                bytes = 0;
            }
            bytes += size;
            of_batch += 1;
            batch.extend(unit.events);
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.append(batch).await.map_err(|stopped| (stopped, spans))
    }

    async fn append(&mut self, events: Vec<NewEvent>) -> Result<(), AppendStop> {
        let conversation = self.one.start.conversation;
        let expectations = self.expectations(conversation, &events);
        let names: Vec<_> = events.iter().map(|event| event.branch.clone()).collect();
        let mut signed = Vec::with_capacity(events.len());
        for event in events {
            signed.push(self.one.signed(event)?);
        }
        let mut command = AppendCommand::new(self.one.namespace.clone(), signed);
        command.expectations = expectations;
        let outcome = self.one.engine.append(command).await.map_err(stopped)?;
        let mut is_as_planned = true;
        for (name, appended) in names.into_iter().zip(&outcome.events) {
            is_as_planned &= appended.revision.0 == self.last.0 + 1;
            self.last = appended.revision;
            self.heads
                .insert(name.unwrap_or_default(), appended.revision);
        }
        // Revisions that the following units refer to may now be other events.
        is_as_planned.then_some(()).ok_or(AppendStop::Moved)
    }

    /// Returns the expectation that nobody else has appended to the branches that the events
    /// continue.
    fn expectations(&self, conversation: ConversationId, events: &[NewEvent]) -> Vec<Expectation> {
        let creates = matches!(
            events.first().map(|event| &event.body),
            Some(EventBody::ConversationCreated(_))
        );
        if creates {
            return vec![Expectation {
                conversation,
                branch: None,
                expected: ExpectedRevision::NoStream,
            }];
        }
        let mut names: Vec<_> = events
            .iter()
            .filter_map(|event| event.branch.clone())
            .collect();
        names.sort();
        names.dedup();
        let of = |name: BranchName| {
            let head = *self.heads.get(&name)?;
            Some(Expectation {
                conversation,
                branch: Some(name),
                expected: ExpectedRevision::Exact(head),
            })
        };
        names.into_iter().filter_map(of).collect()
    }
}

impl SpanConversation<'_> {
    fn signed(&self, event: NewEvent) -> Result<NewEvent<EncodedBody>, AppendStop> {
        let encoded = event.try_map(|body| EncodedBody::received(body.kind(), body::encode(&body)));
        let mut event = encoded.map_err(|fault| {
            AppendStop::Refused(Box::new(AppendError::Invalid {
                event_index: 0,
                message: fault.to_string(),
            }))
        })?;
        event.actor.clone_from(&self.start.service);
        let signed = self.caller.sign(&mut event);
        signed.map_err(|refusal| AppendStop::Unable(Box::new(refusal)))?;
        Ok(event)
    }
}

fn stopped(error: AppendError) -> AppendStop {
    match error {
        AppendError::Rejected(Rejection {
            rule:
                Rule::RevisionMismatch { .. }
                | Rule::ConversationExists { .. }
                | Rule::BranchNameTaken { .. }
                | Rule::BranchNotFound { .. },
            ..
        }) => AppendStop::Moved,
        AppendError::Rejected(_) | AppendError::Invalid { .. } | AppendError::TooLarge { .. } => {
            AppendStop::Refused(Box::new(error))
        }
        // Repeating is safe here, whatever the outcome.
        AppendError::UnknownOutcome { message } => {
            AppendStop::Unable(Box::new(Refusal::unable(&message)))
        }
        other => AppendStop::Unable(Box::new(other.into())),
    }
}
