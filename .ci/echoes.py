"""Recalled text in agents' sessions must not displace the original events in search results.

Usage: echoes.py BINARY CLAUDE CODEX DATA_DIR

Imports a real session of DATA_DIR. The real Claude Code and the real Codex then search it over
`treering mcp`, each in its own sessions. An endpoint of this script on loopback simulates their
models. After an import of these sessions, the same search must still find the same result first and
none of the answers, and each answer must name the event that it quotes. Exits with 1 and prints the
check that failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from agent_programs import Loopback, must
from agents import conversation_of

# Time limit of an agent for one session, in seconds: it takes about five.
SECONDS = 60
PROMPT = "what did we see about this before?"


class Model(Loopback):
    """Calls the tool `search` once in each session, then answers with a text."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        path = self.path.split("?")[0]
        if path == "/v1/messages":
            return self.events(self.of_anthropic(request))
        if path == "/v1/responses":
            return self.events(self.of_openai(request))
        self.answer(404, "application/json", b"{}")

    def of_anthropic(self, request):
        tools = [tool["name"] for tool in request.get("tools") or []]
        name = next((name for name in tools if name.endswith("treering__search")), None)
        asked = json.dumps(request["messages"])
        block, end = {"type": "text", "text": ""}, "end_turn"
        delta = {"type": "text_delta", "text": "done"}
        if name and PROMPT in asked and "tool_result" not in asked:
            block, end = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}, "tool_use"
            delta = {"type": "input_json_delta", "partial_json": self.arguments()}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1},
        }  # fmt: skip
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": end}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    def of_openai(self, request):
        item = {
            "type": "message", "id": "msg_1", "role": "assistant",
            "content": [{"type": "output_text", "text": "done"}],
        }  # fmt: skip
        if "function_call_output" not in json.dumps(request["input"]):
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1",
                    "arguments": self.arguments(), **self.tool_of_codex(request)}  # fmt: skip
        usage = {"input_tokens": 9, "input_tokens_details": None, "output_tokens": 1,
                 "output_tokens_details": None, "total_tokens": 10}  # fmt: skip
        return [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
        ]

    def tool_of_codex(self, request):
        """Codex offers a server's tools in a namespace, or by long names."""
        for tool in request["tools"]:
            if tool["type"] == "namespace" and "treering" in tool["name"]:
                return {"name": "search", "namespace": tool["name"]}
            if tool.get("name", "").endswith("treering__search"):
                return {"name": tool["name"]}
        must(False, "Codex offers the tools of Treering", tools=request["tools"])

    def arguments(self):
        return json.dumps({"query": self.server.query})

    def events(self, events):
        text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        self.answer(200, "text/event-stream", text.encode())


class Store:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def run(self, command, *args):
        line = [self.binary, command, "--data", str(self.folder / "store"), *args]
        run = subprocess.run(line, capture_output=True, text=True)
        must(run.returncode == 0, f"`{command}` exits with 0", said=run.stderr)
        return run.stdout

    def search(self, *args):
        lines = self.run("search", "--json", "--complete", *args).splitlines()
        return [json.loads(line) for line in lines]


def line_of_a_result(conversation):
    """A line of a tool result that occurs once in the session."""
    texts = [message["content"] or "" for message in conversation["messages"]]
    everything = "\n".join(texts)
    for message in conversation["messages"]:
        if message["role"] != "tool":
            continue
        for line in (message["content"] or "").splitlines():
            words = line.split()
            if 5 <= len(words) <= 12 and line.isascii() and everything.count(line) == 1:
                return line.strip()
    raise AssertionError("no result has a line of its own")


def of_agent(folder, server, **more):
    home = folder / "home"
    home.mkdir(parents=True)
    (folder / "work").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        # Nothing listens there, so requests to other hosts fail.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        **{name: value.format(port=server.server_port, home=home) for name, value in more.items()},
    }


