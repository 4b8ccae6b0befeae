"""Converts LangChain messages to typed events, and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core import messages as lc
from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ValidationError

from treering import new
from treering._adapters import frames
from treering._adapters.odd import NOT_SHAPED, plainly, spoken
from treering._adapters.responses import arguments, json_part
from treering._words import RoleName
from treering.langgraph._places import Place
from treering.v1 import event_pb2 as pb

CLASSES: dict[str, type[BaseMessage]] = {
    kind.__name__: kind
    for kind in (
        lc.AIMessage,
        lc.AIMessageChunk,
        lc.ChatMessage,
        lc.FunctionMessage,
        lc.HumanMessage,
        lc.HumanMessageChunk,
        lc.SystemMessage,
        lc.ToolMessage,
    )
}
"""Classes of messages that are stored as typed events; other classes are stored as bytes."""

ROLES: dict[str, RoleName] = {
    "human": "user",
    "HumanMessageChunk": "user",
    "user": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}
PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
"""Classes of values that cannot change in place."""
IMAGES = ("image", "image_url", "input_image")


# ---- as JSON, and back ----


def plain(message: BaseMessage) -> dict[str, Any] | None:
    """A message as JSON; None if JSON cannot represent it."""
    name = type(message).__name__
    if CLASSES.get(name) is not type(message):
        return None
    try:
        fields = message.model_dump()
        fields = {key: value for key, value in fields.items() if not _is_default(message, key)}
        said = json.loads(json.dumps({"class": name, **fields}, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return cast(dict[str, Any], said)


def _is_default(message: BaseMessage, field: str) -> bool:
    value = getattr(message, field, None)
    return field not in message.model_fields_set and value in (None, "", [], {}, False)


Named = Sequence[tuple[str, type]]
"""Names of fields, and the classes of their values."""


class Form:
    """Messages of one class with fields of the same names, all plain or empty containers."""

    __slots__ = ("_class", "_extra", "_fields", "_names_set", "empty", "given")

    def __init__(self, like: BaseMessage, given: Named, empty: Named) -> None:
        self._class = type(like)
        self._fields = like.__dict__.copy()
        self._names_set = like.__pydantic_fields_set__.copy()
        self._extra = like.__pydantic_extra__ is not None
        self.given = given
        self.empty = empty
        """Fields with containers; each message gets its own."""

    def fields(self) -> dict[str, Any]:
        """Returns all fields; the caller must set the `given` ones."""
        return self._fields.copy()

    def message(self, fields: dict[str, Any]) -> BaseMessage:
        """Makes a message with these fields and its own containers."""
        for name, kind in self.empty:
            fields[name] = kind()
        made: BaseMessage = _new(self._class)
        _set_dict(made, fields)
        _set_names(made, self._names_set.copy())
        _set_extra(made, {} if self._extra else None)
        _set_private(made, None)
        return made


# pydantic's `copy` uses `object.__setattr__`, which looks these up each time.
_new = object.__new__
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_names = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


class Plain:
    """A message of a form; makes any number of copies."""

    __slots__ = ("_fields", "form", "place")

    def __init__(self, form: Form, fields: dict[str, Any], place: Place) -> None:
        self.form = form
        self._fields = fields
        self.place = place

    @property
    def id(self) -> Any:
        """Its id."""
        return self._fields.get("id")

    def message(self) -> BaseMessage:
        """Returns a new copy of the message."""
        return self.form.message(self._fields.copy())


Framed = tuple[Any, Sequence[new.NewEvent | pb.Event], Place]
"""A message as a frame stores it, the events with its texts, and its place."""

_FORMS: dict[tuple[str, ...], Form | None] = {}
"""By class and names of fields; None: such messages need validation."""
FORMS_MAX = 256
_NOWHERE: Place = (0, 0, 0)


def filled(framed: Framed) -> dict[str, Any]:
    """The message as JSON, with its texts."""
    said: dict[str, Any] = frames.filled(framed[0], framed[1])
    return said


def id_of(held: Framed | Plain) -> Any:
    """The message's own id."""
    if isinstance(held, Plain):
        return held.id
    id = held[0].get("id")
    return id if id.__class__ is str else filled(held).get("id")


def message_of(said: Mapping[str, Any]) -> BaseMessage:
    """Makes the message; it may share containers with `said`."""
    found = formed((said, (), _NOWHERE))
    return found[0].message(found[1]) if found is not None else _validated(said)


def formed(framed: Framed) -> tuple[Form, dict[str, Any]] | None:
    """A message's form and its fields, if all of them are plain.

    Validation takes most of the time, and does not change plain values. So it runs once for all
    messages with the same fields.
    """
    said, events, _ = framed
    if "class" not in said:
        return None
    names = (said["class"], *said)
    form = _FORMS.get(names)
    if form is None:
        if names in _FORMS or len(_FORMS) >= FORMS_MAX:
            return None
        whole = filled(framed)
        form = _FORMS[names] = _form_of(_validated(whole), whole)
        if form is None:
            return None
    fields = form.fields()
    for name, kind in form.given:
        value = said[name]
        if value.__class__ is not kind:
            value = frames.text_of(value, events) if kind is str else None
            if value is None:
                return None
        fields[name] = value
    return form, fields


