"""Builds the requests that both clients send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from google.protobuf.duration_pb2 import Duration

from treering import errors, new
from treering._keys import key_or_new
from treering._times import Time, timestamp
from treering._words import (
    KindName,
    ProviderName,
    QueryModeName,
    RoleName,
    SearchByName,
    json_bytes,
    number,
    numbers,
    provider_name,
    text,
)
from treering.types import ToolCall
from treering.v1 import (
    context_pb2,
    conversation_pb2,
    event_pb2,
    events_pb2,
    search_pb2,
    tool_pb2,
)

BODY_BYTES_MAX = (64 << 20) - (64 << 10)
"""The server's limit for an event in bytes, in chunks or not."""
CHUNK_BYTES = 256 << 10
"""Size of a chunk of a large result."""
WHOLE_RESULT_BYTES_MAX = 1 << 20
"""Longer texts are sent in chunks: a chunk is small compared with other requests."""


def expectation(expected: int | None) -> events_pb2.ExpectedRevision | None:
    """The expected head. None: any head. 0: the conversation must not exist."""
    if expected is None:
        return None
    if expected == 0:
        return events_pb2.ExpectedRevision(no_stream=events_pb2.ExpectedRevision.NoStream())
    return events_pb2.ExpectedRevision(revision=expected)


def append_keys(
    events: Sequence[event_pb2.NewEvent], given: str, *, skip_known: bool
) -> tuple[str, str]:
    """Returns a batch's key, and a text that is empty if it is unsafe to send the batch twice.

    Events with their own keys or ids need no key of the batch, and do not permit one.
    """
    if given or not (skip_known or any(event.idempotency_key for event in events)):
        key = key_or_new(given)
        return key, key
    each = all(event.idempotency_key or (skip_known and event.id) for event in events)
    return "", "each" if each else ""


def expected_keys(
    expected: Mapping[str, int | str | None] | None,
) -> Iterator[events_pb2.ExpectedKey]:
    """The newest event that each key must have: a revision, an event id, or None for no event."""
    for key, newest in (expected or {}).items():
        if newest is None:
            yield events_pb2.ExpectedKey(key=key, absent=True)
        elif isinstance(newest, int):
            yield events_pb2.ExpectedKey(key=key, revision=newest)
        else:
            yield events_pb2.ExpectedKey(key=key, event_id=newest)


def append(
    conversation: str,
    branch: str,
    events: Sequence[event_pb2.NewEvent],
    expected: int | None,
    key: str,
    actor: str,
    *,
    life_seconds: int = 0,
    skip_known: bool = False,
    newest: Mapping[str, int | str | None] | None = None,
) -> events_pb2.AppendRequest:
    """Builds the append of a batch."""
    request = events_pb2.AppendRequest(
        conversation_id=conversation,
        branch=branch,
        expected=expectation(expected),
        idempotency_key=key,
        key_life_seconds=life_seconds,
        events=events,
        skip_known=skip_known,
        expected_keys=expected_keys(newest),
    )
    if actor:
        for event in request.events:
            event.actor = event.actor or actor
    return request


def erase(
    conversation: str,
    events: Iterable[int | tuple[int, int]],
    *,
    literal: str | bytes,
    whole_namespace: bool,
) -> conversation_pb2.EraseRequest:
    """Builds an erase of exactly one: a conversation, a literal or the namespace."""
    given = [bool(conversation), bool(literal), whole_namespace]
    if sum(given) != 1:
        raise ValueError("give a conversation, a literal, or the whole namespace")
    if literal:
        octets = literal.encode() if isinstance(literal, str) else literal
        return conversation_pb2.EraseRequest(literal=octets)
    if whole_namespace:
        return conversation_pb2.EraseRequest(whole_namespace=True)
    pairs = [(each, each) if isinstance(each, int) else each for each in events]
    if not pairs:
        return conversation_pb2.EraseRequest(conversation_id=conversation)
    ranges = [conversation_pb2.RevisionRange(first=first, last=last) for first, last in pairs]
    revisions = conversation_pb2.EraseRevisions(conversation_id=conversation, ranges=ranges)
    return conversation_pb2.EraseRequest(revisions=revisions)


