"""Result types of the client. Most have the protobuf message of the server as ``proto``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from treering._html import table
from treering._words import CallStatusName, KindName, from_arguments, from_json, word
from treering.v1 import (
    context_pb2,
    conversation_pb2,
    event_pb2,
    events_pb2,
    items_pb2,
    search_pb2,
    tool_pb2,
)


def when(stamp: Timestamp) -> datetime:
    """Converts a timestamp to a time in UTC."""
    return stamp.ToDatetime(tzinfo=timezone.utc)


def shorten(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[:200].split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def kind_name(number: int) -> KindName:
    """The name of a kind of event."""
    return cast(KindName, word(event_pb2.EventKind, "EVENT_KIND", number))


@dataclass(frozen=True)
class Receipt:
    """Result of an append: the events are on disk."""

    conversation_id: str
    revisions: tuple[int, ...]
    """Revision of each event, in order."""
    event_ids: tuple[str, ...]
    position: int
    """Log offset of the last event: for `at_least`."""
    repeated: bool
    """The idempotency key was known: the events were appended before."""
    warnings: tuple[str, ...]
    """Valid input that may be a mistake."""
    created: bool = False
    """The append created the conversation (`create_if_missing`)."""
    known: tuple[int, ...] = ()
    """Indexes (from 0) of the events that existed, by id or by their own key. They were not
    appended again; their revisions and ids are those of the existing events."""

    @property
    def revision(self) -> int:
        """Revision of the last event."""
        return self.revisions[-1]

    @staticmethod
    def of(proto: events_pb2.AppendResponse) -> Receipt:
        """From an answer of `Append`."""
        return Receipt(
            conversation_id=proto.events[0].conversation_id if proto.events else "",
            revisions=tuple(event.revision for event in proto.events),
            event_ids=tuple(event.event_id for event in proto.events),
            position=max((event.position.offset for event in proto.events), default=0),
            repeated=proto.repeated_key,
            warnings=tuple(proto.warnings),
            created=proto.HasField("created"),
            known=tuple(at for at, event in enumerate(proto.events) if event.known),
        )


@dataclass
class Erased:
    """Result of an erase, or of its dry run."""

    outcome: conversation_pb2.EraseOutcome = field(default_factory=conversation_pb2.EraseOutcome)
    """Counts and the receipt (JSON text)."""
    events: list[conversation_pb2.ErasedEvent] = field(default_factory=list)
    """The erased events, each with the reason."""
    shared_by: list[conversation_pb2.SharedBy] = field(default_factory=list)
    """Forks whose history contains an erased event."""
    kept: list[conversation_pb2.KeptBody] = field(default_factory=list)
    """Large bodies that stay because another event has the same content."""

    def take(self, item: conversation_pb2.EraseResponse) -> None:
        """Adds an item of the answer."""
        which = item.WhichOneof("item")
        if which == "event":
            self.events.append(item.event)
        elif which == "shared_by":
            self.shared_by.append(item.shared_by)
        elif which == "kept":
            self.kept.append(item.kept)
        elif which == "outcome":
            self.outcome = item.outcome


@dataclass(frozen=True)
class Event:
    """A stored event.

    >>> event = next(conv.events(kinds=["conversation_created"]))
    >>> event.revision, event.kind, event.body.title
    (1, 'conversation_created', 'Example')
    """

    proto: event_pb2.Event = field(repr=False, compare=False)
    id: str
    conversation_id: str
    branch: str
    revision: int
    kind: KindName
    actor: str

    @staticmethod
    def of(proto: event_pb2.Event) -> Event:
        """From a stored event."""
        return Event(
            proto=proto,
            id=proto.id,
            conversation_id=proto.conversation_id,
            branch=proto.branch,
            revision=proto.revision,
            kind=kind_name(proto.kind),
            actor=proto.actor,
        )

    def __repr__(self) -> str:
        said = {"role": self.role, "tool": self.tool, "type": self.type_name, "key": self.key}
        told = "".join(f", {name}={value!r}" for name, value in said.items() if value)
        text = f", text={shorten(self.text)!r}" if self.text else ""
        return (
            f"Event(revision={self.revision}, kind={self.kind!r}{told}{text}, "
            f"branch={self.branch!r}, conversation_id={self.conversation_id!r})"
        )

    @property
    def body(self) -> Any:
        """The message of its kind, for example `MessageAppended`; None if read without bodies."""
        which = self.proto.WhichOneof("body")
        return cast(Message, getattr(self.proto, which)) if which else None

    @property
    def erased(self) -> bool:
        """The content was erased: the body is a stub without texts."""
        return self.proto.erased

    @property
    def key(self) -> str:
        """The event key, or empty."""
        return self.proto.key

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes: names and values."""
        return dict(self.proto.attributes)

    @property
    def type_name(self) -> str:
        """The type of a custom event; empty for other kinds."""
        return self.proto.type_name

    @property
    def position(self) -> int:
        """Log offset."""
        return self.proto.position.offset

    @property
    def recorded_at(self) -> datetime:
        """Time when it was appended (UTC)."""
        return when(self.proto.recorded_at)

    @property
    def occurred_at(self) -> datetime:
        """Time when it happened; by default, when it was appended."""
        if self.proto.HasField("occurred_at"):
            return when(self.proto.occurred_at)
        return self.recorded_at

    @property
    def role(self) -> str:
        """The role of a message; empty for other kinds."""
        if self.proto.WhichOneof("body") != "message_appended":
            return ""
        return word(event_pb2.Role, "ROLE", self.proto.message_appended.role)

    @property
    def call_id(self) -> str:
        """The id of its tool call; empty for other events."""
        return str(getattr(self.body, "call_id", ""))

    @property
    def tool(self) -> str:
        """The tool of a call; empty for other kinds."""
        return self.proto.tool_call_requested.tool

    @property
    def arguments(self) -> Any:
        """The parsed arguments of a call, or a string if they are not JSON; None for other
        kinds."""
        if self.kind != "tool_call_requested":
            return None
        return from_arguments(self.proto.tool_call_requested.arguments)

    @property
    def arguments_not_json(self) -> bool:
        """The arguments are not JSON: `arguments` is the text of the model."""
        return self.proto.tool_call_requested.arguments_not_json

    @property
    def text(self) -> str:
        """The text of a message, result, prompt or summary; empty for other kinds."""
        body = self.body
        if parts := getattr(body, "parts", None):
            return "".join(part.text for part in parts)
        for name in ("content", "summary"):
            if value := getattr(body, name, ""):
                return str(value)
        return ""


