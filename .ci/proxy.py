"""Checks that `treering proxy` records all that real clients send and receive through it.

Usage: proxy.py BINARY SDK_MJS CLAUDE CODEX

The official SDKs for Python and JavaScript use each API, streamed and not: two requests, with a
call and its result. Claude Code and Codex each run one session: a prompt with a tool, then further
prompts. An endpoint of this script on loopback simulates the models. Each session must be one
conversation without forks that has every message once. Exits with 1 and prints the check that
failed.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from agent_programs import ClaudeCode, Codex, Loopback, must

APIS = ["chat", "responses", "messages"]
KEY = "sk-none"
NOTE = "the note says 42"
FIRST, SECOND = "read note.txt, please", "and now say done"
# A prompt that starts a sub-agent, and the prompt of the sub-agent.
THIRD, ERRAND = "let an agent do it", "an errand: say done"


# ---- the endpoint: answers with a call if a tool fits and has no result yet, else with a text ----


class Endpoint(Loopback):
    numbers = itertools.count(1)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            return self.answer(200, "application/json", b'{"input_tokens": 1000}')
        answers = {"completions": chat, "responses": responses, "messages": messages}
        answer = answers.get(path.rsplit("/", 1)[-1])
        if not answer:
            return self.answer(404, "application/json", b'{"type":"error"}')
        request = json.loads(body)
        assert "x-treering-conversation" not in self.headers
        whole, events = answer(request, f"{next(self.numbers):04}aaaaaaaaaaaaaaaa")
        if not request.get("stream"):
            return self.answer(200, "application/json", json.dumps(whole).encode())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.chunk(f"{name}data: {json.dumps(event)}\n\n")
        if answer is chat:
            self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def chunk(self, text):
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


def halves(text):
    return text[: len(text) // 2], text[len(text) // 2 :]


def tool_names(request):
    tools = request.get("tools") or []
    return {tool.get("name") or tool.get("function", {}).get("name") for tool in tools}


def wanted(request, prompt):
    """The tool and arguments of the call to make, or None if no tool fits."""
    names = tool_names(request)
    if "lookup" in names:
        return "lookup", {"key": "x"}
    if THIRD in prompt and "Agent" in names:
        task = {"description": "a test", "prompt": ERRAND, "subagent_type": "general-purpose"}
        return "Agent", task | {"run_in_background": False}
    if FIRST not in prompt:
        return None
    if "Read" in names:
        return "Read", {"file_path": str(Path(os.environ["NOTE_FOLDER"]) / "note.txt")}
    if "exec_command" in names:
        return "exec_command", {"cmd": "cat note.txt"}
    if "shell_command" in names:
        return "shell_command", {"command": "cat note.txt"}
    return None


def chat(request, number):
    has_result = request["messages"][-1]["role"] == "tool"
    call = None if has_result else wanted(request, "")
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    head = {"id": f"chatcmpl-{number}", "model": "gpt-4o", "created": 1}
    said = {"role": "assistant", "content": None if call else "x is seven", "refusal": None}
    deltas = [{"role": "assistant", "content": None if call else ""}]
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        said["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
        first, second = halves(function["arguments"])
        deltas.append({"tool_calls": [
            {"index": 0, "id": f"call_{number}", "type": "function",
             "function": {"name": call[0], "arguments": first}}]})  # fmt: skip
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": second}}]})
    else:
        deltas += [{"content": piece} for piece in halves("x is seven")]
    end = "tool_calls" if call else "stop"
    whole = head | {"object": "chat.completion", "usage": usage, "choices": [
        {"index": 0, "message": said, "finish_reason": end, "logprobs": None}]}  # fmt: skip
    chunk = head | {"object": "chat.completion.chunk"}
    events = [
        chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    events.append(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    return whole, events


def responses(request, number):
    last = request["input"][-1]
    has_result = last.get("type", "").endswith("_output")
    call = None if has_result else wanted(request, json.dumps(last))
    text = "x is seven" if "lookup" in tool_names(request) else "done"
    if call:
        item = {
            "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
            "name": call[0], "arguments": json.dumps(call[1]), "status": "completed",
        }  # fmt: skip
    else:
        item = {
            "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }  # fmt: skip
    usage = {
        "input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13,
    }  # fmt: skip
    head = {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "model": request["model"],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    whole = head | {"status": "completed", "output": [item], "usage": usage}
    place = {"output_index": 0, "item_id": item["id"]}
    begun = head | {"status": "in_progress", "output": []}
    events = [{"type": "response.created", "response": begun}]
    if call:
        empty = item | {"arguments": "", "status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": empty})
        for piece in halves(item["arguments"]):
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": piece})
        done = {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}
        events.append(done | place)
    else:
        part = {"type": "output_text", "text": "", "annotations": []}
        place["content_index"] = 0
        empty = item | {"content": [], "status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": empty})
        events.append({"type": "response.content_part.added", **place, "part": part})
        for piece in halves(text):
            delta = {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
            events.append(delta | place)
        done = {"type": "response.output_text.done", "text": text, "logprobs": []}
        events.append(done | place)
        events.append(
            {"type": "response.content_part.done", **place, "part": part | {"text": text}}
        )
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return whole, [event | {"sequence_number": at} for at, event in enumerate(events)]


def messages(request, number):
    # The harness may add messages after the user's, so this takes the last user message.
    last = [one for one in request["messages"] if one["role"] == "user"][-1]["content"]
    has_result = isinstance(last, list) and any(one["type"] == "tool_result" for one in last)
    call = None if has_result else wanted(request, json.dumps(last))
    text = "x is seven" if "lookup" in tool_names(request) else "done"
    thought = {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": call[1]}
        empty, kind = block | {"input": {}}, "input_json_delta"
        pieces = [{"partial_json": piece} for piece in halves(json.dumps(call[1]))]
    else:
        block = {"type": "text", "text": text}
        empty, kind = block | {"text": ""}, "text_delta"
        pieces = [{"text": piece} for piece in halves(text)]
    end = "tool_use" if call else "end_turn"
    usage = {
        "input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0,
    }  # fmt: skip
    whole = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"],
        "content": [thought, block], "stop_reason": end, "stop_sequence": None, "usage": usage,
    }  # fmt: skip

    def of_block(index, begun, deltas):
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    thinking = [
        {"type": "thinking_delta", "thinking": thought["thinking"]},
        {"type": "signature_delta", "signature": thought["signature"]},
    ]
    begun = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    return whole, [
        {"type": "message_start", "message": begun},
        *of_block(0, thought | {"thinking": "", "signature": ""}, thinking),
        *of_block(1, empty, [{"type": kind} | piece for piece in pieces]),
        {
            "type": "message_delta", "usage": {"output_tokens": 4},
            "delta": {"stop_reason": end, "stop_sequence": None},
        },
        {"type": "message_stop"},
    ]  # fmt: skip


# ---- the proxy and its store ----


class Proxy:
    """A proxy with its store in a folder; it forwards to an endpoint."""

    def __init__(self, binary, folder, handler=Endpoint):
        self.binary, self.data = binary, folder / "store"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{self.server.server_port}"
        line = [
            binary, "proxy", "--json", "--listen", "127.0.0.1:0", "--data", str(self.data),
            "--openai", endpoint + "/v1", "--anthropic", endpoint, "--until-stdin-closes",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = json.loads(self.process.stdout.readline())["proxy"]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self):
        said = self.process.communicate(timeout=60)[1]
        self.server.shutdown()
        must(self.process.returncode == 0 and "not recorded" not in said, "the proxy ends", said=said)
        files = self.data.rglob("*")
        held = [file for file in files if file.is_file() and KEY.encode() in file.read_bytes()]
        must(not held and KEY not in said, "the key is nowhere", files=held)

    def treering(self, *args):
        line = [self.binary, "--data", str(self.data), *args]
        run = subprocess.run(line, capture_output=True, text=True)
        must(run.returncode == 0, f"{args} exits with 0", said=run.stderr)
        return run.stdout

    def conversations(self):
        listed = self.treering("ls", "--json", "--limit", "1000").splitlines()
        return [json.loads(line) for line in listed]

    def talk(self, conversation):
        exported = json.loads(self.treering("export", "--format", "openai-chat", conversation))
        for message in exported["messages"]:
            yield from of_message(message)

    def check(self, name, one, expected):
        must(one["branches"] == 1, f"{name}: there are no branches", one=one)
        talk = list(self.talk(one["conversation"]))
        must(talk == expected, f"{name}: what was said is recorded", talk=talk, expected=expected)
        print(f"   {name}: {len(talk)} pieces", flush=True)


def of_message(message):
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part.get("text", "") for part in content)
    role = "result" if message["role"] == "tool" else message["role"]
    if content:
        yield [role, content]
    for call in message.get("tool_calls") or []:
        function = call["function"]
        yield ["call", function["name"], json.loads(function["arguments"])]


# ---- the clients ----


def check_sdks(binary, script, folder):
    proxy = Proxy(binary, folder)
    here = Path(__file__).parent
    programs = {"python": [sys.executable, str(here / "proxy_sdk.py")], "node": ["node", script]}
    expected = {}
    for language, program in programs.items():
        for api in APIS + [f"{api}-stream" for api in APIS]:
            name = f"{language} {api}"
            line = [*program, api, proxy.url, name]
            env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
            run = subprocess.run(line, capture_output=True, text=True, timeout=90, env=env)
            must(run.returncode == 0, f"{name}: the SDK is served", said=run.stderr)
            expected[name] = json.loads(run.stdout)
    proxy.stop()
    found = {one["source_id"]: one for one in proxy.conversations()}
    must(found.keys() == expected.keys(), "each talk is a conversation", found=sorted(found))
    for name, talk in expected.items():
        must(len(talk) == 5, f"{name}: the talk has its call and its result", talk=talk)
        proxy.check(name, found[name], talk)


def prompts_of(talk):
    """The user's prompts, without the notices of the harness before them."""
    return [piece[1].rsplit("\n", 1)[-1] for piece in talk if piece[0] == "user"]


