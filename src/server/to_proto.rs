//! Converts the engine's answers to messages.

use bytes::Bytes;
use prost_types::Timestamp;

use treering_domain::{
    AppendOutcome, AppendedEvent, ApprovalStatus, BranchId, BranchState, CancelReason, Config,
    ContentHash, ContextSet, ConversationId, Damage, Entity, EventRef, OpenCall, ParentRef,
    Revision, TimestampMicros,
};
use treering_engine as engine;
use treering_engine::{
    BranchDiff, BranchValues, CallStatus, ConversationHits, ConversationSummary, ConversationView,
    ForkOutcome, Hit, HitDetails, HitDuplicate, Lineage, ListPlace, NamedEvent, QuerySyntax,
    RewindOutcome, Scores, SearchAnswer, SearchHit, Stats, ToolCall, VectorStats,
};
use treering_proto::{
    body,
    envelope::{event_to_pb, position_to_pb, timestamp_to_pb},
    pb,
};

/// Returns the token of the next page.
pub(super) fn page_token(next: Option<ListPlace>) -> String {
    let Some(place) = next else {
        return String::new();
    };
    let offset = place.first_offset;
    match place.happened_to.0 {
        0 => format!("{offset:x}"),
        time => format!("{offset:x}@{time}"),
    }
}

pub(super) fn appended(appended: &AppendedEvent) -> pb::Appended {
    pb::Appended {
        event_id: appended.event.to_string(),
        conversation_id: appended.conversation.to_string(),
        branch_id: appended.branch.0,
        revision: appended.revision.0,
        position: Some(position_to_pb(appended.position)),
        known: false,
    }
}

pub(super) fn append_response(outcome: &AppendOutcome) -> pb::AppendResponse {
    let mut events: Vec<_> = outcome.events.iter().map(appended).collect();
    for known in &outcome.known {
        if let Some(event) = events.get_mut(*known) {
            event.known = true;
        }
    }
    pb::AppendResponse {
        events,
        repeated_key: outcome.repeated_key,
        warnings: outcome.warnings.clone(),
        created: outcome.created.as_ref().map(appended),
    }
}

pub(super) fn event(named: &NamedEvent, headers_only: bool) -> pb::Event {
    let branch = named.branch.as_ref().map(|name| name.as_str());
    event_to_pb(&named.event, branch, !headers_only)
}

fn number(revision: Option<Revision>) -> u64 {
    revision.map_or(0, |revision| revision.0)
}

fn time(time: Option<TimestampMicros>) -> Option<Timestamp> {
    time.map(timestamp_to_pb)
}

fn hash(hash: ContentHash) -> Bytes {
    Bytes::copy_from_slice(&hash.0)
}

pub(super) fn event_ref(at: EventRef) -> pb::EventRef {
    pb::EventRef {
        conversation_id: at.conversation.to_string(),
        revision: at.revision.0,
    }
}

fn config(config: &Config) -> pb::Config {
    pb::Config {
        model_id: config.model_id.clone(),
        mode: config.mode.clone(),
        parameters: config.parameters.clone().into_iter().collect(),
    }
}

fn parent(parent: &ParentRef) -> pb::ParentRef {
    pb::ParentRef {
        conversation_id: parent.conversation.to_string(),
        branch_id: parent.branch.0,
        revision: parent.revision.0,
        call_id: parent.call_id.clone(),
    }
}

/// Converts a conversation's summary. It lacks details (config, source description) that only
/// `conversation` returns.
pub(super) fn summary(summary: &ConversationSummary) -> pb::ConversationSummary {
    let info = &summary.info;
    pb::ConversationSummary {
        conversation_id: summary.id.to_string(),
        title: info.title.clone(),
        source: info.source.clone(),
        source_id: info.source_id.clone(),
        labels: info.labels.clone().into_iter().collect(),
        metadata: info.metadata.clone().into_iter().collect(),
        config: None,
        parent: info.parent.as_ref().map(parent),
        shares_history: info.shares_history,
        head: summary.head.0,
        branch_count: summary.branch_count,
        active_branch_id: summary.active.0,
        active_branch: summary.active_name.to_string(),
        sealed: summary.sealed,
        created_at: Some(timestamp_to_pb(summary.created_at)),
        updated_at: Some(timestamp_to_pb(summary.updated_at)),
        happened_from: Some(timestamp_to_pb(summary.happened_from)),
        happened_to: Some(timestamp_to_pb(summary.happened_to)),
        source_meta: Bytes::new(),
        policies: info.policies.clone().into_iter().collect(),
        damage: summary.damage.as_deref().map(damage),
    }
}

