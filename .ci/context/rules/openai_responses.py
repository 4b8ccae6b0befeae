"""Rules of OpenAI Responses."""

from .shared import json_text, named, unique
from .openai import NAME, tools

# Maximum length of a call id, in characters.
ID_MAX = 64


def broken(body):
    items = body["input"]
    if not items:
        yield "input", "there is no item"
    if isinstance(items, str):
        return
    yield from pairs(items)
    yield from reasoning(items)
    calls = [item for item in items if item.get("type") == "function_call"]
    yield from unique((call["call_id"] for call in calls), "input", "the call id")
    ids = [item["id"] for item in items if item.get("id")]
    yield from unique(ids, "input", "the item id")
    for at, item in enumerate(items):
        yield from item_alone(item, f"input.{at}")
    yield from tools(body, body.get("tools", []))


def pairs(items):
    """Each call has one later output, and each output has an earlier call."""
    called, answered = {}, set()
    for at, item in enumerate(items):
        kind, call_id = item.get("type"), item.get("call_id")
        if kind == "function_call":
            called[call_id] = at
        elif kind == "function_call_output":
            if call_id not in called:
                yield f"input.{at}", f"an output of {call_id!r}, which nobody called before"
            if call_id in answered:
                yield f"input.{at}", f"a second output of {call_id!r}"
            answered.add(call_id)
    for call_id, at in called.items():
        if call_id not in answered:
            yield f"input.{at}", f"the call {call_id!r} has no output"


def reasoning(items):
    """A reasoning item is followed by its call or answer."""
    for at, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        after = items[at + 1] if at + 1 < len(items) else {}
        follows = after.get("type") in ("function_call", "reasoning", "custom_tool_call")
        if not follows and after.get("role") != "assistant":
            yield f"input.{at}", "a reasoning item without the item that it led to"


def item_alone(item, path):
    if item.get("type") == "function_call":
        yield from named(NAME, item["name"], path)
        yield from json_text(item["arguments"], path)
    if item.get("type") in ("function_call", "function_call_output"):
        if not 1 <= len(item.get("call_id") or "") <= ID_MAX:
            yield path, f"the call id {item.get('call_id')!r} is missing or too long"
    if "role" in item and item.get("content") in (None, []):
        yield path, f"a {item['role']} message says nothing"
    prefixes = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
    prefix = prefixes.get(item.get("type"))
    if prefix and item.get("id") and not item["id"].startswith(prefix):
        yield path, f"the id {item['id']!r} of a {item['type']} does not begin with {prefix!r}"
