"""Idempotency keys: with one, a write that is sent twice is stored once."""

from __future__ import annotations

from uuid import uuid4


def key_or_new(given: str = "") -> str:
    """The key that was given, or one for this write."""
    return given or uuid4().hex
