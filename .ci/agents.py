"""Exports real conversations as sessions, continues them with the real agents, and imports them.

Usage: agents.py BINARY DATA_DIR FORMAT=PROGRAM...

Imports one conversation of every DATA_DIR/trajectories/*.jsonl.zst, and one in the format of each
importer. Forks each, exports the fork with `--format FORMAT --resume`, and continues it with
PROGRAM. An endpoint of this script on loopback must get a request with the messages of the fork. An
import of the agent's session must add the new events to the fork, in the same conversation. Exits
with 1 and prints the check that failed.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard
from agent_programs import PROGRAMS, PROMPT, must, of_anthropic

# Agents that run at the same time: each needs a core to start.
AT_ONCE = 2
# Bytes of a conversation to use: the agent would compact a longer one first.
CONVERSATION_BYTES = 60_000
# Sessions that agents continue: Claude Code SOME, the others FEW, because an export does not depend
# on the session's source. With TREERING_TEST_ALL, Claude Code continues all, and the others SOME.
FEW = ["tau-bench", "codex sessions"]
SOME = [*FEW, "swe-agent", "claude-code sessions", "pi sessions"]


# ---- the sessions ----


def conversation_of(file):
    """The first conversation whose beginning has a call with its result, cut to that beginning."""
    with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        for line in io.BufferedReader(plain, 1 << 20):
            conversation = json.loads(line)
            conversation["messages"] = beginning(conversation["messages"])
            roles = [message["role"] for message in conversation["messages"]]
            if "tool" in roles and roles.index("tool") > 1 and "user" in roles:
                return conversation
    raise AssertionError(f"no conversation of {file} has a call and its result")


def beginning(messages):
    """The messages within CONVERSATION_BYTES, up to the last result or answer."""
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


# The session files that each agent would write for these messages. None names the model: a
# missing model caused a bug.


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
    """The sessions to import: name, format, and lines of the file."""
    files = sorted((data / "trajectories").glob("*.jsonl.zst"))
    must(files, "there are trajectories", folder=data)
    found = {file.name.split(".")[0]: conversation_of(file) for file in files}
    for name, conversation in found.items():
        yield name, "openai-chat", [conversation]
    messages = found.get("tau-bench", next(iter(found.values())))["messages"]
    for name, write in FORMATS.items():
        yield f"{name} sessions", name, list(write(messages))


# ---- continuing ----


class Store:
    """One conversation in its own store."""

    def __init__(self, binary, agent, place, name):
        self.binary, self.agent, self.place, self.name = binary, agent, place, name

    def treering(self, command, *args):
        line = [self.binary, command, "--data", str(self.place / "store"), *args]
        env = os.environ | self.agent.treering_env() | {"TMPDIR": str(self.place)}
        run = subprocess.run(line, cwd=self.agent.work, env=env, capture_output=True, text=True)
        must(run.returncode == 0, f"{self.name}: `{command}` exits with 0", said=run.stderr)
        return run.stdout

    def fork(self, kind, lines):
        """Imports a session and forks it at its last event."""
        file = self.place / "session.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.treering("import", "--format", kind, str(file))
        self.id = self.only()["conversation"]
        self.treering("fork", self.id, "--name", "fork")

    def only(self):
        listed = self.treering("ls", "--json").splitlines()
        must(len(listed) == 1, f"{self.name}: there is one conversation", listed=listed)
        return json.loads(listed[0])

    def said(self, branch):
        """The texts, calls and results of a branch."""
        exported = self.treering("export", "--format", "claude-code", self.id, "-b", branch)
        lines = [json.loads(line) for line in exported.splitlines()]
        return whole(of_anthropic({"messages": [one["message"] for one in lines if "message" in one]}))


def whole(pieces):
    """Joins consecutive texts of a role. Of calls keeps the arguments, of results the texts."""
    row = []
    for kind, *said in pieces:
        said = said[-1].strip() if isinstance(said[-1], str) else said[-1]
        if kind in ("call", "result"):
            row.append((kind, said))
        elif said and not said.startswith("<system-reminder>"):
            if row and row[-1][0] == kind:
                said = row.pop()[1] + "\n" + said
            row.append((kind, said))
    return row


def paired(name, pieces):
    """Checks that calls and results have the same ids."""
    pieces = list(pieces)
    calls = [one[1] for one in pieces if one[0] == "call"]
    results = [one[1] for one in pieces if one[0] == "result"]
    must(sorted(calls) == sorted(results), f"{name}: calls and results are paired",
         calls=calls, results=results)  # fmt: skip


def check(binary, program, place, agent_name, session):
    name, kind, lines = session
    started = time.monotonic()
    agent = PROGRAMS[agent_name](program, place)
    name = f"{agent_name} with {name}"
    store = Store(binary, agent, place, name)
    store.fork(kind, lines)
    expected = store.said("fork")
    said = store.treering("export", "--format", agent_name, "--resume", store.id, "-b", "fork")
    request = agent.resume(name, said)
    sent = list(agent.pieces(request))
    paired(name, sent)
    held = iter(whole(sent))
    missing = [piece for piece in expected if not any(holds(one, piece) for one in held)]
    must(not missing, f"{name}: the request holds the messages of the session, in their order",
         missing=missing[:2])  # fmt: skip

    files = agent.files()
    must(len(files) == 1, f"{name}: the agent has one session", files=files)
    again = json.loads(store.treering("import", "--json", "--format", agent_name, str(files[0])))
    must(again["continued"] == 1 and again["branches"] == 0, f"{name}: it continues", said=again)
    store.only()
    must(store.said("main") == expected, f"{name}: the other branch is as it was")
    added = store.said("fork")
    must(added[: len(expected) - 1] == expected[:-1], f"{name}: the fork begins as it did")
    texts = json.dumps(added)
    must(texts.count(PROMPT) == 1 and added[-1] == ("assistant", "done"),
         f"{name}: the fork ends with what the agent added, once", added=added[-3:])  # fmt: skip
    twice = json.loads(store.treering("import", "--json", "--format", agent_name, str(files[0])))
    must(twice["events"] == 0, f"{name}: nothing comes twice", said=twice)
    print(f"   {name}: {len(expected)} pieces, {time.monotonic() - started:.1f} s", flush=True)


def holds(sent, expected):
    """True if the sent piece contains the expected one: agents may add notices to a text."""
    if isinstance(expected[1], str) and isinstance(sent[1], str):
        return sent[0] == expected[0] and expected[1] in sent[1]
    return sent == expected


def is_tested(agent, session):
    everything = "TREERING_TEST_ALL" in os.environ
    if agent == "claude-code":
        return everything or session in SOME
    return session in (SOME if everything else FEW)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("data", type=Path)
    parser.add_argument("programs", nargs="+", metavar="FORMAT=PROGRAM")
    args = parser.parse_args()
    programs = dict(one.split("=", 1) for one in args.programs)
    wanted = [
        (agent, program, session)
        for agent, program in programs.items()
        for session in sessions(args.data)
        if is_tested(agent, session[0])
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(check, args.binary, program, Path(folder) / str(number), agent, session)
            for number, (agent, program, session) in enumerate(wanted)
        ]
        faults = [str(fault) for fault in (job.exception() for job in jobs) if fault]
    must(not faults, "\n".join(faults))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"agents: not as it must be: {error}")
