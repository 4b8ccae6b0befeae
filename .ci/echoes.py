"""Recalled text in agents' sessions must not displace the original events in search results.

Usage: echoes.py BINARY DATA_DIR FORMAT=PROGRAM...

Imports a real session of DATA_DIR. The real agents then search it over `treering mcp`, in sessions
of their own: once with the server's usual name and once with another one, and once more through
`treering proxy` if it knows the agent's API. An endpoint of this script on loopback simulates the
models. After an import of the sessions that the proxy did not record, the same search must still
find the same result first and none of the answers, and each answer must name the event that it
quotes. Exits with 1 and prints the check that failed.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_programs import MODEL, PROGRAMS, PROMPT, Loopback, must
from agents import conversation_of
from proxy import Proxy

# Names of the server: by the second one, the tool is not known as one of a memory.
USUAL, OTHER = "treering", "notes"
# How agents name the tool: mcp__treering__search, treering_search, mcp_treering_search.
SEARCH = re.compile(rf"(^|_)({USUAL}|{OTHER})_+search$")


class Model(Loopback):
    """Calls the tool `search` once in each session, then answers with a text."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        path = self.path.split("?")[0]
        if path == "/v1/messages":
            return self.events(self.of_anthropic(request))
        if path == "/v1/responses":
            return self.events(self.of_openai(request))
        if path.endswith(":streamGenerateContent"):
            return self.events(self.of_gemini(request))
        self.answer(404, "application/json", b"{}")

    def of_anthropic(self, request):
        tools = [tool["name"] for tool in request.get("tools") or []]
        name = next(filter(SEARCH.search, tools), None)
        asked = json.dumps(request["messages"])
        block, end = {"type": "text", "text": ""}, "end_turn"
        delta = {"type": "text_delta", "text": "done"}
        if name and PROMPT in asked and "tool_result" not in asked:
            block, end = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}, "tool_use"
            delta = {"type": "input_json_delta", "partial_json": self.arguments()}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
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
            if tool["type"] == "namespace" and re.search(f"{USUAL}|{OTHER}", tool["name"]):
                return {"name": "search", "namespace": tool["name"]}
            if SEARCH.search(tool.get("name", "")):
                return {"name": tool["name"]}
        must(False, "Codex offers the tools of Treering", tools=request["tools"])

    def of_gemini(self, request):
        part = {"text": "done"}
        tools = [one for tool in request.get("tools") or [] for one in tool["functionDeclarations"]]
        name = next(filter(SEARCH.search, (one["name"] for one in tools)), None)
        if name and "functionResponse" not in json.dumps(request["contents"]):
            part = {"functionCall": {"name": name, "args": json.loads(self.arguments())}}
        said = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 10}
        return [{"candidates": [said], "usageMetadata": usage}]

    def arguments(self):
        return json.dumps({"query": self.server.query})

    def events(self, events):
        text = "".join(
            (f"event: {one['type']}\n" if "type" in one else "") + f"data: {json.dumps(one)}\n\n"
            for one in events
        )
        self.answer(200, "text/event-stream", text.encode())


class Store:
    def __init__(self, binary, folder):
        self.binary, self.data = binary, folder / "store"

    def run(self, command, *args):
        line = [self.binary, command, "--data", str(self.data), *args]
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


# The settings that give an agent the MCP server of this name, and the arguments of a session.


def claude_code(agent, name, command, args):
    config = json.dumps({"mcpServers": {name: {"command": command, "args": args}}})
    return ["-p", PROMPT, "--mcp-config", config, "--allowedTools", f"mcp__{name}__search"]


def codex(agent, name, command, args):
    with open(agent.sessions / "config.toml", "a") as config:
        config.write(
            f"""[mcp_servers.{name}]
command = {json.dumps(command)}
args = {json.dumps(args)}
default_tools_approval_mode = "approve"
"""
        )
    return ["exec", "--skip-git-repo-check", PROMPT]


def gemini_cli(agent, name, command, args):
    server = {"command": command, "args": args, "trust": True}
    change(agent.sessions / ".gemini" / "settings.json", mcpServers={name: server})
    return ["-m", "gemini-2.5-flash", "-p", PROMPT]


def opencode(agent, name, command, args):
    server = {"type": "local", "command": [command, *args]}
    change(agent.work / "opencode.json", mcp={name: server})
    return ["run", "--model", f"anthropic/{MODEL}", PROMPT]


SESSIONS = {
    "claude-code": claude_code,
    "codex": codex,
    "gemini-cli": gemini_cli,
    "opencode": opencode,
}


def change(file, **settings):
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def session_of(kind, program, name, store, folder, port):
    """The file of a session in which the agent searched."""
    agent = PROGRAMS[kind](program, folder)
    env = agent.env(port)
    line = SESSIONS[kind](agent, name, store.binary, ["mcp", "--data", str(store.data)])
    run = agent.run(kind, [program, *line], env)
    must("done" in run.stdout, f"{kind} has its answer", said=run.stdout)
    files = agent.files()
    must(len(files) == 1, f"{kind} writes one session", files=files)
    return files[0]


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

    proxy = Proxy(store.binary, folder, Model)
    proxy.server.query = query
    programs = dict(one.split("=", 1) for one in args.programs)
    for kind, program in programs.items():
        for name in (USUAL, OTHER):
            own = folder / f"{kind}-{name}"
            file = session_of(kind, program, name, store, own, proxy.server.server_port)
            store.run("import", "--format", kind, str(file))
    through = [kind for kind in programs if kind != "gemini-cli"]
    for kind in through:
        session_of(kind, programs[kind], OTHER, store, folder / f"{kind}-proxy", proxy.port)
    proxy.stop()
    asked = 2 * len(programs) + len(through)

    place = lambda hit: (hit["conversation"], hit["revision"])  # noqa: E731
    after = store.search(query)
    must(place(after[0]) == place(before[0]), "the result stays the first hit", after=after)
    must(not any(hit.get("recalled") for hit in after), "no hit is a quote", after=after)
    copies = store.search("--copies", "-n", "100", query)
    others = [hit for hit in copies if hit["conversation"] != before[0]["conversation"]]
    calls = [hit for hit in others if hit["kind"] == "tool_call_requested"]
    must(len(calls) == asked, "the calls are there for those who ask", calls=calls)
    must(all(hit.get("recalled") for hit in calls), "the calls are no originals", calls=calls)
    echoes = [hit for hit in others if hit.get("recalled")]
    answers = [hit for hit in echoes if hit["kind"] == "tool_result_recorded"]
    must(len(answers) == asked, "the answers are there for those who ask", echoes=echoes)
    quotes = {hit["quotes"] for hit in answers}
    must(quotes == {before[0]["address"]}, "the answers name what they quote", answers=answers)
    print(f"   {asked} sessions that asked, their answers beside {len(after)} hits")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("data", type=Path)
    parser.add_argument("programs", nargs="+", metavar="FORMAT=PROGRAM")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check(args, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"echoes: not as it must be: {error}")
