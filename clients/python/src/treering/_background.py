"""Records the end of a call or a sub-context while an exception propagates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from treering.errors import TreeringError

log = logging.getLogger("treering")
LAST_WORDS_SECONDS = 10.0
"""Seconds that a cancelled task waits until its end is recorded."""


async def despite_async(recording: Callable[[], Awaitable[Any]]) -> None:
    """Runs `recording`, even in a task that is being cancelled. A failure is only logged."""
    task = asyncio.ensure_future(recording())
    try:
        await asyncio.wait_for(asyncio.shield(task), LAST_WORDS_SECONDS)
    except asyncio.CancelledError:
        # The task was cancelled again: `recording` continues in the background.
        task.add_done_callback(_look)
        raise
    except (TreeringError, TimeoutError, asyncio.TimeoutError) as error:
        _say(error)


def despite_sync(recording: Callable[[], Any]) -> None:
    """Runs `recording`. A failure is only logged."""
    try:
        recording()
    except TreeringError as error:
        _say(error)


def _look(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _say(error)


def _say(error: BaseException) -> None:
    log.warning("the end of a tool call could not be recorded: %s", error)
