"""A `Session` of the OpenAI Agents SDK.

    from agents import Agent, Runner
    from treering.openai_agents import TreeringSession

    session = TreeringSession("user-42", treering.local("./store"))
    Runner.run_sync(Agent("Helper"), "Hello", session=session)

A session is a conversation. Its items include messages of other frameworks. The SDK gets its own
items back unchanged. Needs `pip install treering[openai-agents]`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from treering import errors, new
from treering._adapters import frames, odd
from treering._adapters.responses import answered, item_of, typed
from treering._adapters.thread import ATTEMPTS_MAX, Thread, before, done, fitted, open_calls, rewind
from treering._adapters.unanswered import Unanswered, denials
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.types import ConversationState, Event

__all__ = ["TreeringSession"]

SOURCE = "openai-agents"
FRAME = "openai-agents.item"
EVENTS_OF_ITEM_MAX = 8
"""Maximum number of events of an item."""


class TreeringSession(SessionABC):
    """Stores the SDK's session as a conversation.

    `session_id` is the conversation's source id or its UUID. `branch` is the branch to use; empty
    for the active branch. Popping and clearing continue on a new branch without the removed items;
    the old branch is archived and stays readable.
    """

    def __init__(
        self,
        session_id: str,
        db: Treering,
        *,
        branch: str = "",
        title: str = "",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or {})
        self.branch = branch
        self._thread = Thread(db, SOURCE, session_id, title=title)

    @property
    def conversation(self) -> Conversation:
        """The conversation of the session. Created if needed."""
        return self._on_branch(self._thread.open())

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the items, oldest first; with a limit, only the newest.

        Without a limit, a call of another program without a result gets an output that says so. It
        is not stored. The SDK leaves out its own calls without a result.
        """
        wanted = resolve_session_limit(limit, self.session_settings)
        return await asyncio.to_thread(self._get, wanted)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Appends items: all or none."""
        if items:
            # Through JSON, so that `get_items` returns the same in every program.
            given: list[Any] = json.loads(json.dumps(items))
            await done(lambda: self._add(given))

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes and returns the newest item; None if there is none."""
        return await done(self._pop)

    async def clear_session(self) -> None:
        """Removes all items."""
        await done(self._clear)

    # ---- reading ----

    def _on_branch(self, conversation: Conversation) -> Conversation:
        return conversation.on(self.branch) if self.branch else conversation

    def _found(self) -> Conversation | None:
        found = self._thread.find()
        return self._on_branch(found) if found else None

    def _get(self, limit: int | None) -> list[TResponseInputItem]:
        if limit == 0:
            return []
        try:
            return self._read(self._on_branch(self._thread.named()), limit)
        except errors.ConversationNotFound:
            return []

    def _read(self, conversation: Conversation, limit: int | None) -> list[TResponseInputItem]:
        if limit is None or limit < 0:
            calls = Unanswered()
            own = set[int]()
            items = [item for _, item in _items(conversation.events(), calls, own)]
            return cast(list[TResponseInputItem], list(answered(cast(Any, items), own, calls)))
        newest: list[TResponseInputItem] = []
        for _, item in _items_backward(conversation):
            newest.append(item)
            if len(newest) == limit:
                break
        return newest[::-1]

    # ---- writing ----

    def _add(self, items: list[Any]) -> None:
        # Usually the session exists and its open calls fit the items: then one call is enough.
        conversation = self._on_branch(self._thread.named())
        lessened = odd.Lessened()
        is_typed, is_asked = True, False
        for _ in range(ATTEMPTS_MAX):
            try:
                batch = _batch(conversation, items, lessened, is_typed, is_asked)
                conversation.append(batch.events)
            except errors.ConversationNotFound:
                conversation = self.conversation
                continue
            except (errors.Refused, errors.Invalid) as refusal:
                if not is_asked and isinstance(
                    refusal, (errors.CallNotOpen, errors.CallAlreadyOpen)
                ):
                    is_asked = True
                    continue
                # A call was opened or ended meanwhile, or the server refuses such an event.
                if not is_typed:
                    raise
                is_typed = lessened.refused(refusal, batch.spans)
                continue
            for notes in batch.notes:
                odd.warn(f"openai-agents, session {self.session_id[:80]}, an item", notes)
            return
        raise errors.RevisionMismatch(f"other writers kept writing to session {self.session_id}")

    def _pop(self) -> TResponseInputItem | None:
        def newest(conversation: Conversation) -> tuple[int, TResponseInputItem] | None:
            return next(_items_backward(conversation), None)

        return self._take_back(newest)

    def _clear(self) -> None:
        def oldest(conversation: Conversation) -> tuple[int, TResponseInputItem] | None:
            return next(_items(conversation.events(), Unanswered()), None)

        self._take_back(oldest)

    def _take_back(
        self, first: Callable[[Conversation], tuple[int, TResponseInputItem] | None]
    ) -> TResponseInputItem | None:
        """Removes an item and all later ones; events before the first item stay."""
        conversation = self._found()
        if conversation is None:
            return None
        for attempt in range(ATTEMPTS_MAX):
            state: ConversationState = conversation.state()
            branch = conversation.on(state.branch.name)
            found = first(branch)
            if found is None:
                return None
            revision, item = found
            try:
                rewind(conversation, state, before(branch, revision))
                return item
            except errors.Conflict:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
        return None


