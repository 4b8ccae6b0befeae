"""Small tables for notebooks. Everything in them is escaped."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from treering import _methods as m
from treering import errors
from treering.v1 import conversation_pb2

MESSAGES = 5
"""So many messages of a conversation are shown."""
PATIENCE = 2.0
"""Seconds for the state of a conversation; nobody waits longer for a cell of a notebook."""
CELL_CHARS_MAX = 240
"""Longer texts are cut."""


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a caption; values are shown as text."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        return "".join(f"<{tag}>{escape(_cut(str(value)))}</{tag}>" for value in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    top = f"<tr>{cells('th', head)}</tr>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{top}{body}</table>"


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}…"


def conversation(shown: Any) -> str:
    """A conversation: what it is, and its last messages if it can be asked here."""
    facts: list[tuple[str, Any]] = [("id", shown.id), ("branch", shown.branch or "(active)")]
    caption, messages = repr(shown), ""
    # With asyncio a notebook shows it where nothing can be awaited.
    if not inspect.iscoroutinefunction(shown.messages):
        request = conversation_pb2.GetConversationRequest(
            conversation_id=shown.id, branch=shown.branch
        )
        try:
            state = shown._transport.unary(m.GET, request, timeout=PATIENCE)
            last = shown.messages(limit=MESSAGES)
        except errors.TreeringError as error:
            return table(caption, (), [*facts, ("error", error.message)])
        summary = state.summary
        caption = summary.title or caption
        sealed = ", sealed" if summary.sealed else ""
        facts = [
            ("id", summary.conversation_id),
            ("branch", f"{state.branch.name}, revision {state.branch.head}{sealed}"),
            *sorted(summary.labels.items()),
        ]
        rows = [(event.revision, event.role, event.text) for event in last]
        messages = table("last messages", ("revision", "role", "text"), rows)
    return table(caption, (), facts) + messages
