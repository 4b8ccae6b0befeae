# Made of _async/client.py by scripts/make_sync.py: change that, and run it again.
"""A store in one namespace, through its server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

from treering import _methods as m
from treering import _requests, errors, new, semantic
from treering._entry import Entry
from treering._keys import key_or_new, life_seconds
from treering._local import Endpoint, Fixed, Local, run_command
from treering._sync import context, lookup
from treering._sync.conversation import Conversation
from treering._sync.items import Items
from treering._sync.reading import read_events
from treering._sync.subscription import ContextWatch, Subscription
from treering._sync.transport import Transport
from treering._times import Time, timestamp
from treering._words import DecisionName, KindName, json_texts, numbers
from treering.new import NewEvent
from treering.types import (
    ConversationSummary,
    Erased,
    Event,
    Hits,
    Receipt,
    ToolCall,
)
from treering.v1 import admin_pb2, conversation_pb2, event_pb2, events_pb2, tool_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

TIMEOUT = 60.0
"""Seconds that a call may take, including its retries."""
START_TIMEOUT = 120.0
"""Seconds for a server to open its store."""


class Treering:
    """A store in one namespace. Create it with `treering.connect` or `treering.local`.

    >>> conv = db.create("First steps")
    >>> said = conv.user("Where is the port set?")
    >>> [hit.snippet for hit in db.search("port", conversation=conv.id)]
    ['Where is the port set?']
    """

    def __init__(
        self, transport: Transport, endpoint: Endpoint, actor: str, entry: Entry | None = None
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._entry = entry or Entry()
        self.actor = actor
        """Default actor of appended events."""

    @property
    def namespace(self) -> str:
        """The tenant. Namespaces cannot see each other."""
        return self._transport.namespace

    @property
    def address(self) -> str:
        """Current address of the server."""
        return self._endpoint.address()

    @property
    def items(self) -> Items:
        """Items: JSON values under paths and keys, shared by all conversations."""
        return Items(self._transport, self.actor)

    def close(self) -> None:
        """Closes the connection. A server that `local` started stops when its last client
        closes."""
        self._transport.close()

    def __enter__(self) -> Treering:
        self._transport.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- conversations ----

    def create(
        self,
        title: str = "",
        *,
        system: str = "",
        model: str = "",
        mode: str = "",
        parameters: Mapping[str, Any] | None = None,
        tools: Iterable[event_pb2.ToolDefinition] = (),
        labels: Mapping[str, str] | None = None,
        policies: Mapping[str, Any] | None = None,
        source: str = "",
        source_id: str = "",
        source_meta: Any = None,
        id: str = "",
        idempotency_key: str = "",
    ) -> Conversation:
        """Creates a conversation with its system prompt and tools in one batch.

        `policies={"context": {...}}` sets the policy for requests; `id` is a UUID of your choice.
        Each call creates a conversation, even if the `source_id` exists. Use `open` to get one
        conversation for each source id.

        >>> conv = db.create(
        ...     "Ports",
        ...     system="You answer in one sentence.",
        ...     tools=[new.tool("grep", "Looks for a pattern", {"type": "object"})],
        ...     labels={"team": "search"},
        ... )
        >>> (conv.state()).summary.labels["team"]
        'search'
        """
        events = [
            new.created(
                title,
                config=new.config(model, mode=mode, parameters=parameters),
                labels=labels,
                policies=policies,
                source=source,
                source_id=source_id,
                source_meta=source_meta,
            )
        ]
        if system:
            events.append(new.system(system))
        if tools := list(tools):
            events.append(new.tools(tools))
        key = key_or_new(idempotency_key)
        life = life_seconds(idempotency_key, None)
        request = _requests.append(id, "", events, None, key, self.actor, life_seconds=life)
        receipt = Receipt.of(self._transport.unary(m.APPEND, request, key=key))
        self._transport.saw(receipt.position)
        return self.conversation(receipt.conversation_id)

    def conversation(self, id: str, branch: str = "") -> Conversation:
        """Returns a conversation by UUID or source id, without calling the server."""
        return Conversation(self._transport, id, branch, self.actor)

    def open(
        self, source_id: str, *, source: str = "app", **about: Unpack[_requests.NewConversation]
    ) -> Conversation:
        """Returns the conversation with this `source_id`, and creates it if it does not exist.

        `about` takes the arguments of `create`. Programs that open the same id get the same
        conversation.

        >>> first = db.open("ticket-42", title="The printer burns")
        >>> again = db.open("ticket-42")
        >>> again.id == first.id
        True
        """
        named = self.conversation(source_id)
        try:
            return self.conversation((named.state()).summary.conversation_id)
        except errors.NotFound:
            pass
        try:
            return self.create(
                source=source,
                source_id=source_id,
                idempotency_key=f"open:{source}:{source_id}",
                **about,
            )
        except errors.IdempotencyConflict:
            # Another program was first, with another title.
            return self.conversation((named.state()).summary.conversation_id)

    def conversations(
        self,
        *,
        source: str = "",
        oldest_first: bool = False,
        page_size: int = 0,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        parent: str = "",
        title: str = "",
        sealed: bool | None = None,
        updated_since: Time | None = None,
        updated_until: Time | None = None,
    ) -> Iterator[ConversationSummary]:
        """Lists the conversations of the namespace, newest first.

        Filters: all of these labels; these values in the metadata; forked or spawned from `parent`;
        `title` is part of the title; sealed or not; time of the last event, for example "2 days".

        >>> conv = db.create("The newest")
        >>> for summary in db.conversations():
        ...     print(summary.title)
        ...     break
        The newest
        """
        request = conversation_pb2.ListConversationsRequest(
            source=source,
            ascending=oldest_first,
            page_size=page_size,
            labels=labels or {},
            metadata=json_texts(metadata, "metadata"),
            parent=parent,
            title=title,
            sealed=sealed,
            updated_from=timestamp(updated_since, "updated_since"),
            updated_to=timestamp(updated_until, "updated_until"),
        )
        while True:
            page = self._transport.unary(m.LIST, request)
            for summary in page.conversations:
                yield summary
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def find(self, id_part: str, *, limit: int = 0) -> list[ConversationSummary]:
        """Finds conversations whose UUID or source id begins (or else ends) with this text. Returns
        at most `limit`; 0 is the server's page size.

        >>> conv = db.open("ticket-4711", title="The tap drips")
        >>> [summary.title for summary in db.find("ticket-47")]
        ['The tap drips']
        """
        request = conversation_pb2.FindConversationsRequest(id_part=id_part, limit=limit)
        return list((self._transport.unary(m.FIND, request)).conversations)

    # ---- the log ----

    def append(
        self,
        events: Sequence[NewEvent],
        *,
        conversation: str = "",
        branch: str = "",
        expected: int | None = None,
        expectations: Iterable[events_pb2.BranchExpectation] = (),
        create_if_missing: event_pb2.ConversationCreated | None = None,
        expected_keys: Mapping[str, int | str | None] | None = None,
        skip_known: bool = False,
        idempotency_key: str = "",
        key_life: timedelta | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Appends a batch: all events or none. Events may name other branches and related
        conversations. For one conversation, use `conv.append`.

        `create_if_missing` creates the conversation if it does not exist, also with concurrent
        writers; `conversation` may then be a source id within its `source`. The other arguments are
        those of `conv.append`.
        """
        key, harmless = _requests.append_keys(events, idempotency_key, skip_known=skip_known)
        request = _requests.append(
            conversation,
            branch,
            events,
            expected,
            key,
            self.actor,
            life_seconds=life_seconds(idempotency_key if key else "of events", key_life),
            skip_known=skip_known,
            newest=expected_keys,
        )
        request.expectations.extend(expectations)
        if create_if_missing is not None:
            request.create_if_missing.CopyFrom(create_if_missing)
        receipt = Receipt.of(
            self._transport.unary(m.APPEND, request, key=harmless, timeout=timeout)
        )
        self._transport.saw(receipt.position)
        return receipt

    def append_many(
        self, batches: Iterable[tuple[str, Sequence[NewEvent]]], *, at_once: int = 128
    ) -> Iterator[Receipt | errors.TreeringError]:
        """Appends many batches, each `(conversation, events)`, without waiting for each answer. Use
        it for imports.

        Yields a receipt or an error for each batch, in order. After a broken connection, unanswered
        batches are sent again with the same keys.

        >>> batches = [(conv.id, [new.user(f"Line {n}")]) for n in range(1000)]
        >>> answers = [answer for answer in db.append_many(batches)]
        >>> len(answers), answers[-1].revision - answers[0].revision
        (1000, 999)
        """
        waiting: list[events_pb2.AppendRequest] = []
        for conversation, events in batches:
            # A batch needs no key if all its events have their own.
            key = "" if all(event.idempotency_key for event in events) else key_or_new()
            life = life_seconds("", None) if key else 0
            request = _requests.append(
                conversation, "", events, None, key, self.actor, life_seconds=life
            )
            waiting.append(request)
            if len(waiting) == at_once:
                for answer in self._append_some(waiting):
                    yield answer
                waiting = []
        if waiting:
            for answer in self._append_some(waiting):
                yield answer

    def _append_some(
        self, requests: list[events_pb2.AppendRequest]
    ) -> Iterator[Receipt | errors.TreeringError]:
        left = list(requests)
        answers = self._transport.read(m.APPEND_STREAM, lambda: iter(list(left)), key="each")
        try:
            for answer in answers:
                left.pop(0)
                if answer.WhichOneof("outcome") == "error":
                    refused = answer.error
                    yield errors.from_append_error(
                        refused.code, refused.message, refused.reason, refused.metadata
                    )
                else:
                    receipt = Receipt.of(answer.appended)
                    self._transport.saw(receipt.position)
                    yield receipt
                if not left:
                    return
        finally:
            answers.close()

    def events(
        self,
        *,
        kinds: KindName | Sequence[KindName] = (),
        first: int = 0,
        backward: bool = False,
        limit: int = 0,
        headers_only: bool = False,
        **filters: Unpack[_requests.EventFilters],
    ) -> Iterator[Event]:
        """Reads all events of the namespace in log order, from the log offset `first`. `filters`
        are those of `EventFilters`; here, filters use no index.
        """
        request = events_pb2.ReadRequest(
            filter=_requests.event_filter(filters),
            log=events_pb2.LogSource(),
            from_offset=first,
            backward=backward,
            kinds=numbers(event_pb2.EventKind, "EVENT_KIND", kinds),
            limit=limit,
            headers_only=headers_only,
        )
        for event in read_events(self._transport, m.READ, request, limit):
            yield event

    def subscribe(
        self,
        *,
        after: int | None = None,
        from_now: bool = False,
        kinds: KindName | Sequence[KindName] = (),
        heartbeat: int = 0,
    ) -> Subscription:
        """Subscribes to all events of the namespace after a log offset. Survives restarts of the
        server.

        >>> conv = db.create("Watched")
        >>> with db.subscribe(kinds=["conversation_created"]) as events:
        ...     for event in events:
        ...         if event.conversation_id == conv.id:
        ...             print(event.body.title)
        ...             break
        Watched
        """
        return Subscription(
            self._transport, after=after, from_now=from_now, kinds=kinds, heartbeat=heartbeat
        )

    def latest(
        self,
        conversations: Sequence[str],
        *,
        branch: str = "",
        keys: str | Sequence[str] = (),
        types: str | Sequence[str] = (),
        kinds: KindName | Sequence[KindName] = (),
        headers_only: bool = False,
    ) -> list[Event | None]:
        """Returns the newest event with each key, type and kind in each conversation, in one call.
        None stands for a missing event. The order is that of the arguments, conversation by
        conversation.

        >>> conv = db.create("Notes")
        >>> done = conv.append([new.custom("note", {"n": 1}, key="a")])
        >>> [each and each.key for each in db.latest([conv.id], keys=["a", "b"])]
        ['a', None]
        """
        request = _requests.latest(
            conversations,
            branch,
            keys=keys,
            types=types,
            kinds=kinds,
            as_of=0,
            headers_only=headers_only,
        )
        return lookup.latest(self._transport, request)

    def get_events(
        self, names: Iterable[str | tuple[str, int]], *, headers_only: bool = False
    ) -> list[Event | None]:
        """Returns events by id, or by conversation and revision, in this order; None for a missing
        event.

        >>> conv = db.create("By name")
        >>> one = conv.user("One")
        >>> events = db.get_events([one.event_ids[0], (conv.id, 1), (conv.id, 99)])
        >>> [event and event.revision for event in events]
        [2, 1, None]
        """
        return lookup.get_many(self._transport, names, headers_only)

    def known_keys(self, keys: Sequence[str]) -> list[bool]:
        """Tells for each idempotency key whether it was used (at most 4,096 keys)."""
        request = events_pb2.KnownKeysRequest(idempotency_keys=keys)
        return list((self._transport.unary(m.KNOWN_KEYS, request)).known)

    # ---- search ----

    def search(self, query: str, **filters: Unpack[_requests.SearchFilters]) -> Hits:
        """Searches results, call arguments, messages and summaries. Returns the best hits first.

        Waits until the index contains what this client appended. For filters see `SearchFilters`.

        >>> with conv.tool_call("bash", {"command": "df"}) as call:
        ...     done = call.result("/dev/sda1 97% /\\n/dev/sdb1 12% /data")
        >>> hits = db.search("sda1 97%", tools="bash", conversation=conv.id)
        >>> hits[0].tool, hits[0].line, hits[0].highlights
        ('bash', 1, ['sda1', '97'])
        """
        transport = self._transport
        request = _requests.search(query, transport.last_position, transport.timeout, filters)
        return Hits(transport.unary(m.SEARCH, request))

    # ---- approvals ----

    def pending(self, *, limit: int = 0) -> list[ToolCall]:
        """Lists the calls of all conversations that wait for approval."""
        answer = self._transport.unary(m.PENDING, tool_pb2.PendingRequest(limit=limit))
        return [ToolCall.of(call) for call in answer.calls]

    def approve(self, call: ToolCall | str, *, by: str = "", reason: str = "") -> Receipt:
        """Approves a call with exactly its current arguments.

        A call id must belong to exactly one waiting call of the namespace.

        >>> call = conv.tool_call("rm", {"path": "old.txt"}, needs_approval=True).request()
        >>> for waiting in db.pending():
        ...     decided = db.approve(waiting, by="ada")
        >>> (call.wait_for_approval(timeout=10)).status
        'approved'
        """
        return self._decide(call, "approved", by, reason)

    def deny(self, call: ToolCall | str, *, by: str = "", reason: str = "") -> Receipt:
        """Denies a call. Takes the arguments of `approve`."""
        return self._decide(call, "denied", by, reason)

    def _decide(
        self, call: ToolCall | str, decision: DecisionName, by: str, reason: str
    ) -> Receipt:
        if isinstance(call, str):
            call = _requests.one_waiting(call, self.pending())
        event = new.decision(call.call_id, decision, call.arguments_hash, by=by, reason=reason)
        return self.append([event], conversation=call.conversation_id, branch=call.branch)

    # ---- the long-term context ----

    def set_context(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        remove: Iterable[str] = (),
        provider: str = "",
        idempotency_key: str = "",
    ) -> Receipt:
        """Sets and removes keys of the long-term context, which is part of every request of the
        namespace.

        >>> done = db.set_context({"user": {"name": "Ada", "likes": "short answers"}})
        >>> (db.context("user"))["user"]["name"]
        'Ada'
        """
        return context.change(
            self._transport, "", "", values or {}, remove, provider, idempotency_key, self.actor
        )

    def context(self, *keys: str) -> dict[str, Any]:
        """Returns the long-term context: these keys, or all."""
        return context.get(self._transport, "", "", keys)

    def watch_context(self, *keys: str) -> ContextWatch:
        """Yields the keys of the long-term context, then every change."""
        return ContextWatch(self._transport, keys=keys)

    # ---- the store ----

    def stats(self) -> admin_pb2.StatsResponse:
        """Returns statistics of the store."""
        return self._transport.unary(m.STATS, admin_pb2.StatsRequest())

    def verify(self, *, deep: bool = False) -> admin_pb2.VerifyOutcome:
        """Reads and checks all data. `sound` is true if nothing is damaged.

        >>> (db.verify(deep=True)).sound
        True
        """
        outcome = admin_pb2.VerifyOutcome()
        for item in self._transport.read(m.VERIFY, lambda: admin_pb2.VerifyRequest(deep=deep)):
            if item.HasField("outcome"):
                outcome = item.outcome
        return outcome

    def faults(self, *, deep: bool = False) -> Iterator[admin_pb2.Fault]:
        """Yields the faults that `verify` finds."""
        for item in self._transport.read(m.VERIFY, lambda: admin_pb2.VerifyRequest(deep=deep)):
            if item.HasField("fault"):
                yield item.fault

    def rebuild(self, *, views: bool = True, index: bool = True) -> admin_pb2.RebuildOutcome:
        """Rebuilds projections and search index from the log."""
        outcome = admin_pb2.RebuildOutcome()
        for item in self._transport.read(
            m.REBUILD, lambda: admin_pb2.RebuildRequest(views=views, index=index)
        ):
            if item.HasField("outcome"):
                outcome = item.outcome
        return outcome

    def erase(
        self,
        conversation: str = "",
        events: Iterable[int | tuple[int, int]] = (),
        *,
        literal: str | bytes = b"",
        whole_namespace: bool = False,
        keep_derived: bool = False,
        dry_run: bool = False,
        reason: str = "",
    ) -> Erased:
        """Erases content and everything derived from it: `events` of a conversation by revision (a
        pair is a range), a conversation with its sub-contexts, every event that contains a
        `literal`, or the whole namespace. The store keeps no copy.

        >>> secret = db.create("About the key")
        >>> at = (secret.user("The key is 7x-3319-qq")).revision
        >>> gone = db.erase(secret.id, [at], reason="a key")
        >>> gone.outcome.events, [event.erased for event in secret.events(first=at, last=at)]
        (1, [True])
        """
        request = _requests.erase(
            conversation, events, literal=literal, whole_namespace=whole_namespace
        )
        request.keep_derived = keep_derived
        request.dry_run = dry_run
        request.reason = reason
        request.actor = self.actor
        erased = Erased()
        # This takes as long as a rebuild of projections and index.
        for item in self._transport.read(m.ERASE, lambda: request):
            erased.take(item)
        return erased

    def command(self, *arguments: str | os.PathLike[str]) -> list[Any]:
        """Runs a `treering` command on this store and returns the JSON that it prints.

        For example `import`, `export`, `compact` or `replay`; `treering --help` lists the commands.

        >>> lines = folder.with_suffix(".jsonl")
        >>> size = lines.write_text('{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}')
        >>> [counts] = db.command("import", lines)
        >>> counts["new"], [event.text for event in db.conversation("a").events(first=2)]
        (1, ['Hi'])
        """
        address = self._transport.wire.in_thread(self._endpoint.address)
        return self._transport.wire.in_thread(
            lambda: run_command(self._entry, address, self.namespace, arguments)
        )

    def is_ready(self, service: str = "treering.ready", *, timeout: float = 5.0) -> bool:
        """Tells whether the server accepts calls, including appends. Does not retry.

        >>> db.is_ready()
        True
        """
        try:
            return self._transport.health(service, timeout)
        except errors.TreeringError:
            return False