def check_agent(binary, kind, program, folder):
    name = kind.__name__
    folder.mkdir()
    agent = kind(program, folder)
    (agent.work / "note.txt").write_text(NOTE + "\n")
    os.environ["NOTE_FOLDER"] = str(agent.work)
    proxy = Proxy(binary, folder)
    env = agent.env(proxy.port)
    if kind is ClaudeCode:
        prompts = [FIRST, SECOND, THIRD]
        begin, go_on = [program, "-p"], [program, "-p", "--continue"]
    else:
        prompts = [FIRST, SECOND]
        begin = [program, "exec", "--skip-git-repo-check"]
        go_on = [*begin, "resume", "--last"]
    for prompt in prompts:
        line = [*(begin if prompt == FIRST else go_on), prompt]
        run = agent.run(name, line, env)
        must("done" in run.stdout, f"{name}: the agent has its answer", said=run.stdout)
    proxy.stop()
    talks = [(one, list(proxy.talk(one["conversation"]))) for one in proxy.conversations()]
    mains = [(one, talk) for one, talk in talks if FIRST in prompts_of(talk)]
    must(len(mains) == 1, f"{name}: the session is one conversation", found=len(mains))
    one, talk = mains[0]
    must(one["branches"] == 1, f"{name}: there are no branches", one=one)
    said = [prompt for prompt in prompts_of(talk) if prompt in (*prompts, ERRAND)]
    must(said == prompts, f"{name}: each prompt is recorded once", said=said)
    kinds = [piece[0] for piece in talk if piece[0] in ("call", "result", "assistant")]
    step = ["call", "result", "assistant"]
    expected = [*step, "assistant", *(step if THIRD in prompts else [])]
    must(kinds == expected, f"{name}: the order", kinds=kinds)
    results = [piece[1] for piece in talk if piece[0] == "result"]
    must(NOTE in results[0], f"{name}: the result is recorded", results=results)
    print(f"   {name}: {len(talk)} pieces in {one['source_id']}", flush=True)
    if THIRD in prompts:
        others = [(one, talk) for one, talk in talks if ERRAND in prompts_of(talk)]
        must(len(others) == 1, f"{name}: the sub-agent is a conversation", found=len(others))
        beside, talk = others[0]
        sessions = {one["labels"]["session"], beside["labels"]["session"]}
        must(len(sessions) == 1, f"{name}: both are of one session", sessions=sessions)
        print(f"   {name}: {len(talk)} pieces of its sub-agent", flush=True)


def main():
    binary, script, claude, codex = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_sdks(binary, script, Path(folder))
        check_agent(binary, ClaudeCode, claude, Path(folder) / "claude")
        check_agent(binary, Codex, codex, Path(folder) / "codex")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"proxy: not as it must be: {error}")
