"""The basic operations of an agent: messages, tool calls, requests, reads, forks, compaction."""

from __future__ import annotations

import copy
import json
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import treering
from treering import new

from .conftest import texts


# An agent's whole step: the events must be stored in order, and the request for each provider
# must have that provider's format.
def test_a_step_of_an_agent(db: treering.Treering) -> None:
    conv = db.create("Ports", system="Be brief.", model="claude-sonnet-4-5")
    conv.user("Where is the port set?", author="ada")
    answer = conv.assistant("I look.", tool_calls=[("c1", "grep", {"pattern": "port"})])
    [call] = answer.calls
    with call:
        assert call.arguments == {"pattern": "port"}
        call.result("config.py:12: PORT = 7171")
    conv.assistant("In config.py.")
    kinds = [event.kind for event in conv.events()]
    assert kinds == [
        "conversation_created",
        "system_prompt_set",
        "message_appended",
        "message_appended",
        "tool_call_requested",
        "tool_call_started",
        "tool_result_recorded",
        "message_appended",
    ]
    anthropic = conv.request("anthropic")
    assert anthropic["model"] == "claude-sonnet-4-5"
    assert anthropic["messages"][1]["content"][1]["type"] == "tool_use"
    chat = conv.request("openai-chat", model="gpt-4o")
    assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
    assert chat["messages"][2]["tool_calls"][0]["id"] == "c1"
    assert conv.request("gemini", model="gemini-2.5-pro")["contents"]
    assert conv.request("openai-responses", model="gpt-5")["input"]
    assert chat.tokens > 0 and chat.revision == 8
    assert conv.explain("openai-chat", model="gpt-4o").tokens == chat.tokens


