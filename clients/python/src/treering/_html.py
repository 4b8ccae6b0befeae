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
"""Number of messages that are shown of a conversation."""
PATIENCE = 2.0
"""Timeout in seconds for the state of a conversation: a notebook cell must not hang."""
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
    """A table of a conversation; with state and last messages if it is not for asyncio."""
    facts: list[tuple[str, Any]] = [("id", shown.id), ("branch", shown.branch or "(active)")]
    caption, messages = repr(shown), ""
    # `_repr_html_` is not a coroutine, so it cannot await the calls of an asyncio client.
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
