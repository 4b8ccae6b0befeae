"""Idempotency keys: a write that is sent twice with the same key is stored once."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

OWN_KEY_LIFE_SECONDS = 24 * 60 * 60
"""Seconds that the store keeps a generated key: longer than any retry takes."""


def key_or_new(given: str = "") -> str:
    """Returns the given key, or a new key if it is empty."""
    return given or uuid4().hex


def life_seconds(given: str, life: timedelta | None) -> int:
    """Seconds that the store keeps a key. 0: for ever, for a given key without a `life`."""
    if life is None:
        return 0 if given else OWN_KEY_LIFE_SECONDS
    seconds = int(life.total_seconds())
    if seconds < 1:
        raise ValueError("a key's life must be at least 1 second")
    return seconds