# Arguments that are not JSON could not be recorded, and reading them failed. They are stored as
# the text that the model wrote, and marked, in events and in requests.
def test_arguments_that_are_no_json(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.user("Go.")
    for number, given in enumerate(['{"a": 1', "", "rm -rf build"]):
        call = conv.assistant(tool_calls=[(f"c{number}", "shell", given)]).calls[0]
        assert call.arguments == given
        [open_call] = conv.open_calls()
        assert open_call.arguments == given
        call.fail("those are no arguments")
        event = next(event for event in conv.events() if event.call_id == f"c{number}")
        assert (event.arguments, event.arguments_not_json) == (given, True)
        recorded = conv.recorded("shell", given)
        assert recorded is not None and recorded.error_message == "those are no arguments"
    calls = conv.request("anthropic", model="claude-sonnet-4-5")["messages"][1::2]
    assert [call["content"][0]["input"] for call in calls] == [
        {"invalid_arguments": '{"a": 1'},
        {},
        {"invalid_arguments": "rm -rf build"},
    ]
    broken = conv.assistant(tool_calls=[("c3", "shell", "ls")]).calls[0]
    assert broken.run(lambda path: path) is None
    assert conv.result("c3").error == "TypeError: the arguments are not a JSON object"
    fine = conv.tool_call("ls", {"path": "."})
    fine.start()
    event = next(event for event in conv.events() if event.call_id == fine.call_id)
    assert (event.arguments, event.arguments_not_json) == ({"path": "."}, False)


# Only importers could store fields of a message other than its parts. `raw` takes a JSON object.
def test_the_rest_of_a_message(conv: treering.Conversation) -> None:
    rest = new.rest({"annotations": [], "phase": None}, origin="openai-chat")
    receipt = conv.append([new.assistant("Found it.", raw=rest)])
    event = next(e for e in conv.events() if e.revision == receipt.revision)
    raw = event.proto.message_appended.raw
    assert (raw.origin, json.loads(raw.data)) == ("openai-chat", {"annotations": [], "phase": None})
    with pytest.raises(treering.TreeringError, match=r"raw\.data: must be a JSON object"):
        rest.data = b"[]"
        conv.append([new.assistant("Found it.", raw=rest)])


# A state had only references to prompts and values, and each took another call to read.
def test_a_state_with_its_values(conv: treering.Conversation) -> None:
    conv.append([new.system("Be kind."), new.tools([new.tool("ls", strict=True)])])
    conv.append([new.system("Be brief.")])
    conv.set_context({"cwd": "/"})
    assert not conv.state().HasField("values")
    values = conv.state(with_values=True).values
    assert values.system_prompt == "Be brief." and not values.HasField("summary")
    assert values.tools_defined[0].strict
    assert dict(values.active_context) == {"cwd": '"/"'} and not values.left_out
    assert conv.state(as_of=2, with_values=True).values.system_prompt == "Be kind."


# If a person denies a call, the tool must not run: the block is never entered.
def test_approvals(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.user("Clean up.")
    call = conv.tool_call("rm", {"path": "a"}, needs_approval=True).request()
    with pytest.raises(treering.NotDecided):
        call.wait_for_approval(timeout=0.1)
    with pytest.raises(treering.CallNotApproved):
        call.start()
    [waiting] = db.pending()
    assert waiting.arguments == {"path": "a"} and waiting.status == "pending_approval"
    db.approve(waiting, by="ada")
    with call:
        call.result("gone")
    second = conv.tool_call("rm", {"path": "/"}, needs_approval=True).request()
    db.deny(conv.pending()[0], by="ada", reason="not the root")
    with pytest.raises(treering.CallDenied, match="not the root") as denied:
        with second:
            pytest.fail("it must not run")
    assert denied.value.decided_by == "ada"
    [last, first] = conv.tool_calls()
    assert (first.status, last.status) == ("succeeded", "cancelled")
    assert conv.open_calls() == []
    # A call that was denied while the agent was stopped ends when the agent resumes.
    conv.tool_call("rm", {"path": "c"}, needs_approval=True, call_id="away").request()
    db.deny(conv.pending()[0], by="ada")
    [left] = conv.open_calls()
    assert left.run(lambda path: pytest.fail("it must not run")) is None
    assert conv.open_calls() == []
    # An id is enough if only one waiting call has it.
    conv.tool_call("rm", {"path": "d"}, needs_approval=True, call_id="named").request()
    db.approve("named", by="ada")
    with pytest.raises(treering.CallNotFound, match="no call named waits for a decision"):
        db.deny("named", by="ada")
    twice = [conv, db.create("Another")]
    for each in twice:
        each.tool_call("rm", {"path": "e"}, needs_approval=True, call_id="twice").request()
    with pytest.raises(treering.Refused, match=r"2 calls twice wait .*pass one") as several:
        db.approve("twice", by="ada")
    assert all(each.id in str(several.value) for each in twice)
    db.deny(twice[1].pending()[0], by="ada")
    db.deny("twice", by="ada")
    # An approval is valid only for the arguments that were shown: another hash is refused.
    third = conv.tool_call("rm", {"path": "b"}, needs_approval=True).request()
    with pytest.raises(treering.ArgumentsChanged):
        conv.append([new.decision(third.call_id, "approved", b"\0" * 32, by="eve")])


# A tool that raises must not leave an open call, and the exception must propagate.
def test_exceptions_are_recorded(conv: treering.Conversation) -> None:
    with pytest.raises(KeyError):
        with conv.tool_call("lookup"):
            raise KeyError("name")
    with pytest.raises(KeyboardInterrupt):
        with conv.tool_call("sleep"):
            raise KeyboardInterrupt
    with conv.tool_call("nothing"):
        pass
    nothing, sleep, lookup = conv.tool_calls()
    assert (lookup.status, lookup.proto.error_message) == ("failed", "KeyError: 'name'")
    assert sleep.status == "cancelled"
    assert (nothing.status, nothing.result_head) == ("succeeded", "")
    with conv.tool_call("once") as call:
        call.fail("exit code 1", "the output")
    assert conv.result(call.call_id).error == "exit code 1"


# An agent that crashed continues with its open calls.
def test_open_calls_are_found_again(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.assistant(tool_calls=[("c1", "ls", {"path": "."}), ("c2", "cat", {"path": "x"})])
    conv.tool_call("later", call_id="c3", needs_approval=True).request()
    again = db.conversation(conv.id)
    calls = again.open_calls()
    assert [(call.tool, call.needs_approval) for call in calls] == [
        ("ls", False),
        ("cat", False),
        ("later", True),
    ]
    for call in calls[:2]:
        with call:
            call.result(call.arguments["path"])
    assert [call.call_id for call in again.open_calls()] == ["c3"]
    # A fork inherits open calls, also a fork into a new conversation.
    for fork in (conv.fork(), conv.fork(into="new", name="elsewhere")):
        assert [(call.call_id, call.arguments) for call in fork.open_calls()] == [("c3", {})]


def test_forks(conv: treering.Conversation) -> None:
    said = conv.user("Left or right?")
    conv.assistant("Left.")
    right = conv.fork(at=said.revision, name="right")
    right.assistant("Right.")
    assert texts(conv) == ["Left or right?", "Left."]
    assert texts(right) == ["Left or right?", "Right."]
    unnamed = conv.fork(said.revision)
    assert unnamed.branch.startswith("fork-")
    difference = conv.on("main").diff(right)
    assert difference.ancestor_revision == said.revision
    # A branch begins with the event that forked it.
    assert [event.text for event in difference.right if event.text] == ["Right."]
    assert [step.name for step in right.lineage().steps] == ["right", "main"]
    other = conv.fork(at=said.revision, into="new", name="Another")
    other.assistant("Straight on.")
    assert other.id != conv.id and texts(other) == ["Left or right?", "Straight on."]
    right.activate()
    assert texts(treering.Conversation(conv._transport, conv.id))[-1] == "Right."
    renamed = unnamed.rename("third")
    renamed.archive("enough")
    with pytest.raises(treering.BranchArchived):
        renamed.user("one more")
    assert {branch.name: branch.archived for branch in conv.branches()} == {
        "main": False,
        "right": False,
        "third": True,
    }
    conv.on("main").annotate(said.revision, score=0.5, label="good", comment="short")


# A request must stay within its budget, and contain the last message of the user in full.
def test_budgets(conv: treering.Conversation) -> None:
    for number in range(20):
        conv.user(f"Question {number}")
        with conv.tool_call("read", {"n": number}) as call:
            call.result("\n".join(f"line {n} of file {number}" for n in range(400)))
        conv.assistant(f"Answer {number}")
    conv.user("And now?")
    whole = conv.request("openai-chat", model="gpt-4o")
    small = conv.request("openai-chat", model="gpt-4o", budget=3_000)
    assert small.tokens <= 3_000 < whole.tokens and not small.over_budget
    assert small["messages"][-1]["content"] == "And now?"
    assert small.explanation.tokens_before_budget >= whole.tokens
    short = conv.request(
        "openai-chat",
        model="gpt-4o",
        policy={"tool_results": "turn_end", "enhancers": {"knowledge": {"enabled": True}}},
    )
    assert short.tokens < whole.tokens
    assert conv.request("openai-chat", model="gpt-4o", budget=5).over_budget
    with pytest.raises(treering.BadPolicy, match="tool_result"):
        conv.request(policy={"tool_result": "keep"})
    past = conv.request("openai-chat", model="gpt-4o", as_of=2)
    assert [message["content"] for message in past["messages"]] == ["Question 0"]


def test_compaction(conv: treering.Conversation) -> None:
    assert not conv.compact()
    for number in range(6):
        conv.user(f"Question {number}")
        conv.assistant(f"Answer {number}")
    plan = conv.plan_compaction(keep_turns=2)
    assert plan.summarised_turns == 4 and "Question 0" in plan.material
    done = conv.compact(lambda plan: f"They asked {plan.summarised_turns} questions.", keep_turns=2)
    assert done and done.cut_revision == plan.cut_revision
    body = conv.request("openai-chat", model="gpt-4o")
    assert "They asked 4 questions." in str(body) and "Question 0" not in str(body)
    assert [event.text for event in conv.expand() if event.role == "user"] == [
        f"Question {number}" for number in range(4)
    ]
    with pytest.raises(treering.NotATurnBoundary):
        conv.compact("Here?", cut_revision=conv.head() - 2)
    assert conv.compact("By hand.", keep_turns=0).cut_revision > done.cut_revision


def test_contexts(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.set_context({"file": "a.py", "count": 3}, provider="editor")
    conv.set_context({"file": "b.py"}, remove=["count"])
    assert conv.context() == {"file": "b.py"}
    assert conv.context("nothing") == {}
    db.set_context({"user": {"name": "Ada"}})
    assert db.context() == {"user": {"name": "Ada"}}
    conv.user("Who am I?")
    body = str(conv.request("anthropic", model="claude-sonnet-4-5"))
    assert "b.py" in body and "Ada" in body
    with conv.watch_context() as changes:
        first = next(changes)
        assert (first.key, first.value) == ("file", "b.py")
        conv.set_context({"line": 7}, remove=["file"])
        later = {(change.key, change.removed) for change in (next(changes), next(changes))}
        assert later == {("line", False), ("file", True)}


def test_sub_contexts(conv: treering.Conversation) -> None:
    conv.user("Count the files.")
    call = conv.tool_call("delegate", {"task": "count"}).request()
    with conv.spawn("count", call=call, system="You count.") as child:
        child.user("How many?")
        child.assistant("Twelve.")
    assert conv.result(call.call_id).text == "Twelve."
    with pytest.raises(ZeroDivisionError):
        with conv.spawn("divide") as child:
            raise ZeroDivisionError("division by zero")
    with pytest.raises(treering.Sealed):
        child.user("still there?")
    third = conv.spawn("third")
    third.return_("by hand", success=True)
    assert len(conv.lineage().children) == 3


def test_replay(conv: treering.Conversation) -> None:
    for answer in ("first", "second"):
        with conv.tool_call("date", {"zone": "utc"}) as call:
            call.result(answer)
    replay = conv.replay()
    asked = [replay.call("date", {"zone": "utc"}) for _ in range(2)]
    assert asked == ["first", "second"]
    with pytest.raises(treering.NotRecorded):
        replay.call("date", {"zone": "cet"})
    assert replay.missed == [("date", {"zone": "cet"})]
    last = conv.recorded("date", {"zone": "utc"})
    assert last is not None and last.parts[0].text == "second"


def test_knowledge(conv: treering.Conversation) -> None:
    with conv.tool_call("Read", {"file_path": "src/main.py"}) as call:
        call.result("import os\n")
    assert [file.path for file in conv.knowledge().files] == ["src/main.py"]
    filled = conv.suggest_arguments("Read", {"file_path": None})
    assert b"src/main.py" in filled.arguments
    assert conv.missing_prerequisites("Read") == []
    assert isinstance(conv.guidance(), str)
    assert conv.snapshots()[0].tool_name == "Read"


# Requests must return a model's answers to its own provider unchanged: reasoning with its
# signature, calls with their ids and arguments.
def test_answers_of_providers_come_back(db: treering.Treering) -> None:
    anthropic = {
        "id": "msg_1",
        "model": "claude-sonnet-4-5",
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "They want the port.", "signature": "c2lnbmVk"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "grep", "input": {"pattern": "port"}},
        ],
        "usage": {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 50},
    }
    conv = db.create(model="claude-sonnet-4-5")
    conv.user("Where?")
    for call in conv.record("anthropic", anthropic).calls:
        with call:
            call.result("there")
    [_, said, results] = conv.request("anthropic")["messages"]
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use"]
    assert said["content"][0]["signature"] == "c2lnbmVk"
    assert results["content"][0]["tool_use_id"] == "toolu_1"

    chat = {
        "id": "chatcmpl-1",
        "model": "gpt-4o",
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "grep", "arguments": '{"pattern":  "port"}'},
                        }
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    conv = db.create(model="gpt-4o")
    conv.user("Where?")
    [call] = conv.record("openai-chat", chat).calls
    call.result("there")
    [_, said, _] = conv.request("openai-chat")["messages"]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"pattern":  "port"}'

    responses = {
        "id": "resp_1",
        "model": "gpt-5",
        "status": "completed",
        "output": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "A port."}],
                "encrypted_content": "Z2VoZWlt",
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "grep",
                "arguments": "{}",
            },
        ],
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    conv = db.create(model="gpt-5")
    conv.user("Where?")
    [call] = conv.record("openai-responses", responses).calls
    call.result("there")
    items = conv.request("openai-responses")["input"]
    kinds = [item["type"] for item in items]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output"]
    # Items keep the ids that OpenAI gave them.
    assert [item.get("id") for item in items[1:]] == ["rs_1", "fc_1", None]

    gemini = {
        "responseId": "r1",
        "modelVersion": "gemini-2.5-pro",
        "candidates": [
            {
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "I look."},
                        {"functionCall": {"name": "grep", "args": {"pattern": "port"}}},
                        {"functionCall": {"name": "ls", "args": {}}},
                    ],
                },
            }
        ],
    }
    conv = db.create(model="gemini-2.5-pro")
    conv.user("Where?")
    for call in conv.record("gemini", gemini).calls:
        call.result("there")
    [_, said, results] = conv.request("gemini")["contents"]
    assert [next(iter(part)) for part in results["parts"]] == ["functionResponse"] * 2
    with pytest.raises(TypeError):
        conv.record("anthropic", "no answer")


