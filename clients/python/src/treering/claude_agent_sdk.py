"""A `SessionStore` of the Claude Agent SDK.

    from claude_agent_sdk import ClaudeAgentOptions, query
    from treering.claude_agent_sdk import TreeringSessionStore

    store = TreeringSessionStore(treering.local("./store"))
    options = ClaudeAgentOptions(session_store=store)

A session is a conversation of messages, tool calls and results. You can search and fork it, and
build requests for any provider. The SDK gets its lines back, and messages of other programs as
lines. Needs `pip install treering[claude-agent-sdk]`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

import anyio.to_thread
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from treering import _answers, errors, new
from treering._adapters import frames, odd
from treering._adapters.claude_lines import lines
from treering._adapters.responses import arguments
from treering._adapters.thread import (
    ATTEMPTS_MAX,
    LATEST_MAX,
    PAGE_MAX,
    Thread,
    done,
    fitted,
    open_calls,
    rewind,
)
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.types import ConversationSummary, when
from treering.v1 import event_pb2 as pb

__all__ = ["TreeringSessionStore"]

SOURCE = "claude-agent-sdk"
FRAME = "claude-agent-sdk.entries"
SEEN_MAX = 1_024
"""Sessions whose state is cached; others are read again."""
BATCH_ENTRIES_MAX = 500
"""Most lines that are appended at once."""
BATCH_CHARS_MAX = 8 << 20
"""Most characters of lines that are appended at once; one line may be longer."""


@dataclass
class _Seen:
    """A session as this program last saw it."""

    thread: Thread
    head: int = 0
    uuids: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    summary: SessionSummaryEntry | None = None
    is_current: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class TreeringSessionStore(SessionStore):
    """Stores the SDK's sessions as conversations.

    The source id of a session is `PROJECT_KEY/SESSION_ID`. A subagent is a child conversation with
    the source id `PROJECT_KEY/SESSION_ID/SUBPATH`. A line with a known `uuid` is skipped. Deleting
    replaces the branch by an empty one; the old branch is archived and stays readable.
    """

    def __init__(self, db: Treering) -> None:
        self._db = db
        self._seen: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()
        self._mutex = threading.Lock()

    # ---- the SDK's calls ----

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Appends lines: all or none, up to 500."""
        if entries:
            await _done(lambda: self._append(key, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Returns a session's lines, with other programs' messages as lines; None if empty."""
        return await _in_thread(lambda: self._load(key))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Lists the sessions of a project."""
        return await _in_thread(
            lambda: [
                {"session_id": session_id, "mtime": _mtime(summary)}
                for session_id, summary in self._sessions(project_key)
            ]
        )

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Returns the SDK's summaries of the sessions."""
        return await _in_thread(lambda: self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Deletes a session with its subagents, or one subagent."""
        await _done(lambda: self._delete(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Lists the subagents of a session."""
        return await _in_thread(lambda: [path for path, _ in self._subs(key)])

    # ---- writing ----

    def _append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        seen = self._seen_of(key)
        with seen.lock:
            for batch in _batches(entries):
                self._append_batch(key, seen, batch)

    def _append_batch(self, key: SessionKey, seen: _Seen, entries: list[SessionStoreEntry]) -> None:
        conversation = seen.thread.open()
        lessened = odd.Lessened()
        is_typed = True
        for attempt in range(ATTEMPTS_MAX):
            if not seen.is_current:
                self._look(key, seen)
            fresh = _without_known(entries, seen.uuids)
            if not fresh:
                if conversation.head() == seen.head:
                    return
                # Another program may have deleted the lines.
                seen.is_current = False
                continue
            open = set(seen.open)
            cut = _cut(conversation, fresh) if is_typed else 0
            summary = self._folded(key, seen, fresh)
            read = _spoken(conversation, seen, fresh, cut) if is_typed else [([], [])] * len(fresh)
            typed = [
                fitted(lessened.of(index, events), open) for index, (events, _) in enumerate(read)
            ]
            events = frames.frame(
                FRAME,
                list(zip(fresh, typed, strict=True)),
                {"summary": summary["data"]} if summary else None,
            )
            try:
                receipt = conversation.append(events, expected=seen.head)
            except errors.Conflict:
                # Another program wrote to the session, or deleted it.
                seen.is_current = False
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                continue
            except (errors.Refused, errors.Invalid) as refusal:
                if not is_typed:
                    raise
                # If nothing else can be simplified, store the lines without typed events.
                is_typed = lessened.refused(refusal, odd.spans(typed))
                seen.is_current = False
                continue
            for index, (_, notes) in enumerate(read):
                said = notes + lessened.notes(index)
                odd.warn(f"claude-agent-sdk, session {key['session_id'][:80]}, a line", said)
            seen.head, seen.open, seen.summary = receipt.revision, open, summary
            seen.uuids.update(uuid for entry in fresh if (uuid := entry.get("uuid")))
            return

    def _folded(
        self, key: SessionKey, seen: _Seen, entries: list[SessionStoreEntry]
    ) -> SessionSummaryEntry | None:
        if key.get("subpath") is not None:
            return None
        return fold_session_summary(seen.summary, key, entries)

    def _look(self, key: SessionKey, seen: _Seen) -> None:
        """Reads the session again, with what other programs wrote since."""
        state = seen.thread.open().state()
        seen.uuids.clear()
        seen.summary = None
        for frame in self._frames(key):
            seen.summary = _summary_after(key, seen.summary, frame)
        # With the lines of other programs: a client that sends back loaded lines must not store
        # them again.
        seen.uuids.update(uuid for entry in self._lines(key) if (uuid := entry.get("uuid")))
        seen.head, seen.open = state.branch.head, open_calls(state)
        seen.is_current = True

    # ---- reading ----

    def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        return self._lines(key) or None

    def _lines(self, key: SessionKey) -> list[SessionStoreEntry]:
        conversation = self._seen_of(key).thread.find()
        if conversation is None:
            return []
        made = lines(key["session_id"], conversation.events(), FRAME)
        return cast(list[SessionStoreEntry], made)

    def _frames(self, key: SessionKey) -> Iterator[frames.Frame]:
        conversation = self._seen_of(key).thread.find()
        if conversation is not None:
            for found in frames.read(FRAME, conversation.events()):
                if isinstance(found, frames.Frame):
                    yield found

    def _sessions(self, project_key: str) -> Iterator[tuple[str, ConversationSummary]]:
        return self._listed(_source(project_key), f"{project_key}/")

    def _subs(self, key: SessionListSubkeysKey) -> Iterator[tuple[str, ConversationSummary]]:
        name = f"{key['project_key']}/{key['session_id']}"
        return self._listed(_source(name), f"{name}/")

    def _listed(self, source: str, prefix: str) -> Iterator[tuple[str, ConversationSummary]]:
        source = Thread(self._db, source, "").source
        for summary in self._db.conversations(source=source, page_size=PAGE_MAX):
            if not self._is_empty(summary):
                yield (summary.title or summary.source_id).removeprefix(prefix), summary

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        found = []
        sessions = self._sessions(project_key)
        while page := list(islice(sessions, LATEST_MAX)):
            ids = [summary.conversation_id for _, summary in page]
            latest = self._db.latest(ids, types=FRAME)
            for (session_id, summary), event in zip(page, latest, strict=True):
                if event is not None:
                    # The last frame has the summary, unless a JavaScript program wrote the frame.
                    key: SessionKey = {"project_key": project_key, "session_id": session_id}
                    data = frames.beside(event).get("summary") or self._folded_anew(key)
                    found.append(_summary(session_id, _mtime(summary), data))
        return found

    def _folded_anew(self, key: SessionKey) -> dict[str, Any]:
        summary: SessionSummaryEntry | None = None
        for frame in self._frames(key):
            summary = _summary_after(key, summary, frame)
        return summary["data"] if summary else {}

    def _is_empty(self, summary: ConversationSummary) -> bool:
        """Whether the active branch has only the first event of the conversation."""
        if summary.active_branch_id == 0:
            return summary.head <= 1
        # A deletion appends three events: fork, activation, and archival of the old branch.
        if summary.head > summary.active_branch_id + 2:
            return False
        branches = self._db.conversation(summary.conversation_id).branches()
        return any(branch.active and branch.fork_revision <= 1 for branch in branches)

    # ---- deleting ----

    def _delete(self, key: SessionKey) -> None:
        if key.get("subpath") is None:
            for subpath, _ in list(self._subs(cast(SessionListSubkeysKey, key))):
                self._delete_one({**key, "subpath": subpath})
        self._delete_one(key)

    def _delete_one(self, key: SessionKey) -> None:
        seen = self._seen_of(key)
        conversation = seen.thread.find()
        if conversation is None:
            return
        with seen.lock:
            seen.is_current = False
            for attempt in range(ATTEMPTS_MAX):
                state = conversation.state()
                if self._is_empty(state.summary):
                    return
                try:
                    rewind(conversation, state, 1)
                    return
                except errors.Conflict:
                    if attempt + 1 == ATTEMPTS_MAX:
                        raise

    # ---- names ----

    def _thread(self, key: SessionKey) -> Thread:
        project, session = key["project_key"], key["session_id"]
        main = f"{project}/{session}"
        subpath = key.get("subpath")
        if subpath is None:
            return Thread(self._db, _source(project), main, title=main)
        name = f"{main}/{subpath}"

        def parent() -> str:
            main_key: SessionKey = {"project_key": project, "session_id": session}
            found = self._seen_of(main_key).thread.find()
            return found.id if found else ""

        return Thread(self._db, _source(main), name, title=name, parent=parent)

    def _seen_of(self, key: SessionKey) -> _Seen:
        name = (key["project_key"], key["session_id"], *filter(None, [key.get("subpath")]))
        with self._mutex:
            seen = self._seen.get(name)
            if seen is None:
                seen = self._seen[name] = _Seen(self._thread(key))
            self._seen.move_to_end(name)
            while len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)
            return seen


T = TypeVar("T")


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # The SDK also runs with Trio.
        return False
    return True


async def _in_thread(work: Callable[[], T]) -> T:
    if _is_asyncio():
        return await asyncio.to_thread(work)
    return await anyio.to_thread.run_sync(work)


async def _done(work: Callable[[], T]) -> T:
    """Completes a write, even if the caller is cancelled."""
    if _is_asyncio():
        return await done(work)
    return await anyio.to_thread.run_sync(work)


def _source(of: str) -> str:
    return f"{SOURCE}:{of}"


def _mtime(summary: ConversationSummary) -> int:
    return int(when(summary.updated_at).timestamp() * 1000)


def _summary(session_id: str, mtime: int, data: dict[str, Any]) -> SessionSummaryEntry:
    return {"session_id": session_id, "mtime": mtime, "data": data}


def _summary_after(
    key: SessionKey, before: SessionSummaryEntry | None, frame: frames.Frame
) -> SessionSummaryEntry | None:
    """The SDK's summary of a session, after the lines of a frame; None for subagents."""
    if key.get("subpath") is not None:
        return None
    if "summary" in frame.beside:
        return _summary(key["session_id"], 0, frame.beside["summary"])
    return fold_session_summary(before, key, [framed.item for framed in frame.items])


def _batches(entries: list[SessionStoreEntry]) -> Iterator[list[SessionStoreEntry]]:
    batch: list[SessionStoreEntry] = []
    chars = 0
    for entry in entries:
        size = len(str(entry))
        if batch and (len(batch) == BATCH_ENTRIES_MAX or chars + size > BATCH_CHARS_MAX):
            yield batch
            batch, chars = [], 0
        batch.append(entry)
        chars += size
    yield batch


def _without_known(
    entries: Iterable[SessionStoreEntry], known: set[str]
) -> list[SessionStoreEntry]:
    fresh = []
    here = set[str]()
    for entry in entries:
        uuid = entry.get("uuid")
        if uuid and (uuid in known or uuid in here):
            continue
        if uuid:
            here.add(uuid)
        fresh.append(entry)
    return fresh


# ---- lines as events ----


def _cut(conversation: Conversation, entries: list[SessionStoreEntry]) -> int:
    """The cut of a summary among the lines; 0 without a summary, or with nothing to cut."""
    if not any(_is_summary(cast(Mapping[str, Any], entry)) for entry in entries):
        return 0
    try:
        return conversation.plan_compaction(keep_turns=0).cut_revision
    except errors.TreeringError:
        return 0


def _is_summary(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "user" and entry.get("isCompactSummary") is True


def _spoken(
    conversation: Conversation, seen: _Seen, entries: list[SessionStoreEntry], cut: int
) -> list[tuple[list[new.NewEvent], list[str]]]:
    """Lines as events, with notes on differences; no events for lines that are no messages."""
    given = [cast(Mapping[str, Any], entry) for entry in entries]
    read = [odd.spoken(entry, lambda entry: _events(entry, cut)) for entry in given]
    standing: odd.Standing = {}
    if any(odd.has_odd_result(events) for events, _ in read):
        standing = odd.standing_in(
            conversation, FRAME, lambda entry: odd.spoken(entry, _called)[0], seen.open
        )
    made = []
    for index, (entry, (events, notes)) in enumerate(zip(given, read, strict=True)):
        seed = str(entry.get("uuid") or f"{seen.head}.{index}")
        events, more = odd.within(events, seed, standing)
        made.append((events, notes + more))
    return made


def _called(entry: Mapping[str, Any]) -> Iterator[new.NewEvent]:
    return _events(entry, 0) if entry.get("type") == "assistant" else iter(())


def _events(entry: Mapping[str, Any], cut: int) -> Iterator[new.NewEvent]:
    message = entry.get("message")
    if entry.get("type") not in ("user", "assistant") or not isinstance(message, Mapping):
        return
    if entry["type"] == "assistant":
        content = message.get("content")
        if isinstance(content, str):
            message = {**message, "content": [{"type": "text", "text": content}]}
        answer = _answers.read("anthropic", message)
        if answer.parts:
            yield new.assistant(
                *answer.parts,
                message_id=answer.message_id,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
            )
        for call_id, tool, given in answer.calls:
            yield new.tool_call(call_id or "", tool or "", arguments(given))
        return
    [events] = _answers.messages("anthropic", [message])
    if cut and _is_summary(entry) and len(events) == 1:
        text = "".join(part.text for part in events[0].message_appended.parts)
        yield new.compacted(text, cut, trigger="imported")
        return
    for event in events:
        if entry.get("isMeta") is True and event.HasField("message_appended"):
            event.message_appended.raw.CopyFrom(META)
        yield event


META = pb.RawMessage(
    origin="claude-code",
    encoding=pb.RAW_ENCODING_JSON_PATCH,
    data=b'[{"op":"add","path":"/isMeta","value":true}]',
)
"""Marks a message that the SDK itself inserted with the role *user*."""
