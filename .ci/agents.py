"""Real conversations, exported as sessions, gone on with by the real Claude Code.

Usage: agents.py BINARY CLAUDE DATA_DIR

Imports one conversation of every DATA_DIR/trajectories/*.jsonl.zst, and one in the format of
each other importer, exports each with `--format claude-code --resume`, and lets CLAUDE go on
with it. An Anthropic endpoint of this script, on loopback, must see a request that holds the
messages of the session. Exits with 1 and says what was not as it must be.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import zstandard

# Seconds that Claude Code has for one session: it takes about three.
RESUME_SECONDS = 30
# Claude Codes at once: each starts on one core.
AT_ONCE = 2
# Bytes of a conversation that are taken: a longer one would be compacted first.
CONVERSATION_BYTES = 60_000
PROMPT = "and now say done"
MODEL = "claude-sonnet-4-5"


def must(fact, what, **seen):
    if not fact:
        shown = ", ".join(f"{name}={str(value)[-600:]}" for name, value in seen.items())
        raise AssertionError(f"{what} ({shown})" if shown else what)


# ---- the endpoint ----


class Endpoint(BaseHTTPRequestHandler):
    """Answers every request for a message with the same short text."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.path.startswith("/v1/messages"):
            return self.answer(404, "application/json", b'{"type":"error"}')
        request = json.loads(body)
        if "count_tokens" in self.path:
            return self.answer(200, "application/json", b'{"input_tokens": 1000}')
        self.server.requests.append(request)
        if request.get("stream"):
            return self.answer(200, "text/event-stream", stream().encode())
        self.answer(200, "application/json", json.dumps(message("end_turn", "done")).encode())

    def do_GET(self):
        self.answer(404, "application/json", b'{"type":"error"}')

    do_HEAD = do_GET

    def answer(self, status, content_type, body):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def message(stop_reason, *texts):
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
        "content": [{"type": "text", "text": text} for text in texts],
        "stop_reason": stop_reason, "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }  # fmt: skip


def stream():
    events = [
        {"type": "message_start", "message": message(None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)


# ---- what is gone on with ----


def conversation_of(file):
    """The first one that has a call with its result, as far as it is short enough."""
    with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        for line in io.BufferedReader(plain, 1 << 20):
            conversation = json.loads(line)
            conversation["messages"] = beginning(conversation["messages"])
            roles = [message["role"] for message in conversation["messages"]]
            if "tool" in roles and roles.index("tool") > 1 and "user" in roles:
                return conversation
    raise AssertionError(f"no conversation of {file} has a call and its result")


def beginning(messages):
    """Those that fit, up to the last result or answer."""
    left, taken = CONVERSATION_BYTES, []
    for message in messages:
        left -= len(json.dumps(message))
        if left < 0:
            break
        taken.append(message)
    while taken and (taken[-1].get("tool_calls") or taken[-1]["role"] == "user"):
        taken.pop()
    return taken


def at(second):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1_770_000_000 + second))


def calls_of(message):
    for call in message.get("tool_calls") or []:
        yield call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def text_of(message):
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content) if content else ""


# What each tool writes of these messages. None of them names the model that answered: that is
# the case that went wrong.


def as_claude_code(messages):
    parent, lines = None, []
    for number, one in enumerate(messages):
        if one["role"] == "system":
            continue
        if one["role"] == "tool":
            role = "user"
            content = [
                {"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": text_of(one)}
            ]
        else:
            role = one["role"]
            content = [{"type": "text", "text": text_of(one)}] if text_of(one) else []
            content += [
                {"type": "tool_use", "id": call, "name": name, "input": arguments}
                for call, name, arguments in calls_of(one)
            ]
        said = {"role": role, "content": content}
        if role == "assistant":
            said |= {"id": f"msg_{number}", "type": "message"}
        lines.append(
            {
                "type": role, "uuid": f"u{number}", "parentUuid": parent, "sessionId": "s",
                "timestamp": at(number), "cwd": "/", "isSidechain": False, "message": said,
            }  # fmt: skip
        )
        parent = f"u{number}"
    return lines


