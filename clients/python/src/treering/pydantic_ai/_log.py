"""The records, entries and branches of the library's conversations in a store."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import uuid4

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)

from treering import errors, new
from treering._adapters import odd
from treering._adapters.thread import (
    ATTEMPTS_MAX,
    LATEST_MAX,
    PAGE_MAX,
    Thread,
    before,
    rewind,
    short,
)
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.pydantic_ai._batch import Before, Made, batches, events_of
from treering.pydantic_ai._line import (
    ENTRY,
    RECORD,
    Line,
    Placed,
    Prompt,
    as_saved,
    end,
    newest,
    record_event,
    whole,
)
from treering.pydantic_ai._records import record_of
from treering.pydantic_ai._returned import returned
from treering.types import Branch, ConversationState, ConversationSummary, when
from treering.v1 import event_pb2 as pb
from treering.v1 import events_pb2

SOURCE = "pydantic-ai"
THREADS_MAX = 1_024
PLACES_MAX = 65_536
PROMPTS_MAX = 64

K = TypeVar("K")
V = TypeVar("V")


class _Recent(Generic[K, V]):
    """A cache of the values that were used last."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._held: OrderedDict[K, V] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._mutex:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: K, value: V) -> None:
        with self._mutex:
            self._held[key] = value
            self._held.move_to_end(key)
            if len(self._held) > self._count_max:
                self._held.popitem(last=False)


@dataclass
class _Now:
    """The current state of a conversation."""

    conversation: Conversation
    state: ConversationState
    line: Line
    """The end of the active branch, or all of it."""
    record: ConversationRecord | None

    @property
    def branch(self) -> Conversation:
        return self.conversation.on(self.state.branch.name)


@dataclass
class _Found:
    """An entry on a branch."""

    conversation: Conversation
    branch: Branch
    line: Line
    index: int

    @property
    def entry(self) -> Placed:
        return self.line.entries[self.index]


@dataclass
class _Target:
    """The branch to which new entries go."""

    branch: str
    before: Before
    events: list[new.NewEvent] = field(default_factory=list)
    """Events that must come first, such as a fork."""
    copied: list[ConversationEntry] = field(default_factory=list)
    """Entries of another conversation, which are stored here too."""
    restarts: bool = False
    head: int | None = None
    """The head of the branch, if it is not the active branch."""


def _said(
    id: str,
    offset: int,
    make: Callable[[odd.Lessened | None], Made],
    append: Callable[[Made], None],
) -> None:
    """Appends entries; repeats a refused append with simpler or no typed events."""
    lessened: odd.Lessened | None = odd.Lessened()
    for _ in range(ATTEMPTS_MAX):
        made = make(lessened)
        try:
            append(made)
        except (errors.Refused, errors.Invalid) as refusal:
            if lessened is None:
                raise
            spans = [(entry, offset + first, offset + end) for entry, first, end in made.spans]
            if not lessened.refused(refusal, spans):
                # Store only the library's messages, without typed events.
                lessened = None
            continue
        for notes in made.notes:
            odd.warn(f"pydantic-ai, conversation {id[:80]}, a message", notes)
        return
    raise errors.RevisionMismatch(f"other writers kept writing to conversation {id}")


