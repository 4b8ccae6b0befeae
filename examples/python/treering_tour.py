"""A tour of a running Treering server, from Python.

    treering serve --data ./store            # in another terminal
    python treering_tour.py 127.0.0.1:7171

Its tools really run: they read the API's own .proto files. It checks everything
that it prints; if a check fails, it prints which one, and exits with 1.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from client import (
    PROTO,
    Treering,
    created,
    decision,
    event_pb2,
    message,
    refusal,
    text_of,
    tool_call,
    tool_pb2,
    tool_result,
)


def must(fact, what, **seen):
    if not fact:
        raise AssertionError(f"{what}; seen: {seen}")


def say(step, text):
    print(f"{step:<10} {text}")


# ---- the agent's tools ----


def list_files(pattern):
    return "\n".join(sorted(str(f.relative_to(PROTO)) for f in PROTO.rglob(pattern)))


def read_file(path):
    return (PROTO / path).read_text()


# ---- the tour ----


def append_a_turn(db):
    """A conversation: a question, and two tool calls that run in parallel."""
    asked = db.append(
        [
            created("A tour from Python"),
            message("user", "Which call follows a conversation as it grows?"),
            message("assistant", "I look at the API."),
            tool_call("call_list", "list_files", {"pattern": "*.proto"}),
            tool_call("call_read", "read_file", {"path": "treering/v1/events.proto"}),
        ],
    )
    conversation = asked.events[0].conversation_id
    # The last call gets its result first.
    done = db.append(
        [
            tool_result("call_read", read_file("treering/v1/events.proto")),
            tool_result("call_list", list_files("*.proto")),
        ],
        conversation,
    )
    revisions = [e.revision for e in [*asked.events, *done.events]]
    must(revisions == [1, 2, 3, 4, 5, 6, 7], "revisions have no gaps", revisions=revisions)
    say("append", f"conversation {conversation}, revisions 1 to 7")
    return conversation, done.events[-1]


def fork_and_read(db, conversation):
    """Two answers to the same question, on two branches."""
    fork = db.fork(conversation, at=7, name="shorter")
    db.append([message("assistant", "Subscribe follows it, after it has caught up.")], conversation)
    db.append([message("assistant", "Subscribe.")], conversation, branch="shorter")
    histories = {}
    for branch in ("main", "shorter"):
        events = list(db.read(conversation, branch))
        histories[branch] = [e.revision for e in events]
        say("read", f"{branch}: {histories[branch]} ends with {text_of(events[-1])!r}")
    must(histories["main"] == [1, 2, 3, 4, 5, 6, 7, 9], "main keeps its own line", **histories)
    must(
        histories["shorter"] == [1, 2, 3, 4, 5, 6, 7, fork.branch.branch_id, 10],
        "the fork shares 1 to 7",
        **histories,
    )


def follow(db, conversation):
    """Existing events, then CaughtUp, then new events."""
    stream = db.subscribe(conversation, "main", after=7)
    seen = []
    for item in stream:
        which = item.WhichOneof("item")
        if which == "caught_up":
            seen.append("caught up")
            db.append([message("user", "Thank you.")], conversation)
        elif which == "event":
            seen.append(item.event.revision)
            if "caught up" in seen:
                break
    stream.cancel()
    must(seen == [9, "caught up", 11], "a subscription catches up, then follows", seen=seen)
    say("subscribe", f"{seen}")


def search_results(db, conversation, appended):
    """A tool result can be searched at once; hits have byte ranges."""
    hits = db.search(
        '"stored events from a place on"',
        conversation_id=conversation,
        tools=["read_file"],
        at_least=appended.position,
    )
    must(len(hits) == 1, "one passage has the phrase", hits=len(hits))
    hit = hits[0]
    must((hit.call_id, hit.revision) == ("call_read", 6), "the hit names the result", hit=hit)
    text = read_file("treering/v1/events.proto").encode()
    passage = text[hit.byte_start : hit.byte_end].decode()
    must("stored events from a place on" in passage, "the byte range holds the phrase", passage=passage)
    # The same bytes from the server, without the rest of the result.
    request = tool_pb2.GetResultRequest(
        conversation_id=conversation,
        revision=hit.revision,
        byte_start=hit.byte_start,
        byte_length=hit.byte_end - hit.byte_start,
    )
    chunks = db.tools.GetResult(request, metadata=db.metadata, timeout=30)
    fetched = b"".join(part.chunk for part in chunks).decode()
    must(fetched == passage, "GetResult gives the same bytes", fetched=fetched)
    where = f"revision {hit.revision}, line {hit.line}, bytes {hit.byte_start}-{hit.byte_end}"
    say("search", f"{hit.tool} {hit.call_id}: {where}")


def lose_a_race(db, conversation):
    """A writer that has not seen the last event is refused, with the facts."""
    try:
        db.append([message("user", "Too late")], conversation, "main", expected=7)
    except grpc.RpcError as error:
        reason, facts = refusal(error)
        must(error.code() == grpc.StatusCode.ABORTED, "the code", code=error.code())
        must(reason == "REVISION_MISMATCH", "the rule", reason=reason)
        must((facts["expected"], facts["actual"]) == ("7", "11"), "the facts", **facts)
        say("refused", f"{reason}: expected {facts['expected']}, the head is {facts['actual']}")
    else:
        raise AssertionError("an append at a wrong revision was taken")


def repeat_a_key(db, conversation):
    """A retry after a lost answer does not append the events again."""
    send = lambda text: db.append(  # noqa: E731
        [message("assistant", text)], conversation, "main", key=f"{conversation}/1"
    )
    first, again = send("You are welcome."), send("You are welcome.")
    must(again.repeated_key and not first.repeated_key, "the second is known", again=again)
    must(first.events == again.events, "both answers are the same", first=first, again=again)
    say("key", f"sent twice, stored once, as revision {again.events[0].revision}")
    try:
        send("Something else.")
    except grpc.RpcError as error:
        say("refused", f"{refusal(error)[0]}: the key was used for other content")
        must(error.code() == grpc.StatusCode.ALREADY_EXISTS, "the code", code=error.code())
    else:
        raise AssertionError("a used key was taken for other content")


def approve(db, conversation):
    """One program waits, another decides, for exactly these arguments."""
    ask = tool_call("call_count", "read_file", {"path": "treering/v1/tool.proto"}, True)
    db.append([message("user", "And the tools?"), ask], conversation)
    result = tool_result("call_count", read_file("treering/v1/tool.proto"))
    with ThreadPoolExecutor() as other:
        waiting = other.submit(db.wait_for_decision, conversation, "call_count", 20)
        (call,) = db.pending(conversation)
        try:
            db.append([result], conversation)
        except grpc.RpcError as error:
            say("refused", f"{refusal(error)[0]}: nobody has approved it")
            must(refusal(error)[0] == "CALL_NOT_APPROVED", "the rule", error=error)
        else:
            raise AssertionError("a call that nobody approved could succeed")
        changed = tool_pb2.ToolCall(call_id=call.call_id, arguments_hash=bytes(32))
        try:
            db.append([decision(changed, "approved", by="ada")], conversation)
        except grpc.RpcError as error:
            say("refused", f"{refusal(error)[0]}: an approval of other arguments")
            must(refusal(error)[0] == "ARGUMENTS_CHANGED", "the rule", error=error)
        else:
            raise AssertionError("an approval of other arguments was taken")
        db.append([decision(call, "approved", by="ada", reason="only reads")], conversation)
        waited = waiting.result()
    must(waited.decided and waited.call.decided_by == "ada", "the wait has ended", waited=waited)
    db.append([result], conversation)
    must(not db.pending(conversation), "nothing waits any more")
    arguments = waited.call.arguments.decode()
    say("approve", f"{waited.call.tool} {arguments} by {waited.call.decided_by}, then run")


def build_for_two(db, conversation):
    """One fork, two providers: each gets the same history in its own format."""
    asked = db.append([message("user", "In one word?")], conversation, branch="shorter")
    at = asked.events[-1].position
    chat, told = db.build(conversation, "openai-chat", "shorter", "gpt-4o", at_least=at)
    answers = [m["tool_call_id"] for m in chat["messages"] if m["role"] == "tool"]
    must(answers == ["call_list", "call_read"], "one tool message a call", answers=answers)
    must(chat["messages"][-1]["content"] == "In one word?", "the question is last", chat=chat)
    must(not told.basis.estimate, "OpenAI's tokens are counted", basis=told.basis)
    say("build", f"openai-chat: {len(chat['messages'])} messages, {told.tokens} tokens")
    claude, told = db.build(conversation, "anthropic", "shorter", "claude-sonnet-4-5")
    batches = [
        [part["tool_use_id"] for part in m["content"] if part["type"] == "tool_result"]
        for m in claude["messages"]
        if isinstance(m["content"], list)
    ]
    batches = [batch for batch in batches if batch]
    must(batches == [["call_list", "call_read"]], "one message a batch", batches=batches)
    must(told.basis.estimate, "other tokens are estimated", basis=told.basis)
    say("build", f"anthropic: {len(claude['messages'])} messages, about {told.tokens} tokens")


def tour(address):
    db = Treering(address)
    try:
        conversation, last = append_a_turn(db)
        fork_and_read(db, conversation)
        follow(db, conversation)
        search_results(db, conversation, last)
        lose_a_race(db, conversation)
        repeat_a_key(db, conversation)
        approve(db, conversation)
        build_for_two(db, conversation)
        kinds = [event_pb2.EVENT_KIND_TOOL_RESULT_RECORDED]
        results = list(db.read(conversation, "main", kinds=kinds))
        must(len(results) == 3, "every result is there", results=len(results))
        say("done", f"see it: treering log --server http://{address} {conversation}")
    finally:
        db.close()


if __name__ == "__main__":
    try:
        tour(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7171")
    except AssertionError as error:
        sys.exit(f"not as it must be: {error}")
    except grpc.RpcError as error:
        sys.exit(f"the server answered {error.code().name}: {error.details()}")