def as_codex(messages):
    def item(number, payload):
        return {"timestamp": at(number), "type": "response_item", "payload": payload}

    yield {"timestamp": at(0), "type": "session_meta", "payload": {"id": "s", "timestamp": at(0)}}
    for number, one in enumerate(messages):
        if one["role"] == "tool":
            output = {"call_id": one["tool_call_id"], "output": text_of(one)}
            yield item(number, {"type": "function_call_output", **output})
            continue
        if text_of(one):
            kind = "output_text" if one["role"] == "assistant" else "input_text"
            content = [{"type": kind, "text": text_of(one)}]
            yield item(number, {"type": "message", "role": one["role"], "content": content})
        for call, name, arguments in calls_of(one):
            asked = {"call_id": call, "name": name, "arguments": json.dumps(arguments)}
            yield item(number, {"type": "function_call", **asked})


def as_gemini_cli(messages):
    results = {one["tool_call_id"]: text_of(one) for one in messages if one["role"] == "tool"}
    said = []
    for number, one in enumerate(messages):
        if one["role"] not in ("user", "assistant"):
            continue
        kind = "user" if one["role"] == "user" else "gemini"
        calls = [
            {
                "id": call, "name": name, "args": arguments, "status": "success",
                "timestamp": at(number),
                "result": [{"functionResponse": {
                    "id": call, "name": name, "response": {"output": results.get(call, "")}}}],
            }  # fmt: skip
            for call, name, arguments in calls_of(one)
        ]
        message = {"id": str(number), "timestamp": at(number), "type": kind, "content": text_of(one)}
        said.append(message | ({"toolCalls": calls} if calls else {}))
    yield {
        "sessionId": "s", "projectHash": "p", "startTime": at(0), "lastUpdated": at(len(messages)),
        "messages": said,
    }  # fmt: skip


def as_opencode(messages):
    results = {one["tool_call_id"]: text_of(one) for one in messages if one["role"] == "tool"}
    listed = []
    for number, one in enumerate(messages):
        if one["role"] not in ("user", "assistant"):
            continue
        then = (1_770_000_000 + number) * 1000
        parts = [{"type": "text", "text": text_of(one)}] if text_of(one) else []
        parts += [
            {
                "type": "tool", "callID": call, "tool": name,
                "state": {
                    "status": "completed", "input": arguments, "output": results.get(call, ""),
                    "time": {"start": then, "end": then},
                },
            }  # fmt: skip
            for call, name, arguments in calls_of(one)
        ]
        times = {"created": then, "completed": then}
        info = {"id": f"msg_{number:04}", "sessionID": "ses_1", "role": one["role"], "time": times}
        listed.append({"info": info, "parts": parts})
    yield {"info": {"id": "ses_1", "title": "a session"}, "messages": listed}


def as_pi(messages):
    yield {"type": "session", "version": 3, "id": "s", "timestamp": at(0), "cwd": "/"}
    parent = None
    for number, one in enumerate(messages):
        text = [{"type": "text", "text": text_of(one)}] if text_of(one) else []
        if one["role"] == "tool":
            said = {
                "role": "toolResult", "toolCallId": one["tool_call_id"], "toolName": one["name"],
                "content": text, "isError": False,
            }  # fmt: skip
        elif one["role"] in ("user", "assistant"):
            calls = [
                {"type": "toolCall", "id": call, "name": name, "arguments": arguments}
                for call, name, arguments in calls_of(one)
            ]
            said = {"role": one["role"], "content": text + calls}
        else:
            continue
        line = {"type": "message", "id": str(number), "parentId": parent, "timestamp": at(number)}
        yield {**line, "message": said}
        parent = str(number)


FORMATS = {
    "claude-code": as_claude_code,
    "codex": as_codex,
    "gemini-cli": as_gemini_cli,
    "opencode": as_opencode,
    "pi": as_pi,
}


