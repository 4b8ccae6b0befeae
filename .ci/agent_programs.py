"""The real agents, each with its own account, and an endpoint on loopback that simulates their
models.

`PROGRAMS` has a class for each format of `treering export`: how the agent resumes an exported
session, and how to read the request that it then sends.
"""

import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Time limit of an agent for one session, in seconds: it takes about five.
RESUME_SECONDS = 90
PROMPT = "and now say done"
MODEL = "claude-sonnet-4-5"


def must(fact, what, **seen):
    if not fact:
        shown = ", ".join(f"{name}={str(value)[-600:]}" for name, value in seen.items())
        raise AssertionError(f"{what} ({shown})" if shown else what)


# ---- the endpoint ----


class Loopback(BaseHTTPRequestHandler):
    """An endpoint that answers 404 to all requests that a subclass does not handle."""

    protocol_version = "HTTP/1.1"

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


class Endpoint(Loopback):
    """Answers every request to a model with the same short text."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            return self.answer(200, "application/json", b'{"input_tokens": 1000}')
        if path.endswith(":countTokens"):
            return self.answer(200, "application/json", b'{"totalTokens": 1000}')
        answers = {"messages": anthropic, "responses": openai}
        answer = answers.get(path.rsplit("/", 1)[-1])
        if path.endswith((":streamGenerateContent", ":generateContent")):
            answer = gemini
        if not answer:
            return self.answer(404, "application/json", b'{"type":"error"}')
        request = json.loads(body)
        self.server.requests.append(request)
        whole, events = answer()
        if request.get("stream") or path.endswith(":streamGenerateContent"):
            lines = "".join(
                (f"event: {one['type']}\n" if "type" in one else "") + f"data: {json.dumps(one)}\n\n"
                for one in events
            )
            return self.answer(200, "text/event-stream", lines.encode())
        self.answer(200, "application/json", json.dumps(whole).encode())


def anthropic():
    def message(stop_reason, *texts):
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
            "content": [{"type": "text", "text": text} for text in texts],
            "stop_reason": stop_reason, "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        }  # fmt: skip

    return message("end_turn", "done"), [
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


def openai():
    item = {
        "type": "message", "id": "msg_1", "role": "assistant",
        "content": [{"type": "output_text", "text": "done"}],
    }  # fmt: skip
    usage = {"input_tokens": 9, "input_tokens_details": None, "output_tokens": 1,
             "output_tokens_details": None, "total_tokens": 10}  # fmt: skip
    done = {"id": "resp_1", "usage": usage}
    return done | {"output": [item]}, [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]


def gemini():
    done = {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "done"}]}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 10},
    }  # fmt: skip
    return done, [done]


# ---- parts of a request, in order: texts, calls with their arguments, results ----


def of_anthropic(request):
    for message in request["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "text":
                yield message["role"], block["text"]
            elif block["type"] == "tool_use":
                # Omits the tool's name: agents have renamed some of their own tools.
                yield "call", block["id"], block["input"]
            elif block["type"] == "tool_result":
                yield "result", block["tool_use_id"], text_in(block.get("content"))


def of_openai(request):
    for item in request["input"]:
        if item["type"] == "message":
            for part in item["content"]:
                yield item["role"], part["text"]
        elif item["type"] == "function_call":
            yield "call", item["call_id"], json.loads(item["arguments"])
        elif item["type"] == "function_call_output":
            yield "result", item["call_id"], text_in(item["output"])


def of_gemini(request):
    for content in request["contents"]:
        role = "assistant" if content["role"] == "model" else content["role"]
        for part in content["parts"]:
            if "text" in part:
                yield role, part["text"]
            elif "functionCall" in part:
                yield "call", part["functionCall"].get("id"), part["functionCall"]["args"]
            elif "functionResponse" in part:
                answer = part["functionResponse"]
                response = answer["response"]
                yield "result", answer.get("id"), response.get("output", response.get("error"))


def text_in(content):
    if isinstance(content, list):
        content = "\n".join(block.get("text", "") for block in content)
    return content or ""


# ---- the agents ----


class Agent:
    """An agent with its own account and its own folder."""

    # The environment variable, and its folder below the home folder, that lead to the sessions.
    variable = folder = None
    # Reads the parts of a request.
    pieces = staticmethod(of_anthropic)

    def __init__(self, program, place):
        self.program = program
        self.home, self.work = place / "home", place / "work"
        self.work.mkdir(parents=True)
        self.sessions = self.home / self.folder
        self.sessions.mkdir(parents=True)

    def treering_env(self):
        """The environment with which `treering export --resume` finds the agent's sessions."""
        return {self.variable: str(self.sessions)}

    def env(self, port):
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            self.variable: str(self.sessions),
            # Nothing listens there, so requests to other hosts fail.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
            **self.settings(port),
        }

    def resume(self, name, said):
        """Runs the command that `treering export --resume` printed. Returns the request with the
        prompt."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        server.requests = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = self.env(server.server_port)
        command = re.search(r"^To continue in this folder: (.*)$", said, re.MULTILINE).group(1)
        try:
            for line in self.lines(command):
                run = self.run(name, line, env)
        finally:
            server.shutdown()
        asked = [one for one in server.requests if PROMPT in json.dumps(one)]
        must(asked, f"{name}: the agent asks for an answer", said=run.stdout)
        must("done" in run.stdout, f"{name}: the agent has its answer", said=run.stdout)
        return asked[-1]

    def run(self, name, line, env):
        try:
            run = subprocess.run(
                line, cwd=self.work, env=env, stdin=subprocess.DEVNULL, timeout=RESUME_SECONDS,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace")
            must(False, f"{name}: the agent goes on within {RESUME_SECONDS} s", said=said)
        must(run.returncode == 0, f"{name}: the agent exits with 0", line=line, said=run.stdout)
        return run


class ClaudeCode(Agent):
    variable, folder = "CLAUDE_CONFIG_DIR", ".claude"

    def settings(self, port):
        return {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "ANTHROPIC_API_KEY": "sk-none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def lines(self, command):
        return [[self.program, "-p", PROMPT, *command.split()[1:]]]

    def files(self):
        return list(self.sessions.glob("projects/*/*.jsonl"))


class Codex(Agent):
    variable, folder = "CODEX_HOME", "codex"
    pieces = staticmethod(of_openai)

    def settings(self, port):
        (self.sessions / "config.toml").write_text(
            f"""model = "gpt-5.4"