fn damage(damage: &Damage) -> pb::Damage {
    pb::Damage {
        revision: damage.revision.0,
        position: Some(position_to_pb(damage.position)),
        what: damage.what.clone(),
    }
}

pub(super) fn branch_values(values: BranchValues) -> pb::BranchValues {
    let key_and_text = |set: ContextSet| (set.key, set.value.as_str().to_owned());
    pb::BranchValues {
        system_prompt: values.system_prompt.map(|prompt| prompt.content),
        user_prompt: values.user_prompt.map(|prompt| prompt.content),
        tools_defined: body::tools_to_pb(&values.tools_defined),
        summary: values.summary.map(|summary| summary.content),
        compaction: values.compaction.map(|compacted| compacted.summary),
        active_context: values
            .active_context
            .into_iter()
            .map(key_and_text)
            .collect(),
        left_out: values.left_out,
    }
}

pub(super) fn conversation(view: &ConversationView, source_meta: Bytes) -> pb::ConversationState {
    let active = view.summary.active;
    let branches = view.branches.iter();
    pb::ConversationState {
        summary: Some(pb::ConversationSummary {
            config: Some(config(&view.branch.config)),
            source_meta,
            ..summary(&view.summary)
        }),
        branches: branches.map(|state| branch(state, active)).collect(),
        branch: Some(branch_state(&view.branch)),
        more_branches: view.more_branches,
        values: None,
    }
}

/// Converts a branch. For the first branch of a forked conversation, the fork is in the
/// conversation's parent, not here.
pub(super) fn branch(state: &BranchState, active: BranchId) -> pb::Branch {
    let fork = state.fork.filter(|_| state.id != BranchId::MAIN);
    pb::Branch {
        branch_id: state.id.0,
        name: state.name.to_string(),
        parent_branch_id: fork.map_or(0, |fork| fork.branch.0),
        fork_revision: fork.map_or(0, |fork| fork.revision.0),
        head: state.head.0,
        archived: state.archived,
        active: state.id == active,
    }
}

fn branch_state(state: &BranchState) -> pb::BranchState {
    let refer = |at: Option<EventRef>| at.map(event_ref);
    let context = state.active_context.iter();
    pb::BranchState {
        branch_id: state.id.0,
        name: state.name.to_string(),
        head: state.head.0,
        open_calls: state
            .open_calls
            .iter()
            .map(|(id, call)| open_call(id, call))
            .collect(),
        system_prompt: refer(state.system_prompt),
        user_prompt: refer(state.user_prompt),
        active_context: context
            .map(|(key, at)| (key.clone(), event_ref(*at)))
            .collect(),
        discovered_tools: state.memory.discovered_tools.clone(),
        guidance_given: state.memory.guidance_given.clone(),
        entities: state.memory.entities.iter().map(entity).collect(),
        tool_uses: state.memory.tool_uses.clone().into_iter().collect(),
        tools_defined: refer(state.tools_defined),
        summary: refer(state.summary),
        compaction: refer(state.compaction),
        cut_revision: state.cut.0,
        finished_turns: state.turn.finished,
        turn_open: state.turn.open_since.is_some() && !state.at_turn_boundary(),
        config: Some(config(&state.config)),
    }
}

fn entity(entity: &Entity) -> pb::Entity {
    pb::Entity {
        id: entity.id.clone(),
        kind: entity.kind.clone(),
        name: entity.name.clone(),
    }
}

fn open_call(call_id: &str, call: &OpenCall) -> pb::OpenCall {
    pb::OpenCall {
        call_id: call_id.to_owned(),
        tool: call.tool.clone(),
        request: Some(event_ref(call.request)),
        approval: approval(call.approval).into(),
        arguments_hash: hash(call.arguments_hash),
        started: call.started,
    }
}

fn approval(status: ApprovalStatus) -> pb::ApprovalStatus {
    match status {
        ApprovalStatus::NotRequired => pb::ApprovalStatus::NotRequired,
        ApprovalStatus::Pending => pb::ApprovalStatus::Pending,
        ApprovalStatus::Approved => pb::ApprovalStatus::Approved,
        ApprovalStatus::Denied => pb::ApprovalStatus::Denied,
        ApprovalStatus::Expired => pb::ApprovalStatus::Expired,
    }
}

pub(super) fn fork_response(forked: &ForkOutcome, active: BranchId) -> pb::ForkResponse {
    pb::ForkResponse {
        conversation_id: forked.conversation.to_string(),
        branch: Some(branch(&forked.branch, active)),
        events: forked.events.iter().map(appended).collect(),
    }
}