@dataclass(frozen=True)
class Branch:
    """A branch of a conversation."""

    proto: conversation_pb2.Branch = field(repr=False, compare=False)
    name: str
    head: int
    """Its newest revision."""
    active: bool
    """Calls use it when they name no branch."""
    archived: bool
    """It accepts no appends."""
    branch_id: int
    parent_branch_id: int
    fork_revision: int
    """Last revision that it shares with its parent; 0: the first branch."""

    @staticmethod
    def of(proto: conversation_pb2.Branch) -> Branch:
        """From an answer of `ListBranches`."""
        return Branch(
            proto=proto,
            name=proto.name,
            head=proto.head,
            active=proto.active,
            archived=proto.archived,
            branch_id=proto.branch_id,
            parent_branch_id=proto.parent_branch_id,
            fork_revision=proto.fork_revision,
        )


@dataclass(frozen=True)
class Item:
    """A value under a path and a key."""

    proto: items_pb2.Item = field(repr=False, compare=False)
    path: tuple[str, ...]
    key: str
    value: Any
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    """Time when it expires; None: never."""
    score: float | None
    """Score of the match."""

    @staticmethod
    def of(proto: items_pb2.Item, *, score: float | None = None) -> Item:
        """From an answer of `Items`."""
        own = proto.score if proto.HasField("score") else score
        return Item(
            proto=proto,
            path=tuple(proto.path),
            key=proto.key,
            value=from_json(proto.value),
            created_at=when(proto.created_at),
            updated_at=when(proto.updated_at),
            expires_at=when(proto.expires_at) if proto.HasField("expires_at") else None,
            score=own,
        )


