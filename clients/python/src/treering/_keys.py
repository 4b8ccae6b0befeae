"""Idempotency keys: with one, a write that is sent twice is stored once."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

OWN_KEY_LIFE_SECONDS = 24 * 60 * 60
"""How long the store knows a key that was made here: longer than anybody sends again."""


def key_or_new(given: str = "") -> str:
    """The key that was given, or one for this write."""
    return given or uuid4().hex


def life_seconds(given: str, life: timedelta | None) -> int:
    """For how long a write's key is known; 0: for ever, as one that was given without a life."""
    if life is None:
        return 0 if given else OWN_KEY_LIFE_SECONDS
    seconds = int(life.total_seconds())
    if seconds < 1:
        raise ValueError("a key's life must be at least 1 second")
    return seconds