# Servers with Gemini's API repeat the id of an answer, or give none. A call of the second answer
# got the id of an open call of the first, and the answer was refused.
def test_calls_of_gemini_have_ids_of_their_own(db: treering.Treering) -> None:
    parts: list[dict[str, object]] = [
        {"functionCall": {"name": name, "args": {}}} for name in ("grep", "ls")
    ]
    said = {"candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": parts}}]}
    conv = db.create(model="gemini-2.5-pro")
    conv.user("Where?")
    ids = set[str]()
    for id in ("r1", "r1", "", ""):
        ids.update(call.call_id for call in conv.record("gemini", {**said, "responseId": id}).calls)
    assert len(ids) == 8
    # A repeated write returns the same ids.
    first, second = (
        conv.record("gemini", {**said, "responseId": "r1"}, idempotency_key="answer-5")
        for _ in range(2)
    )
    assert first.receipt.revision == second.receipt.revision
    assert [call.call_id for call in first.calls] == [call.call_id for call in second.calls]


# OpenAI and Gemini report cached tokens as part of the input, Anthropic beside it. A sum over the
# conversations of several providers counted some of them twice.
def test_usage_has_cached_tokens_beside_the_input(db: treering.Treering) -> None:
    anthropic = {
        "content": [{"type": "text", "text": "So"}],
        "usage": {"input_tokens": 60, "output_tokens": 20, "cache_read_input_tokens": 40},
    }
    chat = {
        "choices": [{"message": {"content": "So"}}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 40},
            "completion_tokens_details": {"reasoning_tokens": 5},
        },
    }
    gemini = {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "So"}]}}],
        "usageMetadata": {
            "promptTokenCount": 100,
            "candidatesTokenCount": 15,
            "thoughtsTokenCount": 5,
            "cachedContentTokenCount": 40,
        },
    }
    answers: dict[Any, Any] = {"anthropic": anthropic, "openai-chat": chat, "gemini": gemini}
    for provider, body in answers.items():
        conv = db.create()
        conv.user("So?")
        conv.record(provider, body)
        usage = conv.messages()[-1].proto.message_appended.usage
        counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens)
        assert counts == (60, 40, 20), provider


