"""Words for the values of enums: "user" for `ROLE_USER`."""

from typing import Literal

RoleName = Literal[
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
]
DecisionName = Literal[
    "approved",
    "denied",
    "expired",
]
CancelReasonName = Literal[
    "denied",
    "interrupted",
    "timed_out",
    "superseded",
]
CompactionTriggerName = Literal[
    "threshold",
    "manual",
    "imported",
]
ProviderName = Literal[
    "openai-chat",
    "openai-responses",
    "anthropic",
    "gemini",
    "neutral",
]
QueryModeName = Literal[
    "plain",
    "query",
    "",
]
SearchByName = Literal[
    "words",
    "meaning",
    "both",
]
CallStatusName = Literal[
    "requested",
    "pending_approval",
    "approved",
    "denied",
    "expired",
    "started",
    "succeeded",
    "failed",
    "cancelled",
    "unspecified",
]
KindName = Literal[
    "conversation_created",
    "config_changed",
    "branch_forked",
    "branch_activated",
    "branch_renamed",
    "branch_archived",
    "system_prompt_set",
    "user_prompt_set",
    "message_appended",
    "tool_call_requested",
    "approval_decided",
    "tool_call_started",
    "tool_result_recorded",
    "tool_call_cancelled",
    "tool_snapshot_recorded",
    "context_set",
    "context_removed",
    "tools_discovered",
    "guidance_given",
    "entities_noted",
    "summary_recorded",
    "compacted",
    "sub_context_spawned",
    "sub_context_returned",
    "conversation_sealed",
    "tools_defined",
    "annotation_added",
    "custom",
    "content_erased",
    "conversation_changed",
]
