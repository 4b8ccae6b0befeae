"""Converts provider answers, and lists of messages in a provider's format, to events."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from treering import new
from treering._keys import key_or_new
from treering._words import ProviderName, json_text, provider_name
from treering.v1 import event_pb2 as pb


@dataclass
class AnswerParts:
    """A parsed answer of a model."""

    parts: list[pb.ContentPart] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    """Id, tool and arguments of each call. The id may be empty: Gemini gives none."""
    usage: pb.Usage | None = None
    message_id: str = ""
    finish_reason: str = ""
    item_ids: dict[str, str] = field(default_factory=dict)
    """Maps call ids to the provider's item ids."""


def plain(response: Any) -> Mapping[str, Any]:
    """Converts an object of a provider's package to a dict."""
    if isinstance(response, Mapping):
        return response
    for name in ("model_dump", "to_dict"):
        if dump := getattr(response, name, None):
            dumped: Mapping[str, Any] = dump()
            return dumped
    raise TypeError(f"{type(response).__name__} is not a dict and has no model_dump()")


def read(provider: ProviderName, response: Any) -> AnswerParts:
    """Parses an answer in the provider's format."""
    readers = {
        "anthropic": _anthropic,
        "openai-chat": _openai_chat,
        "openai-responses": _openai_responses,
        "gemini": _gemini,
    }
    provider = _among(readers, provider)
    body = plain(response)
    with _shaped(f"not an answer of {provider}"):
        _refuse_none(provider, body)
        return readers[provider](body)


def _among(readers: Mapping[str, Any], given: str) -> ProviderName:
    """Returns the provider's normalised name. Raises if `readers` does not contain it."""
    with suppress(ValueError):
        if (provider := provider_name(given)) in readers:
            return provider
    raise ValueError(f"`{given}` is not allowed here: use one of {', '.join(readers)}")


HOLDS: Mapping[str, str] = {
    "anthropic": "content",
    "openai-chat": "choices",
    "openai-responses": "output",
    "gemini": "candidates",
}
"""The list that each answer contains, possibly empty."""


def _refuse_none(provider: str, body: Mapping[str, Any]) -> None:
    """Refuses errors, stream parts and other providers' answers, which look like empty answers."""
    held = HOLDS[provider]
    items = body.get(held)
    # `content` and `output` may be empty. `choices` and `candidates` may not.
    may_be_empty = held in ("content", "output") and not body.get("error")
    if isinstance(items, (list, tuple)) and (items or may_be_empty):
        if provider == "openai-chat" and not plain(items[0]).get("message"):
            raise ValueError(
                "its choice has no `message`: for a stream, record the complete answer"
            )
        return
    if body.get("error"):
        raise ValueError("it is an error: handle it, then ask again")
    names = ", ".join(sorted(map(str, body))) or "nothing"
    raise ValueError(f"it has no list `{held}`, or it is empty; its fields: {names}")


