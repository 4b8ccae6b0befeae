"""A session service for Google's Agent Development Kit (ADK).

    from google.adk.runners import Runner
    from treering.google_adk import TreeringSessionService

    service = TreeringSessionService(treering.local("./store"))
    runner = Runner(app_name="app", agent=agent, session_service=service)

A session is a conversation. Its parent is the conversation of the user, whose parent is that of
the app. State of all three is written in one step. Needs `pip install treering[google-adk]`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from treering import errors, new
from treering._adapters import frames, odd
from treering._adapters.adk_events import Others
from treering._adapters.odd import strict_json
from treering._adapters.responses import arguments, json_part
from treering._adapters.thread import (
    ATTEMPTS_MAX,
    LATEST_MAX,
    PAGE_MAX,
    Thread,
    clear,
    done,
    fitted,
    open_calls,
)
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.types import ConversationSummary
from treering.types import Event as Stored

__all__ = ["TreeringSessionService"]

SOURCE = "google-adk"
EVENT = "google-adk.event"
SESSION = "google-adk.session"
STATE = "google-adk.state"
CURRENT = "google-adk.session-state"
"""A session's whole state, beside an event that changed it: listing reads only this."""
AFTER_CREATED = 2
"""The revision of the first event that an adapter appends to a conversation."""
FOLLOWED_MAX = 512
"""Conversations that are cached in memory; others are read again."""

Deltas = dict[str, dict[str, Any]]


@dataclass
class _Followed:
    """A conversation as this program last saw it."""

    thread: Thread
    branch: int = 0
    seen: int = 0
    """The head of the branch."""
    exists: bool = False
    open: set[str] = field(default_factory=set)
    state: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    """The ADK's own events, and messages of other programs as events."""
    own: set[str] = field(default_factory=set)
    """The ids of the ADK's own events."""
    times: list[float] = field(default_factory=list)
    """The sort keys of `events`: a message of another program has that of the event before it."""
    others: Others = field(default_factory=Others)
    updated: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def refresh(self) -> bool:
        """Reads new events; false if there is no such conversation."""
        looked = self.thread.look()
        if looked is None:
            return False
        conversation, state = looked
        if state.branch.branch_id != self.branch:
            # The session was deleted, or a program switched to another branch.
            self.branch, self.seen, self.exists = state.branch.branch_id, 0, False
            self.state, self.events, self.own = {}, [], set()
            self.times, self.others = [], Others()
        if state.branch.head > self.seen:
            news = conversation.on(state.branch.name).events(
                first=self.seen + 1, last=state.branch.head
            )
            for found in frames.read(EVENT, self.others.calls.noted(news)):
                if isinstance(found, frames.Frame):
                    for framed in found.items:
                        self._take(framed.item)
                elif found.kind == "custom":
                    self._change(found)
                elif (item := self.others.item_of(found)) is not None:
                    self.events.append(item)
                    self.times.append(self.times[-1] if self.times else 0.0)
        self.seen, self.open = state.branch.head, open_calls(state)
        return True

    def _take(self, item: dict[str, Any]) -> None:
        self.events.append(item)
        self.own.add(item["id"])
        self.times.append(item["timestamp"])
        self.others.saw(item)
        self.updated = item["timestamp"]
        self.state.update(_deltas((item.get("actions") or {}).get("state_delta") or {})["session"])

    def _change(self, event: Stored) -> None:
        custom = event.proto.custom
        if custom.type_name == SESSION:
            said = json.loads(custom.data)
            self.exists, self.state, self.updated = True, said["state"], said["at"]
        elif custom.type_name == STATE:
            self.state.update(json.loads(custom.data))


