"""The table of the API's methods: path, messages, and whether a call may be sent twice.

Both transports use it; a test compares it with the descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from treering.v1 import admin_pb2 as admin
from treering.v1 import context_pb2 as context
from treering.v1 import conversation_pb2 as conversation
from treering.v1 import events_pb2 as events
from treering.v1 import items_pb2 as items
from treering.v1 import search_pb2 as search
from treering.v1 import tool_pb2 as tool

Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res", bound=Message)


class Again(Enum):
    """When a call may be sent a second time."""

    ALWAYS = "it changes nothing"
    WITH_KEY = "its idempotency key makes the second one harmless"


@dataclass(frozen=True)
class Method(Generic[Req, Res]):
    """A method of the API."""

    path: str
    request: type[Req]
    response: type[Res]
    again: Again = Again.ALWAYS
    streams_in: bool = False
    streams_out: bool = False


def _of(
    service: str,
    name: str,
    request: type[Req],
    response: type[Res],
    again: Again = Again.ALWAYS,
    *,
    streams_in: bool = False,
    streams_out: bool = False,
) -> Method[Req, Res]:
    path = f"/treering.v1.{service}/{name}"
    return Method(path, request, response, again, streams_in, streams_out)


KEY = Again.WITH_KEY

APPEND = _of("Events", "Append", events.AppendRequest, events.AppendResponse, KEY)
APPEND_STREAM = _of(
    "Events",
    "AppendStream",
    events.AppendRequest,
    events.AppendStreamResponse,
    KEY,
    streams_in=True,
    streams_out=True,
)
READ = _of("Events", "Read", events.ReadRequest, events.ReadResponse, streams_out=True)
KNOWN_KEYS = _of("Events", "KnownKeys", events.KnownKeysRequest, events.KnownKeysResponse)
LATEST = _of("Events", "Latest", events.LatestRequest, events.LatestResponse)
GET_MANY = _of("Events", "GetMany", events.GetManyRequest, events.GetManyResponse)
SUBSCRIBE = _of(
    "Events", "Subscribe", events.SubscribeRequest, events.SubscribeResponse, streams_out=True
)

GET = _of(
    "Conversations", "Get", conversation.GetConversationRequest, conversation.ConversationState
)
LIST = _of(
    "Conversations",
    "List",
    conversation.ListConversationsRequest,
    conversation.ListConversationsResponse,
)
FIND = _of(
    "Conversations",
    "Find",
    conversation.FindConversationsRequest,
    conversation.FindConversationsResponse,
)
FORK = _of("Conversations", "Fork", conversation.ForkRequest, conversation.ForkResponse, KEY)
REWIND = _of(
    "Conversations", "Rewind", conversation.RewindRequest, conversation.RewindResponse, KEY
)
RENAME_BRANCH = _of(
    "Conversations", "RenameBranch", conversation.RenameBranchRequest, events.AppendResponse, KEY
)
ARCHIVE_BRANCH = _of(
    "Conversations", "ArchiveBranch", conversation.ArchiveBranchRequest, events.AppendResponse, KEY
)
ACTIVATE_BRANCH = _of(
    "Conversations",
    "ActivateBranch",
    conversation.ActivateBranchRequest,
    events.AppendResponse,
    KEY,
)
LIST_BRANCHES = _of(
    "Conversations",
    "ListBranches",
    conversation.ListBranchesRequest,
    conversation.ListBranchesResponse,
)
LINEAGE = _of("Conversations", "Lineage", conversation.LineageRequest, conversation.LineageResponse)
DIFF = _of("Conversations", "Diff", conversation.DiffRequest, conversation.DiffResponse)
SEAL = _of("Conversations", "Seal", conversation.SealRequest, events.AppendResponse, KEY)
ERASE = _of(
    "Conversations",
    "Erase",
    conversation.EraseRequest,
    conversation.EraseResponse,
    streams_out=True,
)

BUILD = _of("Contexts", "Build", context.BuildRequest, context.BuildResponse)
EXPLAIN = _of("Contexts", "Explain", context.BuildRequest, context.ExplainResponse)
PLAN_COMPACTION = _of(
    "Contexts", "PlanCompaction", context.PlanCompactionRequest, context.PlanCompactionResponse
)
COMPACT = _of("Contexts", "Compact", context.CompactRequest, context.CompactResponse, KEY)
EXPAND = _of("Contexts", "Expand", context.ExpandRequest, context.ExpandResponse, streams_out=True)
GET_CONTEXT = _of("Contexts", "Get", context.GetContextRequest, context.GetContextResponse)
WATCH = _of(
    "Contexts",
    "Watch",
    context.WatchContextRequest,
    context.WatchContextResponse,
    streams_out=True,
)
SET = _of("Contexts", "Set", context.SetContextRequest, events.AppendResponse, KEY)
SPAWN = _of("Contexts", "Spawn", context.SpawnRequest, context.SpawnResponse, KEY)
RETURN = _of("Contexts", "Return", context.ReturnRequest, events.AppendResponse, KEY)

ITEMS_BATCH = _of("Items", "Batch", items.ItemsRequest, items.ItemsResponse, KEY)
ITEMS_READ = _of("Items", "Read", items.ReadItemsRequest, items.ItemsResponse)

HISTORY = _of("Tools", "History", tool.ToolHistoryRequest, tool.ToolHistoryResponse)
PENDING = _of("Tools", "Pending", tool.PendingRequest, tool.PendingResponse)
WAIT_FOR_DECISION = _of(
    "Tools", "WaitForDecision", tool.WaitForDecisionRequest, tool.WaitForDecisionResponse
)
GET_RESULT = _of(
    "Tools", "GetResult", tool.GetResultRequest, tool.GetResultResponse, streams_out=True
)
RECORD_RESULT = _of(
    "Tools",
    "RecordResult",
    tool.RecordResultRequest,
    events.AppendResponse,
    KEY,
    streams_in=True,
)
RECORDED = _of("Tools", "Recorded", tool.RecordedRequest, tool.RecordedResponse)
KNOWLEDGE = _of("Tools", "Knowledge", tool.KnowledgeRequest, tool.KnowledgeResponse)
SUGGEST_ARGUMENTS = _of(
    "Tools", "SuggestArguments", tool.SuggestArgumentsRequest, tool.SuggestArgumentsResponse
)
MISSING_PREREQUISITES = _of(
    "Tools",
    "MissingPrerequisites",
    tool.MissingPrerequisitesRequest,
    tool.MissingPrerequisitesResponse,
)
GUIDANCE = _of("Tools", "Guidance", tool.GuidanceRequest, tool.GuidanceResponse)
SNAPSHOTS = _of("Tools", "Snapshots", tool.SnapshotsRequest, tool.SnapshotsResponse)

SEARCH = _of("Search", "Search", search.SearchRequest, search.SearchResponse)

STATS = _of("Admin", "Stats", admin.StatsRequest, admin.StatsResponse)
VERIFY = _of("Admin", "Verify", admin.VerifyRequest, admin.VerifyResponse, streams_out=True)
REBUILD = _of("Admin", "Rebuild", admin.RebuildRequest, admin.RebuildResponse, streams_out=True)

# The standard health service. Its two messages have one field each, and the same encoding
# as these types, so the stubs of another package are not needed.
HEALTH = Method("/grpc.health.v1.Health/Check", StringValue, Int32Value)
HEALTH_SERVING = 1