/// Converts the result of a rewind, with the newest of the removed events that fit.
pub(super) fn rewound(
    rewound: &RewindOutcome,
    headers_only: bool,
    bytes_max: usize,
) -> pb::RewindResponse {
    let mut room = bytes_max;
    let fits = |named: &&NamedEvent| {
        let bytes = named.event.body.len();
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    };
    let mut went: Vec<_> = rewound.went.iter().rev().take_while(fits).collect();
    went.reverse();
    let active = rewound.active;
    pb::RewindResponse {
        branch: Some(branch(&rewound.branch, active)),
        kept: rewound.kept.as_ref().map(|kept| branch(kept, active)),
        events: rewound.events.iter().map(appended).collect(),
        truncated: rewound.truncated || went.len() < rewound.went.len(),
        went: went
            .into_iter()
            .map(|named| event(named, headers_only))
            .collect(),
        repeated_key: rewound.repeated_key,
    }
}

pub(super) fn lineage(lineage: &Lineage) -> pb::LineageResponse {
    let next = lineage.steps.iter().skip(1).map(Some).chain([None]);
    let steps = lineage.steps.iter().zip(next).map(|(step, next)| {
        // A fork from another conversation restarts the revisions.
        let here = next.is_some_and(|next| next.conversation == step.conversation);
        pb::LineageStep {
            conversation_id: step.conversation.to_string(),
            branch_id: step.branch.0,
            name: step.name.to_string(),
            from_revision: if here { step.forked_at.0 } else { 0 },
            to_revision: step.up_to.0,
        }
    });
    pb::LineageResponse {
        steps: steps.collect(),
        children: lineage.children.iter().map(ToString::to_string).collect(),
    }
}

/// Converts a comparison of two branches, with at most `bytes_max` of bodies: the first events of
/// both sides, alternating.
pub(super) fn diff(diff: &BranchDiff, headers_only: bool, bytes_max: usize) -> pb::DiffResponse {
    let mut room = bytes_max;
    let mut sides = [Vec::new(), Vec::new()];
    let mut truncated = diff.truncated;
    let longest = diff.left.len().max(diff.right.len());
    'fill: for index in 0..longest {
        for (side, events) in sides.iter_mut().zip([&diff.left, &diff.right]) {
            let Some(named) = events.get(index) else {
                continue;
            };
            let bytes = named.event.body.len();
            if bytes > room && !headers_only {
                truncated = true;
                break 'fill;
            }
            room = room.saturating_sub(bytes);
            side.push(event(named, headers_only));
        }
    }
    let [left, right] = sides;
    let (conversation, revision) = diff.ancestor.unzip();
    pb::DiffResponse {
        ancestor_conversation_id: conversation.as_ref().map_or_else(String::new, id_text),
        ancestor_revision: number(revision),
        left,
        right,
        truncated,
    }
}

fn id_text(id: &ConversationId) -> String {
    id.to_string()
}

fn call_status(status: CallStatus) -> pb::CallStatus {
    match status {
        CallStatus::Requested => pb::CallStatus::Requested,
        CallStatus::PendingApproval => pb::CallStatus::PendingApproval,
        CallStatus::Approved => pb::CallStatus::Approved,
        CallStatus::Denied => pb::CallStatus::Denied,
        CallStatus::Expired => pb::CallStatus::Expired,
        CallStatus::Started => pb::CallStatus::Started,
        CallStatus::Succeeded => pb::CallStatus::Succeeded,
        CallStatus::Failed => pb::CallStatus::Failed,
        CallStatus::Cancelled => pb::CallStatus::Cancelled,
    }
}

fn cancel_reason(reason: Option<CancelReason>) -> pb::CancelReason {
    match reason {
        None => pb::CancelReason::Unspecified,
        Some(CancelReason::Denied) => pb::CancelReason::Denied,
        Some(CancelReason::Interrupted) => pb::CancelReason::Interrupted,
        Some(CancelReason::TimedOut) => pb::CancelReason::TimedOut,
        Some(CancelReason::Superseded) => pb::CancelReason::Superseded,
    }
}

pub(super) fn tool_call(call: ToolCall) -> pb::ToolCall {
    pb::ToolCall {
        conversation_id: call.conversation.to_string(),
        branch_id: call.branch.0,
        branch: call.branch_name.to_string(),
        call_id: call.call_id,
        tool: call.tool,
        arguments: call.arguments.as_bytes().clone(),
        arguments_hash: hash(call.arguments_hash),
        request_revision: call.request_revision.0,
        status: call_status(call.status).into(),
        approval: approval(call.approval).into(),
        decided_by: call.decided_by,
        decision_reason: call.decision_reason,
        decision_revision: number(call.decision_revision),
        started_revision: number(call.started_revision),
        end_revision: number(call.end_revision),
        error_message: call.error_message,
        execution_time_ms: call.execution_time_ms,
        result_bytes: call.result_bytes,
        result_head: call.result_head,
        requested_at: Some(timestamp_to_pb(call.requested_at)),
        ended_at: time(call.ended_at),
        cancel_reason: cancel_reason(call.cancel_reason).into(),
        arguments_not_json: call.arguments_not_json,
        item_id: call.item_id,
    }
}