@contextmanager
def _shaped(what: str) -> Iterator[None]:
    """Raises errors of parsing as a `ValueError` that names `what`, but not its text."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{what}: `{error.args[0]}` is missing") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{what}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def named(
    calls: Iterable[tuple[str, str, Any]], idempotency_key: str
) -> list[tuple[str, str, Any]]:
    """Returns the calls, each with an id. Gemini gives none, and its answer ids can repeat.

    A generated id is derived from the write's idempotency key, so a retry appends the same ids.
    """
    seed = key_or_new(idempotency_key)
    return [
        (id or _made_id(f"{seed}/{place}"), tool, given)
        for place, (id, tool, given) in enumerate(calls)
    ]


def _made_id(seed: str) -> str:
    return f"call_{blake2b(seed.encode(errors='replace'), digest_size=12).hexdigest()}"


def _anthropic(body: Mapping[str, Any]) -> AnswerParts:
    model = body.get("model") or ""
    answer = AnswerParts(
        message_id=body.get("id") or "", finish_reason=body.get("stop_reason") or ""
    )
    for block in body.get("content") or ():
        kind = block.get("type")
        if kind == "text":
            answer.parts.append(pb.ContentPart(text=block["text"]))
        elif kind == "thinking":
            answer.parts.append(
                new.reasoning(
                    block.get("thinking") or "",
                    signature=block.get("signature") or "",
                    provider="anthropic",
                    model=model,
                )
            )
        elif kind == "redacted_thinking":
            answer.parts.append(
                new.reasoning(
                    "",
                    signature=block.get("data") or "",
                    redacted=True,
                    provider="anthropic",
                    model=model,
                )
            )
        elif kind == "tool_use":
            answer.calls.append((block["id"], block["name"], block.get("input") or {}))
        else:
            answer.parts.append(pb.ContentPart(json=json_text(block)))
    if used := body.get("usage"):
        answer.usage = new.usage(
            input=used.get("input_tokens") or 0,
            output=used.get("output_tokens") or 0,
            cache_read=used.get("cache_read_input_tokens") or 0,
            cache_creation=used.get("cache_creation_input_tokens") or 0,
            model=model,
        )
    return answer


def _openai_chat(body: Mapping[str, Any]) -> AnswerParts:
    choice = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    answer = AnswerParts(
        message_id=body.get("id") or "", finish_reason=choice.get("finish_reason") or ""
    )
    if text := message.get("content"):
        answer.parts.append(pb.ContentPart(text=text))
    if text := message.get("refusal"):
        answer.parts.append(new.refusal(text))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        answer.calls.append((call["id"], function["name"], function.get("arguments") or "{}"))
    if used := body.get("usage"):
        answer.usage = _openai_usage(
            used, "prompt_tokens", "completion_tokens", body.get("model") or ""
        )
    return answer


def _openai_responses(body: Mapping[str, Any]) -> AnswerParts:
    model = body.get("model") or ""
    answer = AnswerParts(finish_reason=body.get("status") or "")
    for item in body.get("output") or ():
        kind = item.get("type")
        if kind == "message":
            answer.message_id = item.get("id") or ""
            for part in item.get("content") or ():
                if part.get("type") == "refusal":
                    answer.parts.append(new.refusal(part.get("refusal") or ""))
                else:
                    answer.parts.append(pb.ContentPart(text=part.get("text") or ""))
        elif kind == "reasoning":
            text = "\n".join(part.get("text") or "" for part in item.get("summary") or ())
            answer.parts.append(
                new.reasoning(
                    text,
                    signature=item.get("encrypted_content") or "",
                    provider="openai",
                    model=model,
                    id=item.get("id") or "",
                )
            )
        elif kind == "function_call":
            answer.calls.append((item["call_id"], item["name"], item.get("arguments") or "{}"))
            answer.item_ids[item["call_id"]] = item.get("id") or ""
        else:
            answer.parts.append(pb.ContentPart(json=json_text(item)))
    if used := body.get("usage"):
        answer.usage = _openai_usage(used, "input_tokens", "output_tokens", model)
    return answer


def _openai_usage(used: Mapping[str, Any], sent: str, got: str, model: str) -> pb.Usage:
    details = used.get(f"{sent}_details") or {}
    made = used.get(f"{got}_details") or {}
    return new.usage(
        input_with_cached=used.get(sent) or 0,
        output=used.get(got) or 0,
        cache_read=details.get("cached_tokens") or 0,
        reasoning=made.get("reasoning_tokens") or 0,
        model=model,
    )


def _gemini(body: Mapping[str, Any]) -> AnswerParts:
    def either(of: Mapping[str, Any], camel: str, snake: str) -> Any:
        return of.get(camel) if of.get(camel) is not None else of.get(snake)

    model = either(body, "modelVersion", "model_version") or ""
    candidate = (body.get("candidates") or [{}])[0]
    answer = AnswerParts(
        message_id=either(body, "responseId", "response_id") or "",
        finish_reason=str(either(candidate, "finishReason", "finish_reason") or ""),
    )
    for part in (candidate.get("content") or {}).get("parts") or ():
        signature = either(part, "thoughtSignature", "thought_signature") or ""
        text = part.get("text")
        if part.get("thought") or signature:
            thought = text if part.get("thought") else ""
            answer.parts.append(
                new.reasoning(thought or "", signature=signature, provider="google", model=model)
            )
        if text and not part.get("thought"):
            answer.parts.append(pb.ContentPart(text=text))
        if call := either(part, "functionCall", "function_call"):
            answer.calls.append((call.get("id") or "", call["name"], call.get("args") or {}))
    if used := either(body, "usageMetadata", "usage_metadata"):
        reasoning = either(used, "thoughtsTokenCount", "thoughts_token_count") or 0
        text = either(used, "candidatesTokenCount", "candidates_token_count") or 0
        answer.usage = new.usage(
            input_with_cached=either(used, "promptTokenCount", "prompt_token_count") or 0,
            output=text + reasoning,
            cache_read=either(used, "cachedContentTokenCount", "cached_content_token_count") or 0,
            reasoning=reasoning,
            model=model,
        )
    return answer


def messages(provider: ProviderName, history: Iterable[Any]) -> Iterator[list[new.NewEvent]]:
    """Converts messages in the provider's format to events: a batch for each message."""
    readers = {"openai-chat": _chat_message, "anthropic": _anthropic_message}
    provider = _among(readers, provider)
    for index, message in enumerate(history):
        with _shaped(f"message {index} is not a message of {provider}"):
            events = readers[provider](plain(message))
        if events:
            yield events


