"""Runs agents under real instrumentations and checks what a server recorded of them.

Usage: otlp_session.py BINARY WORK    (started with a Python that has the instrumentations)
       otlp_session.py openai STEPS | otlp_session.py pydantic_ai STEPS    (the agents)
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "clients/python/tests/adapters"))

CALL = 'call weather {"city":"Lisbon"}'
RESULT = '{"city":"Lisbon","degrees":21}'


def openai_agent(steps: int) -> None:
    """A tool loop without a framework: every request is its own trace."""
    import openai

    client = openai.OpenAI()
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    messages = [{"role": "system", "content": "Be brief."}]
    for step in range(steps):
        messages.append({"role": "user", "content": CALL if step % 2 == 0 else f"Step {step}"})
        while True:
            answer = client.chat.completions.create(
                model="gpt-4o", messages=messages, tools=[tool]
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
            if not message.tool_calls:
                break
    print(json.dumps(messages))


def pydantic_ai_agent(steps: int) -> None:
    """A pydantic_ai agent with a tool; `instrument_all` turns tracing on."""
    from pydantic_ai import Agent

    Agent.instrument_all()
    agent = Agent("openai-chat:gpt-4o", system_prompt="Be brief.", name="helper")

    @agent.tool_plain
    def weather(city: str) -> dict:
        return {"city": city, "degrees": 21}

    history = []
    for step in range(steps):
        asked = CALL if step % 2 == 0 else f"Step {step}"
        history = agent.run_sync(asked, message_history=history).all_messages()
    messages = []
    for message in history:
        for part in message.parts:
            if part.part_kind in ("user-prompt", "system-prompt", "text"):
                kinds = {"user-prompt": "user", "system-prompt": "system", "text": "assistant"}
                messages.append({"role": kinds[part.part_kind], "content": part.content})
            elif part.part_kind == "tool-call":
                function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
                call = {"id": part.tool_call_id, "type": "function", "function": function}
                messages[-1]["tool_calls"] = [call]
            elif part.part_kind == "tool-return":
                content = part.model_response_str()
                call_id = part.tool_call_id
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    print(json.dumps(messages))


@contextmanager
def serving(binary: str, data: Path):
    """A server on a folder; it ends with this process."""
    arguments = ["serve", "--json", "--data", data, "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(
        [binary, *arguments, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield json.loads(server.stdout.readline())["serving"]
    server.stdin.close()
    assert server.wait() == 0


def run(agent: str, steps: int, url: str, model_url: str) -> list[dict]:
    """Runs an agent configured by environment variables alone."""
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": agent,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "OPENAI_API_KEY": "none",
    }
    if agent == "pydantic_ai":
        # pydantic_ai traces its model calls itself.
        environment["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "openai"
    instrument = Path(sys.executable).parent / "opentelemetry-instrument"
    agent_command = [sys.executable, __file__, agent, str(steps)]
    done = subprocess.run(
        [instrument, *agent_command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def plain(messages: list[dict]) -> list[tuple]:
    """Messages in a comparable form, without the system prompt, which a store keeps separately."""
    said = []
    for message in messages:
        if message["role"] == "system":
            continue
        calls = tuple(
            (
                call["id"],
                call["function"]["name"],
                json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True),
            )
            for call in message.get("tool_calls") or ()
        )
        content = message.get("content") or ""
        if message["role"] == "tool":
            content = json.dumps(json.loads(content), sort_keys=True)
        said.append((message["role"], content, message.get("tool_call_id"), calls))
    return said


def recorded(binary: str, url: str, service: str) -> dict:
    """The export of a service's only conversation."""
    command = [binary, "ls", "--server", url, "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = [json.loads(line) for line in out.splitlines()]
    of_service = [
        one for one in listed if (one.get("labels") or {}).get("service.name") == service
    ]
    assert len(of_service) == 1, listed
    identity = of_service[0]["conversation"]
    command = [binary, "export", identity, "--format", "openai-chat", "--server", url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {**json.loads(out.splitlines()[0]), "head": int(of_service[0]["head"])}


def main(binary: str, work: Path) -> None:
    import model

    with model.serving() as asked:
        for agent in ("openai", "pydantic_ai"):
            heads = []
            for steps in (2, 50):
                with serving(binary, work / f"{agent}-{steps}") as url:
                    said = run(agent, steps, url, asked.url)
                    kept = recorded(binary, url, agent)
                assert plain(kept["messages"]) == plain(said), (kept, said)
                heads.append(kept["head"])
            # Two steps add seven events.
            assert heads[1] - heads[0] == 24 * 7, heads
            print(f"   {agent}: 50 steps, {heads[1]} events, each message once")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["openai", steps]:
            openai_agent(int(steps))
        case ["pydantic_ai", steps]:
            pydantic_ai_agent(int(steps))
        case [binary, work]:
            main(binary, Path(work))