pub(super) fn search_response(answer: SearchAnswer) -> pb::SearchResponse {
    let SearchAnswer {
        hits,
        total,
        more_than_total,
        reached,
        complete,
        events_missing,
        read_as,
        parts_only,
        hidden,
        conversations,
        lagging,
        // Only the merging of shards uses these.
        checked: _,
        pool: _,
    } = answer;
    pb::SearchResponse {
        hits: hits.into_iter().map(search_hit).collect(),
        indexed_to: Some(position_to_pb(reached)),
        total,
        more_than_total,
        lagging: lagging.unwrap_or_default(),
        complete,
        events_missing,
        parts_only,
        hidden: hidden.map(|hit| search_hit(*hit)),
        conversations: conversations.into_iter().map(conversation_hits).collect(),
        read_as: match read_as {
            QuerySyntax::Query => pb::QueryMode::Query.into(),
            QuerySyntax::Guess | QuerySyntax::Plain => pb::QueryMode::Plain.into(),
        },
    }
}

fn conversation_hits(hits: ConversationHits) -> pb::ConversationHits {
    pb::ConversationHits {
        conversation_id: hits.conversation.to_string(),
        source_id: hits.source_id,
        title: hits.title,
        hits: hits.hits,
        score: hits.score,
    }
}

/// Writes the parts of a score.
pub(super) fn scores_to_pb(scores: Scores) -> pb::SearchScores {
    pb::SearchScores {
        words: scores.words,
        order: scores.order,
        nearness: scores.nearness,
        names: scores.names,
        shortness: scores.shortness,
        kind: scores.kind,
        meaning: scores.meaning,
    }
}

fn search_hit(hit: SearchHit) -> pb::SearchHit {
    let offset = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let highlight = |range: &std::ops::Range<usize>| pb::Highlight {
        start: offset(range.start),
        end: offset(range.end),
    };
    let SearchHit {
        found,
        details,
        source_id,
        title,
        branch_name,
        copies,
        copies_at,
    } = hit;
    let Hit {
        conversation,
        branch,
        revision,
        position,
        kind,
        tool,
        success,
        recalled,
        recorded_at,
        happened_at,
        score,
        scores,
        phrase_score: together,
        // Only the engine uses these.
        text_hash: _,
        byte_start: _,
        window: _,
        tier: _,
        is_reranked: _,
        as_typed: _,
    } = found;
    let HitDetails {
        snippet,
        highlights,
        line,
        byte_start,
        byte_end,
        passage,
        role,
        in_reasoning,
        call_id,
        path,
        command,
        quotes,
        context,
        context_line,
    } = details;
    pb::SearchHit {
        conversation_id: conversation.to_string(),
        source_id,
        branch_id: branch.0,
        branch: branch_name.to_string(),
        revision: revision.0,
        kind: kind.number().into(),
        call_id,
        tool,
        success,
        score,
        line,
        byte_start,
        byte_end,
        snippet,
        highlights: highlights.iter().map(highlight).collect(),
        recorded_at: Some(timestamp_to_pb(recorded_at)),
        position: Some(position_to_pb(position)),
        happened_at: Some(timestamp_to_pb(happened_at)),
        passage_line: passage.line,
        passage_byte_start: passage.byte_start,
        passage_byte_end: passage.byte_end,
        role: role.map_or(0, |role| body::role_to_pb(role).into()),
        title,
        path,
        command,
        scores: Some(scores_to_pb(scores)),
        context,
        context_line,
        in_reasoning,
        together,
        copies,
        copies_at: copies_at.into_iter().map(hit_copy).collect(),
        recalled,
        quotes,
    }
}

fn hit_copy(copy: HitDuplicate) -> pb::HitCopy {
    pb::HitCopy {
        conversation_id: copy.conversation.to_string(),
        source_id: copy.source_id,
        revision: copy.revision.0,
    }
}