def ask(name, line, folder, env):
    try:
        run = subprocess.run(
            line, cwd=folder / "work", env=env, stdin=subprocess.DEVNULL, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        must(False, f"{name} ends within {SECONDS} s", said=late.stdout)
    must(run.returncode == 0 and "done" in run.stdout, f"{name} has its answer", said=run.stdout)


def claude_code(claude, store, folder, server):
    env = of_agent(
        folder, server, CLAUDE_CONFIG_DIR="{home}/.claude", ANTHROPIC_API_KEY="sk-none",
        ANTHROPIC_BASE_URL="http://127.0.0.1:{port}", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    mcp = {"command": store.binary, "args": ["mcp", "--data", str(store.folder / "store")]}
    config = json.dumps({"mcpServers": {"treering": mcp}})
    line = [claude, "-p", PROMPT, "--mcp-config", config, "--allowedTools", "mcp__treering__search"]
    ask("Claude Code", line, folder, env)
    return list((folder / "home" / ".claude").glob("projects/*/*.jsonl"))


def codex(codex, store, folder, server):
    env = of_agent(folder, server, CODEX_HOME="{home}/codex", OPENAI_API_KEY="sk-none")
    home = Path(env["CODEX_HOME"])
    home.mkdir()
    (home / "config.toml").write_text(
        f"""model = "gpt-5.4"
model_provider = "loopback"
[model_providers.loopback]
name = "loopback"
base_url = "http://127.0.0.1:{server.server_port}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
[mcp_servers.treering]
command = {json.dumps(store.binary)}
args = ["mcp", "--data", {json.dumps(str(store.folder / "store"))}]
default_tools_approval_mode = "approve"
"""
    )
    line = [codex, "exec", "--skip-git-repo-check", PROMPT]
    ask("Codex", line, folder, env)
    return list(home.glob("sessions/**/*.jsonl"))


def check(args, folder):
    store = Store(args.binary, folder)
    conversation = conversation_of(args.data / "trajectories" / "claude-code-entire.jsonl.zst")
    session = folder / "session.jsonl"
    keys = ("role", "content", "tool_calls", "tool_call_id", "name")
    messages = [
        {key: one[key] for key in keys if one.get(key) is not None}
        for one in conversation["messages"]
    ]
    session.write_text(json.dumps({"messages": messages}) + "\n")
    store.run("import", "--format", "openai-chat", str(session))
    query = line_of_a_result(conversation)
    before = store.search(query)
    must(before and before[0]["kind"] == "tool_result_recorded", "the result is found", hits=before)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.query = query
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sessions = []
    for number, (agent, program, kind) in enumerate(
        [(claude_code, args.claude, "claude-code"), (codex, args.codex, "codex")] * 2
    ):
        files = agent(program, store, folder / str(number), server)
        must(len(files) == 1, f"{kind} writes one session", files=files)
        must("[from treering]" in files[0].read_text(), f"{kind} was answered", file=files[0])
        sessions.append((kind, files[0]))
    server.shutdown()
    for kind, file in sessions:
        store.run("import", "--format", kind, str(file))
    must(len(store.run("ls", "--json").splitlines()) == 5, "all sessions are imported")

    place = lambda hit: (hit["conversation"], hit["revision"])  # noqa: E731
    after = store.search(query)
    must(place(after[0]) == place(before[0]), "the result stays the first hit", after=after)
    must(not any(hit.get("recalled") for hit in after), "no hit is a quote", after=after)
    echoes = [hit for hit in store.search("--copies", query) if hit.get("recalled")]
    answers = [hit for hit in echoes if hit["kind"] == "tool_result_recorded"]
    must(len(answers) == 4, "the four answers are there for those who ask", echoes=echoes)
    quotes = {hit["quotes"] for hit in answers}
    must(quotes == {before[0]["address"]}, "the answers name what they quote", answers=answers)
    print(f"   {len(sessions)} sessions that asked, {len(answers)} answers beside {len(after)} hits")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("claude")
    parser.add_argument("codex")
    parser.add_argument("data", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check(args, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"echoes: not as it must be: {error}")
