"""Converts input items of OpenAI's Responses API to typed events, and events to input items."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from treering import new
from treering._adapters.odd import spoken, strict_json
from treering._adapters.unanswered import Unanswered
from treering._words import RoleName
from treering.types import Event
from treering.v1 import event_pb2 as pb

ROLES: tuple[RoleName, ...] = ("user", "assistant", "system", "developer")

CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}
"""Calls that an agent runs, and the field with their arguments."""
OUTPUTS = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "computer_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "tool_search_output": "tools",
}
"""Their outputs, and the field with the content."""
FAILED = "Error: "
"""Marks the output of a failed call, as in requests: the format has no field for a failure."""
HOSTED = {
    "web_search_call": ("action", "results"),
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "mcp_call": ("arguments", "output"),
}
"""Calls that the provider runs itself, and the fields with their arguments and results."""


# ---- items as events ----


def typed(item: Any) -> tuple[list[new.NewEvent], list[str]]:
    """Converts an item to events, with notes on what was changed. Call ids are the item's own."""
    return spoken(item, _events)


def _events(item: Mapping[str, Any]) -> Iterator[new.NewEvent]:
    kind = item.get("type") or "message"
    if kind == "message" and item["role"] in ROLES:
        yield new.message(
            item["role"], *_parts(item["content"]), message_id=str(item.get("id") or "")
        )
    elif kind == "reasoning":
        texts = [part["text"] for part in (item.get("summary") or item.get("content") or ())]
        yield new.assistant(
            new.reasoning(
                "\n".join(texts),
                signature=item.get("encrypted_content") or "",
                provider="openai",
                id=str(item.get("id") or ""),
            )
        )
    elif kind in CALLS:
        tool = item.get("name", kind.removesuffix("_call")) or ""
        call_id, item_id = _call_id(item), str(item.get("id") or "")
        yield new.tool_call(
            call_id,
            tool,
            arguments(item.get(CALLS[kind])),
            item_id="" if item_id == call_id else item_id,
        )
    elif kind in OUTPUTS:
        is_error = item.get("status") in ("failed", "incomplete")
        parts = _parts(item[OUTPUTS[kind]])
        yield new.tool_result(_call_id(item), *parts, success=not is_error)
    elif kind in HOSTED:
        asked, came = HOSTED[kind]
        call_id, tool = str(item["id"]), item.get("name") or kind.removesuffix("_call")
        yield new.tool_call(call_id, tool, arguments(item.get(asked)))
        error = item.get("error") or ""
        yield new.tool_result(
            call_id,
            *_parts(item.get(came) or ""),
            success=not error and item.get("status") != "failed",
            error=error if isinstance(error, str) else strict_json(error),
        )


def _call_id(item: Mapping[str, Any]) -> str:
    call_id = item.get("call_id")
    call_id = item.get("id") if call_id is None else call_id
    return call_id if isinstance(call_id, str) else ""


def arguments(given: Any) -> str:
    """Returns a string unchanged, even if it is not JSON; converts other values to JSON."""
    if isinstance(given, str):
        return given
    return strict_json({} if given is None else given)


def json_part(value: Any) -> pb.ContentPart:
    """A JSON part."""
    return pb.ContentPart(json=strict_json(value))


def _parts(content: Any) -> list[new.Part]:
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return [json_part(content)]
    return [_part(part) for part in content]


def _part(part: Any) -> new.Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return new.parts([part["text"]])[0]
    if kind == "refusal":
        return new.refusal(part["refusal"])
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return _image(part["image_url"], str(part.get("detail") or ""))
    return json_part(part)


def _image(url: str, detail: str) -> pb.ContentPart:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        try:
            content = base64.b64decode(data, validate=True)
            return new.image(content, head[len("data:") : -len(";base64")], detail=detail)
        except binascii.Error:
            pass
    return new.image(url, detail=detail)


# ---- events as items ----