pub(super) fn stats(stats: Stats, met: Option<engine::DamageMet>) -> pb::StatsResponse {
    pb::StatsResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        conversations: stats.conversations,
        branches: stats.branches,
        events: stats.events,
        pending_approvals: stats.pending_approvals,
        head: Some(position_to_pb(stats.head)),
        views_reached: Some(position_to_pb(stats.views_reached)),
        index_reached: Some(position_to_pb(stats.index_reached)),
        log_bytes: stats.log_bytes,
        views_bytes: stats.views_bytes,
        index_bytes: stats.index_bytes,
        log_segments: stats.log_segments,
        indexed_documents: stats.indexed_documents,
        vectors: stats.vectors.map(vector_stats),
        events_by_kind: stats.events_by_kind.into_iter().collect(),
        event_bytes: stats.used.bytes,
        quota_bytes: stats.quota.bytes,
        quota_conversations: stats.quota.conversations,
        data_dir: stats.data_dir,
        started_at: Some(timestamp_to_pb(stats.started_at)),
        damaged_reads: met.as_ref().map_or(0, |met| met.reads),
        first_damage: met.map_or_else(String::new, |met| met.first.to_string()),
        damaged_conversations: stats.damaged_conversations,
        unreadable_positions: stats.unreadable_positions,
        resident_bytes: None,
        mapped_bytes: None,
    }
}

fn vector_stats(stats: VectorStats) -> pb::VectorStats {
    pb::VectorStats {
        model: stats.model,
        previous_model: stats.previous_model,
        passages: stats.passages,
        embedded: stats.embedded,
        vectors: stats.vectors,
        bytes: stats.bytes,
        failure: stats.failure,
    }
}

fn progress(progress: &engine::Progress) -> pb::Progress {
    pb::Progress {
        what: progress.what.to_owned(),
        done: progress.done,
        total: progress.total,
    }
}

pub(super) fn verify_response(item: engine::VerifyItem) -> pb::VerifyResponse {
    use pb::verify_response::Item;
    let item = match item {
        engine::VerifyItem::Progress(at) => Item::Progress(progress(&at)),
        engine::VerifyItem::Fault(fault) => Item::Fault(pb::Fault {
            part: fault.part.to_owned(),
            position: fault.position.map(position_to_pb),
            conversation_id: fault
                .conversation
                .as_ref()
                .map_or_else(String::new, id_text),
            revision: number(fault.revision),
            message: fault.message,
        }),
        engine::VerifyItem::Outcome(outcome) => Item::Outcome(pb::VerifyOutcome {
            sound: outcome.sound,
            events: outcome.events,
            conversations: outcome.conversations,
            blobs: outcome.blobs,
            faults: outcome.faults,
        }),
    };
    pb::VerifyResponse { item: Some(item) }
}

pub(super) fn erase_response(item: engine::EraseItem) -> pb::EraseResponse {
    use pb::erase_response::Item;
    let item = match item {
        engine::EraseItem::Progress(at) => Item::Progress(progress(&at)),
        engine::EraseItem::Event(event) => Item::Event(pb::ErasedEvent {
            conversation_id: id_text(&event.conversation),
            revision: event.revision.0,
            kind: event.kind.into(),
            why: match event.why {
                engine::EraseReason::Asked => pb::ErasedWhy::Asked,
                engine::EraseReason::Derived => pb::ErasedWhy::Derived,
                engine::EraseReason::Bound => pb::ErasedWhy::Bound,
            }
            .into(),
        }),
        engine::EraseItem::Shared(by) => Item::SharedBy(pb::SharedBy {
            conversation_id: id_text(&by.conversation),
            parent_conversation_id: id_text(&by.parent),
            revision: by.revision.0,
        }),
        engine::EraseItem::Kept(kept) => Item::Kept(pb::KeptBody {
            position: Some(position_to_pb(kept.home)),
            bytes: kept.bytes,
            used_by: Some(position_to_pb(kept.used_by)),
        }),
        engine::EraseItem::Outcome(outcome) => Item::Outcome(pb::EraseOutcome {
            events: outcome.events,
            derived: outcome.derived,
            stay: outcome.stay,
            receipt: outcome.receipt.unwrap_or_default(),
        }),
    };
    pb::EraseResponse { item: Some(item) }
}

pub(super) fn rebuild_response(item: &engine::RebuildItem) -> pb::RebuildResponse {
    use pb::rebuild_response::Item;
    let item = match item {
        engine::RebuildItem::Progress(at) => Item::Progress(progress(at)),
        engine::RebuildItem::Outcome(outcome) => Item::Outcome(pb::RebuildOutcome {
            events: outcome.events,
            documents: outcome.documents,
            damaged: outcome.damaged,
            not_indexed: outcome.not_indexed,
        }),
    };
    pb::RebuildResponse { item: Some(item) }
}