def test_media_and_events_of_your_own(conv: treering.Conversation) -> None:
    conv.user("What is this?", new.image(b"\x89PNG", "image/png"), new.json({"a": 1}))
    body = conv.request("anthropic", model="claude-sonnet-4-5")
    assert body["messages"][0]["content"][1]["type"] == "image"
    conv.custom("trace", {"ms": 12})
    conv.custom("blob", b"\x00\x01")
    custom = [event.body for event in conv.events(kinds=["custom"])]
    assert [(body.type_name, body.content_type) for body in custom] == [
        ("trace", "application/json"),
        ("blob", "application/octet-stream"),
    ]
    sealed = conv.seal("done", "It was a picture.")
    assert sealed.revision == conv.head()


def test_search(db: treering.Treering) -> None:
    conv = db.create("Disks", labels={"team": "ops"}, source="tests", source_id="disks-1")
    with conv.tool_call("bash", {"command": "df /var"}) as call:
        call.result("one\ntwo\nNo space left on device\nfour\nfive")
    with conv.tool_call("python", {"code": "1/0"}) as call:
        call.fail("ZeroDivisionError", "no space in the code")
    hits = db.search("space left", context_lines=1)
    assert hits[0].tool == "bash" and hits[0].line == 3 and hits.complete
    assert hits[0].proto.context.splitlines() == ["two", "No space left on device", "four"]
    assert [hit.tool for hit in db.search("space", success=False)] == ["python"]
    assert db.search("space", tools=["bash"], labels="team=ops", sources="tests").total == 1
    assert not db.search("space", labels="team=dev")
    assert [hit.line for hit in db.search(r"No \w+ left", regex=True)] == [3]
    assert conv.search("device", kinds=["tool_result_recorded"])
    # This server has no embedder.
    with pytest.raises(treering.NoEmbedder):
        db.search("car", by="meaning")
    with pytest.raises(treering.NoEmbedder):
        db.search("", similar_to=hits[0])
    with pytest.raises(treering.BadQuery):
        db.search("(", regex=True)
    with pytest.raises(TypeError, match="serch_for"):
        db.search("x", serch_for=1)  # type: ignore[call-arg]


