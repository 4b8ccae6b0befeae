"""A model over HTTP that answers by fixed rules: frameworks run their real loops against it.

It answers "call NAME ARGUMENTS" with that tool call, a result with the text of the result, and
any other message with the number of user messages. It implements Anthropic's API (streamed) and
OpenAI's Responses and Chat Completions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Body = dict[str, Any]


@dataclass
class Model:
    """The server and the requests that it received."""

    url: str
    requests: list[Body] = field(default_factory=list)


def texts_of(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]


def answer(said: list[tuple[str, str]]) -> tuple[str, tuple[str, str] | None]:
    """The answer to messages of the form (role, text): a text, and optionally a call."""
    role, text = said[-1]
    asked = [text for role, text in said if role == "user"]
    if role == "tool":
        return f"The tool says: {text}", None
    if text.startswith("call "):
        name, _, arguments = text.removeprefix("call ").partition(" ")
        return f"I use {name}.", (name, arguments or "{}")
    return f"Answer {len(asked)} to: {text}", None


def said_to_anthropic(body: Body) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                said.append(("tool", "".join(texts_of(block.get("content")))))
            elif block["type"] == "text" and not block["text"].startswith("<system-reminder>"):
                said.append((message["role"], block["text"]))
    return said


def anthropic(body: Body, number: int) -> Body:
    text, call = answer(said_to_anthropic(body))
    content: list[Body] = [{"type": "text", "text": text}]
    if call:
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0]}
        content.append({**use, "input": json.loads(call[1])})
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def anthropic_stream(whole: Body) -> Iterator[Body]:
    yield {
        "type": "message_start",
        "message": {**whole, "content": [], "stop_reason": None},
    }
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            partial = json.dumps(block["input"])
            delta = {"type": "input_json_delta", "partial_json": partial}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def said_to_responses(body: Body) -> list[tuple[str, str]]:
    given = body["input"]
    said: list[tuple[str, str]] = []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type") == "function_call_output":
            said.append(("tool", "".join(texts_of(item["output"]))))
        elif "role" in item:
            said.append((item["role"], "".join(texts_of(item["content"]))))
    return said


def responses(body: Body, number: int) -> Body:
    text, call = answer(said_to_responses(body))
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    output: list[Body] = [
        {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    ]
    if call:
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": call[0],
                "arguments": call[1],
                "status": "completed",
            }
        )
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_770_000_000,
        "model": body["model"],
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


def chat(body: Body, number: int) -> Body:
    said = [(each["role"], "".join(texts_of(each.get("content")))) for each in body["messages"]]
    text, call = answer(said)
    message: Body = {"role": "assistant", "content": text}
    if call:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {
        "id": f"chatcmpl_{number}",
        "object": "chat.completion",
        "created": 1_770_000_000,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def agent_environment(model: Model, home: Path) -> dict[str, str]:
    """Makes agents use the model, keep their files in `home`, and call no other service."""
    return {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


@contextmanager
def serving() -> Iterator[Model]:
    """Serves the model at a local address."""
    mutex = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.partition("?")[0]
            if path.endswith("/count_tokens"):
                self.reply(b'{"input_tokens":10}', "application/json")
                return
            with mutex:
                model.requests.append(body)
                number = len(model.requests)
            if path.endswith("/messages"):
                whole = anthropic(body, number)
                if body.get("stream"):
                    lines = (
                        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n"
                        for each in anthropic_stream(whole)
                    )
                    self.reply("".join(lines).encode(), "text/event-stream")
                    return
            else:
                whole = (responses if path.endswith("/responses") else chat)(body, number)
            self.reply(json.dumps(whole).encode(), "application/json")

        def do_GET(self) -> None:
            self.reply(b"{}", "application/json")

        do_HEAD = do_GET

        def reply(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model = Model(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
