"""What must still be recorded when a program is on its way out with an exception."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from treering.errors import TreeringError

log = logging.getLogger("treering")
LAST_WORDS_SECONDS = 10.0
"""So long a cancelled task waits until its end is recorded."""


async def despite_async(recording: Callable[[], Awaitable[Any]]) -> None:
    """Records it, also in a task that is being cancelled. A failure is logged only."""
    task = asyncio.ensure_future(recording())
    try:
        await asyncio.wait_for(asyncio.shield(task), LAST_WORDS_SECONDS)
    except asyncio.CancelledError:
        # Cancelled once more: it goes on without us.
        task.add_done_callback(_look)
        raise
    except (TreeringError, TimeoutError, asyncio.TimeoutError) as error:
        _say(error)


def despite_sync(recording: Callable[[], Any]) -> None:
    """Records it. A failure is logged only."""
    try:
        recording()
    except TreeringError as error:
        _say(error)


def _look(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _say(error)


def _say(error: BaseException) -> None:
    log.warning("the end of a tool call could not be recorded: %s", error)