def is_needed(needs: bool | Callable[[str, Any], bool], tool: str, arguments: Any) -> bool:
    """Whether a call needs approval."""
    return needs if isinstance(needs, bool) else needs(tool, arguments)


def fitting(content: Iterable[new.Output]) -> list[event_pb2.ContentPart]:
    """Converts texts and parts of a result to parts. Raises `TooLarge` if no event can hold them:
    the server would refuse them midway, without knowing their size."""
    parts = new.outputs(content)
    size = sum(
        len(part.text.encode()) if part.HasField("text") else part.ByteSize() for part in parts
    )
    if size > BODY_BYTES_MAX:
        raise errors.TooLarge(
            f"the result has {size} bytes; the maximum per event is {BODY_BYTES_MAX}",
            metadata={"actual": str(size), "max": str(BODY_BYTES_MAX)},
        )
    return parts


def large_text(result: event_pb2.ToolResultRecorded) -> bytes | None:
    """Returns the text of a result that is a single large text, else None."""
    if len(result.parts) != 1 or result.parts[0].WhichOneof("part") != "text":
        return None
    text = result.parts[0].text
    if len(text) <= WHOLE_RESULT_BYTES_MAX // 4:
        return None
    encoded = text.encode()
    return encoded if len(encoded) > WHOLE_RESULT_BYTES_MAX else None


def in_chunks(
    conversation: str, branch: str, event: event_pb2.NewEvent, text: bytes, key: str, actor: str
) -> Iterator[tool_pb2.RecordResultRequest]:
    """Yields the messages that send a large result in chunks."""
    result = event_pb2.ToolResultRecorded()
    result.CopyFrom(event.tool_result_recorded)
    del result.parts[:]
    yield tool_pb2.RecordResultRequest(
        start=tool_pb2.RecordResultStart(
            conversation_id=conversation,
            branch=branch,
            idempotency_key=key,
            actor=actor,
            result=result,
        )
    )
    for start in range(0, len(text), CHUNK_BYTES):
        yield tool_pb2.RecordResultRequest(chunk=text[start : start + CHUNK_BYTES])


def build(
    conversation: str,
    branch: str,
    provider: ProviderName,
    model: str,
    budget: int,
    policy: Mapping[str, Any] | None,
    as_of: int,
    at_least: int | None,
) -> context_pb2.BuildRequest:
    """Builds a `BuildRequest`, for the next request to a provider."""
    merged = dict(policy or {})
    if budget:
        merged["budget_tokens"] = budget
    return context_pb2.BuildRequest(
        conversation_id=conversation,
        branch=branch,
        as_of_revision=as_of,
        provider=number(context_pb2.Provider, "PROVIDER", provider_name(provider)),
        model=model,
        policy=json_bytes(merged, "policy") if merged else b"",
        at_least=position(at_least),
    )


def position(offset: int | None) -> event_pb2.Position | None:
    """A log position; None for no offset."""
    return event_pb2.Position(offset=offset) if offset else None


PENDING_MAX = 1_000
"""Maximum number of waiting calls in a list."""


def one_waiting(call_id: str, waiting: Sequence[ToolCall]) -> ToolCall:
    """Returns the only waiting call with this id. Raises if there is none or several."""
    found = [call for call in waiting if call.call_id == call_id]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(f"{call.conversation_id} on {call.branch}" for call in found[:5])
        raise errors.Refused(
            f"{len(found)} calls {call_id} wait for a decision ({places}): "
            "pass one that `pending()` lists"
        )
    among = f" among the first {PENDING_MAX}" if len(waiting) >= PENDING_MAX else ""
    raise errors.CallNotFound(f"no call {call_id} waits for a decision{among}")


def read(
    conversation: str,
    branch: str,
    *,
    all_branches: bool,
    kinds: KindName | Sequence[KindName],
    first: int,
    last: int,
    backward: bool,
    limit: int,
    headers_only: bool,
    filters: EventFilters,
) -> events_pb2.ReadRequest:
    """Builds a read of the events of a branch, or of all branches."""
    request = events_pb2.ReadRequest(
        filter=event_filter(filters),
        from_revision=first,
        to_revision=last,
        backward=backward,
        kinds=numbers(event_pb2.EventKind, "EVENT_KIND", kinds),
        limit=limit,
        headers_only=headers_only,
    )
    if all_branches:
        request.conversation.conversation_id = conversation
    else:
        request.branch.conversation_id = conversation
        request.branch.branch = branch
    return request


