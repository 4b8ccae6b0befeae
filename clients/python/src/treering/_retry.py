"""Decides whether and when a call is sent again. The transports wait and send."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import grpc

from treering import errors
from treering._methods import Again

PAUSE_MIN = 0.05
"""First pause, in seconds. Each later pause is twice as long, up to `PAUSE_MAX`."""
PAUSE_MAX = 2.0
"""Longest pause, in seconds."""
LAST_ATTEMPT = 0.1
"""Seconds that are reserved for the last attempt."""
STRANGER_PATIENCE = 0.8
"""Seconds of attempts at an address that has never answered: it may be wrong."""

_HARMLESS = (
    errors.Busy,
    errors.BytesInFlight,
    errors.RateLimited,
    errors.NotReady,
    errors.Closing,
    errors.ViewsDamaged,
    errors.IndexDamaged,
)
"""Errors by which the server states that it did nothing."""

_BREAKS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)


@dataclass
class Attempts:
    """The attempts of one call."""

    again: Again
    has_key: bool
    deadline: float
    """In seconds of `time.monotonic`."""
    patience: float | None = None
    """Seconds of attempts while the server is unreachable; None: until the deadline."""
    _pause: float = PAUSE_MIN
    _began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def pause_after(self, error: errors.TreeringError) -> float | None:
        """Seconds to wait before the next attempt; None for no further attempt."""
        if not self._may_repeat(error):
            return None
        pause = self._pause * random.uniform(0.5, 1.5)
        self._pause = min(self._pause * 2, PAUSE_MAX)
        now = time.monotonic()
        end = self.deadline
        if self.patience is not None and isinstance(error, errors.Unreachable):
            end = min(end, self._began + self.patience)
        # The pause leaves time for a last attempt.
        pause = min(pause, end - now - LAST_ATTEMPT)
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if 0 < pause < end - now else None

    def _may_repeat(self, error: errors.TreeringError) -> bool:
        if isinstance(error, _HARMLESS) or error.retry_after is not None:
            return True
        lost = isinstance(error, (errors.Unreachable, errors.UnknownOutcome)) or (
            # The connection broke during an answer.
            not error.rule and error.code in _BREAKS and _is_transport(error.message)
        )
        return lost and (self.again is Again.ALWAYS or self.has_key)


def _is_transport(message: str) -> bool:
    return any(
        word in message for word in ("RST_STREAM", "GOAWAY", "Stream removed", "h2 protocol")
    )
