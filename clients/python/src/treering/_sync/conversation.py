# Made of _async/conversation.py by scripts/make_sync.py: change that, and run it again.
"""A conversation, on one of its branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from treering import _answers, _html, _requests, new
from treering import _methods as m
from treering._background import despite_sync
from treering._keys import key_or_new, life_seconds
from treering._sync import context, lookup
from treering._sync.calls import ERROR_CHARS_MAX, Answer, Call
from treering._sync.reading import read_events
from treering._sync.replay import Replay
from treering._sync.subscription import ContextWatch, Subscription
from treering._sync.transport import Transport
from treering._words import (
    CompactionTriggerName,
    KindName,
    ProviderName,
    json_bytes,
    json_texts,
    number,
)
from treering.new import NewEvent, Output, Part
from treering.types import (
    Branch,
    Compaction,
    ConversationState,
    Difference,
    Event,
    Hits,
    Receipt,
    Request,
    Rewound,
    ToolCall,
    ToolResult,
)
from treering.v1 import context_pb2, conversation_pb2, event_pb2, events_pb2, tool_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

Summariser = Callable[[context_pb2.CompactionPlan], str]


class Conversation:
    """A conversation on one branch. Appends, reads, forks, and builds the next request.

    It holds an id and a branch, and no state. Without a branch, it uses the active branch.

    >>> conv = db.create("Ports", system="You answer in one sentence.")
    >>> said = conv.user("Which port does it listen on?")
    >>> with conv.tool_call("grep", {"pattern": "PORT"}) as call:
    ...     found = call.result("config.py:12: PORT = 7171")
    >>> answer = conv.assistant("On 7171.")
    >>> [event.kind for event in conv.events()][-2:]
    ['tool_result_recorded', 'message_appended']
    """

    def __init__(self, transport: Transport, id: str, branch: str = "", actor: str = "") -> None:
        self._transport = transport
        self.id = id
        """UUID or source id."""
        self.branch = branch
        """Name of the branch; empty for the active branch."""
        self.actor = actor
        """Default actor of appended events."""

    def __repr__(self) -> str:
        at = f", branch={self.branch!r}" if self.branch else ""
        return f"{type(self).__name__}({self.id!r}{at})"

    def _repr_html_(self) -> str:
        return _html.conversation(self)

    def on(self, branch: str) -> Conversation:
        """Returns the same conversation on another branch."""
        return Conversation(self._transport, self.id, branch, self.actor)

    # ---- writing ----

    def append(
        self,
        events: Sequence[NewEvent],
        *,
        expected: int | None = None,
        expected_keys: Mapping[str, int | str | None] | None = None,
        skip_known: bool = False,
        idempotency_key: str = "",
        key_life: timedelta | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Appends events: all or none. They are on disk when the call returns.

        `expected` is the head that the branch must have, otherwise `RevisionMismatch`.
        `expected_keys` maps event keys (`new.found_by`) to the newest event that each must have: a
        revision, an event id, or None for no event; otherwise `LatestMismatch`. Each append gets an
        idempotency key, so retries are safe. Pass your own key if your program may repeat the
        append. `skip_known` skips events whose ids exist, see `new.with_id`; for keys of single
        events see `new.once`. Your key is kept for ever or for `key_life`, a generated key for a
        day.

        >>> batch = [new.user("Hello"), new.assistant("Hello to you.")]
        >>> first = conv.append(batch, idempotency_key="greeting")
        >>> again = conv.append(batch, idempotency_key="greeting")
        >>> again.repeated, again.revisions == first.revisions
        (True, True)
        >>> plan = new.found_by(new.user("The plan."), "plan")
        >>> first = conv.append([plan], expected_keys={"plan": None})
        >>> mine = conv.append([plan], expected_keys={"plan": first.revision})
        >>> try:
        ...     late = conv.append([plan], expected_keys={"plan": first.event_ids[0]})
        ... except treering.LatestMismatch as error:
        ...     error.event_id == mine.event_ids[0]
        True
        """
        key, harmless = _requests.append_keys(events, idempotency_key, skip_known=skip_known)
        request = _requests.append(
            self.id,
            self.branch,
            events,
            expected,
            key,
            self.actor,
            life_seconds=life_seconds(idempotency_key if key else "of events", key_life),
            skip_known=skip_known,
            newest=expected_keys,
        )
        answer = self._transport.unary(m.APPEND, request, key=harmless, timeout=timeout)
        receipt = Receipt.of(answer)
        self._transport.saw(receipt.position)
        return receipt

    def user(
        self,
        *content: Part,
        author: str = "",
        expected: int | None = None,
        idempotency_key: str = "",
    ) -> Receipt:
        """Appends a user message: texts, and parts such as `new.image(...)`."""
        event = new.user(*content, author=author)
        return self.append([event], expected=expected, idempotency_key=idempotency_key)

    def assistant(
        self,
        *content: Part,
        tool_calls: Iterable[tuple[str, str, Any]] = (),
        needs_approval: bool | Callable[[str, Any], bool] = False,
        usage: event_pb2.Usage | None = None,
        message_id: str = "",
        finish_reason: str = "",
        item_ids: Mapping[str, str] | None = None,
        expected: int | None = None,
        idempotency_key: str = "",
    ) -> Answer:
        """Appends an assistant message with its tool calls, in one batch.

        `tool_calls` are (call id, tool, arguments). `needs_approval` applies to all calls, or is a
        function of tool and arguments. `item_ids` maps call ids to the provider's item ids (OpenAI
        Responses: `fc_…`).

        >>> answer = conv.assistant(
        ...     "I look from two sides.",
        ...     tool_calls=[("a", "ls", {"path": "."}), ("b", "grep", {"pattern": "port"})],
        ... )
        >>> for call in answer.calls:
        ...     with call:
        ...         done = call.result(f"what {call.tool} found")
        """
        asked = [
            (id, tool, arguments, _requests.is_needed(needs_approval, tool, arguments))
            for id, tool, arguments in tool_calls
        ]
        events = []
        if content or not asked:
            events.append(
                new.assistant(
                    *content, usage=usage, message_id=message_id, finish_reason=finish_reason
                )
            )
        for id, tool, arguments, needs in asked:
            item_id = (item_ids or {}).get(id, "")
            events.append(new.tool_call(id, tool, arguments, needs_approval=needs, item_id=item_id))
        receipt = self.append(events, expected=expected, idempotency_key=idempotency_key)
        calls = [
            Call(self, id, tool, arguments, needs_approval=needs, is_requested=True)
            for id, tool, arguments, needs in asked
        ]
        return Answer(receipt, calls)

    def record(
        self,
        provider: ProviderName,
        response: Any,
        *,
        needs_approval: bool | Callable[[str, Any], bool] = False,
        expected: int | None = None,
        idempotency_key: str = "",
    ) -> Answer:
        """Appends a provider's answer: text, reasoning, tool calls and usage.

        `response` is a dict or the object of the provider's package. An error, a part of a stream,
        or an answer of another provider raises `ValueError`.

        >>> answer = conv.record("anthropic", {
        ...     "id": "msg_1", "model": "claude-sonnet-4-5", "stop_reason": "tool_use",
        ...     "content": [
        ...         {"type": "text", "text": "I look."},
        ...         {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}],
        ...     "usage": {"input_tokens": 12, "output_tokens": 9}})
        >>> [call.tool for call in answer.calls]
        ['ls']
        """
        answer = _answers.read(provider, response)
        return self.assistant(
            *answer.parts,
            tool_calls=_answers.named(answer.calls, idempotency_key),
            needs_approval=needs_approval,
            usage=answer.usage,
            message_id=answer.message_id,
            finish_reason=answer.finish_reason,
            item_ids=answer.item_ids,
            expected=expected,
            idempotency_key=idempotency_key,
        )

    def extend(
        self, provider: ProviderName, messages: Iterable[Any], *, idempotency_key: str = ""
    ) -> Receipt:
        """Appends a list of messages in the format of OpenAI or Anthropic.

        All messages are appended, or none. They become the same events that `user`, `assistant` and
        `tool_call` append.

        >>> done = conv.extend("openai-chat", [
        ...     {"role": "user", "content": "What is in the folder?"},
        ...     {"role": "assistant", "tool_calls": [
        ...         {"id": "c1", "type": "function",
        ...          "function": {"name": "ls", "arguments": "{}"}}]},
        ...     {"role": "tool", "tool_call_id": "c1", "content": "README.md"},
        ... ])
        >>> (conv.request("anthropic", model="claude-sonnet-4-5"))["messages"][-1]["role"]
        'user'
        """
        events = [event for batch in _answers.messages(provider, messages) for event in batch]
        return self.append(events, idempotency_key=idempotency_key)

    def system(self, prompt: str) -> Receipt:
        """Sets the system prompt from here on."""
        return self.append([new.system(prompt)])

    def define_tools(self, tools: Iterable[event_pb2.ToolDefinition]) -> Receipt:
        """Sets the available tools from here on: see `new.tool`."""
        return self.append([new.tools(tools)])

    def configure(
        self, model: str = "", *, mode: str = "", parameters: Mapping[str, Any] | None = None
    ) -> Receipt:
        """Sets the model and its settings from here on."""
        return self.append(
            [new.config_changed(new.config(model, mode=mode, parameters=parameters))]
        )

    def annotate(
        self,
        revision: int = 0,
        *,
        whole_turn: bool = False,
        score: float | None = None,
        label: str = "",
        comment: str = "",
    ) -> Receipt:
        """Annotates an event, a turn or the branch, for example to compare forks."""
        event = new.annotation(
            revision, whole_turn=whole_turn, score=score, label=label, comment=comment
        )
        return self.append([event])

    def custom(self, type_name: str, data: Any, *, content_type: str = "") -> Receipt:
        """Appends a custom event. `bytes` are stored unchanged, other values as JSON."""
        return self.append([new.custom(type_name, data, content_type=content_type)])

    def seal(self, reason: str = "", summary: str = "", *, idempotency_key: str = "") -> Receipt:
        """Seals the conversation: it accepts no appends and stays readable."""
        key = key_or_new(idempotency_key)
        request = conversation_pb2.SealRequest(
            conversation_id=self.id,
            reason=reason,
            summary=summary,
            idempotency_key=key,
            actor=self.actor,
        )
        receipt = Receipt.of(self._transport.unary(m.SEAL, request, key=key))
        self._transport.saw(receipt.position)
        return receipt

    # ---- tool calls ----

    def tool_call(
        self,
        tool: str,
        arguments: Any = None,
        *,
        call_id: str = "",
        needs_approval: bool = False,
        approval_timeout: float | None = None,
        message_revision: int = 0,
        executor: str = "",
    ) -> Call:
        """Prepares a tool call. Use it as a context manager, or append it with `request`.

        >>> try:
        ...     with conv.tool_call("divide", {"by": 0}) as call:
        ...         text = str(1 / call.arguments["by"])
        ... except ZeroDivisionError:
        ...     pass
        >>> failed = (conv.tool_calls())[0]
        >>> failed.status, failed.proto.error_message
        ('failed', 'ZeroDivisionError: division by zero')
        """
        return Call(
            self,
            call_id or f"call_{uuid4().hex[:24]}",
            tool,
            {} if arguments is None else arguments,
            needs_approval=needs_approval,
            approval_timeout=approval_timeout,
            message_revision=message_revision,
            executor=executor,
        )

    def tool_result(
        self,
        call_id: str,
        *content: Output,
        success: bool = True,
        error: str = "",
        structured: Any = None,
        milliseconds: int | None = None,
        idempotency_key: str = "",
    ) -> Receipt:
        """Appends the result of an open call, up to 64 MiB less 64 KiB (`TooLarge`). Dicts and
        lists are recorded as JSON. Large texts are sent in chunks."""
        event = new.tool_result(
            call_id,
            *_requests.fitting(content),
            success=success,
            error=error,
            milliseconds=milliseconds,
            structured=structured,
        )
        text = _requests.large_text(event.tool_result_recorded)
        if text is None:
            return self.append([event], idempotency_key=idempotency_key)
        key = key_or_new(idempotency_key)
        answer = self._transport.send_many(
            m.RECORD_RESULT,
            lambda: _requests.in_chunks(self.id, self.branch, event, text, key, self.actor),
            key=key,
        )
        receipt = Receipt.of(answer)
        self._transport.saw(receipt.position)
        return receipt

    def open_calls(self) -> list[Call]:
        """Returns the calls that have not ended. An agent resumes them after a restart.

        >>> answer = conv.assistant(tool_calls=[("c1", "ls", {})])
        >>> for call in conv.open_calls():
        ...     with call:
        ...         done = call.result("README.md")
        """
        state = self.state()
        asked = self._arguments_of(state.summary.conversation_id, list(state.branch.open_calls))
        return [
            Call(
                self,
                call.call_id,
                call.tool,
                asked.get(call.call_id, b""),
                needs_approval=call.approval > conversation_pb2.APPROVAL_STATUS_NOT_REQUIRED,
                is_requested=True,
                is_started=call.started,
            )
            for call in state.branch.open_calls
        ]

    def _arguments_of(
        self, conversation_id: str, calls: list[conversation_pb2.OpenCall]
    ) -> dict[str, bytes]:
        """The arguments of open calls, which are few and mostly near the head."""
        own = {
            call.request.revision
            for call in calls
            if call.request.conversation_id == conversation_id
        }
        asked: dict[str, bytes] = {}
        if own:
            for event in self.events(kinds=["tool_call_requested"], first=min(own), last=max(own)):
                if event.revision in own and event.conversation_id == conversation_id:
                    asked[event.call_id] = event.proto.tool_call_requested.arguments
        if len(own) < len(calls):
            # The other calls are from the conversation that this one was forked from.
            for inherited in self.tool_calls(limit=10_000):
                asked.setdefault(inherited.call_id, inherited.proto.arguments)
        return asked

    def tool_calls(self, *, tool: str = "", as_of: int = 0, limit: int = 0) -> list[ToolCall]:
        """Lists the calls of the branch with their outcomes, newest first."""
        request = tool_pb2.ToolHistoryRequest(
            conversation_id=self.id,
            branch=self.branch,
            as_of_revision=as_of,
            tool=tool,
            limit=limit,
        )
        answer = self._transport.unary(m.HISTORY, request)
        return [ToolCall.of(call) for call in answer.calls]

    def pending(self, *, limit: int = 0) -> list[ToolCall]:
        """Lists the calls that wait for approval."""
        request = tool_pb2.PendingRequest(conversation_id=self.id, branch=self.branch, limit=limit)
        answer = self._transport.unary(m.PENDING, request)
        return [ToolCall.of(call) for call in answer.calls]

    def wait_for_decision(self, call_id: str, timeout: float = 60.0) -> ToolCall:
        """Waits until a call is decided or has ended, or until the timeout. The status says
        which."""
        request = tool_pb2.WaitForDecisionRequest(
            conversation_id=self.id,
            branch=self.branch,
            call_id=call_id,
            timeout_ms=max(1, int(timeout * 1000)),
        )
        answer = self._transport.unary(
            m.WAIT_FOR_DECISION, request, timeout=timeout + self._transport.timeout
        )
        return ToolCall.of(answer.call)

    def result(
        self,
        which: str | int,
        *,
        lines: tuple[int, int] | None = None,
        bytes: tuple[int, int] | None = None,
    ) -> ToolResult:
        """Returns a result by call id or revision: all of it, lines (from 1, inclusive) or bytes
        (start and length).

        >>> with conv.tool_call("ls", call_id="listing") as call:
        ...     done = call.result("one\\ntwo\\nthree")
        >>> (conv.result("listing", lines=(2, 3))).text
        'two\\nthree'
        """
        first, last = lines or (0, 0)
        start, length = bytes or (0, 0)
        request = tool_pb2.GetResultRequest(
            conversation_id=self.id,
            branch=self.branch,
            line_first=first,
            line_last=last,
            byte_start=start,
            byte_length=length,
        )
        if isinstance(which, int):
            request.revision = which
        else:
            request.call_id = which
        return self._get_result(request)

    def read_result(self, arguments: Any) -> ToolResult:
        """Answers a call of the policy's `read_tool`, which reads shortened results again. Pass the
        arguments as the model wrote them."""
        request = tool_pb2.GetResultRequest(
            conversation_id=self.id,
            branch=self.branch,
            arguments=json_bytes(arguments, "arguments", as_is=True),
        )
        return self._get_result(request)

    def _get_result(self, request: tool_pb2.GetResultRequest) -> ToolResult:
        info, chunks = tool_pb2.ResultInfo(), list[bytes]()

        def from_the_start() -> tool_pb2.GetResultRequest:
            chunks.clear()
            return request

        for answer in self._transport.read(m.GET_RESULT, from_the_start):
            if answer.HasField("info"):
                info = answer.info
            chunks.append(answer.chunk)
        # A range of bytes may split a character.
        return ToolResult(info=info, text=b"".join(chunks).decode(errors="replace"))

    def recorded(
        self, tool: str, arguments: Any = None, occurrence: int = 0
    ) -> event_pb2.ToolResultRecorded | None:
        """Returns the result of the n-th call of the tool with these arguments; 0 for the last."""
        request = tool_pb2.RecordedRequest(
            conversation_id=self.id,
            branch=self.branch,
            tool=tool,
            arguments=json_bytes({} if arguments is None else arguments, "arguments", as_is=True),
            occurrence=occurrence,
        )
        answer = self._transport.unary(m.RECORDED, request)
        return answer.result if answer.found else None

    def replay(self) -> Replay:
        """Returns a replay, which answers tool calls with recorded results."""
        return Replay(self)

    def snapshots(self, *, as_of: int = 0, limit: int = 0) -> list[tool_pb2.ToolSnapshot]:
        """Lists the result digests of finished calls, newest first."""
        request = tool_pb2.SnapshotsRequest(
            conversation_id=self.id, branch=self.branch, as_of_revision=as_of, limit=limit
        )
        return list((self._transport.unary(m.SNAPSHOTS, request)).snapshots)

    # ---- tool observations ----

    def knowledge(
        self, *, as_of: int = 0, recent: int = 0, tool: str = ""
    ) -> tool_pb2.KnowledgeResponse:
        """Returns tool observations: files, variables, the working directory, successful tools."""
        request = tool_pb2.KnowledgeRequest(
            conversation_id=self.id,
            branch=self.branch,
            as_of_revision=as_of,
            recent=recent,
            tool=tool,
        )
        return self._transport.unary(m.KNOWLEDGE, request)

    def suggest_arguments(
        self, tool: str, arguments: Any = None
    ) -> tool_pb2.SuggestArgumentsResponse:
        """Fills empty file and variable arguments of a call from tool observations."""
        request = tool_pb2.SuggestArgumentsRequest(
            conversation_id=self.id,
            branch=self.branch,
            tool=tool,
            arguments=json_bytes({} if arguments is None else arguments, "arguments", as_is=True),
        )
        return self._transport.unary(m.SUGGEST_ARGUMENTS, request)

    def missing_prerequisites(self, tool: str) -> list[str]:
        """Returns the tools that should have succeeded before this one, but have not."""
        request = tool_pb2.MissingPrerequisitesRequest(
            conversation_id=self.id, branch=self.branch, tool=tool
        )
        return list((self._transport.unary(m.MISSING_PREREQUISITES, request)).missing)

    def guidance(self) -> str:
        """Returns guidance on what to do next, as a sentence or two for a prompt."""
        request = tool_pb2.GuidanceRequest(conversation_id=self.id, branch=self.branch)
        return (self._transport.unary(m.GUIDANCE, request)).guidance

    # ---- the next request ----

    def request(
        self,
        provider: ProviderName = "neutral",
        *,
        model: str = "",
        budget: int = 0,
        policy: Mapping[str, Any] | None = None,
        as_of: int = 0,
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Builds the next request: a dict in the provider's format, within a token budget.

        >>> said = conv.user("What is in the folder?")
        >>> body = conv.request("openai-chat", model="gpt-4o", budget=60_000)
        >>> body["messages"][-1]
        {'role': 'user', 'content': 'What is in the folder?'}
        """
        build = _requests.build(
            self.id, self.branch, provider, model, budget, policy, as_of, at_least
        )
        return Request(self._transport.unary(m.BUILD, build, timeout=timeout))

    def explain(
        self,
        provider: ProviderName = "neutral",
        *,
        model: str = "",
        budget: int = 0,
        policy: Mapping[str, Any] | None = None,
        as_of: int = 0,
        at_least: int | None = None,
    ) -> context_pb2.Explanation:
        """Returns the explanation of the next request, without the request."""
        build = _requests.build(
            self.id, self.branch, provider, model, budget, policy, as_of, at_least
        )
        return (self._transport.unary(m.EXPLAIN, build)).explanation

    # ---- compaction ----

    def plan_compaction(
        self,
        *,
        keep_turns: int | None = None,
        model: str = "",
        policy: Mapping[str, Any] | None = None,
    ) -> context_pb2.CompactionPlan:
        """Returns where a compaction would cut and what to ask a model for. Changes nothing."""
        request = context_pb2.PlanCompactionRequest(
            conversation_id=self.id,
            branch=self.branch,
            keep_turns=keep_turns,
            model=model,
            policy=json_bytes(policy, "policy") if policy else b"",
        )
        return (self._transport.unary(m.PLAN_COMPACTION, request)).plan

    def compact(
        self,
        summary: str | Summariser = "",
        *,
        keep_turns: int | None = None,
        cut_revision: int = 0,
        trigger: CompactionTriggerName = "manual",
        idempotency_key: str = "",
    ) -> Compaction:
        """Replaces older turns in requests by a summary. The events stay readable.

        `summary` is a text, or a function from the plan to a text: send `plan.instruction` and
        `plan.material` to a model. By default the server makes an extract. If there is nothing to
        cut, the result is false.

        >>> for number in range(5):
        ...     said = conv.user(f"Question {number}")
        ...     answer = conv.assistant(f"Answer {number}")
        >>> compaction = conv.compact(
        ...     lambda plan: f"{plan.summarised_turns} turns of questions", keep_turns=1)
        >>> bool(compaction), [event.text for event in conv.expand()][-1]
        (True, 'Answer 3')
        """
        if cut_revision and isinstance(summary, str):
            return self._compact(summary, cut_revision, 0, keep_turns, trigger, idempotency_key)
        plan = self.plan_compaction(keep_turns=keep_turns)
        if not plan.cut_revision:
            return Compaction(0, 0, plan.tokens_before, plan.tokens_before, (), plan.reason)
        if isinstance(summary, str):
            text = summary
        else:
            made = summary(plan)
            text = made if isinstance(made, str) else made
        cut = cut_revision or plan.cut_revision
        return self._compact(text, cut, plan.head_revision, keep_turns, trigger, idempotency_key)

    def _compact(
        self,
        summary: str,
        cut_revision: int,
        expected_head: int,
        keep_turns: int | None,
        trigger: CompactionTriggerName,
        idempotency_key: str,
    ) -> Compaction:
        key = key_or_new(idempotency_key)
        request = context_pb2.CompactRequest(
            conversation_id=self.id,
            branch=self.branch,
            summary=summary,
            cut_revision=cut_revision,
            keep_turns=keep_turns,
            expected_head=expected_head,
            idempotency_key=key,
            actor=self.actor,
            trigger=number(event_pb2.CompactionTrigger, "COMPACTION_TRIGGER", trigger),
        )
        answer = self._transport.unary(m.COMPACT, request, key=key)
        self._transport.saw(answer.event.position.offset)
        return Compaction(
            revision=answer.event.revision,
            cut_revision=answer.cut_revision,
            tokens_before=answer.tokens_before,
            tokens_after=answer.tokens_after,
            warnings=tuple(answer.warnings),
        )

    def expand(self, revision: int = 0) -> Iterator[Event]:
        """Reads the events that a compaction replaces; 0 for the last compaction."""
        request = context_pb2.ExpandRequest(
            conversation_id=self.id, branch=self.branch, compaction_revision=revision
        )
        for event in read_events(self._transport, m.EXPAND, request):
            yield event

    # ---- reading ----

    def events(
        self,
        *,
        kinds: KindName | Sequence[KindName] = (),
        first: int = 0,
        last: int = 0,
        backward: bool = False,
        limit: int = 0,
        headers_only: bool = False,
        all_branches: bool = False,
        **filters: Unpack[_requests.EventFilters],
    ) -> Iterator[Event]:
        """Reads the events of the branch, including inherited ones, oldest first.

        `first` and `last` are revisions, inclusive. With `all_branches`, every event of the
        conversation.

        >>> said = conv.user("One"), conv.user("Two")
        >>> [event.text for event in conv.events(backward=True, limit=2)]
        ['Two', 'One']

        `filters` are those of `EventFilters`; `new.found_by` gives events keys.

        >>> found = conv.events(types="note", attributes={"by": "planner"})
        >>> [event.key for event in found]
        []
        """
        request = _requests.read(
            self.id,
            self.branch,
            all_branches=all_branches,
            kinds=kinds,
            first=first,
            last=last,
            backward=backward,
            limit=limit,
            headers_only=headers_only,
            filters=filters,
        )
        for event in read_events(self._transport, m.READ, request, limit):
            yield event

    def messages(self, *, limit: int = 0) -> list[Event]:
        """Returns the messages of the branch, oldest first; each has a `role` and a `text`.

        With a `limit`, only the newest messages; 0 for all. For calls and results see `events`.

        >>> said = conv.user("One"), conv.assistant("Two")
        >>> [(message.role, message.text) for message in conv.messages(limit=2)]
        [('user', 'One'), ('assistant', 'Two')]
        """
        found: list[Event] = []
        for event in self.events(kinds=["message_appended"], backward=limit > 0, limit=limit):
            found.append(event)
        return found[::-1] if limit > 0 else found

    def latest(
        self,
        *,
        key: str = "",
        type: str = "",
        kind: KindName | None = None,
        as_of: int = 0,
        headers_only: bool = False,
    ) -> Event | None:
        """Returns the newest event of the branch with a key, of a type or of a kind. The cost does
        not grow with the history. For several at once see `Treering.latest`.

        >>> done = conv.append([new.custom("note", {"n": 1}, key="note/1")])
        >>> (conv.latest(key="note/1")).body.type_name
        'note'
        >>> conv.latest(key="note/2")
        """
        request = _requests.latest(
            [self.id],
            self.branch,
            keys=[key] if key else [],
            types=[type] if type else [],
            kinds=[kind] if kind else [],
            as_of=as_of,
            headers_only=headers_only,
        )
        found = lookup.latest(self._transport, request)
        if len(found) != 1:
            raise ValueError("give exactly one of key, type and kind")
        return found[0]

    def get_events(
        self, revisions: Iterable[int], *, headers_only: bool = False
    ) -> list[Event | None]:
        """Returns events by revision, in this order; None for a missing event."""
        names = [(self.id, revision) for revision in revisions]
        return lookup.get_many(self._transport, names, headers_only)

    def subscribe(
        self,
        *,
        after: int = 0,
        from_now: bool = False,
        kinds: KindName | Sequence[KindName] = (),
        all_branches: bool = False,
        heartbeat: int = 0,
    ) -> Subscription:
        """Subscribes to the events after a revision. Survives restarts of the server.

        >>> said = conv.user("Is anybody there?")
        >>> with conv.subscribe(kinds=["message_appended"]) as events:
        ...     for event in events:
        ...         print(event.text)
        ...         break
        Is anybody there?
        """
        branch = conversation = None
        if all_branches:
            conversation = events_pb2.ConversationSource(conversation_id=self.id)
        else:
            branch = events_pb2.BranchSource(conversation_id=self.id, branch=self.branch)
        return Subscription(
            self._transport,
            branch=branch,
            conversation=conversation,
            after=after or None,
            from_now=from_now,
            kinds=kinds,
            heartbeat=heartbeat,
        )

    def state(self, *, as_of: int = 0, with_values: bool = False) -> ConversationState:
        """Returns the state of the conversation and its branch, now or as of a revision.
        `with_values` adds prompts, tools, summaries and the active context (`.values`);
        `.values.left_out` names what exceeds 3 MiB."""
        request = conversation_pb2.GetConversationRequest(
            conversation_id=self.id,
            branch=self.branch,
            as_of_revision=as_of,
            with_values=with_values,
        )
        return self._transport.unary(m.GET, request)

    def head(self) -> int:
        """Last revision of the branch."""
        return (self.state()).branch.head

    def branches(self) -> list[Branch]:
        """Lists the branches of the conversation."""
        request = conversation_pb2.ListBranchesRequest(conversation_id=self.id, page_size=1000)
        found: list[Branch] = []
        while True:
            page = self._transport.unary(m.LIST_BRANCHES, request)
            found.extend(map(Branch.of, page.branches))
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def lineage(self) -> conversation_pb2.LineageResponse:
        """Returns the ancestors of the branch up to the root, and the descendants of the
        conversation."""
        request = conversation_pb2.LineageRequest(conversation_id=self.id, branch=self.branch)
        return self._transport.unary(m.LINEAGE, request)

    def diff(
        self, other: str | Conversation, *, headers_only: bool = False, limit: int = 0
    ) -> Difference:
        """Compares two branches: the revision where they diverge, and the events of each since
        then."""
        request = conversation_pb2.DiffRequest(
            conversation_id=self.id,
            left_branch=self.branch,
            right_branch=other if isinstance(other, str) else other.branch,
            headers_only=headers_only,
            limit=limit,
        )
        return Difference.of(self._transport.unary(m.DIFF, request))

    def search(self, query: str, **filters: Unpack[_requests.SearchFilters]) -> Hits:
        """Searches this conversation. Takes the arguments of `db.search`."""
        narrowed: _requests.SearchFilters = {
            "conversation": self.id,
            "branch": self.branch,
            **filters,
        }
        transport = self._transport
        request = _requests.search(query, transport.last_position, transport.timeout, narrowed)
        return Hits(self._transport.unary(m.SEARCH, request))

    # ---- branches ----

    def fork(
        self,
        at: int = 0,
        *,
        name: str = "",
        into: str = "",
        system: str = "",
        activate: bool = False,
        expected: int = 0,
        keep_labels: bool = False,
        keep_source: bool = False,
        labels: Mapping[str, str] | None = None,
        source: str = "",
        source_id: str = "",
        idempotency_key: str = "",
    ) -> Conversation:
        """Forks at revision `at` (0: the head) and returns the new branch.

        `into="new"` (or a UUID) forks into a new conversation, which may keep the labels and the
        source of this one or get its own. A fork costs one small event. `expected` is the head that
        this branch must have.

        >>> said = conv.user("Left or right?")
        >>> left = conv.assistant("Left.")
        >>> other = conv.fork(at=said.revision, name="right")
        >>> right = other.assistant("Right.")
        >>> [event.text for event in other.events(kinds=["message_appended"])]
        ['Left or right?', 'Right.']
        """
        key = key_or_new(idempotency_key)
        request = conversation_pb2.ForkRequest(
            conversation_id=self.id,
            branch=self.branch,
            at_revision=at,
            name=name or (f"fork-{uuid4().hex[:8]}" if not into else ""),
            system_prompt=system,
            into_conversation=into,
            idempotency_key=key,
            activate=activate,
            actor=self.actor,
            expected_head=expected,
            keep_labels=keep_labels,
            keep_source=keep_source,
            labels=labels or {},
            source=source,
            source_id=source_id,
        )
        answer = self._transport.unary(m.FORK, request, key=key)
        for event in answer.events:
            self._transport.saw(event.position.offset)
        return Conversation(
            self._transport,
            answer.conversation_id,
            "" if into else answer.branch.name,
            self.actor,
        )

    def rewind(
        self,
        to: int,
        *,
        expected: int = 0,
        keep_as: str = "",
        limit: int = 0,
        idempotency_key: str = "",
    ) -> Rewound:
        """Rewinds the branch to revision `to`; 0 keeps only the conversation itself.

        The later events leave the branch. They are in the answer, and stay readable on the branch
        `kept`.

        >>> asked = conv.user("Left or right?")
        >>> said = conv.assistant("Left.")
        >>> rewound = conv.rewind(asked.revision)
        >>> [event.text for event in rewound.events]
        ['Left.']
        >>> kept = conv.on(rewound.kept)
        >>> [event.text for event in kept.events(kinds=["message_appended"])][-1]
        'Left.'
        """
        key = key_or_new(idempotency_key)
        request = conversation_pb2.RewindRequest(
            conversation_id=self.id,
            branch=self.branch,
            to_revision=to,
            expected_head=expected,
            keep_as=keep_as,
            idempotency_key=key,
            actor=self.actor,
            limit=limit,
        )
        answer = self._transport.unary(m.REWIND, request, key=key)
        for event in answer.events:
            self._transport.saw(event.position.offset)
        return Rewound.of(answer)

    def change(
        self,
        *,
        title: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
    ) -> Receipt:
        """Changes title, labels and metadata of the conversation.

        Other values stay. A label of None is removed, and so is metadata of `...`.

        >>> done = conv.change(title="Ports", labels={"team": "blue"}, metadata={"user": 7})
        >>> (conv.state()).summary.metadata["user"]
        '7'
        """
        event = new.conversation_changed(title=title, labels=labels, metadata=metadata)
        return self.append([event], idempotency_key=idempotency_key)

    def activate(self, *, idempotency_key: str = "") -> Receipt:
        """Makes this branch the active branch."""
        key = key_or_new(idempotency_key)
        request = conversation_pb2.ActivateBranchRequest(
            conversation_id=self.id, branch=self.branch, idempotency_key=key, actor=self.actor
        )
        return self._receipt(self._transport.unary(m.ACTIVATE_BRANCH, request, key=key))

    def rename(self, name: str, *, idempotency_key: str = "") -> Conversation:
        """Renames the branch."""
        key = key_or_new(idempotency_key)
        request = conversation_pb2.RenameBranchRequest(
            conversation_id=self.id,
            branch=self.branch,
            name=name,
            idempotency_key=key,
            actor=self.actor,
        )
        self._receipt(self._transport.unary(m.RENAME_BRANCH, request, key=key))
        return self.on(name)

    def archive(self, reason: str = "", *, idempotency_key: str = "") -> Receipt:
        """Archives the branch: it accepts no appends and stays readable."""
        key = key_or_new(idempotency_key)
        request = conversation_pb2.ArchiveBranchRequest(
            conversation_id=self.id,
            branch=self.branch,
            reason=reason,
            idempotency_key=key,
            actor=self.actor,
        )
        return self._receipt(self._transport.unary(m.ARCHIVE_BRANCH, request, key=key))

    def _receipt(self, answer: events_pb2.AppendResponse) -> Receipt:
        receipt = Receipt.of(answer)
        self._transport.saw(receipt.position)
        return receipt

    # ---- the active context ----

    def set_context(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        remove: Iterable[str] = (),
        provider: str = "",
        idempotency_key: str = "",
    ) -> Receipt:
        """Sets and removes keys of the branch's active context, which is part of the next request.

        >>> done = conv.set_context({"open_file": "main.py", "tests": {"failed": 2}})
        >>> conv.context()
        {'open_file': 'main.py', 'tests': {'failed': 2}}
        """
        return context.change(
            self._transport,
            self.id,
            self.branch,
            values or {},
            remove,
            provider,
            idempotency_key,
            self.actor,
        )

    def context(self, *keys: str) -> dict[str, Any]:
        """Returns the active context: these keys, or all."""
        return context.get(self._transport, self.id, self.branch, keys)

    def watch_context(self, *keys: str) -> ContextWatch:
        """Yields the keys of the active context, then every change."""
        return ContextWatch(self._transport, self.id, self.branch, keys)

    # ---- sub-contexts ----

    def spawn(
        self,
        purpose: str = "",
        *,
        call: Call | str = "",
        title: str = "",
        system: str = "",
        model: str = "",
        policies: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        id: str = "",
        idempotency_key: str = "",
    ) -> SubContext:
        """Starts a sub-context: a child conversation for one task.

        As a context manager, it returns its last assistant message to the parent, or the failure.

        >>> with conv.spawn("Count the files") as child:
        ...     said = child.user("How many files are there?")
        ...     answer = child.assistant("There are 12.")
        >>> [event.text for event in conv.events(kinds=["sub_context_returned"])]
        ['There are 12.']
        """
        key = key_or_new(idempotency_key)
        request = context_pb2.SpawnRequest(
            conversation_id=self.id,
            branch=self.branch,
            call_id=call if isinstance(call, str) else call.call_id,
            purpose=purpose,
            title=title,
            config=new.config(model) if model else None,
            system_prompt=system,
            policies=json_texts(policies, "policies"),
            labels=labels or {},
            child_id=id,
            idempotency_key=key,
            actor=self.actor,
        )
        answer = self._transport.unary(m.SPAWN, request, key=key)
        for event in answer.events:
            self._transport.saw(event.position.offset)
        if isinstance(call, Call):
            # The child's return records the result of the call.
            call.has_ended = True
        return SubContext(self._transport, answer.child_id, "", self.actor)


class SubContext(Conversation):
    """A child conversation that returns a result to its parent."""

    _has_returned = False

    def return_(
        self, summary: str = "", *, success: bool = True, idempotency_key: str = ""
    ) -> Receipt:
        """Ends the sub-context and appends the result of the call that started it, in one batch.
        The default summary is the last assistant message."""
        key = key_or_new(idempotency_key)
        request = context_pb2.ReturnRequest(
            conversation_id=self.id,
            summary=summary,
            success=success,
            idempotency_key=key,
            actor=self.actor,
        )
        receipt = Receipt.of(self._transport.unary(m.RETURN, request, key=key))
        self._has_returned = True
        self._transport.saw(receipt.position)
        return receipt

    def __enter__(self) -> SubContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_returned:
            return
        if error is None:
            self.return_()
        else:
            text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
            despite_sync(lambda: self.return_(text, success=False))
