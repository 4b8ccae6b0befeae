"""Converts Pydantic AI's messages to typed events, and other programs' events to messages."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic_ai import messages as ai
from pydantic_ai.usage import RequestUsage

from treering import new
from treering._adapters.odd import spoken
from treering._adapters.responses import arguments, json_part, said
from treering._adapters.unanswered import Unanswered
from treering.types import Event
from treering.v1 import event_pb2 as pb

URLS = ("image-url", "audio-url", "document-url", "video-url")
UNKNOWN_TOOL = "unknown"
"""The tool name of a result whose call is missing."""


# ---- as JSON, and back ----


def plain(message: ai.ModelMessage) -> dict[str, Any]:
    """A message as the library writes it, without empty fields."""
    [full] = ai.ModelMessagesTypeAdapter.dump_python([message], mode="json")
    short = {key: value for key, value in full.items() if value is not None}
    short["parts"] = [
        {key: value for key, value in part.items() if value is not None or key == "content"}
        for part in full["parts"]
    ]
    if usage := full.get("usage"):
        short["usage"] = {key: value for key, value in usage.items() if value}
    given: dict[str, Any] = full
    return short if _is_same(short, full) else given


def _is_same(short: dict[str, Any], full: dict[str, Any]) -> bool:
    try:
        again = ai.ModelMessagesTypeAdapter.dump_python([message_of(short)], mode="json")
    except ValueError:
        return False
    return bool(again == [full])


def message_of(given: dict[str, Any]) -> ai.ModelMessage:
    """Makes the message from its JSON."""
    [message] = ai.ModelMessagesTypeAdapter.validate_python([given])
    return message


# ---- as events ----


def typed(
    message: Mapping[str, Any], waiting: Collection[str] = ()
) -> tuple[list[new.NewEvent], list[str]]:
    """Converts a message to events with its own call ids; notes what they cannot represent.

    `waiting` are the ids of calls that need approval.
    """

    def read(said: Mapping[str, Any]) -> Iterator[new.NewEvent]:
        return _answer(said, waiting) if said["kind"] == "response" else _request(said)

    return spoken(message, read)


def _request(message: Mapping[str, Any]) -> Iterator[new.NewEvent]:
    for part in message["parts"]:
        kind = part["part_kind"]
        if kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
            event: new.NewEvent | None = _result(part)
        elif kind == "system-prompt":
            event = new.message("system", *_parts(part["content"]))
        elif kind in ("user-prompt", "retry-prompt", "retry-feedback", "compaction", "speech"):
            content = list(_said(part))
            event = new.user(*content) if content else None
        else:
            # The other kinds are internal to the library.
            event = None
        if event:
            yield _at(event, part.get("timestamp") or message.get("timestamp"))


def _answer(message: Mapping[str, Any], waiting: Collection[str]) -> Iterator[new.NewEvent]:
    """One message and its calls. A call that the provider ran ends a message."""
    at = message.get("timestamp")
    made: list[new.NewEvent] = []
    content: list[new.Part] = []
    calls: list[new.NewEvent] = []
    for part in message["parts"]:
        kind = part["part_kind"]
        if kind == "builtin-tool-call":
            made += _message(content)
            made.append(_call(part, ()))
        elif kind == "builtin-tool-return":
            made.append(_result(part))
        elif kind == "tool-call":
            calls.append(_call(part, waiting))
        else:
            content += _said(part, str(message.get("model_name") or ""))
    made += _message(content)
    for event in reversed(made):
        if event.HasField("message_appended"):
            _finish(event.message_appended, message)
            break
    for event in (*made, *calls):
        yield _at(event, at)


def _message(content: list[new.Part]) -> list[new.NewEvent]:
    made = [new.assistant(*content)] if content else []
    content.clear()
    return made


def _finish(answer: pb.MessageAppended, message: Mapping[str, Any]) -> None:
    used = message.get("usage") or {}
    answer.message_id = str(message.get("provider_response_id") or "")
    answer.finish_reason = str(message.get("finish_reason") or "")
    if any(used.values()):
        answer.usage.CopyFrom(
            new.usage(
                input_with_cached=used.get("input_tokens") or 0,
                output=used.get("output_tokens") or 0,
                cache_read=used.get("cache_read_tokens") or 0,
                cache_creation=used.get("cache_write_tokens") or 0,
                reasoning=used.get("output_reasoning_tokens") or 0,
                model=str(message.get("model_name") or ""),
            )
        )


def _call(part: Mapping[str, Any], waiting: Collection[str]) -> new.NewEvent:
    call_id = part["tool_call_id"]
    given = arguments(part.get("args") or {})
    return new.tool_call(call_id, part["tool_name"], given, needs_approval=call_id in waiting)


def _result(part: Mapping[str, Any]) -> new.NewEvent:
    content = part["content"]
    is_retry = part["part_kind"] == "retry-prompt"
    outcome = "retried" if is_retry else part.get("outcome") or "success"
    if outcome == "interrupted":
        text = content if isinstance(content, str) else ""
        return new.tool_cancelled(part["tool_call_id"], "interrupted", text)
    return new.tool_result(part["tool_call_id"], *_parts(content), success=outcome == "success")


def _at(event: new.NewEvent, stamp: Any) -> new.NewEvent:
    if not isinstance(stamp, str):
        return event
    return new.happened(event, datetime.fromisoformat(stamp.replace("Z", "+00:00")))


# ---- parts ----


def _said(part: Mapping[str, Any], model: str = "") -> Iterator[new.Part]:
    kind = part["part_kind"]
    if kind == "thinking":
        yield new.reasoning(
            part["content"],
            signature=part.get("signature") or "",
            redacted=part.get("id") == "redacted_thinking",
            provider=part.get("provider_name") or "",
            model=model,
            id=str(part.get("id") or ""),
        )
    elif kind == "speech":
        if part.get("transcript"):
            yield part["transcript"]
        elif part.get("audio"):
            yield from _parts([part["audio"]])
    elif kind == "file":
        yield from _parts([part["content"]])
    else:
        yield from _parts(part.get("content"))


def _parts(content: Any) -> Iterator[new.Part]:
    """The content of a prompt or a tool result: texts, media, and JSON."""
    if content is None or content == "":
        return
    if isinstance(content, str):
        yield content
    elif isinstance(content, list) and any(map(_is_said, content)):
        for each in content:
            yield from _parts(each)
    elif not _is_said(content):
        yield json_part(content)
    elif content["kind"] in ("text-content", "structured-content"):
        yield from _parts(content["content"])
    elif content["kind"] in URLS:
        yield _linked(content)
    elif content["kind"] == "binary":
        yield _media(content)
    elif content["kind"] != "cache-point":
        yield json_part(content)


def _is_said(content: Any) -> bool:
    if isinstance(content, str):
        return True
    kinds = ("text-content", "structured-content", "binary", "cache-point", "uploaded-file", *URLS)
    return isinstance(content, Mapping) and content.get("kind") in kinds


def _linked(content: Mapping[str, Any]) -> pb.ContentPart:
    url, media_type = content["url"], str(content.get("media_type") or "")
    if content["kind"] == "image-url":
        return new.image(url, media_type, detail=_detail(content))
    if content["kind"] == "audio-url":
        return new.audio(url, media_type)
    return new.file(url, media_type)


def _media(content: Mapping[str, Any]) -> pb.ContentPart:
    data, media_type = base64.urlsafe_b64decode(content["data"]), content["media_type"]
    if media_type.startswith("image/"):
        return new.image(data, media_type, detail=_detail(content))
    return (
        new.audio(data, media_type)
        if media_type.startswith("audio/")
        else new.file(data, media_type)
    )


def _detail(content: Mapping[str, Any]) -> str:
    return str((content.get("vendor_metadata") or {}).get("detail") or "")


# ---- events of other programs ----


def side(event: Event) -> str:
    """The kind of message that the event belongs to: `request`, `response`, or none."""
    if event.kind == "message_appended":
        return "response" if event.role == "assistant" else "request"
    if event.kind == "tool_call_requested":
        return "response"
    return "request" if event.kind in ("tool_result_recorded", "tool_call_cancelled") else ""


def message_of_events(
    events: Sequence[Event], tools: Mapping[str, str], calls: Unanswered
) -> ai.ModelMessage | None:
    """Converts events of one side to a message. `tools` has tool names by call id; `calls` has
    already read the events."""
    if side(events[0]) == "response":
        return _response_of(events)
    parts = [part for event in events if (part := _request_part(event, tools, calls))]
    if not parts:
        return None
    return ai.ModelRequest(parts=parts, timestamp=events[-1].occurred_at)


def _request_part(
    event: Event, tools: Mapping[str, str], calls: Unanswered
) -> ai.ModelRequestPart | None:
    at = event.occurred_at
    if event.kind == "message_appended" and event.role != "tool":
        message = event.proto.message_appended
        if event.role != "user":
            return ai.SystemPromptPart(said(message.parts), timestamp=at)
        content = [each for part in message.parts if (each := _content(part))]
        is_text = all(isinstance(each, str) for each in content)
        text = "".join(each for each in content if isinstance(each, str))
        return ai.UserPromptPart(text if is_text else content, timestamp=at) if content else None
    call_id = event.call_id
    outcome: Literal["success", "failed", "interrupted"] = "success"
    if event.kind == "tool_call_cancelled":
        text, outcome = calls.told(call_id, went_on=True), "interrupted"
    elif event.kind == "tool_result_recorded":
        result = event.proto.tool_result_recorded
        text = said(result.parts) or result.error_message
        outcome = "success" if result.success else "failed"
    else:
        call_id, text = event.body.tool_call_id, said(event.body.parts)
    tool = tools.get(call_id, UNKNOWN_TOOL)
    return ai.ToolReturnPart(tool, text, call_id, timestamp=at, outcome=outcome)


def _content(part: pb.ContentPart) -> ai.UserContent | None:
    which = part.WhichOneof("part")
    if which == "text" or which == "json":
        return part.text or part.json
    if which not in ("image", "file", "audio"):
        return None
    media: pb.Media = getattr(part, which)
    if media.WhichOneof("source") == "data":
        return ai.BinaryContent(media.data, media_type=media.media_type)
    media_type = media.media_type or None
    if which == "image":
        return ai.ImageUrl(media.uri, media_type=media_type)
    if which == "audio":
        return ai.AudioUrl(media.uri, media_type=media_type)
    return ai.DocumentUrl(media.uri, media_type=media_type)


def _response_of(events: Sequence[Event]) -> ai.ModelMessage | None:
    parts: list[ai.ModelResponsePart] = []
    usage, model = RequestUsage(), ""
    for event in events:
        if event.kind == "tool_call_requested":
            given = event.proto.tool_call_requested.arguments.decode(errors="replace")
            parts.append(ai.ToolCallPart(event.tool, given, event.call_id))
            continue
        message = event.proto.message_appended
        parts += [made for part in message.parts if (made := _response_part(part))]
        usage = usage + _usage(message.usage)
        model = message.usage.model or model
    if not parts:
        return None
    return ai.ModelResponse(
        parts=parts, usage=usage, model_name=model or None, timestamp=events[-1].occurred_at
    )


def _response_part(part: pb.ContentPart) -> ai.ModelResponsePart | None:
    which = part.WhichOneof("part")
    if which in ("text", "json", "refusal"):
        return ai.TextPart(getattr(part, which))
    if which == "reasoning" and part.reasoning.provider and not part.reasoning.redacted:
        held = part.reasoning
        return ai.ThinkingPart(
            held.text,
            id=held.id or None,
            signature=held.signature.decode(errors="replace") or None,
            provider_name=held.provider,
        )
    return None


def _usage(used: pb.Usage) -> RequestUsage:
    return RequestUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_input_tokens,
        cache_write_tokens=used.cache_creation_input_tokens,
    )