class Log:
    """Records and entries of a store. What is cached is checked against the store before use."""

    def __init__(self, db: Treering) -> None:
        self._db = db
        self._threads = _Recent[str, Thread](THREADS_MAX)
        self._places = _Recent[str, tuple[str, int]](PLACES_MAX)
        """By entry id: the conversation and branch in which the entry was last seen."""
        self._prompts = _Recent[Prompt, str](PROMPTS_MAX)

    def conversation(self, id: str) -> Conversation | None:
        """Returns the conversation with this id, if there is one."""
        return self._thread(id).find()

    # ---- reading ----

    def record(self, id: str) -> ConversationRecord | None:
        """Returns the record of a conversation."""
        now = self._now(id)
        return now.record if now else None

    def records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        """Returns the records, last saved first."""
        found: list[ConversationRecord] = []
        summaries = self._db.conversations(source=SOURCE, page_size=PAGE_MAX)
        newest_first = sorted(summaries, key=lambda each: -when(each.updated_at).timestamp())
        some = LATEST_MAX if limit is None else max(1, min(limit + 1, LATEST_MAX))
        for summary, kept in self._kept(newest_first, some):
            if limit is not None and len(found) >= limit:
                found.sort(key=lambda record: record.updated_at, reverse=True)
                # A record is no newer than the last event of its conversation.
                if limit == 0 or found[limit - 1].updated_at >= when(summary.updated_at):
                    break
            record = kept or self._listed(summary)
            if record is not None and scope in (None, record.scope):
                found.append(record)
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    def _kept(
        self, summaries: Sequence[ConversationSummary], some: int
    ) -> Iterator[tuple[ConversationSummary, ConversationRecord | None]]:
        """Each with its saved record, if no events follow; looks up `some` in one call."""
        for start in range(0, len(summaries), some):
            page = summaries[start : start + some]
            ids = [summary.conversation_id for summary in page]
            latest = iter(self._db.latest(ids, types=[RECORD, ENTRY]))
            for summary, record, entry in zip(page, latest, latest, strict=True):
                yield summary, as_saved(summary.conversation_id, summary.head, record, entry)

    def _listed(self, summary: ConversationSummary) -> ConversationRecord | None:
        conversation = self._db.conversation(summary.conversation_id)
        return self._as_is("", conversation, conversation.state()).record

    def history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        """Returns the entries up to `head_id`, or the last of them. Raises `LookupError`."""
        if head_id is None or limit == 0:
            return []
        if limit is not None and (window := self._window(head_id, limit)):
            return window
        found = self._find(head_id)
        if found is None:
            raise KeyError(head_id)
        chain = found.line.chained()[: found.index + 1]
        for entry in chain:
            self._places.put(entry.id, (found.conversation.id, found.branch.branch_id))
        return chain if limit is None else chain[-limit:]

    def _window(self, head_id: str, limit: int) -> list[ConversationEntry] | None:
        """Returns the last entries of an active branch, without reading the earlier ones."""
        seen_in = self._places.get(head_id)
        if seen_in is None:
            return None
        conversation = self._db.conversation(seen_in[0])
        branch = conversation.state().branch
        line = newest(conversation.on(branch.name), branch.head, limit, self._prompt)
        if line is None or line.head_id != head_id:
            return None
        return line.chained()[-limit:]

    def _now(self, id: str) -> _Now | None:
        conversation = self._thread(id).find()
        return self._as_is(id, conversation, conversation.state()) if conversation else None

    def _as_is(self, id: str, conversation: Conversation, state: ConversationState) -> _Now:
        branch = conversation.on(state.branch.name)
        line = end(branch, state.branch.head, self._prompt)
        if line.is_cut:
            line = whole(branch, state.branch.head, self._prompt)
        record = record_of(id, conversation, state, line)
        if record is not None:
            for entry_id in (record.head_id, *record.branches):
                if entry_id is not None and self._places.get(entry_id) is None:
                    self._places.put(entry_id, (conversation.id, state.branch.branch_id))
        return _Now(conversation, state, line, record)

    def _find(self, entry_id: str) -> _Found | None:
        """Finds an entry in any conversation; starts where it was last seen."""
        seen_in, _ = self._places.get(entry_id) or ("", 0)
        if seen_in and (found := self._find_in(self._db.conversation(seen_in), entry_id)):
            return found
        for summary in self._db.conversations():
            if summary.conversation_id != seen_in:
                conversation = self._db.conversation(summary.conversation_id)
                if found := self._find_in(conversation, entry_id):
                    return found
        return None

    def _find_in(self, conversation: Conversation, entry_id: str) -> _Found | None:
        _, seen_on = self._places.get(entry_id) or ("", 0)

        def likely(branch: Branch) -> tuple[bool, bool, int]:
            return branch.branch_id == seen_on, branch.active, branch.head

        for branch in sorted(conversation.branches(), key=likely, reverse=True):
            line = whole(conversation.on(branch.name), branch.head, self._prompt)
            index = line.index(entry_id)
            if index is not None:
                return _Found(conversation, branch, line, index)
        return None

    def _prompt(self, prompt: Prompt) -> str:
        text = self._prompts.get(prompt)
        if text is None:
            conversation = self._db.conversation(prompt.conversation_id)
            at = prompt.revision
            [event] = conversation.events(first=at, last=at, all_branches=True)
            text = event.text
            self._prompts.put(prompt, text)
        return text

    # ---- writing ----

    def write(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        expected: str | None,
        waiting: Collection[str] = (),
    ) -> None:
        """Stores a record and its new entries in one step, or in several: see `batches`."""
        if record.deferred_tool_requests is not None:
            asked = record.deferred_tool_requests.approvals
            waiting = {*waiting, *(call.tool_call_id for call in asked)}
        *earlier, rest = batches(entries)
        for some in earlier:
            part = dataclasses.replace(record, head_id=some[-1].id, revision=uuid4().hex)
            self._write(part, some, expected, waiting)
            expected = part.revision
        self._write(record, rest, expected, waiting)

    def _write(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        expected: str | None,
        waiting: Collection[str],
    ) -> None:
        id = record.conversation_id
        after = entries[0].parent_id if entries else record.head_id
        for attempt in range(ATTEMPTS_MAX):
            now = self._now(id)
            stored = now.record.revision if now and now.record else None
            if stored != expected:
                raise ConversationConflict(id)
            try:
                if now is None:
                    self._begin(record, entries, after, waiting)
                else:
                    self._append(now, record, entries, after, waiting)
                break
            except errors.Conflict:
                # Another program wrote first: check again whether it changed the history.
                if attempt + 1 == ATTEMPTS_MAX:
                    raise

    def _begin(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        after: str | None,
        waiting: Collection[str],
    ) -> None:
        id = record.conversation_id
        created = new.created(short(id), source=SOURCE, source_id=short(id))
        if after is not None:
            found = self._find(after)
            if found is None:
                raise ConversationConflict(id)
            last = found.entry.last.proto
            created.conversation_created.shares_history = True
            created.conversation_created.parent.CopyFrom(
                pb.ParentRef(
                    conversation_id=last.conversation_id,
                    branch_id=last.branch_id,
                    revision=last.revision,
                )
            )
        key = short(f"open:{SOURCE}:{id}", 256)
        first = [created, record_event(record, len(entries))]

        def append(made: Made) -> None:
            self._db.append([*first, *made.events], idempotency_key=key)

        def make(lessened: odd.Lessened | None) -> Made:
            return events_of(entries, Before(), waiting, None, lessened)

        _said(id, len(first), make, append)

    def _append(
        self,
        now: _Now,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        after: str | None,
        waiting: Collection[str],
    ) -> None:
        target = self._target(now, after)
        added = [*target.copied, *entries]
        kept = record_event(record, len(added), restarts=target.restarts)
        expectations = []
        if target.head is not None:
            expectations.append(
                events_pb2.BranchExpectation(
                    conversation_id=now.conversation.id,
                    branch=target.branch,
                    expected=events_pb2.ExpectedRevision(revision=target.head),
                )
            )

        def append(made: Made) -> None:
            for event in (kept, *made.events):
                event.branch = target.branch
            self._db.append(
                [*target.events, kept, *made.events],
                conversation=now.conversation.id,
                branch=now.state.branch.name,
                expected=now.state.branch.head,
                expectations=expectations,
            )

        def make(lessened: odd.Lessened | None) -> Made:
            return events_of(added, target.before, waiting, now.branch, lessened)

        _said(record.conversation_id, len(target.events) + 1, make, append)

    def note_returned(self, id: str, event: new.NewEvent) -> None:
        """Stores the result of a tool until its request is stored."""
        if found := self.conversation(id):
            found.append([event])

    def returned(self, id: str) -> dict[str, Any]:
        """Returns the results of tools since the newest message, by call id."""
        found = self.conversation(id)
        return returned(found.events(kinds=["custom"], backward=True)) if found else {}

    # ---- targets ----

    def _target(self, now: _Now, after: str | None) -> _Target:
        if after == now.line.head_id:
            return _Target(now.state.branch.name, self._before(now.state))
        if after is None:
            return self._from_the_start(now)
        found = self._find_in(now.conversation, after)
        if found is not None and found.entry.last.conversation_id == now.conversation.id:
            return self._after(now, found)
        found = found or self._find(after)
        if found is None:
            raise ConversationConflict(now.record.conversation_id if now.record else "")
        # The conversation does not share the history of the other one up to the entry.
        target = self._forked(now, 1, 0) if now.record else self._here(now)
        target.restarts = True
        target.copied = found.line.chained()[: found.index + 1]
        return target

    def _here(self, now: _Now) -> _Target:
        return _Target(now.state.branch.name, self._before(now.state))

    def _from_the_start(self, now: _Now) -> _Target:
        line = whole(now.branch, now.state.branch.head, self._prompt)
        if not line.entries:
            return self._here(now)
        first = line.entries[0].first
        if first.conversation_id != now.conversation.id:
            target = self._forked(now, 1, 0)
            target.restarts = True
            return target
        return self._forked(now, before(now.branch, first.revision), now.state.branch.branch_id)

    def _after(self, now: _Now, found: _Found) -> _Target:
        branch = found.branch
        is_last = found.index + 1 == len(found.line.entries)
        if not is_last or branch.archived:
            return self._forked(now, found.entry.last.revision, branch.branch_id)
        activated = new.branch_activated()
        activated.branch = branch.name
        state = now.conversation.on(branch.name).state()
        target = _Target(branch.name, self._before(state), [activated], head=branch.head)
        return target

    def _forked(self, now: _Now, at: int, parent: int) -> _Target:
        name = f"branch-{now.state.summary.head + 1}"
        while any(name == branch.name for branch in now.state.branches):
            name += "+"
        forked = new.NewEvent(
            branch_forked=pb.BranchForked(name=name, parent_branch_id=parent, fork_revision=at)
        )
        activated = new.branch_activated()
        activated.branch = name
        [parent_name] = [each.name for each in now.state.branches if each.branch_id == parent]
        state = now.conversation.on(parent_name).state(as_of=at)
        return _Target(name, self._before(state), [forked, activated])

    def _before(self, state: ConversationState) -> Before:
        held = state.branch.system_prompt
        has_prompt = state.branch.HasField("system_prompt")
        text = self._prompt(Prompt(held.conversation_id, held.revision)) if has_prompt else ""
        return Before.of(state.branch, text)

    # ---- deleting ----

    def delete(self, id: str, expected: str) -> None:
        """Deletes a conversation."""
        for _ in range(ATTEMPTS_MAX):
            now = self._now(id)
            if now is None or now.record is None or now.record.revision != expected:
                raise ConversationConflict(id)
            try:
                if now.state.summary.shares_history:
                    self._end(now)
                else:
                    rewind(now.conversation, now.state, 1)
                return
            except errors.Conflict:
                continue
        raise ConversationConflict(id)

    def _end(self, now: _Now) -> None:
        """Marks a conversation as deleted: a fork cannot leave out its shared history."""
        target = self._forked(now, 1, 0)
        ended = record_event(None)
        ended.branch = target.branch
        now.branch.append([*target.events, ended], expected=now.state.branch.head)

    # ---- names ----

    def _thread(self, id: str) -> Thread:
        thread = self._threads.get(id)
        if thread is None:
            thread = Thread(self._db, SOURCE, id, title=id)
            self._threads.put(id, thread)
        return thread