@dataclass(frozen=True)
class Rewound:
    """Result of a rewind."""

    proto: conversation_pb2.RewindResponse = field(repr=False, compare=False)
    branch: str
    head: int
    """The new head: use it for the next expected revision."""
    kept: str
    """The branch with the removed events; empty if there were none."""
    events: tuple[Event, ...]
    """The removed events, oldest first; only the newest, if `truncated`."""
    truncated: bool
    """Not all removed events are in the answer: read `kept`."""
    repeated: bool
    """The idempotency key was known: nothing was rewound now."""

    @staticmethod
    def of(proto: conversation_pb2.RewindResponse) -> Rewound:
        """From an answer of `Rewind`."""
        return Rewound(
            proto=proto,
            branch=proto.branch.name,
            head=proto.branch.head,
            kept=proto.kept.name,
            events=tuple(Event.of(event) for event in proto.went),
            truncated=proto.truncated,
            repeated=proto.repeated_key,
        )


@dataclass(frozen=True)
class ToolCall:
    """A tool call and its outcome."""

    proto: tool_pb2.ToolCall = field(repr=False, compare=False)
    conversation_id: str
    branch: str
    call_id: str
    tool: str
    status: CallStatusName

    @staticmethod
    def of(proto: tool_pb2.ToolCall) -> ToolCall:
        """From a call in an answer of the server."""
        status = word(tool_pb2.CallStatus, "CALL_STATUS", proto.status)
        return ToolCall(
            proto=proto,
            conversation_id=proto.conversation_id,
            branch=proto.branch,
            call_id=proto.call_id,
            tool=proto.tool,
            status=cast(CallStatusName, status),
        )

    @property
    def arguments(self) -> Any:
        """The parsed arguments; a string if the model wrote invalid JSON."""
        return from_arguments(self.proto.arguments)

    @property
    def arguments_not_json(self) -> bool:
        """The arguments are not JSON: `arguments` is the text of the model."""
        return self.proto.arguments_not_json

    @property
    def arguments_hash(self) -> bytes:
        """Hash of the arguments. A decision carries it, and is valid for these arguments only."""
        return self.proto.arguments_hash

    @property
    def revision(self) -> int:
        """Revision of its request."""
        return self.proto.request_revision

    @property
    def is_open(self) -> bool:
        """It has no result and was not cancelled."""
        return self.proto.end_revision == 0

    @property
    def result_head(self) -> str:
        """The first characters of its result."""
        return self.proto.result_head


@dataclass(frozen=True)
class ToolResult:
    """A result of a tool, or a range of it."""

    info: tool_pb2.ResultInfo = field(repr=False, compare=False)
    text: str

    @property
    def call_id(self) -> str:
        """Id of the call."""
        return self.info.call_id

    @property
    def tool(self) -> str:
        """Name of the tool."""
        return self.info.tool

    @property
    def revision(self) -> int:
        """Revision of the result."""
        return self.info.revision

    @property
    def success(self) -> bool:
        """The tool succeeded."""
        return self.info.success

    @property
    def error(self) -> str:
        """The error message."""
        return self.info.error_message

    @property
    def total_bytes(self) -> int:
        """Size of the whole result in bytes."""
        return self.info.total_bytes


@dataclass(frozen=True)
class Hit:
    """A search hit."""

    proto: search_pb2.SearchHit = field(repr=False, compare=False)
    conversation_id: str
    branch: str
    revision: int
    kind: KindName
    tool: str
    line: int
    """Line of the first match in the event's text, from 1."""
    score: float
    snippet: str

    @staticmethod
    def of(proto: search_pb2.SearchHit) -> Hit:
        """From a hit in an answer of `Search`."""
        return Hit(
            proto=proto,
            conversation_id=proto.conversation_id,
            branch=proto.branch,
            revision=proto.revision,
            kind=kind_name(proto.kind),
            tool=proto.tool,
            line=proto.line,
            score=proto.score,
            snippet=proto.snippet,
        )

    @property
    def highlights(self) -> list[str]:
        """The matches in the snippet."""
        text = self.snippet.encode()
        return [text[mark.start : mark.end].decode() for mark in self.proto.highlights]