def test_conversations_are_found_again(db: treering.Treering) -> None:
    made = [db.create(f"Number {n}", source="tests").id for n in range(7)]
    listed = [summary.conversation_id for summary in db.conversations(page_size=3)]
    assert listed == made[::-1]
    first = db.open("my-session", title="One")
    assert db.open("my-session", title="Two").id == first.id
    first.user("Hello")
    by_key = db.conversation("my-session")
    assert texts(by_key) == ["Hello"]


def test_the_store(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.user("Hello")
    stats = db.stats()
    assert stats.events == 2 and stats.version == treering.__version__
    assert db.verify().sound and list(db.faults()) == []
    assert db.is_ready() and db.is_ready("treering.live") and not db.is_ready("nonsense")
    assert [event.kind for event in db.events(limit=2)] == [
        "conversation_created",
        "message_appended",
    ]
    assert next(db.events(backward=True)).text == "Hello"


# A list of messages that was imported must equal the request for the same provider.
def test_messages_that_were_a_list(db: treering.Treering) -> None:
    chat = [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "grep", "arguments": '{"pattern": "port"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "there"},
        {"role": "assistant", "content": "There."},
    ]
    conv = db.create(model="gpt-4o")
    conv.extend("openai-chat", chat)
    assert conv.request("openai-chat")["messages"] == chat

    blocks = [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "grep", "input": {"pattern": "port"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
                {"type": "text", "text": "Look elsewhere."},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
                },
            ],
        },
    ]
    conv = db.create(model="claude-sonnet-4-5")
    conv.extend("anthropic", blocks)
    [_, said, then] = conv.request("anthropic")["messages"]
    assert said["content"][1]["input"] == {"pattern": "port"}
    assert [block["type"] for block in then["content"]] == ["tool_result", "text", "image"]
    assert then["content"][0]["is_error"] and then["content"][2]["source"]["data"] == "iVBORw=="
    with pytest.raises(ValueError, match="openai-chat"):
        conv.extend("gemini", [])