def _form_of(message: BaseMessage, said: Mapping[str, Any]) -> Form | None:
    given = {name: value for name, value in said.items() if name not in ("class", "type")}
    fields = message.__dict__
    kept = {name: fields[name] for name in given if name in fields}
    empty = {name: value for name, value in fields.items() if value.__class__ not in PLAIN}
    is_plain = (
        kept == given
        and all(value.__class__ in PLAIN for value in given.values())
        and not any(value or value.__class__ not in (list, dict) for value in empty.values())
        and type(message) is CLASSES[said["class"]]
        and not (message.__pydantic_extra__ or message.__pydantic_private__)
    )
    if not is_plain or type(message.content) is not str:
        return None
    return Form(
        message,
        [(name, value.__class__) for name, value in given.items()],
        [(name, value.__class__) for name, value in empty.items()],
    )


def with_fields(like: BaseMessage, fields: dict[str, Any]) -> BaseMessage:
    """Copies a message with these fields; everything else comes from `like`, as in `copy`."""
    made = like.__class__.__new__(like.__class__)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", like.__pydantic_fields_set__.copy())
    extra = like.__pydantic_extra__
    object.__setattr__(made, "__pydantic_extra__", None if extra is None else extra.copy())
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _validated(said: Mapping[str, Any]) -> BaseMessage:
    fields = {key: value for key, value in said.items() if key != "class"}
    fields.pop("type", None)
    kind = CLASSES[said["class"]]
    try:
        return kind(**fields)
    except ValidationError:
        # A program in another language wrote it, where other rules apply.
        return kind.model_construct(**fields)


# ---- as events ----


def typed(message: BaseMessage) -> tuple[list[new.NewEvent], list[str]]:
    """Converts a message to events with its own call ids; notes what they cannot represent."""
    return spoken(message, _events, _plain)


SAID = (
    "content",
    "id",
    "name",
    "role",
    "status",
    "response_metadata",
    "tool_call_id",
    "tool_calls",
    "invalid_tool_calls",
    "usage_metadata",
)
"""The fields of a message that its events contain."""


def _plain(message: BaseMessage) -> BaseMessage:
    fields = message.__dict__
    return with_fields(message, {**fields, **{n: plainly(fields[n]) for n in SAID if n in fields}})


def _events(message: BaseMessage) -> Iterator[new.NewEvent]:
    parts = list(_parts(message.content))
    if isinstance(message, lc.ToolMessage):
        yield new.tool_result(message.tool_call_id, *parts, success=message.status != "error")
        return
    role = ROLES.get(message.type) or ROLES.get(str(getattr(message, "role", "")), "user")
    calls = list(_calls(message))
    told = message.response_metadata or {}
    if parts or not calls:
        yield new.message(
            role,
            *parts,
            author=message.name or "",
            message_id=str(message.id or ""),
            finish_reason=str(told.get("finish_reason") or told.get("stop_reason") or ""),
            usage=_usage(message, str(told.get("model_name") or told.get("model") or "")),
        )
    yield from calls


def _calls(message: BaseMessage) -> Iterator[new.NewEvent]:
    if not isinstance(message, lc.AIMessage):
        return
    for call in message.tool_calls:
        yield new.tool_call(call["id"] or "", call["name"], arguments(call["args"]))
    for wrong in message.invalid_tool_calls:
        yield new.tool_call(
            wrong.get("id") or "", wrong.get("name") or "", arguments(wrong.get("args"))
        )


def _usage(message: BaseMessage, model: str) -> pb.Usage | None:
    used = getattr(message, "usage_metadata", None)
    if not used:
        return None
    sent = used.get("input_token_details") or {}
    made = used.get("output_token_details") or {}
    return new.usage(
        input_with_cached=used.get("input_tokens") or 0,
        output=used.get("output_tokens") or 0,
        cache_read=sent.get("cache_read") or 0,
        cache_creation=sent.get("cache_creation") or 0,
        reasoning=made.get("reasoning") or 0,
        model=model,
    )


def _parts(content: Any) -> Iterator[new.Part]:
    if isinstance(content, str):
        if content:
            yield content
        return
    for block in content:
        if isinstance(block, str):
            yield block
        else:
            try:
                part = _part(block)
            except NOT_SHAPED:
                part = json_part(block)
            if part:
                yield part


def _part(block: Mapping[str, Any]) -> new.Part | None:
    kind = block.get("type")
    if kind in ("tool_use", "tool_call", "function_call", "input_json_delta"):
        # The message's list of calls has it.
        return None
    if kind in ("text", "output_text", "input_text"):
        return new.parts([block["text"]])[0]
    if kind in ("thinking", "reasoning"):
        text = block.get("thinking") or block.get("reasoning") or ""
        return new.reasoning(text, signature=block.get("signature") or "", provider="anthropic")
    if kind in IMAGES and (image := _image(block)):
        return image
    return json_part(dict(block))


def _image(block: Mapping[str, Any]) -> pb.ContentPart | None:
    held = block.get("image_url") or block.get("url")
    url = held.get("url") if isinstance(held, Mapping) else held
    source = block.get("source") or block
    data, media_type = source.get("data") or source.get("base64"), source.get("media_type")
    media_type = media_type or block.get("mime_type") or ""
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        head, _, data = url.partition(";base64,")
        media_type = head.removeprefix("data:")
    elif isinstance(url, str):
        return new.image(url)
    try:
        return new.image(base64.b64decode(str(data), validate=True), media_type)
    except (binascii.Error, TypeError, ValueError):
        return None
