"""Rules of Anthropic Messages."""

import re

from .shared import blank, is_object_schema, named, tool_names, unique

NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ID = re.compile(r"[a-zA-Z0-9_-]+")

CACHE_BREAKPOINTS_MAX = 4


def broken(body):
    messages = [
        {**message, "content": blocks_of(message["content"])} for message in body["messages"]
    ]
    yield from alternate(messages)
    yield from batches(messages)
    blocks = [block for message in messages for block in message["content"]]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    yield from unique((call["id"] for call in calls), "messages", "the call id")
    for at, message in enumerate(messages):
        yield from message_alone(message, f"messages.{at}", last=at == len(messages) - 1)
    yield from head(body)
    count = cache_breakpoints(body)
    if count > CACHE_BREAKPOINTS_MAX:
        yield "", f"{count} cache_control; at most {CACHE_BREAKPOINTS_MAX}"


def blocks_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def alternate(messages):
    roles = [message["role"] for message in messages]
    if roles[:1] != ["user"]:
        yield "messages.0", f"the first message is not the user's: {roles[:1]}"
    for at, (one, other) in enumerate(zip(roles, roles[1:]), 1):
        if one == other:
            yield f"messages.{at}", f"a second {other} message in a row"
        if other not in ("user", "assistant"):
            yield f"messages.{at}", f"no such role: {other!r}"


def batches(messages):
    """All results of a batch are first in the next user message, and nowhere else."""
    waiting = []
    for at, message in enumerate(messages):
        path = f"messages.{at}"
        kinds = [block["type"] for block in message["content"]]
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            yield path, f"the results are of {results}, asked for were {waiting}"
        if kinds[: len(results)] != ["tool_result"] * len(results):
            yield path, "something stands before a result"
        if results and message["role"] != "user":
            yield path, f"results in a message of the {message['role']}"
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if waiting and message["role"] != "assistant":
            yield path, f"calls in a message of the {message['role']}"
    if waiting:
        yield f"messages.{len(messages) - 1}", f"no answers to {waiting}"


def message_alone(message, path, last):
    content = message["content"]
    if not content:
        yield path, "the message is empty"
        return
    for at, block in enumerate(content):
        yield from block_alone(block, message["role"], f"{path}.content.{at}")
    if message["role"] != "assistant":
        return
    if content[-1]["type"] in ("thinking", "redacted_thinking"):
        yield path, "the last block of an answer is its thinking"
    if (
        last
        and content[-1]["type"] == "text"
        and content[-1]["text"] != content[-1]["text"].rstrip()
    ):
        yield path, "the final assistant message ends with white space"


def block_alone(block, role, path):
    if block["type"] == "text" and blank(block["text"]):
        yield path, "a text without text"
    if block["type"] in ("thinking", "redacted_thinking"):
        if role != "assistant":
            yield path, "thinking that is not the assistant's"
        if not (block.get("signature") or block.get("data")):
            yield path, "thinking without its signature"
        if "cache_control" in block:
            yield path, "cache_control on thinking"
    if block["type"] == "tool_use":
        yield from named(NAME, block["name"], path)
        if not ID.fullmatch(block["id"]):
            yield path, f"the id {block['id']!r} does not match {ID.pattern}"
    if block["type"] == "tool_result" and not isinstance(block.get("content", ""), str):
        for at, inner in enumerate(block["content"]):
            yield from block_alone(inner, role, f"{path}.content.{at}")


def head(body):
    for at, block in enumerate(blocks_of(body.get("system", []))):
        if blank(block["text"]):
            yield f"system.{at}", "a text without text"
    if body["max_tokens"] < 1:
        yield "max_tokens", f"{body['max_tokens']}; at least 1"
    if not 0 <= body.get("temperature", 0) <= 1:
        yield "temperature", f"{body['temperature']}; 0 to 1"
    tools = body.get("tools", [])
    yield from tool_names((tool["name"] for tool in tools), NAME, "tools")
    for at, tool in enumerate(tools):
        yield from is_object_schema(tool["input_schema"], f"tools.{at}")


def cache_breakpoints(value):
    """The number of `cache_control` members, outside call inputs and tool schemas."""
    if isinstance(value, list):
        return sum(map(cache_breakpoints, value))
    if not isinstance(value, dict):
        return 0
    inner = (v for key, v in value.items() if key not in ("input", "input_schema"))
    return ("cache_control" in value) + sum(map(cache_breakpoints, inner))