# `run` records exceptions of the tool for the model, and raises errors of the store.
def test_calls_that_run_a_function(db: treering.Treering, conv: treering.Conversation) -> None:
    def fails() -> str:
        raise OSError("no such file")

    assert conv.tool_call("read").run(fails) is None
    with pytest.raises(OSError, match="no such"):
        conv.tool_call("read").run(fails, raises=True)
    assert [call.proto.error_message for call in conv.tool_calls()] == [
        "OSError: no such file",
        "OSError: no such file",
    ]
    risky = conv.tool_call("rm", {"path": "/"}, needs_approval=True).request()
    db.deny(db.pending()[0], by="ada")
    assert risky.run(lambda path: pytest.fail("it must not run")) is None
    with pytest.raises(treering.CallAlreadyStarted):
        call = conv.tool_call("twice").request()
        conv.append([new.tool_started(call.call_id)])
        call.run(lambda: "once")


# A model reads a shortened result in full with the tool in the request.
def test_results_that_were_shortened_are_read_again(db: treering.Treering) -> None:
    conv = db.create(policies={"context": {"tool_results": "turn_end", "read_tool": True}})
    conv.user("Test it.")
    with conv.tool_call("bash", {"command": "cargo test"}) as call:
        call.result("\n".join(f"test number_{n} ... ok" for n in range(500)))
    conv.assistant("It works.")
    conv.user("Which was the last?")
    request = conv.request("anthropic", model="claude-sonnet-4-5")
    [tool] = [tool for tool in request["tools"] if tool["name"] == "treering_read_result"]
    [revision] = [event.revision for event in conv.events(kinds=["tool_result_recorded"])]
    assert f"#{revision}" in str(request) and "number_250" not in str(request)
    keys = list(tool["input_schema"]["properties"])
    read = conv.read_result({keys[0]: f"#{revision}"})
    assert read.text.endswith("test number_499 ... ok") and read.tool == "bash"


