"""Messages that were read or written before, so that they are not taken apart again."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

from langchain_core.messages import BaseMessage

from treering.langgraph._messages import CLASSES

KNOWN_MAX = 4_096
"""Messages of a thread that are kept as objects."""

PLAIN = (str, int, float, bool, bytes, type(None))


class Written:
    """The messages of the list that was put last, by their identity.

    A graph gives the same objects again with every checkpoint. One that has plain fields only,
    and has the same ones still, needs not be serialized to know what it is.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseMessage, list[Any], bytes]] = {}
        self._next: dict[int, tuple[BaseMessage, list[Any], bytes]] = {}

    def key_of(self, message: BaseMessage) -> bytes | None:
        """The key that it has, if it is one of them and was not changed."""
        found = self._known.get(id(message))
        if found is None or found[0] is not message:
            return None
        fields = _plain_fields(message)
        if fields is None or len(fields) != len(found[1]):
            return None
        if any(one is not other for one, other in zip(fields, found[1], strict=True)):
            return None
        self._next[id(message)] = found
        return found[2]

    def note(self, message: BaseMessage, key: bytes) -> None:
        """It has this key."""
        fields = _plain_fields(message)
        if fields is not None:
            self._next[id(message)] = (message, fields, key)

    def turn(self) -> None:
        """The list is complete: what is not in it is forgotten."""
        self._known, self._next = self._next, {}


def _plain_fields(message: BaseMessage) -> list[Any] | None:
    """Its fields, where each cannot change in place; of empty containers, their kind."""
    if CLASSES.get(type(message).__name__) is not type(message) or message.__pydantic_extra__:
        return None
    fields: list[Any] = []
    for name, value in message.__dict__.items():
        if isinstance(value, PLAIN):
            fields.append(value)
        elif isinstance(value, (list, dict)) and not value:
            fields.append(type(value))
        else:
            return None
        fields.append(name)
    return fields


class Read:
    """Messages by key, of which copies are handed out: cheaper than to validate them anew."""

    def __init__(self) -> None:
        self._known: dict[bytes, BaseMessage] = {}

    def copy_of(self, key: bytes) -> BaseMessage | None:
        """A message of its own, as if it were read anew."""
        known = self._known.get(key)
        if known is None:
            return None
        made = copy(known)
        fields = made.__dict__
        for name, value in fields.items():
            if isinstance(value, (list, dict)):
                fields[name] = deepcopy(value) if value else type(value)()
        return made

    def keep(self, key: bytes, value: Any) -> None:
        """Keeps a message; nobody else may have it."""
        if (
            CLASSES.get(type(value).__name__) is type(value)
            and not value.__pydantic_extra__
            and not value.__pydantic_private__
        ):
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = value