class EventFilters(TypedDict, total=False):
    """Filters of events. `key`, `key_prefix` and `types` use an index."""

    key: str
    """Exact key."""
    key_prefix: str
    """Beginning of the key."""
    types: str | Sequence[str]
    """Custom events of these types."""
    actor: str
    correlation_id: str
    attributes: Mapping[str, str] | None
    """All of these attributes, with these values."""
    since: Time | None
    """Appended at this time or later."""
    until: Time | None
    """Appended before this time."""


FILTER_NAMES = tuple(EventFilters.__annotations__)


def event_filter(filters: EventFilters) -> events_pb2.EventFilter | None:
    """Builds the filter of a read; None for all events."""
    if unknown := set(filters) - set(FILTER_NAMES):
        names = ", ".join(sorted(unknown))
        raise TypeError(f"events has no {names}; it has {', '.join(FILTER_NAMES)}")
    if not filters:
        return None
    return events_pb2.EventFilter(
        key=filters.get("key", ""),
        key_prefix=filters.get("key_prefix", ""),
        types=_several(filters.get("types", ())),
        actor=filters.get("actor", ""),
        correlation_id=filters.get("correlation_id", ""),
        attributes=filters.get("attributes") or {},
        recorded_from=timestamp(filters.get("since"), "since"),
        recorded_to=timestamp(filters.get("until"), "until"),
    )


def latest(
    conversations: Iterable[str],
    branch: str,
    *,
    keys: str | Iterable[str],
    types: str | Iterable[str],
    kinds: KindName | Iterable[KindName],
    as_of: int,
    headers_only: bool,
) -> events_pb2.LatestRequest:
    """Builds a request for the newest event of each key, type and kind."""
    return events_pb2.LatestRequest(
        conversations=list(conversations),
        branch=branch,
        keys=_several(keys),
        types=_several(types),
        kinds=numbers(event_pb2.EventKind, "EVENT_KIND", kinds),
        as_of_revision=as_of,
        headers_only=headers_only,
    )


INDEX_WAIT_MAX = 25.0
"""Maximum seconds that a search waits for the index; the server's own limit is 30."""


class NewConversation(TypedDict, total=False):
    """Arguments of `create` and `open`."""

    title: str
    system: str
    """The system prompt."""
    model: str
    mode: str
    """For example "planning" or "coding"."""
    parameters: Mapping[str, Any] | None
    """Parameters of the model, such as `temperature`."""
    tools: Iterable[event_pb2.ToolDefinition]
    """See `new.tool`."""
    labels: Mapping[str, str] | None
    policies: Mapping[str, Any] | None
    """`{"context": {...}}` is the policy for requests."""
    source_meta: Any
    """Your own description of the source: any JSON value."""
    id: str
    """A UUID of your choice."""


class EventPlace(Protocol):
    """An event, a hit, or another object with conversation and revision of an event."""

    @property
    def conversation_id(self) -> str: ...
    @property
    def revision(self) -> int: ...


