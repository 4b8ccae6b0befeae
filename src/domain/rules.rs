//! Rules for single events: the branch state that each event requires.

use super::{
    id::Revision,
    kind::{EventBody, EventKind},
    limits::{CONVERSATION_DESCRIBED_BYTES_MAX, Limits},
    rejection::Rule,
    state::{ApprovalStatus, BranchState, ConversationInfo, OpenCall},
    tool::{ApprovalDecided, SubContextSpawned, ToolCallRequested},
};

/// Checks one event against its branch. `conversation_head` is the last revision on any
/// branch.
pub(super) fn check(
    branch: &BranchState,
    conversation_head: Revision,
    body: &EventBody,
    limits: &Limits,
) -> Result<(), Rule> {
    match body {
        EventBody::ToolCallRequested(call) => check_request(branch, call, limits),
        EventBody::ApprovalDecided(decided) => check_decision(branch, decided),
        EventBody::ToolCallStarted(started) => {
            let call = open_call(branch, &started.call_id)?;
            if call.started {
                return Err(Rule::CallAlreadyStarted {
                    call_id: started.call_id.clone(),
                });
            }
            check_may_run(&started.call_id, call)
        }
        EventBody::ToolResultRecorded(result) => {
            let call = open_call(branch, &result.call_id)?;
            if result.success {
                check_may_run(&result.call_id, call)
            } else {
                Ok(())
            }
        }
        EventBody::ToolCallCancelled(cancelled) => {
            open_call(branch, &cancelled.call_id).map(|_| ())
        }
        EventBody::SubContextSpawned(child) => check_spawn(branch, child, limits),
        EventBody::SubContextReturned(child) => {
            if branch.sub_contexts.contains_key(&child.conversation) {
                return Ok(());
            }
            Err(Rule::SubContextNotRunning {
                branch: branch.name.clone(),
                child: child.conversation,
            })
        }
        EventBody::ToolSnapshotRecorded(snapshot) => {
            check_exists(snapshot.request_revision, conversation_head)
        }
        EventBody::AnnotationAdded(annotation) => match annotation.target {
            Some(target) => check_exists(target, conversation_head),
            None => Ok(()),
        },
        EventBody::SummaryRecorded(summary) => {
            check_exists(summary.from_revision, conversation_head)?;
            check_exists(summary.to_revision, conversation_head)
        }
        EventBody::ContentErased { .. } => Err(Rule::EngineOnly {
            kind: EventKind::ContentErased,
        }),
        _ => check_items(branch, body, limits),
    }
}

/// Rejects a count above its limit.
pub(super) fn check_limit(
    what: &'static str,
    actual: usize,
    max: usize,
    limit: &'static str,
) -> Result<(), Rule> {
    if actual > max {
        return Err(Rule::LimitReached {
            what,
            actual,
            max,
            limit,
        });
    }
    Ok(())
}

/// Rejects labels and metadata above their size limit.
pub(super) fn check_described(info: &ConversationInfo) -> Result<(), Rule> {
    check_limit(
        "labels and metadata of the conversation, in bytes,",
        info.described_bytes(),
        CONVERSATION_DESCRIBED_BYTES_MAX,
        "CONVERSATION_DESCRIBED_BYTES_MAX",
    )
}

fn check_request(
    branch: &BranchState,
    call: &ToolCallRequested,
    limits: &Limits,
) -> Result<(), Rule> {
    if let Some(open) = branch.open_calls.get(&call.call_id) {
        let since = open.request.revision;
        return Err(Rule::CallAlreadyOpen {
            call_id: call.call_id.clone(),
            since,
        });
    }
    if let Some(revision) = call.message_revision
        && branch
            .last_assistant
            .is_none_or(|last| last.revision != revision)
    {
        return Err(Rule::MessageMissing { revision });
    }
    let open = branch.open_calls.len() + 1;
    check_limit(
        "the branch's open calls",
        open,
        limits.open_calls_max,
        "open_calls_max",
    )
}

fn check_decision(branch: &BranchState, decided: &ApprovalDecided) -> Result<(), Rule> {
    let call = open_call(branch, &decided.call_id)?;
    let call_id = || decided.call_id.clone();
    match call.approval {
        ApprovalStatus::Pending => {}
        ApprovalStatus::NotRequired => {
            return Err(Rule::ApprovalNotRequired { call_id: call_id() });
        }
        status => {
            return Err(Rule::CallAlreadyDecided {
                call_id: call_id(),
                status,
            });
        }
    }
    if decided.arguments_hash != call.arguments_hash {
        return Err(Rule::ArgumentsChanged {
            call_id: call_id(),
            approved: decided.arguments_hash.to_string(),
            actual: call.arguments_hash.to_string(),
        });
    }
    Ok(())
}

/// Checks the call of a sub-context, if it has one: the call must be open, be allowed to run, and
/// have no other running sub-context, because the sub-context answers it.
fn check_spawn(
    branch: &BranchState,
    child: &SubContextSpawned,
    limits: &Limits,
) -> Result<(), Rule> {
    let call_id = &child.call_id;
    if !call_id.is_empty() {
        check_may_run(call_id, open_call(branch, call_id)?)?;
    }
    let running = branch.sub_contexts.iter().find(|(id, running)| {
        **id == child.conversation || (!call_id.is_empty() && running.call_id == *call_id)
    });
    if let Some((id, running)) = running {
        return Err(Rule::SubContextRunning {
            child: *id,
            call_id: running.call_id.clone(),
        });
    }
    check_limit(
        "the branch's running sub-contexts",
        branch.sub_contexts.len() + 1,
        limits.branch_items_max,
        "branch_items_max",
    )
}

fn check_items(branch: &BranchState, body: &EventBody, limits: &Limits) -> Result<(), Rule> {
    let (what, actual) = match body {
        EventBody::ContextSet(set) => {
            let new = usize::from(!branch.active_context.contains_key(&set.key));
            (
                "the branch's context keys",
                branch.active_context.len() + new,
            )
        }
        EventBody::ToolsDiscovered { names } => (
            "the branch's discovered tools",
            branch.memory.discovered_tools.len() + names.len(),
        ),
        EventBody::GuidanceGiven { guidance } => (
            "the branch's guidance",
            branch.memory.guidance_given.len() + guidance.len(),
        ),
        EventBody::EntitiesNoted { entities } => (
            "the branch's entities",
            branch.memory.entities.len() + entities.len(),
        ),
        _ => return Ok(()),
    };
    check_limit(what, actual, limits.branch_items_max, "branch_items_max")
}

fn open_call<'a>(branch: &'a BranchState, call_id: &str) -> Result<&'a OpenCall, Rule> {
    branch
        .open_calls
        .get(call_id)
        .ok_or_else(|| Rule::CallNotOpen {
            branch: branch.name.clone(),
            call_id: call_id.to_owned(),
            state: "it has ended, or was never requested there",
        })
}

fn check_may_run(call_id: &str, call: &OpenCall) -> Result<(), Rule> {
    match call.approval {
        ApprovalStatus::NotRequired | ApprovalStatus::Approved => Ok(()),
        status => Err(Rule::CallNotApproved {
            call_id: call_id.to_owned(),
            status,
        }),
    }
}

fn check_exists(revision: Revision, head: Revision) -> Result<(), Rule> {
    if revision == Revision::NONE || revision > head {
        return Err(Rule::RevisionMissing { revision, head });
    }
    Ok(())
}