@dataclass
class _Batch:
    """The events of items."""

    events: list[new.NewEvent] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """Index of each item, and where its typed events begin and end."""
    notes: list[list[str]] = field(default_factory=list)
    """Notes on what was changed in each item."""


def _batch(
    conversation: Conversation,
    items: list[Any],
    lessened: odd.Lessened,
    is_typed: bool,
    is_asked: bool,
) -> _Batch:
    """Makes the events. Unless it reads the open calls, it assumes that results have open calls."""
    read = [typed(item) if is_typed else ([], []) for item in items]
    about = [event for events, _ in read for event in events if _is_about_call(event)]
    open = set[str]()
    standing: odd.Standing = {}
    place = uuid4().hex
    if odd.has_odd_result(about) or (is_asked and about):
        state = conversation.state()
        open, place = open_calls(state), str(state.branch.head)
        if odd.has_odd_result(about):
            branch = conversation.on(state.branch.name)
            standing = odd.standing_in(branch, FRAME, lambda item: typed(item)[0], open)
    else:
        asked = set[str]()
        for event in about:
            if event.HasField("tool_call_requested"):
                asked.add(event.tool_call_requested.call_id)
            elif event.tool_result_recorded.call_id not in asked:
                open.add(event.tool_result_recorded.call_id)
    batch = _Batch()
    for index, (item, (events, notes)) in enumerate(zip(items, read, strict=True)):
        events, more = odd.within(events, f"{place}.{index}", standing)
        own = fitted(lessened.of(index, events), open)
        begin = len(batch.events) + 1
        batch.spans.append((index, begin, begin + len(own)))
        batch.notes.append([*notes, *more, *lessened.notes(index)])
        batch.events += frames.frame(FRAME, [(item, own)])
    return batch


def _is_about_call(event: new.NewEvent) -> bool:
    return event.WhichOneof("body") in ("tool_call_requested", "tool_result_recorded")


# ---- items of a branch ----


def _items(
    events: Iterable[Event], calls: Unanswered, own: set[int] | None = None
) -> Iterator[tuple[int, TResponseInputItem]]:
    """Items with the revisions at which they begin: the SDK's own, whose indexes are added to
    `own`, and those of other programs."""
    count = 0
    for found in frames.read(FRAME, calls.noted(events)):
        if isinstance(found, frames.Frame):
            if own is not None:
                own.add(count)
            count += 1
            yield found.event.revision, found.items[0].item
        elif (item := item_of(found, calls)) is not None:
            count += 1
            yield found.revision, cast(TResponseInputItem, item)


def _items_backward(conversation: Conversation) -> Iterator[tuple[int, TResponseInputItem]]:
    """Like `_items`, newest first. Reads only as many events as needed."""
    waiting: list[Event] = []
    for event in conversation.events(backward=True):
        waiting.append(event)
        if event.kind == "custom" and event.proto.custom.type_name != FRAME:
            continue
        if event.kind == "custom" or len(waiting) > EVENTS_OF_ITEM_MAX:
            yield from _flushed(conversation, waiting, event.kind == "custom")
    yield from _flushed(conversation, waiting, True)


def _flushed(
    conversation: Conversation, waiting: list[Event], all: bool
) -> Iterator[tuple[int, TResponseInputItem]]:
    """Items of events that were read backward. Removes these events from `waiting`."""
    keep = 0 if all else EVENTS_OF_ITEM_MAX
    taken: Sequence[Event] = waiting[: len(waiting) - keep] if keep else list(waiting)
    del waiting[: len(taken)]
    forward = taken[::-1]
    calls = Unanswered()
    for denial in denials(conversation, forward):
        calls.take(denial)
    yield from reversed(list(_items(forward, calls)))