def test_settings_change_on_the_way(db: treering.Treering) -> None:
    conv = db.create("Settings", model="gpt-4o", mode="planning", parameters={"temperature": 0.2})
    conv.user("Hello")
    conv.system("Be brief.")
    conv.define_tools([new.tool("ls", "Lists", guidance="Use it first.")])
    first = conv.request("openai-chat")
    assert (first["model"], first["temperature"]) == ("gpt-4o", 0.2)
    assert first["tools"][0]["function"]["name"] == "ls"
    conv.configure("gpt-4.1", mode="coding")
    assert conv.request("openai-chat")["model"] == "gpt-4.1"
    assert conv.state().branch.config.mode == "coding"
    assert conv.state(as_of=2).branch.config.mode == "planning"


def test_batches_over_branches(db: treering.Treering) -> None:
    conv = db.create("Batches")
    other = conv.fork(name="other")
    event = new.user("there")
    event.branch = "other"
    head = conv.on("main").head()
    with pytest.raises(treering.RevisionMismatch):
        db.append([new.user("here"), event], conversation=conv.id, branch="main", expected=99)
    db.append([new.user("here"), event], conversation=conv.id, branch="main", expected=head)
    assert (texts(conv.on("main")), texts(other)) == (["here"], ["there"])
    actors = db.create()
    actors.actor = "agent-7"
    actors.user("Who?")
    assert [event.actor for event in actors.events(kinds=["message_appended"])] == ["agent-7"]


def test_views_and_index_are_made_anew(tmp_path: Path) -> None:
    with treering.local(tmp_path / "store") as db:
        conv = db.create("Rebuilt")
        conv.user("A lighthouse at the quay")
        assert db.rebuild().events == 2
        assert db.search("lighthouse")[0].conversation_id == conv.id