def sessions(data):
    """What is imported: its name, the format, and the lines of its file."""
    files = sorted((data / "trajectories").glob("*.jsonl.zst"))
    must(files, "there are trajectories", folder=data)
    found = {file.name.split(".")[0]: conversation_of(file) for file in files}
    for name, conversation in found.items():
        yield name, "openai-chat", [conversation]
    messages = found.get("tau-bench", next(iter(found.values())))["messages"]
    for name, write in FORMATS.items():
        yield f"{name} sessions", name, list(write(messages))


# ---- going on ----


class Session:
    """One conversation in a store of its own, and a Claude Code with an account of its own."""

    def __init__(self, binary, claude, folder, name):
        self.binary, self.claude, self.folder, self.name = binary, claude, folder, name
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.config = folder / "home" / ".claude"
        self.config.mkdir(parents=True)

    def treering(self, command, *args):
        line = [self.binary, command, "--data", str(self.folder / "store"), *args]
        env = os.environ | {"CLAUDE_CONFIG_DIR": str(self.config)}
        run = subprocess.run(line, cwd=self.work, env=env, capture_output=True, text=True)
        must(run.returncode == 0, f"{self.name}: `{command}` exits with 0", said=run.stderr)
        return run.stdout

    def export(self, kind, lines):
        """The file of the session that Claude Code is to go on with."""
        file = self.folder / "session.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.treering("import", "--format", kind, str(file))
        (one,) = self.treering("ls", "--json").splitlines()
        self.treering("export", "--format", "claude-code", "--resume", json.loads(one)["conversation"])
        (written,) = self.config.glob("projects/*/*.jsonl")
        return written

    def resume(self, written):
        """Goes on with it. Returns the request that holds the prompt."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        server.requests = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        line = [self.claude, "-p", PROMPT, "--resume", written.stem]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "CLAUDE_CONFIG_DIR": str(self.config),
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}",
            "ANTHROPIC_API_KEY": "sk-none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Nothing answers there: what is not for this endpoint goes nowhere.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }
        try:
            run = subprocess.run(
                line, cwd=self.work, env=env, stdin=subprocess.DEVNULL, timeout=RESUME_SECONDS,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace")
            must(False, f"{self.name}: Claude Code goes on within {RESUME_SECONDS} s", said=said)
        finally:
            server.shutdown()
        asked = [one for one in server.requests if ("user", PROMPT) in pieces(one["messages"])]
        must(asked, f"{self.name}: Claude Code asks for an answer", said=run.stdout)
        must(run.returncode == 0, f"{self.name}: Claude Code exits with 0", said=run.stdout)
        must("done" in run.stdout, f"{self.name}: Claude Code has its answer", said=run.stdout)
        return asked[-1]


def pieces(messages):
    """Who says what, in order: texts, calls, and results of calls."""
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "text" and not block["text"].startswith("<system-reminder>"):
                yield message["role"], block["text"].strip()
            elif block["type"] == "tool_use":
                # Without its name: the tool has another one for some of its own by now.
                yield "call", block["id"], block["input"]
            elif block["type"] == "tool_result":
                yield "result", block["tool_use_id"], text_in(block["content"])


def text_in(content):
    if isinstance(content, list):
        content = "\n".join(block.get("text", "") for block in content)
    return (content or "").strip()


def check(binary, claude, folder, name, kind, lines):
    started = time.monotonic()
    session = Session(binary, claude, folder, name)
    written = session.export(kind, lines)
    exported = [json.loads(line) for line in written.read_text().splitlines()]
    expected = list(pieces(line["message"] for line in exported if "message" in line))
    request = session.resume(written)
    sent = iter(list(pieces(request["messages"])))
    missing = [piece for piece in expected if piece not in sent]
    must(not missing, f"{name}: the request holds the messages of the session, in their order",
         missing=missing[:2])  # fmt: skip
    print(f"   {name}: {len(expected)} pieces sent, {time.monotonic() - started:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("claude")
    parser.add_argument("data", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(check, args.binary, args.claude, Path(folder) / str(number), *one)
            for number, one in enumerate(sessions(args.data))
        ]
        faults = [str(fault) for fault in (job.exception() for job in jobs) if fault]
    must(not faults, "\n".join(faults))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"agents: not as it must be: {error}")