def connect(
    address: str = "127.0.0.1:7171",
    *,
    namespace: str = "default",
    actor: str = "",
    timeout: float = TIMEOUT,
    credentials: grpc.ChannelCredentials | None = None,
    metadata: Iterable[tuple[str, str]] = (),
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
) -> Treering:
    """Connects to a running server: `host:port`, `http://host:port`, or `https://host:port` for
    TLS.

    `timeout` covers each call with its retries. Nothing is sent before the first call. `token` is
    the API key (default TREERING_TOKEN), `ca` a file with the certificate of a private CA (default
    TREERING_CA). `credentials` and `metadata` are for a proxy, or for a client certificate.

    >>> with treering.connect(db.address, namespace="another") as other:
    ...     [summary for summary in other.conversations()]
    []
    """
    endpoint = Fixed(address)
    entry = Entry.of(address, token, ca)
    tags = [*entry.metadata(), *metadata]
    channel = credentials or entry.credentials()
    transport = Transport(endpoint, namespace, timeout, channel, tags)
    return Treering(transport, endpoint, actor, entry)


def local(
    path: str | os.PathLike[str],
    *,
    namespace: str = "default",
    actor: str = "",
    timeout: float = TIMEOUT,
    options: Sequence[str] = (),
    embedder: str | os.PathLike[str] | None = None,
    start_timeout: float = START_TIMEOUT,
    token: str | None = None,
) -> Treering:
    """Opens the store in a folder. Starts its server, or uses the server of the process that has it
    open.

    The server stops when this program ends, for any reason. If the server of another program stops,
    this client starts one. `options` are options of `treering serve`, if this program starts the
    server; clients of one folder share them. `embedder` is one of them: a folder or URL, or
    "semantic" for the model of `pip install "treering[semantic]"`. `token` is the API key, if the
    store has keys (default TREERING_TOKEN).

    >>> with treering.local(folder) as db:
    ...     conv = db.create("In a folder")
    """
    if embedder is not None:
        if embedder == "semantic":
            embedder = semantic.folder()
        options = (*options, "--embedder", os.fspath(embedder))
    entry = Entry.of("", token, "")
    endpoint = Local.at(path, tuple(options), start_timeout)
    try:
        transport = Transport(endpoint, namespace, timeout, None, entry.metadata())
    except ValueError:
        endpoint.close()
        raise
    return Treering(transport, endpoint, actor, entry)