class TreeringSessionService(BaseSessionService):
    """Stores the ADK's sessions as conversations.

    Source ids are `APP`, `APP/USER` and `APP/USER/SESSION`, each name quoted as in a URL. Events
    are messages, calls and results. The ADK gets its events back unchanged, and messages of other
    programs as events of the session's agent or of the user. State that begins with `app:` or
    `user:` belongs to the conversation of the app or user, and is written with the event in one
    step. State that begins with `temp:` is not stored.
    """

    def __init__(self, db: Treering) -> None:
        self._db = db
        self._followed: OrderedDict[tuple[str, ...], _Followed] = OrderedDict()
        self._mutex = threading.Lock()

    # ---- the ADK's calls ----

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Creates a session."""
        id = (session_id or "").strip() or str(uuid4())
        given = _deltas(_json(state or {}))
        return await done(lambda: self._create((app_name, user_id, id), given))

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns a session with the events that the config selects."""
        name = (app_name, user_id, session_id.strip())
        return await asyncio.to_thread(self._get, name, config)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Lists the sessions of a user, or of all users, without their events, newest last."""
        return await asyncio.to_thread(self._list, app_name, user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes a session. The state of the user and of the app stays."""
        await done(lambda: self._delete((app_name, user_id, session_id.strip())))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user."""
        return await asyncio.to_thread(self._state_of, (app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event with the state that it changes, in one step."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        item: dict[str, Any] = json.loads(event.model_dump_json(exclude_none=True))
        name = (session.app_name, session.user_id, session.id)
        known = session.last_update_time
        if await done(lambda: self._append(name, known, item)):
            session.last_update_time = event.timestamp
            return self._commit_event_to_session(session, event)
        return event

    # ---- reading ----

    def _get(self, name: tuple[str, ...], config: GetSessionConfig | None) -> Session | None:
        followed = self._at(name)
        with followed.lock:
            if not followed.refresh() or not followed.exists:
                return None
            ordered = sorted(
                zip(followed.times, followed.events, strict=True), key=lambda each: each[0]
            )
            items = [item for _, item in ordered]
            items = list(followed.others.answered(items, followed.own))
            if config and config.after_timestamp:
                items = [item for item in items if item["timestamp"] >= config.after_timestamp]
            if config and config.num_recent_events is not None:
                items = items[-config.num_recent_events :] if config.num_recent_events else []
            events = [Event.model_validate_json(json_ascii(item)) for item in items]
            return self._session(name, followed, events)

    def _session(self, name: tuple[str, ...], followed: _Followed, events: list[Event]) -> Session:
        state: dict[str, Any] = json.loads(json_ascii(followed.state))
        return self._made(name, state, followed.updated, events, {})

    def _made(
        self,
        name: tuple[str, ...],
        state: dict[str, Any],
        updated: float,
        events: list[Event],
        shared: dict[tuple[str, ...], dict[str, Any]],
    ) -> Session:
        """A session with the state of its app and its user; `shared` has those already read."""
        app_name, user_id, id = name
        for prefix, of in ((State.APP_PREFIX, name[:1]), (State.USER_PREFIX, name[:2])):
            if of not in shared:
                shared[of] = self._state_of(of)
            state.update({prefix + key: value for key, value in shared[of].items()})
        return Session(
            app_name=app_name,
            user_id=user_id,
            id=id,
            state=state,
            events=events,
            last_update_time=updated,
        )

    def _state_of(self, name: tuple[str, ...]) -> dict[str, Any]:
        followed = self._at(name)
        with followed.lock:
            followed.refresh()
            state: dict[str, Any] = json.loads(json_ascii(followed.state))
            return state

    def _list(self, app_name: str, user_id: str | None) -> ListSessionsResponse:
        parent = None if user_id is None else self._at((app_name, user_id)).thread.find()
        if user_id is not None and parent is None:
            return ListSessionsResponse(sessions=[])
        listed = self._db.conversations(
            source=self._thread((app_name, "", "")).source,
            parent=parent.id if parent else "",
            page_size=PAGE_MAX,
        )
        found: list[Session] = []
        shared: dict[tuple[str, ...], dict[str, Any]] = {}
        while page := list(islice(listed, LATEST_MAX)):
            ids = [summary.conversation_id for summary in page]
            if user_id is None:
                shared.update(self._states_of_users(page, shared))
            latest = iter(self._db.latest(ids, types=[SESSION, CURRENT, EVENT]))
            for summary, begun, current, event in zip(page, latest, latest, latest, strict=True):
                name = tuple(map(unquote, summary.title.split("/")))
                if begun is not None and len(name) == 3:
                    state, updated = _as_listed(begun, current, event)
                    found.append(self._made(name, state, updated, [], shared))
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=found)

    def _states_of_users(
        self, page: list[ConversationSummary], known: Mapping[tuple[str, ...], Any]
    ) -> dict[tuple[str, ...], dict[str, Any]]:
        """States of the users of these sessions that have at most one event. The others are left
        out."""
        users: dict[str, tuple[str, ...]] = {}
        for summary in page:
            name = tuple(map(unquote, summary.title.split("/")))
            if len(name) == 3 and name[:2] not in known:
                users[summary.parent.conversation_id] = name[:2]
        states: dict[tuple[str, ...], dict[str, Any]] = {}
        latest = self._db.latest(list(users), types=[STATE]) if users else []
        for user, event in zip(users.values(), latest, strict=True):
            if event is None:
                states[user] = {}
            elif event.revision == AFTER_CREATED:
                states[user] = json.loads(event.proto.custom.data)
        return states

    # ---- writing ----

    def _create(self, name: tuple[str, ...], given: Deltas) -> Session:
        followed = self._at(name)
        with followed.lock:
            conversation = followed.thread.open()
            for _ in range(ATTEMPTS_MAX):
                followed.refresh()
                if followed.exists:
                    raise AlreadyExistsError(f"Session with id {name[2]} already exists.")
                said = json_ascii({"state": given["session"], "at": time.time()})
                created = new.custom(SESSION, said.encode(), content_type="application/json")
                events = [created, *self._shared(name, given)]
                try:
                    conversation.append(events, expected=followed.seen)
                    break
                except errors.Conflict:
                    continue
            else:
                raise _contended(name)
            followed.refresh()
            return self._session(name, followed, [])

    def _append(self, name: tuple[str, ...], known: float, item: dict[str, Any]) -> bool:
        """Appends an event; false if it was already stored."""
        followed = self._at(name)
        with followed.lock:
            lessened = odd.Lessened()
            for _ in range(ATTEMPTS_MAX):
                if not followed.refresh() or not followed.exists:
                    raise SessionNotFoundError(f"Session {name[2]} not found.")
                if any(each["id"] == item["id"] and each == item for each in followed.events):
                    return False
                if followed.updated > known:
                    raise _stale()
                conversation = followed.thread.open()
                typed, notes = self._spoken(conversation, followed, item)
                held = fitted(lessened.of(0, typed), set(followed.open))
                given = _deltas((item.get("actions") or {}).get("state_delta") or {})
                events = frames.frame(EVENT, [(item, held)])
                if given["session"]:
                    events.append(_current({**followed.state, **given["session"]}))
                events += self._shared(name, given)
                try:
                    conversation.append(events, expected=followed.seen)
                except errors.Conflict:
                    continue
                except (errors.Refused, errors.Invalid) as refusal:
                    if not lessened.refused(refusal, [(0, 1, 1 + len(held))]):
                        raise
                    continue
                odd.warn(f"google-adk, session {name[2][:80]}, an event", notes + lessened.notes(0))
                followed.refresh()
                return True
            raise _contended(name)

    def _spoken(
        self, conversation: Conversation, followed: _Followed, item: dict[str, Any]
    ) -> tuple[list[new.NewEvent], list[str]]:
        events, notes = odd.spoken(item, _events)
        standing: odd.Standing = {}
        if odd.has_odd_result(events):
            standing = odd.standing_in(
                conversation, EVENT, lambda item: odd.spoken(item, _events)[0], followed.open
            )
        events, more = odd.within(events, str(item.get("id") or followed.seen), standing)
        return events, notes + more

    def _shared(self, name: tuple[str, ...], given: Deltas) -> list[new.NewEvent]:
        """Events with the state of the app and of the user, for their own conversations."""
        events = []
        for scope, of in (("app", name[:1]), ("user", name[:2])):
            if given[scope]:
                data = json_ascii(given[scope]).encode()
                event = new.custom(STATE, data, content_type="application/json")
                event.conversation_id = self._at(of).thread.open().id
                events.append(event)
        return events

    def _delete(self, name: tuple[str, ...]) -> None:
        followed = self._at(name)
        with followed.lock:
            if not followed.refresh() or not followed.exists:
                return
            clear(followed.thread.open())
            followed.refresh()

    # ---- names ----

    def _at(self, name: tuple[str, ...]) -> _Followed:
        with self._mutex:
            followed = self._followed.get(name)
            if followed is None:
                followed = self._followed[name] = _Followed(self._thread(name))
            self._followed.move_to_end(name)
            while len(self._followed) > FOLLOWED_MAX:
                self._followed.popitem(last=False)
            return followed

    def _thread(self, name: tuple[str, ...]) -> Thread:
        quoted = "/".join(quote(part, safe="") for part in name)
        kind = ("app", "user", "")[len(name) - 1]
        source = f"{SOURCE}-{kind}" if kind else f"{SOURCE}:{quote(name[0], safe='')}"

        def parent() -> str:
            return self._at(name[:-1]).thread.open().id if len(name) > 1 else ""

        return Thread(self._db, source, quoted, title=quoted, parent=parent)


def _current(state: dict[str, Any]) -> new.NewEvent:
    data = json_ascii(state).encode()
    # The store keeps a large state as its difference from the state before.
    return new.custom(CURRENT, data, content_type="application/json", key=CURRENT, delta_of=CURRENT)


def _as_listed(
    begun: Stored, current: Stored | None, event: Stored | None
) -> tuple[dict[str, Any], float]:
    """A session's state and the time of its last event, from the newest event of each type."""
    said = json.loads(begun.proto.custom.data)
    state, updated = said["state"], said["at"]
    if current is not None and current.revision > begun.revision:
        state = json.loads(current.proto.custom.data)
    if event is not None and event.revision > begun.revision:
        _, packed = json.loads(event.proto.custom.data)["items"][-1]
        updated = frames.filled(packed, [])["timestamp"]
    return state, updated