def item_of(event: Event, calls: Unanswered) -> dict[str, Any] | None:
    """Converts an event of another program to an input item; None if there is no such item.
    `calls` must have been given the event."""
    if event.kind == "message_appended":
        return _message_item(event)
    if event.kind == "tool_call_requested":
        call = event.proto.tool_call_requested
        return {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.tool,
            "arguments": call.arguments.decode(),
        }
    if event.kind == "tool_result_recorded":
        result = event.proto.tool_result_recorded
        text = said(result.parts) or result.error_message
        return {"type": "function_call_output", "call_id": result.call_id, "output": text}
    if event.kind == "tool_call_cancelled":
        text = f"{FAILED}{calls.told(event.call_id, went_on=True)}"
        return {"type": "function_call_output", "call_id": event.call_id, "output": text}
    return None


def answered(
    items: Sequence[Mapping[str, Any]], own: Collection[int], calls: Unanswered
) -> Iterator[Mapping[str, Any]]:
    """The items, with an added output for each function call without one: providers refuse such
    calls. `own` are the indexes of the framework's own items, which stay unchanged: the framework
    handles its calls itself."""
    missing = _missing(items).difference(own)
    answers = list(_answers(items))
    waiting: list[tuple[int, str]] = []
    for at, item in enumerate(items):
        if waiting and item.get("type") not in OUTPUTS and answers[at] != waiting[0][0]:
            yield from _filled(waiting, answers, calls)
            waiting = []
        yield item
        if at in missing:
            waiting.append((answers[at], item["call_id"]))
    yield from _filled(waiting, answers, calls)


def _filled(
    waiting: Sequence[tuple[int, str]], answers: Sequence[int], calls: Unanswered
) -> Iterator[Mapping[str, Any]]:
    for answer, call_id in waiting:
        text = calls.told(call_id, went_on=answer != max(answers))
        yield {"type": "function_call_output", "call_id": call_id, "output": f"{FAILED}{text}"}


def _missing(items: Sequence[Mapping[str, Any]]) -> set[int]:
    """The indexes of calls without a later output. Ids may repeat: an output belongs to the last
    call before it."""
    missing = set[int]()
    outputs = set[str]()
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if item.get("type") == "function_call_output":
            outputs.add(str(item.get("call_id")))
        elif item.get("type") == "function_call" and item.get("call_id"):
            if item["call_id"] not in outputs:
                missing.add(at)
            outputs.discard(item["call_id"])
    return missing


def _answers(items: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """For each item, the number of the model's answer that it belongs to; 0 for other items.

    As in requests, a new answer begins with a message or reasoning after a call or another item,
    and with a call after another item if the calls before it have ended.
    """
    number = 0
    has_calls, is_left = False, True
    open = set[str]()
    for item in items:
        kind = item.get("type") or "message"
        is_call = kind in CALLS
        if kind in OUTPUTS or not (is_call or kind == "reasoning" or _is_answer(item)):
            open.discard(str(item.get("call_id")))
            is_left = True
            yield 0
            continue
        if (is_left and not open) if is_call else (is_left or has_calls):
            number += 1
            has_calls = False
            open.clear()
        is_left = False
        if is_call:
            has_calls = True
            open.add(str(item.get("call_id")))
        yield number


def _is_answer(item: Mapping[str, Any]) -> bool:
    return (item.get("type") or "message") == "message" and item.get("role") == "assistant"


def _message_item(event: Event) -> dict[str, Any] | None:
    message = event.proto.message_appended
    if event.role == "tool":
        return {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": said(message.parts),
        }
    # Reasoning is left out: only models of its provider accept it.
    parts = [part for part in message.parts if part.WhichOneof("part") != "reasoning"]
    if not parts:
        return None
    if event.role == "user" and any(part.WhichOneof("part") == "image" for part in parts):
        content = [_input_part(part) for part in parts]
        return {"role": "user", "content": content}
    return {"role": event.role, "content": said(parts)}


def said(parts: Any) -> str:
    """The text of parts."""
    return "".join(part.text or part.refusal or part.json for part in parts)


def _input_part(part: pb.ContentPart) -> dict[str, Any]:
    if part.WhichOneof("part") != "image":
        return {"type": "input_text", "text": said([part])}
    media = part.image
    url = media.uri
    if media.WhichOneof("source") == "data":
        url = f"data:{media.media_type};base64,{base64.b64encode(media.data).decode()}"
    return {"type": "input_image", "image_url": url, "detail": media.detail or "auto"}
