"""Names of enum values, such as "user" for `ROLE_USER`, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from treering.v1 import context_pb2, names

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

CallStatusName = names.CallStatusName
CancelReasonName = names.CancelReasonName
CompactionTriggerName = names.CompactionTriggerName
DecisionName = names.DecisionName
KindName = names.KindName
ProviderName = names.ProviderName
QueryModeName = names.QueryModeName
RoleName = names.RoleName
SearchByName = names.SearchByName

_Number = TypeVar("_Number", bound=int)


def number(enum: _EnumTypeWrapper[_Number], prefix: str, word: str) -> _Number:
    """The number of a name: `number(Role, "ROLE", "user")`."""
    name = f"{prefix}_{word.upper().replace('-', '_')}"
    try:
        return enum.Value(name)
    except ValueError:
        raise ValueError(
            f"`{word}` is not allowed here: use one of {', '.join(words(enum, prefix))}"
        ) from None


def numbers(
    enum: _EnumTypeWrapper[_Number], prefix: str, names: str | Iterable[str]
) -> list[_Number]:
    """The numbers of several names, or of a single name."""
    return [number(enum, prefix, name) for name in ([names] if isinstance(names, str) else names)]


def words(enum: _EnumTypeWrapper[_Number], prefix: str) -> list[str]:
    """All names of an enum."""
    return [name.removeprefix(f"{prefix}_").lower() for name in enum.keys()[1:]]


def provider_name(given: str) -> ProviderName:
    """Normalises the name of a provider: `openai_chat` becomes "openai-chat"."""
    name = given.strip().lower().replace("_", "-")
    known = [each.replace("_", "-") for each in words(context_pb2.Provider, "PROVIDER")]
    if name not in known:
        raise ValueError(f"`{given}` is not allowed here: use one of {', '.join(known)}")
    return cast(ProviderName, name)


def word(enum: _EnumTypeWrapper[_Number], prefix: str, value: int) -> str:
    """The name of a number; digits if this client does not know the number."""
    found = enum.DESCRIPTOR.values_by_number.get(value)
    return found.name.removeprefix(f"{prefix}_").lower() if found else str(value)


def text(value: Any, name: str) -> str:
    """Returns the value. Raises if it is not text that can be stored. Errors call it `name`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, expected str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} has half of a surrogate pair at character {error.start}: "
                "replace it, for example with .encode(errors='replace').decode()"
            ) from None
    return value


def json_text(value: Any, name: str = "") -> str:
    """Converts a value to JSON text. Errors call it `name`."""
    try:
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text(encoded, f"the JSON of {name or 'the value'}")
    except ValueError:
        for place, number in _no_numbers(value, name or "the value", ()):
            raise ValueError(
                f"{place} is {number}, which JSON cannot represent: use None or a string instead"
            ) from None
        raise


def json_texts(values: Mapping[str, Any] | None, name: str) -> dict[str, str]:
    """Converts each value to JSON text."""
    return {key: json_text(value, f"{name}[{key!r}]") for key, value in (values or {}).items()}


def json_bytes(value: Any, name: str = "", *, as_is: bool = False) -> bytes:
    """Converts a value to JSON. With `as_is`, `bytes` and `str` stay unchanged."""
    if as_is and isinstance(value, bytes):
        return value
    if as_is and isinstance(value, str):
        return text(value, name or "the JSON").encode()
    return json_text(value, name).encode()


def _no_numbers(value: Any, place: str, within: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """The place and the name of each NaN and infinity in a value."""
    if id(value) in within:
        return
    within = (*within, id(value))
    if isinstance(value, float) and not math.isfinite(value):
        yield place, "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _no_numbers(key, f"a key of {place}", within)
            yield from _no_numbers(each, f"{place}[{key!r}]", within)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _no_numbers(each, f"{place}[{index}]", within)


def result_text(value: Any) -> str:
    """Converts what a tool returned to text for the model. `NaN` stays, so it may not be JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_arguments(data: bytes) -> Any:
    """Parses arguments of a call; returns them as text if they are not JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def from_json(data: bytes | str) -> Any:
    """Parses JSON; None for an empty text."""
    return json.loads(data) if data else None