def test_commands(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.user("Hello")
    log = db.command("log", conv.id)
    assert [line["revision"] for line in log] == [1, 2]
    with pytest.raises(treering.CommandFailed, match="no conversation nowhere") as failed:
        db.command("log", "nowhere")
    assert failed.value.exit_code == 3


# Returned objects can be used in sets, as JSON, copied and pickled.
def test_answers_are_values(db: treering.Treering, conv: treering.Conversation) -> None:
    conv.user("Hello")
    once, again = [set(conv.events()) for _ in range(2)]
    assert once == again and len(once | again) == 2
    assert set(db.search("hello")) == set(db.search("hello"))
    request = conv.request("openai-chat", model="gpt-4o")
    assert json.loads(json.dumps(request)) == json.loads(request.raw) == request
    sent = pickle.loads(pickle.dumps(request))
    assert sent == request and sent.tokens == request.tokens
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(next(conv.events()))).kind == "conversation_created"


# Generated idempotency keys expire. A key that a program gives does not, unless it sets `key_life`.
def test_keys_that_end(conv: treering.Conversation) -> None:
    life = timedelta(seconds=3)
    hello = [new.user("Hello")]
    first = conv.append(hello, idempotency_key="hello", key_life=life)
    assert conv.append(hello, idempotency_key="hello").repeated
    time.sleep(3.02)
    later = conv.append(hello, idempotency_key="hello", key_life=life)
    assert not later.repeated and later.revision == first.revision + 1
    with pytest.raises(ValueError, match="at least 1 second"):
        conv.append(hello, idempotency_key="other", key_life=timedelta(0))
    assert conv.head() == later.revision


# Pop and clear: `rewind` returns the removed events, keeps them on a branch, and the conversation
# continues without them.
def test_taking_back(conv: treering.Conversation) -> None:
    asked = conv.user("Left or right?")
    conv.assistant("Left.")
    rewound = conv.rewind(asked.revision, idempotency_key="pop")
    assert [event.text for event in rewound.events] == ["Left."]
    conv.user("Why not right?", expected=rewound.head)
    said = [event.text for event in conv.events(kinds=["message_appended"])]
    assert said[-2:] == ["Left or right?", "Why not right?"]
    again = conv.rewind(asked.revision, idempotency_key="pop")
    assert again.repeated and again.kept == rewound.kept
    kept = conv.on(rewound.kept).events(kinds=["message_appended"])
    assert [event.text for event in kept][-1] == "Left."
    with pytest.raises(treering.RevisionMismatch):
        conv.rewind(0, expected=rewound.head)
    assert conv.rewind(0).events
    assert not list(conv.events(kinds=["message_appended"]))
    names = {branch.name for branch in conv.branches()}
    assert {"main", rewound.kept} <= names


# A thread has an id that the program chose; its labels and metadata can be changed, and filter
# lists.
def test_threads_by_name(db: treering.Treering) -> None:
    created = new.created("Thread", source="tests", metadata={"user": {"id": 7}})
    thread = created.conversation_created
    first = db.append([new.user("Hello")], conversation="thread α", create_if_missing=thread)
    again = db.append([new.user("More")], conversation="thread α", create_if_missing=thread)
    assert (first.created, again.created) == (True, False)
    assert first.conversation_id == again.conversation_id
    conv = db.conversation(first.conversation_id)
    conv.change(title="Changed", labels={"team": "blue"}, metadata={"user": None, "draft": True})
    listed = list(db.conversations(labels={"team": "blue"}, metadata={"draft": True}))
    assert [one.title for one in listed] == ["Changed"]
    conv.change(labels={"team": None}, metadata={"draft": ...})
    assert not list(db.conversations(labels={"team": "blue"}))
    assert list(db.conversations(metadata={"user": None}, title="CHANGED"))
    copy = conv.fork(into="new", name="copy", keep_source=True, source_id="thread β")
    summary = copy.state().summary
    assert (summary.source, summary.source_id) == ("tests", "thread β")
