"""Conversations of adapters: found by a framework's id, and created on the first write."""

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
"""Maximum size in bytes of a source, a source id or a call id."""
BRANCH_BYTES_MAX = 200
"""Maximum size in bytes of a branch name."""
ATTEMPTS_MAX = 50
"""Maximum number of attempts if other writers come first."""
PAGE_MAX = 1_000
"""Number of conversations in a page of a list."""
LATEST_MAX = 256
"""Number of conversations whose newest events are read in one call."""


def short(text: str, bytes_max: int = SHORT_BYTES_MAX) -> str:
    """Returns the text; its beginning and its hash if it is too long for the store."""
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
        """The conversation, without a call to look it up: it may not exist."""
        return self._conversation or self.db.conversation(self.source_id)

    def find(self) -> Conversation | None:
        """The conversation; None if it does not exist."""
        if self._conversation is None:
            try:
                state = self.db.conversation(self.source_id).state()
            except errors.NotFound:
                return None
            self._conversation = self.db.conversation(state.summary.conversation_id)
        return self._conversation

    def look(self) -> tuple[Conversation, ConversationState] | None:
        """The conversation and its state, with one call; None if it does not exist."""
        try:
            state = self.named().state()
        except errors.NotFound:
            return None
        if self._conversation is None:
            self._conversation = self.db.conversation(state.summary.conversation_id)
        return self._conversation, state

    def open(self) -> Conversation:
        """The conversation. Creates it if it does not exist."""
        if found := self.find():
            return found
        parent = self._parent()
        created = new.created(
            self.title,
            source=self.source,
            source_id=self.source_id,
            # The first revision, so that concurrent programs append the same event.
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
    """Rewinds a branch to a revision. Raises `Conflict` if its head has changed since `state`.

    A fork at the revision gets the name of the old branch, and becomes active if that was active.
    The old branch gets another name and is archived.
    """
    branch = state.branch
    old = short(f"{branch.name}~{state.summary.head}", BRANCH_BYTES_MAX)
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


def clear(conversation: Conversation) -> None:
    """Takes back all events but the first. Tries again if another writer was first."""
    for _ in range(ATTEMPTS_MAX):
        try:
            rewind(conversation, conversation.state(), 1)
            return
        except errors.Conflict:
            continue
    raise errors.RevisionMismatch(f"other writers kept writing to conversation {conversation.id}")


def before(conversation: Conversation, revision: int) -> int:
    """The revision of the branch's last event before this revision."""
    earlier = conversation.events(first=revision - 1, backward=True, limit=1, headers_only=True)
    return next(earlier).revision


def open_calls(state: ConversationState) -> set[str]:
    """Ids of the open calls."""
    return {call.call_id for call in state.branch.open_calls}


def fitted(events: Sequence[new.NewEvent], open: set[str]) -> list[new.NewEvent]:
    """Adapts events to a branch with these open calls, and updates `open`.

    A call with the id of an open call supersedes it. A result without a call becomes a message
    with the role tool.
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
    """Runs a write in a thread, and waits for its end even when the caller is cancelled.

    So nothing is appended after the cancellation.
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