class SearchFilters(TypedDict, total=False):
    """Filters and options of a search."""

    conversation: str
    """UUID or source id."""
    branch: str
    """With a conversation: only this branch."""
    sub_contexts: bool
    """With a conversation: include its sub-contexts."""
    limit: int
    """Maximum number of hits (default 10)."""
    offset: int
    tools: str | Sequence[str]
    success: bool | None
    """Only successful, or only failed results."""
    kinds: KindName | Sequence[KindName]
    """Results, calls, messages, summaries, titles, annotations; empty for all."""
    roles: RoleName | Sequence[RoleName]
    paths: str | Sequence[str]
    """Only calls and results with a path that matches one of these: `src/**/*.py`."""
    sources: str | Sequence[str]
    labels: str | Sequence[str]
    """Only conversations with all of these labels: `name` or `name=value`."""
    since: Time | None
    """Appended at this time or later."""
    until: Time | None
    happened_since: Time | None
    """Happened at this time or later. Imported events happened before they were appended."""
    happened_until: Time | None
    mode: QueryModeName
    """"plain" takes the text as words, "query" as a query; empty detects which."""
    by: SearchByName
    """"words" (default), "meaning", or "both". The last two need an embedder on the server."""
    similar_to: EventPlace | None
    """With an empty query: search for events similar in meaning to this event or hit."""
    regex: bool
    """The text is a regular expression, matched line by line."""
    context_lines: int
    """Number of lines before and after the match in each hit."""
    count_all: bool
    by_conversation: bool
    """Also count the hits of each conversation."""
    every_copy: bool
    """Return every event with equal text, instead of one hit for all."""
    active_branches_only: bool
    """Only active branches: without rewound events."""
    not_sealed: bool
    """Only conversations that are not sealed."""
    at_least: int | None
    """Wait until the index contains this log position. Default: the last append of this client."""


FILTER_DEFAULTS = SearchFilters(
    conversation="",
    branch="",
    sub_contexts=False,
    limit=10,
    offset=0,
    tools=(),
    success=None,
    kinds=(),
    roles=(),
    paths=(),
    sources=(),
    labels=(),
    since=None,
    until=None,
    happened_since=None,
    happened_until=None,
    mode="",
    by="words",
    similar_to=None,
    regex=False,
    context_lines=0,
    count_all=False,
    by_conversation=False,
    every_copy=False,
    active_branches_only=False,
    not_sealed=False,
    at_least=None,
)


def search(
    query: str, seen: int, patience: float, filters: SearchFilters
) -> search_pb2.SearchRequest:
    """Builds a search."""
    if unknown := set(filters) - set(FILTER_DEFAULTS):
        names = ", ".join(sorted(unknown))
        raise TypeError(f"search has no {names}; it has {', '.join(FILTER_DEFAULTS)}")
    given: SearchFilters = {**FILTER_DEFAULTS, **filters}
    at_least = given["at_least"] if given["at_least"] is not None else seen
    wait = Duration()
    # Shorter than the timeout: better an answer marked as incomplete than none.
    wait.FromMilliseconds(int(min(patience / 2, INDEX_WAIT_MAX) * 1000))
    return search_pb2.SearchRequest(
        query=text(query, "the query"),
        conversation_id=given["conversation"],
        branch=given["branch"],
        include_sub_contexts=given["sub_contexts"],
        limit=given["limit"],
        offset=given["offset"],
        tools=_several(given["tools"]),
        success=given["success"],
        kinds=numbers(event_pb2.EventKind, "EVENT_KIND", given["kinds"]),
        roles=numbers(event_pb2.Role, "ROLE", given["roles"]),
        paths=_several(given["paths"]),
        sources=_several(given["sources"]),
        labels=_several(given["labels"]),
        recorded_from=timestamp(given["since"], "since"),
        recorded_to=timestamp(given["until"], "until"),
        happened_from=timestamp(given["happened_since"], "happened_since"),
        happened_to=timestamp(given["happened_until"], "happened_until"),
        mode=number(search_pb2.QueryMode, "QUERY_MODE", given["mode"] or "unspecified"),
        by=number(search_pb2.SearchBy, "SEARCH_BY", given["by"]),
        similar_to=_event(given["similar_to"]),
        regex=given["regex"],
        context_lines=given["context_lines"],
        count_all=given["count_all"],
        by_conversation=given["by_conversation"],
        every_copy=given["every_copy"],
        active_branches_only=given["active_branches_only"],
        not_sealed=given["not_sealed"],
        at_least=position(at_least),
        wait_max=wait if at_least else None,
    )


def _event(place: EventPlace | None) -> conversation_pb2.EventRef | None:
    if place is None:
        return None
    return conversation_pb2.EventRef(conversation_id=place.conversation_id, revision=place.revision)


def _several(given: str | Iterable[str]) -> list[Any]:
    return [given] if isinstance(given, str) else list(given)
