"""A conversation as adapters use it: by a framework's id, begun when first written to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from treering import errors, new
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.types import ConversationState, Receipt
from treering.v1 import event_pb2 as pb

T = TypeVar("T")

SHORT_BYTES_MAX = 512
"""Longest source, source id or call id that the store takes."""
ATTEMPTS_MAX = 50
"""So often another writer may come first."""
PAGE_MAX = 1_000
"""So many conversations are listed in one call."""
LATEST_MAX = 256
"""Of so many conversations the newest events are asked for in one call."""


def short(text: str, bytes_max: int = SHORT_BYTES_MAX) -> str:
    """A text as it is, or, of one that is too long for the store, its head and its hash."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    digest = blake2b(encoded, digest_size=16).hexdigest()
    head = encoded[: bytes_max - len(digest) - 1].decode(errors="ignore")
    return f"{head}-{digest}"


class Thread:
    """A conversation by its source id."""

    def __init__(
        self,
        db: Treering,
        source: str,
        source_id: str,
        *,
        title: str = "",
        parent: Callable[[], str] = lambda: "",
    ) -> None:
        self.db = db
        self.source = short(source)
        self.source_id = short(source_id)
        self.title = title
        self._parent = parent
        self._conversation: Conversation | None = None

    def named(self) -> Conversation:
        """The conversation, by its name where it was not looked up: there may be none."""
        return self._conversation or self.db.conversation(self.source_id)

    def find(self) -> Conversation | None:
        """The conversation, if there is one."""
        if self._conversation is None:
            try:
                state = self.db.conversation(self.source_id).state()
            except errors.NotFound:
                return None
            self._conversation = self.db.conversation(state.summary.conversation_id)
        return self._conversation

    def look(self) -> tuple[Conversation, ConversationState] | None:
        """The conversation as it is now, if there is one: one call."""
        try:
            state = self.named().state()
        except errors.NotFound:
            return None
        if self._conversation is None:
            self._conversation = self.db.conversation(state.summary.conversation_id)
        return self._conversation, state

    def open(self) -> Conversation:
        """The conversation; begins it the first time."""
        if found := self.find():
            return found
        parent = self._parent()
        created = new.created(
            self.title,
            source=self.source,
            source_id=self.source_id,
            # Its first revision: two programs that begin it at once say the same.
            parent=pb.ParentRef(conversation_id=parent, revision=1) if parent else None,
        )
        key = short(f"open:{self.source}:{self.source_id}", 256)
        try:
            receipt = self.db.append([created], idempotency_key=key)
        except errors.IdempotencyConflict:
            # Another program was first, with another title.
            if found := self.find():
                return found
            raise
        self._conversation = self.db.conversation(receipt.conversation_id)
        return self._conversation


def rewind(conversation: Conversation, state: ConversationState, to: int) -> Receipt:
    """Takes back what came after a revision, if nothing has come since the state was read.

    A branch that shares all up to there takes the name and the place of the old one, which
    stays under another name and takes nothing more. Raises `Conflict` when something has come.
    """
    branch = state.branch
    old = f"{branch.name}~{state.summary.head}"
    renamed = new.branch_renamed(old)
    renamed.branch = branch.name
    events = [
        renamed,
        new.NewEvent(
            branch_forked=pb.BranchForked(
                name=branch.name, parent_branch_id=branch.branch_id, fork_revision=to
            ),
        ),
    ]
    if state.summary.active_branch_id == branch.branch_id:
        activated = new.branch_activated()
        activated.branch = branch.name
        events.append(activated)
    archived = new.branch_archived("taken back")
    archived.branch = old
    events.append(archived)
    return conversation.on(branch.name).append(events, expected=branch.head)


def before(conversation: Conversation, revision: int) -> int:
    """The revision of the branch's last event before one of its events."""
    earlier = conversation.events(first=revision - 1, backward=True, limit=1, headers_only=True)
    return next(earlier).revision


def open_calls(state: ConversationState) -> set[str]:
    """Ids of calls that have no result."""
    return {call.call_id for call in state.branch.open_calls}


def fitted(events: Sequence[new.NewEvent], open: set[str]) -> list[new.NewEvent]:
    """The events as a branch with these open calls takes them; keeps `open` up to date.

    A call whose id is open supersedes that one; a result of no call is a message of a tool.
    """
    made: list[new.NewEvent] = []
    for event in events:
        which = event.WhichOneof("body")
        if which == "tool_call_requested":
            call_id = event.tool_call_requested.call_id
            if call_id in open:
                made.append(new.tool_cancelled(call_id, "superseded"))
            open.add(call_id)
        elif which == "tool_result_recorded":
            result = event.tool_result_recorded
            if result.call_id not in open:
                message = pb.MessageAppended(
                    role=pb.ROLE_TOOL, parts=result.parts, tool_call_id=result.call_id
                )
                made.append(new.NewEvent(message_appended=message))
                continue
            open.discard(result.call_id)
        made.append(event)
    return made


async def done(work: Callable[[], T]) -> T:
    """Does a write in a thread, and waits for its end even when the caller is cancelled.

    So whoever cancels knows that nothing lands later.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()
        raise
