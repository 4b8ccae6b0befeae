"""Converts the times that callers pass."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

Time = datetime | timedelta | str
"""A time (without a zone: local time), a duration before now, or either as text: "2 days",
"3h ago", "2026-01-31", "2026-01-31 08:00"."""

_SECONDS = {
    unit: seconds
    for units, seconds in (
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hour hours", 3_600),
        ("d day days", 86_400),
        ("w week weeks", 7 * 86_400),
        ("month months", 30 * 86_400),
        ("y year years", 365 * 86_400),
    )
    for unit in units.split()
}
"""Seconds of each unit, as in the command line."""


def timestamp(time: Time | None, name: str) -> Timestamp | None:
    """Converts a time. Errors call it `name`."""
    if time is None:
        return None
    if isinstance(time, str):
        time = _read(time, name)
    if isinstance(time, timedelta):
        time = datetime.now() - time
    if not isinstance(time, datetime):
        raise TypeError(
            f"{name} is {type(time).__name__}, expected a datetime, a timedelta, "
            'or text such as "2 days"'
        )
    stamp = Timestamp()
    stamp.FromDatetime(time.astimezone())
    return stamp


def _read(text: str, name: str) -> datetime:
    given = text.strip()
    length = re.fullmatch(r"([0-9]+) *([a-z]+)( +ago)?", given)
    try:
        if length and length[2] in _SECONDS:
            return datetime.now() - timedelta(seconds=int(length[1]) * _SECONDS[length[2]])
        # Python 3.10 does not parse `Z`.
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", given))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name} is not a time: use a datetime, a timedelta, a length of time such as "
            '"2 days" or "3h", or a day or time such as "2026-01-31" or "2026-01-31 08:00"'
        ) from None