class Hits(list[Hit]):
    """The hits of a search, best first, with its totals."""

    def __init__(self, proto: search_pb2.SearchResponse) -> None:
        super().__init__(Hit.of(hit) for hit in proto.hits)
        self.proto = proto

    def _repr_html_(self) -> str:
        rows = [
            (hit.conversation_id, hit.revision, hit.tool or hit.kind, hit.line, hit.snippet)
            for hit in self
        ]
        total = f"{self.total:,}{'+' * self.proto.more_than_total} hits"
        return table(total, ("conversation", "revision", "what", "line", "snippet"), rows)

    @property
    def total(self) -> int:
        """Number of hits on all pages, counted up to 1,000 unless you set `count_all`."""
        return self.proto.total

    @property
    def complete(self) -> bool:
        """The index contained all events of the log."""
        return self.proto.complete


class Request(dict[str, Any]):
    """The next request of a branch: a dict to send to the provider, with its explanation.

    >>> conv.user("Hello").revision > 0
    True
    >>> request = conv.request("anthropic", model="claude-sonnet-4-5", budget=60_000)
    >>> request["messages"][-1]["content"][-1]["text"]
    'Hello'
    >>> request.tokens < 100, request.over_budget
    (True, False)
    """

    def __init__(self, proto: context_pb2.BuildResponse) -> None:
        super().__init__(from_json(proto.request))
        self.raw: bytes = proto.request
        """The body as JSON bytes, as a prompt cache compares them."""
        self.explanation: context_pb2.Explanation = proto.explanation
        """Sections, items with their events, and what each enhancer did."""

    def __repr__(self) -> str:
        about = self.explanation
        provider = word(context_pb2.Provider, "PROVIDER", about.provider).replace("_", "-")
        return (
            f"Request({provider!r}, model={about.model!r}, tokens={self.tokens}, "
            f"revision={self.revision}, keys={list(self)})"
        )

    def __str__(self) -> str:
        return dict.__repr__(self)

    def _repr_html_(self) -> str:
        about = self.explanation
        rows = [
            (
                word(context_pb2.Section, "SECTION", line.section).replace("_", " "),
                f"{line.tokens:,}",
                line.items,
                f"{line.dropped_tokens:,}",
            )
            for line in about.sections
        ]
        provider = word(context_pb2.Provider, "PROVIDER", about.provider).replace("_", "-")
        within = f" of {about.budget_tokens:,}" if about.budget_tokens else ""
        head = f"{provider} {about.model}: {about.tokens:,}{within} tokens at #{about.revision}"
        return table(head, ("section", "tokens", "items", "left out"), rows)

    @property
    def tokens(self) -> int:
        """Tokens of the request; an estimate if the provider's encoding is not public."""
        return self.explanation.tokens

    @property
    def over_budget(self) -> bool:
        """The parts that must stay exceed the budget."""
        return self.explanation.over_budget

    @property
    def compaction_due(self) -> bool:
        """The request exceeds the policy's compaction threshold: see `conv.compact`."""
        return self.explanation.compaction_due

    @property
    def revision(self) -> int:
        """Revision at which it was built."""
        return self.explanation.revision


@dataclass(frozen=True)
class Compaction:
    """An appended compaction; with revision 0, the reason why there was nothing to do."""

    revision: int
    cut_revision: int
    tokens_before: int
    tokens_after: int
    warnings: tuple[str, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        return self.revision > 0


@dataclass(frozen=True)
class Difference:
    """The difference of two branches: where they diverge, and the events of each since then."""

    ancestor_revision: int
    left: tuple[Event, ...]
    right: tuple[Event, ...]
    truncated: bool

    @staticmethod
    def of(proto: conversation_pb2.DiffResponse) -> Difference:
        """From an answer of `Diff`."""
        return Difference(
            ancestor_revision=proto.ancestor_revision,
            left=tuple(map(Event.of, proto.left)),
            right=tuple(map(Event.of, proto.right)),
            truncated=proto.truncated,
        )


@dataclass(frozen=True)
class ContextChange:
    """A key of a context: its value, or its removal."""

    key: str
    value: Any
    removed: bool = False
    provider: str = ""


ConversationSummary = conversation_pb2.ConversationSummary
ConversationState = conversation_pb2.ConversationState
__all__ = [
    "Branch",
    "Compaction",
    "ContextChange",
    "ConversationState",
    "ConversationSummary",
    "Difference",
    "Erased",
    "Event",
    "Hit",
    "Hits",
    "Item",
    "Receipt",
    "Request",
    "Rewound",
    "ToolCall",
    "ToolResult",
    "kind_name",
    "when",
]
