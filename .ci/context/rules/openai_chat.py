"""Rules of OpenAI Chat Completions."""

from .shared import json_text, named, unique
from .openai import NAME, tools

# Maximum length of a call id, in characters.
ID_MAX = 40


def broken(body):
    messages = body["messages"]
    if not messages:
        yield "messages", "there is no message"
    yield from batches(messages)
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    yield from unique((call["id"] for call in calls), "messages", "the call id")
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            yield from assistant(message, f"messages.{at}")
        elif message.get("content") in (None, []):
            yield f"messages.{at}", f"a {message['role']} message says nothing"
    yield from tools(body, [tool.get("function", {}) for tool in body.get("tools", [])])


def batches(messages):
    """One tool message for each call id, before the next message of another role."""
    waiting, asked_at = [], None
    for at, message in enumerate(messages):
        path = f"messages.{at}"
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield path, f"answers {message['tool_call_id']!r}, which waits for no answer"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield path, f"messages.{asked_at} still waits for {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        asked_at = at
    if waiting:
        yield f"messages.{asked_at}", f"no answers to {waiting}"


def assistant(message, path):
    calls = message.get("tool_calls")
    if calls == []:
        yield path, "`tool_calls` is an empty list"
    if not calls and not message.get("refusal") and message.get("content") in (None, []):
        yield path, "an assistant message neither says nor calls anything"
    for at, call in enumerate(calls or []):
        here = f"{path}.tool_calls.{at}"
        yield from named(NAME, call["function"]["name"], here)
        yield from json_text(call["function"]["arguments"], here)
        if not 1 <= len(call["id"]) <= ID_MAX:
            yield here, f"the call id has {len(call['id'])} characters"