def _chat_message(message: Mapping[str, Any]) -> list[new.NewEvent]:
    role = message["role"]
    content = _chat_content(message.get("content"))
    if role in ("tool", "function"):
        return [new.tool_result(message.get("tool_call_id") or "", *content)]
    if role != "assistant":
        return [new.message(role, *content, author=message.get("name") or "")]
    answer = _openai_chat({"choices": [{"message": {**message, "content": None}}]})
    return events_of(AnswerParts(parts=content + answer.parts, calls=answer.calls))


def _chat_content(content: Any) -> list[pb.ContentPart]:
    if content is None or isinstance(content, str):
        return [pb.ContentPart(text=content)] if content else []
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts.append(pb.ContentPart(text=part["text"]))
        elif part.get("type") == "image_url":
            image = part["image_url"]
            parts.append(new.image(image["url"], detail=image.get("detail") or ""))
        else:
            parts.append(new.json(part))
    return parts


def _anthropic_message(message: Mapping[str, Any]) -> list[new.NewEvent]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if message["role"] == "assistant":
        return events_of(_anthropic({"content": blocks}))
    results = [block for block in blocks if block.get("type") == "tool_result"]
    others = [block for block in blocks if block.get("type") != "tool_result"]
    events = [
        new.tool_result(
            block["tool_use_id"],
            *_anthropic_content(block.get("content") or ""),
            success=not block.get("is_error"),
        )
        for block in results
    ]
    if others:
        events.append(new.message(message["role"], *_anthropic_content(others)))
    return events


def _anthropic_content(content: Any) -> list[pb.ContentPart]:
    if isinstance(content, str):
        return [pb.ContentPart(text=content)] if content else []
    parts = []
    for block in content:
        source = block.get("source") or {}
        if block.get("type") == "text":
            parts.append(pb.ContentPart(text=block["text"]))
        elif block.get("type") == "image" and source.get("type") == "base64":
            data = base64.b64decode(source["data"])
            parts.append(new.image(data, source.get("media_type") or ""))
        elif block.get("type") == "image" and source.get("type") == "url":
            parts.append(new.image(source["url"]))
        else:
            parts.append(new.json(block))
    return parts


def events_of(answer: AnswerParts) -> list[new.NewEvent]:
    """Converts an answer to a message, if it has parts, and its tool calls."""
    events = []
    if answer.parts:
        events.append(new.assistant(*answer.parts))
    events.extend(
        new.tool_call(id, tool, arguments, item_id=answer.item_ids.get(id, ""))
        for id, tool, arguments in answer.calls
    )
    return events
