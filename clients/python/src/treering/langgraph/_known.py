"""Caches of messages that were read or written, which save serializing and validating again."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from operator import is_
from typing import Any

from langchain_core.messages import BaseMessage

from treering.langgraph._messages import CLASSES, PLAIN, with_fields

KNOWN_MAX = 4_096
"""Most messages of a thread that are kept as objects."""

Noted = tuple[BaseMessage, bytes, tuple[Any, ...], tuple[Any, ...]]
"""A message, its key, the values of its fields, and those values that are empty containers."""


class Written:
    """The messages of the list that was put or read last, by their identity.

    A graph passes the same objects with every checkpoint. A message with only plain fields, which
    still have the same values, keeps its key and need not be serialized.
    """

    def __init__(self) -> None:
        self._read: dict[int, Noted] = {}
        self._known: dict[int, Noted] = {}
        self._next: dict[int, Noted] = {}

    def keys_of(self, messages: Sequence[BaseMessage]) -> list[bytes | None]:
        """The keys of the messages that are known and unchanged; None for the others."""
        known, read, next = self._known, self._read, self._next
        keys: list[bytes | None] = []
        for message in messages:
            at = id(message)
            found = known.get(at) or read.get(at)
            if found is not None and found[0] is message and not message.__pydantic_extra__:
                _, key, values, empty = found
                fields = message.__dict__
                is_same = len(fields) == len(values) and all(map(is_, fields.values(), values))
                if is_same and not any(empty):
                    next[at] = found
                    keys.append(key)
                    continue
            keys.append(None)
        return keys

    def note(self, message: BaseMessage, key: bytes) -> None:
        """Notes the key of a message."""
        if (noted := _noted(message, key)) is not None:
            self._next[id(message)] = noted

    def note_read(
        self, message: BaseMessage, key: bytes, containers: Sequence[tuple[str, type]]
    ) -> None:
        """Notes a message that was read. It has only plain fields; the next put forgets it."""
        fields = message.__dict__
        empty = tuple([fields[name] for name, _ in containers])
        self._read[id(message)] = (message, key, tuple(fields.values()), empty)

    def turn(self) -> None:
        """Ends the list: forgets messages that are not in it."""
        self._known, self._next = self._next, {}
        self._read.clear()

    def reads(self) -> None:
        """Forgets the messages read so far, before another list is read."""
        self._read.clear()


def _noted(message: BaseMessage, key: bytes) -> Noted | None:
    """Notes a message if each field is plain or empty, so that a change can be detected."""
    if CLASSES.get(type(message).__name__) is not type(message) or message.__pydantic_extra__:
        return None
    values = tuple(message.__dict__.values())
    empty = [value for value in values if value.__class__ not in PLAIN]
    for value in empty:
        if value or value.__class__ not in (list, dict):
            return None
    return message, key, values, tuple(empty)


class Read:
    """Messages by key. Returns copies, which is cheaper than validating again."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[BaseMessage, list[tuple[str, Any]]]] = {}

    def copy_of(self, key: bytes) -> BaseMessage | None:
        """Returns a new copy of a message."""
        found = self._known.get(key)
        if found is None:
            return None
        known, containers = found
        fields = known.__dict__.copy()
        for name, value in containers:
            fields[name] = deepcopy(value) if value else value.__class__()
        return with_fields(known, fields)

    def keep(self, key: bytes, value: Any) -> bool:
        """Keeps a message if it can be copied. The caller must not use that object further."""
        if (
            CLASSES.get(type(value).__name__) is not type(value)
            or value.__pydantic_extra__
            or value.__pydantic_private__
        ):
            return False
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        fields = value.__dict__.items()
        containers = [(name, each) for name, each in fields if each.__class__ not in PLAIN]
        self._known[key] = (value, containers)
        return True
