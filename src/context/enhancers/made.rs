//! Definitions of tools that nobody defined, made from the branch's calls: a model can
//! call again what it has called, and some endpoints refuse a body that has calls and no
//! tools.

use crate::{called::CalledTools, steps, window::WindowInput};
use treering_domain::{EventBody, Role, ToolDefinition};

/// The tools that calls name, those behind the last compaction's cut first, in the order of
/// their first call; of more than `bytes_max` bytes, those that were called last.
///
/// Tools stand before everything else, so each change of them is a front that no cache
/// serves. What calls show is looked at again when the user says something, and before that
/// when there are twice as many; until then only a tool that is new is told, by its first call.
pub(super) fn from_calls(window: &WindowInput, bytes_max: usize) -> Vec<ToolDefinition> {
    let settled = settled(window);
    let mut calls = 0;
    let mut tools = CalledTools::clone(&window.earlier_tools);
    for event in &window.events {
        let EventBody::ToolCallRequested(call) = &event.body else {
            continue;
        };
        steps::note(1);
        if call.tool.trim().is_empty() {
            continue;
        }
        calls += 1;
        if calls <= settled || !tools.has(&call.tool) {
            tools.note(call);
        }
    }
    tools.definitions(bytes_max)
}

/// How many of the window's calls say what tools take: those before the user last said
/// something, or the last power of two.
fn settled(window: &WindowInput) -> usize {
    let (mut calls, mut before_user) = (0_usize, 0);
    for event in &window.events {
        match &event.body {
            EventBody::ToolCallRequested(call) if !call.tool.trim().is_empty() => calls += 1,
            EventBody::MessageAppended(message) if message.role == Role::User => {
                before_user = calls;
            }
            _ => {}
        }
    }
    let power = calls.checked_ilog2().map_or(0, |power| 1 << power);
    power.max(before_user)
}