model_provider = "loopback"
[model_providers.loopback]
name = "loopback"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
        )
        return {"OPENAI_API_KEY": "sk-none"}

    def lines(self, command):
        return [[self.program, "exec", "--skip-git-repo-check", *command.split()[1:], PROMPT]]

    def files(self):
        return list(self.sessions.glob("sessions/**/*.jsonl"))


class Pi(Agent):
    variable, folder = "PI_CODING_AGENT_DIR", ".pi/agent"

    def settings(self, port):
        provider = {
            "baseUrl": f"http://127.0.0.1:{port}", "api": "anthropic-messages", "apiKey": "none",
            "models": [{"id": MODEL}],
        }  # fmt: skip
        models = {"providers": {"loopback": provider}}
        (self.sessions / "models.json").write_text(json.dumps(models))
        return {"PI_OFFLINE": "1"}

    def lines(self, command):
        model = ["--provider", "loopback", "--model", MODEL]
        return [[self.program, "-p", *model, *command.split()[1:], PROMPT]]

    def files(self):
        return list(self.sessions.glob("sessions/**/*.jsonl"))


class GeminiCli(Agent):
    variable, folder = "GEMINI_CLI_HOME", "gemini"
    pieces = staticmethod(of_gemini)

    def settings(self, port):
        settings = self.sessions / ".gemini" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(
            json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                }
            )
        )
        return {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }

    def lines(self, command):
        return [[self.program, *command.split()[1:], "-m", "gemini-2.5-flash", "-p", PROMPT]]

    def files(self):
        # Gemini CLI creates another session file before it reads the named one.
        files = self.sessions.glob(".gemini/tmp/*/chats/*.jsonl")
        return [file for file in files if PROMPT in file.read_text()]


class OpenCode(Agent):
    variable, folder = "XDG_DATA_HOME", ".local/share"

    def settings(self, port):
        provider = {"options": {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "none"}}
        config = {
            "provider": {"anthropic": provider}, "model": f"anthropic/{MODEL}",
            "small_model": f"anthropic/{MODEL}", "autoupdate": False, "share": "disabled",
        }  # fmt: skip
        (self.work / "opencode.json").write_text(json.dumps(config))
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def lines(self, command):
        first, second = command.split(" && ")
        _, *resumed = second.split()
        model = ["--model", f"anthropic/{MODEL}"]
        return [
            [self.program, *first.split()[1:]],
            [self.program, "run", *resumed, *model, PROMPT],
        ]

    def files(self):
        return list(self.sessions.glob("opencode/*.db"))


PROGRAMS = {
    "claude-code": ClaudeCode,
    "codex": Codex,
    "pi": Pi,
    "gemini-cli": GeminiCli,
    "opencode": OpenCode,
}
