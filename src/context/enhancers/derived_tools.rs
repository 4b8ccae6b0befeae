//! Derives tool definitions from the branch's calls if no event defined tools. Without them, a
//! model could not call these tools again, and some endpoints refuse a body that has calls and no
//! tools.

use crate::{called_tools::CalledTools, steps, window::WindowInput};
use treering_domain::{EventBody, Role, ToolDefinition};

/// Returns the called tools in the order of their first call. Tools called before the last
/// compaction's cut come first. If the definitions exceed `bytes_max` bytes, the most recently
/// called tools stay.
///
/// Tools are at the front of a request, so each change invalidates the provider's prompt cache.
/// Definitions are therefore refined only when the user speaks again or the number of calls has
/// doubled. In between, a new tool is defined from its first call.
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

/// Returns how many of the window's calls are used to derive arguments: those before the user's
/// last message, or the largest power of two that is not above the number of calls, if that is
/// more.
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