def _contended(name: tuple[str, ...]) -> errors.RevisionMismatch:
    return errors.RevisionMismatch(f"other writers kept writing to session {name[2]}")


def _stale() -> Exception:
    text = (
        "The last_update_time provided in the session object is earlier than the update_time in"
        " storage. Please check if it is a stale session."
    )
    return StaleSessionError(text)


def json_ascii(value: Any) -> str:
    """JSON in ASCII, which can also represent lone surrogates."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _json(state: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = to_jsonable_python(state, fallback=str)
    return said


def _deltas(state: Mapping[str, Any]) -> Deltas:
    deltas: Deltas = {"app": {}, "user": {}, "session": {}}
    for key, value in state.items():
        if key.startswith(State.APP_PREFIX):
            deltas["app"][key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            deltas["user"][key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            deltas["session"][key] = value
    return deltas


# ---- events ----


def _events(item: Mapping[str, Any]) -> Iterator[new.NewEvent]:
    said: list[new.Part] = []
    calls: list[new.NewEvent] = []
    results: list[new.NewEvent] = []
    for part in (item.get("content") or {}).get("parts") or ():
        if call := part.get("function_call"):
            given = arguments(call.get("args"))
            calls.append(new.tool_call(call.get("id") or "", call.get("name") or "", given))
        elif result := part.get("function_response"):
            results.append(_result(result))
        elif part.get("thought"):
            said.append(new.reasoning(part.get("text") or "", provider="google"))
        elif part.get("text"):
            said.append(new.parts([part["text"]])[0])
        else:
            said.append(json_part(part))
    yield from results
    author = str(item.get("author") or "")
    if said:
        used = item.get("usage_metadata") or {}
        yield new.message(
            "user" if author == "user" else "assistant",
            *said,
            author="" if author == "user" else author,
            message_id=str(item.get("id") or ""),
            finish_reason=str(item.get("finish_reason") or ""),
            usage=new.usage(
                input_with_cached=used.get("prompt_token_count") or 0,
                output=(used.get("candidates_token_count") or 0)
                + (used.get("thoughts_token_count") or 0),
                cache_read=used.get("cached_content_token_count") or 0,
                reasoning=used.get("thoughts_token_count") or 0,
                model=str(item.get("model_version") or ""),
            )
            if used
            else None,
        )
    yield from calls


def _result(result: Mapping[str, Any]) -> new.NewEvent:
    response = result.get("response") or {}
    values: Sequence[Any] = list(response.values())
    is_text = len(values) == 1 and isinstance(values[0], str)
    part = values[0] if is_text else json_part(response)
    error = response.get("error")
    return new.tool_result(
        result.get("id") or "",
        part,
        success=error is None,
        error="" if error is None else (error if isinstance(error, str) else strict_json(error)),
    )
