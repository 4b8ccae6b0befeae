"""Killed servers, killed programs, and high load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import treering
from treering import new
from treering._binary import find_binary
from treering.aio import AsyncTreering

from .conftest import Server, run, texts

# Seconds for a call with all its attempts: the oldest grpcio takes about 20 to reconnect.
PATIENCE = 120.0


# A server is killed between and during appends of a program that does not handle it: each line
# must be stored exactly once.
@pytest.mark.slow
def test_a_server_that_is_killed_while_lines_are_appended(server: Server) -> None:
    with treering.connect(server.address, timeout=PATIENCE) as db:
        conv = db.create("Through kills")
        written = threading.Event()

        def kill_now_and_then() -> None:
            for _ in range(3):
                written.wait(60)
                written.clear()
                server.kill()
                time.sleep(0.3)
                server.start()

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        for number in range(90):
            conv.user(f"Line {number}")
            if number in (20, 40, 60):
                written.set()
        killer.join()
        assert texts(conv) == [f"Line {number}" for number in range(90)]
        assert db.verify(deep=True).sound


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_same_with_asyncio(server: Server, how: signal.Signals) -> None:
    async def lines(db: AsyncTreering, name: str) -> list[str]:
        conv = await db.create(name)
        for number in range(40):
            await conv.user(f"Line {number}")
        return [event.text async for event in conv.events(kinds=["message_appended"])]

    async def work() -> None:
        async with treering.aio.connect(server.address) as db:
            await db.stats()
            writers = [asyncio.create_task(lines(db, f"Writer {n}")) for n in range(8)]
            for _ in range(2):
                await asyncio.sleep(0.2)
                await asyncio.to_thread(server.end, how)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
            for stored in await asyncio.gather(*writers):
                assert stored == [f"Line {number}" for number in range(40)]

    run(work())


class SlowLine(threading.Thread):
    """A proxy to a server, which delays the first bytes of each connection."""

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.to, self.seconds = port, seconds
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.pass_on, args=self.door.accept()[:1]).start()

    def pass_on(self, near: socket.socket) -> None:
        time.sleep(self.seconds)
        with near, socket.create_connection(("127.0.0.1", self.to)) as far:
            back = threading.Thread(target=self.copy, args=(far, near))
            back.start()
            self.copy(near, far)
            back.join()

    @staticmethod
    def copy(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


# The client gave up connections that took more than a second, and tried again for ever.
def test_a_line_that_is_slow_to_begin(server: Server) -> None:
    line = SlowLine(server.port, 1.6)
    line.start()
    with treering.connect(line.address) as db:
        assert db.create().user("Hello").revision == 2
    line.door.close()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a process, and waits until all its threads have stopped."""
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    end = time.monotonic() + 30
    while tasks.is_dir():
        states = [path.read_text().rpartition(")")[2].split()[0] for path in tasks.glob("*/stat")]
        if all(state == "T" for state in states):
            return
        assert time.monotonic() < end, states
        time.sleep(0.01)


# A server that does not answer must not delay a program beyond its timeout. A write that the
# server accepted anyway must not be stored twice when the program retries it.
def test_a_server_that_hangs(server: Server) -> None:
    assert server.process
    with treering.connect(server.address, timeout=1.5) as db:
        conv = db.create()
        stop(server.process)
        with pytest.raises(treering.DeadlineExceeded):
            conv.append([new.user("Hello")], idempotency_key="hello")
        server.process.send_signal(signal.SIGCONT)
        conv.append([new.user("Hello")], idempotency_key="hello", timeout=30)
        assert texts(conv) == ["Hello"]


# A broken connection during a pipelined import must neither lose nor repeat a batch.
def test_many_appends_through_a_kill(server: Server) -> None:
    with treering.connect(server.address, timeout=PATIENCE) as db:
        conv = db.create("Import")
        batches = [(conv.id, [new.user(f"Line {n}")]) for n in range(2000)]
        answers = []
        for answer in db.append_many(batches, at_once=64):
            assert isinstance(answer, treering.Receipt)
            answers.append(answer.revision)
            if len(answers) == 700:
                server.kill()
                server.start()
        assert answers == list(range(2, 2002))
        assert texts(conv) == [f"Line {n}" for n in range(2000)]


# A subscriber must not notice that the server was restarted: no event is lost or repeated.
def test_subscriptions_go_on(server: Server) -> None:
    with treering.connect(server.address, timeout=PATIENCE) as db:
        conv = db.create("Followed")
        conv.user("0")
        seen: list[str] = []
        everything: list[int] = []

        def follow() -> None:
            with conv.subscribe(kinds=["message_appended"]) as events:
                for event in events:
                    seen.append(event.text)
                    if event.text == "19":
                        return

        def follow_all() -> None:
            with db.subscribe(heartbeat=1) as events:
                for event in events:
                    everything.append(event.revision)
                    if event.text == "19":
                        return

        followers = [threading.Thread(target=each) for each in (follow, follow_all)]
        for follower in followers:
            follower.start()
        for number in range(1, 20):
            if number in (7, 13):
                server.kill()
                time.sleep(0.2)
                server.start()
            conv.user(str(number))
        for follower in followers:
            follower.join(60)
            assert not follower.is_alive()
        assert seen == [str(number) for number in range(20)]
        assert everything == list(range(1, 22))


def test_a_subscription_is_ended_by_another_thread(conv: treering.Conversation) -> None:
    subscription = conv.subscribe()
    assert next(subscription).revision == 1
    timer = threading.Timer(0.3, subscription.close)
    timer.start()
    assert list(subscription) == []
    assert subscription.caught_up and subscription.after == 1
    timer.join()
    # Another process can continue from there.
    conv.user("later")
    with conv.subscribe(after=subscription.after) as again:
        assert next(again).text == "later"


def test_a_watch_tells_after_a_restart_what_has_changed(server: Server) -> None:
    with treering.connect(server.address, timeout=PATIENCE) as db:
        conv = db.create()
        conv.set_context({"a": 1, "b": 2})
        with conv.watch_context() as changes:
            assert {next(changes).key, next(changes).key} == {"a", "b"}
            server.kill()
            server.start()
            conv.set_context({"a": 3}, remove=["b"])
            later = [next(changes), next(changes)]
            assert sorted((each.key, each.value) for each in later) == [("a", 3), ("b", None)]


# A client that had only received refusals gave up while its server restarted, as if the address
# were wrong.
def test_a_server_that_has_only_refused_is_waited_for(server: Server) -> None:
    with treering.connect(server.address, timeout=PATIENCE) as db:
        with pytest.raises(treering.ConversationNotFound):
            db.conversation("nothing").state()
        server.kill()
        timer = threading.Timer(1.5, server.start)
        timer.start()
        assert db.create().user("Hello").revision == 2
        timer.join()


# A write may be sent again only with an idempotency key: the table must mark these methods.
def test_every_write_has_a_key() -> None:
    from treering import _methods
    from treering._methods import Again, Method

    table = [each for each in vars(_methods).values() if isinstance(each, Method)]
    for method in table:
        fields = method.request.DESCRIPTOR.fields_by_name
        has_key = "idempotency_key" in fields or method is _methods.RECORD_RESULT
        assert (method.again is Again.WITH_KEY) == has_key, method.path


# The client must use every method of the server.
def test_the_client_uses_every_method() -> None:
    from treering import _methods
    from treering._methods import Method

    folder = Path(_methods.__file__).parent / "_async"
    code = "".join(file.read_text() for file in folder.glob("*.py"))
    table = [name for name, each in vars(_methods).items() if isinstance(each, Method)]
    assert [name for name in table if not re.search(rf"\b{name}\b", code)] == []


# The table of methods is written by hand: it must match the descriptors of all methods.
def test_the_table_is_the_api() -> None:
    from treering import _methods
    from treering._methods import Method
    from treering.v1 import (
        admin_pb2,
        context_pb2,
        conversation_pb2,
        events_pb2,
        items_pb2,
        search_pb2,
        tool_pb2,
    )

    table = {
        each.path: each
        for each in vars(_methods).values()
        if isinstance(each, Method) and each is not _methods.HEALTH
    }
    described = {}
    modules = (
        admin_pb2,
        context_pb2,
        conversation_pb2,
        events_pb2,
        items_pb2,
        search_pb2,
        tool_pb2,
    )
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                described[f"/{service.full_name}/{method.name}"] = method
    assert table.keys() == described.keys()
    for path, method in table.items():
        assert method.request.DESCRIPTOR.full_name == described[path].input_type.full_name
        assert method.response.DESCRIPTOR.full_name == described[path].output_type.full_name


SCRIPT = """
import sys, time, treering
db = treering.local(sys.argv[1])
conv = db.open("shared", title="Shared")
conv.user(sys.argv[2])
print(db._endpoint.pid, flush=True)
{end}
"""


def start(store: Path, name: str, end: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(end=end), str(store), name],
        stdout=subprocess.PIPE,
        text=True,
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie process is not alive.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def ends(pid: int) -> bool:
    """Whether the process ends within a minute."""
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


# Two programs use one store. The second uses the server of the first. When the first is killed,
# and its server with it, the second starts its own server.
def test_two_processes_on_one_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with start(store, "first", "time.sleep(600)") as first:
        assert first.stdout
        served_by = int(first.stdout.readline())
        with treering.local(store) as db:
            conv = db.open("shared")
            assert db._endpoint.pid is None  # type: ignore[attr-defined]
            conv.user("second")
            with conv.subscribe(kinds=["message_appended"]) as events:
                assert [next(events).text, next(events).text] == ["first", "second"]
                first.send_signal(signal.SIGKILL)
                first.wait()
                # On a busy machine, the server may accept one more append before it ends.
                assert ends(served_by)
                conv.user("alone")
                assert next(events).text == "alone"
            assert texts(conv) == ["first", "second", "alone"]
            mine = db._endpoint.pid  # type: ignore[attr-defined]
            assert mine and mine != served_by
    assert ends(mine)


@pytest.mark.slow
def test_a_server_ends_with_its_program(tmp_path: Path) -> None:
    for end in ("", "db.close()", "raise SystemExit(3)", "import os; os._exit(1)"):
        with start(tmp_path / "store", "hello", end) as program:
            assert program.stdout
            pid = int(program.stdout.readline())
            program.wait(60)
        assert ends(pid), end


def test_objects_for_one_folder_share_a_server(tmp_path: Path) -> None:
    one = treering.local(tmp_path / "store")
    two = treering.local(tmp_path / "store", namespace="other")
    assert one.address == two.address
    one.create("One")
    one.close()
    assert [*two.conversations()] == []
    two.create("Two")
    two.close()
    # The error must not suggest that the server is down.
    with pytest.raises(treering.ClientClosed, match="this client was closed") as refused:
        two.create("Three")
    assert isinstance(refused.value, treering.Unreachable)
    assert "running" not in refused.value.advice


# The options of a second client of a folder were ignored silently.
def test_clients_of_one_folder_with_different_options(tmp_path: Path) -> None:
    store, small = tmp_path / "store", ("--memory", "96MiB")
    opened = r"store is already open in this program with a different `options`: pass the same"
    for local in (treering.local, treering.aio.local):
        with treering.local(store, options=small) as one, treering.local(store) as two:
            with treering.local(store, options=list(small)) as three:
                assert one.address == two.address == three.address
            with pytest.raises(ValueError, match=opened):
                local(store, options=("--memory", "128MiB"))
        # Refused clients do not count as clients of the folder.
        with pytest.raises(ValueError, match="`token` has"):
            local(store, options=small, token="a\n")
        with pytest.raises(ValueError, match="`namespace` has"):
            local(store, options=small, namespace="a\n")
        with treering.local(store):
            with pytest.raises(ValueError, match=opened):
                local(store, options=small)


# The shorter start timeout of the first client ended the start that a second one waited for.
def test_clients_of_one_folder_with_different_start_timeouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec "{find_binary()}" "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("TREERING_BINARY", str(slow))
    hasty = treering.local(tmp_path / "store", start_timeout=0.1)
    with pytest.raises(treering.ServerNotStarted, match="within"):
        hasty.stats()
    with treering.local(tmp_path / "store", start_timeout=60) as patient:
        assert patient.create().head() == 1
    hasty.close()


def test_what_the_server_says_when_it_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(treering.ServerNotStarted, match="file"):
        treering.local(tmp_path / "file").stats()


# A second program that opened a folder printed `error: …`, although nothing was wrong.
def test_nothing_is_said_when_another_process_serves(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="treering.server"):
        with treering.local(server.folder) as db:
            db.create("Served by the other")
            assert db.address == server.address
        assert [each.message for each in caplog.records if each.levelname != "DEBUG"] == []
        # Real errors are logged.
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(treering.ServerNotStarted):
            treering.local(tmp_path / "file").stats()
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "is a file" in told[0]


# For a missing or broken program, the error was a bare FileNotFoundError or "it said nothing".
# The error must name the program.
def test_programs_that_are_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none, mute = tmp_path / "none", tmp_path / "mute"
    monkeypatch.setenv("TREERING_BINARY", str(none))
    with pytest.raises(treering.NoBinary, match=f"TREERING_BINARY is {none}, but there is no"):
        treering.local(tmp_path / "store").stats()
    none.write_bytes(b"\x7fELF, and no more")
    none.chmod(0o755)
    with pytest.raises(treering.NoBinary, match=f"{none} cannot be run"):
        treering.local(tmp_path / "store").stats()
    mute.write_text("#!/bin/sh\nexit 3\n")
    mute.chmod(0o755)
    monkeypatch.setenv("TREERING_BINARY", str(mute))
    with pytest.raises(treering.ServerNotStarted, match=f"{mute} did not start: .*code 3"):
        treering.local(tmp_path / "store").stats()


# An asyncio client that outlived its event loop raised asyncio's own error about futures.
def test_a_client_in_another_event_loop(open_async: Callable[[], AsyncTreering]) -> None:
    db = open_async()

    async def create() -> None:
        await db.create("Here")

    run(create())
    for _ in range(2):
        with pytest.raises(treering.OtherEventLoop, match=r"another event loop.*Open a client"):
            run(create())
    run(db.close())


# With a proxy for external hosts configured, the client used it for the local server too.
def test_a_proxy_is_not_asked_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with treering.local(tmp_path / "store", timeout=10) as db:
        assert db.create().head() == 1


# If the server of a local store is killed, the client starts it again.
def test_a_local_server_is_started_again(tmp_path: Path) -> None:
    with treering.local(tmp_path / "store") as db:
        conv = db.create()
        for number in range(30):
            conv.user(str(number))
            if number % 10 == 5:
                os.kill(db._endpoint.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert texts(conv) == [str(number) for number in range(30)]


@pytest.mark.slow
def test_ten_thousand_events(db: treering.Treering) -> None:
    conv = db.create("Long")
    batches = (
        (conv.id, [new.user(f"Line {n}") for n in range(start, start + 100)])
        for start in range(0, 10_000, 100)
    )
    receipts = list(db.append_many(batches))
    assert all(isinstance(receipt, treering.Receipt) for receipt in receipts)
    assert conv.head() == 10_001
    stored = list(conv.events(kinds=["message_appended"]))
    assert [event.text for event in stored] == [f"Line {n}" for n in range(10_000)]
    newest = [event.text for event in conv.events(backward=True, limit=2)]
    assert newest == ["Line 9999", "Line 9998"]
    assert [event.revision for event in conv.events(first=5_000, last=5_002)] == [5000, 5001, 5002]
    head = next(conv.events(headers_only=True))
    assert head.body is None
    assert db.search("9999", conversation=conv.id)[0].revision == 10_001
    conv.on("main").fork(at=5_000, name="middle").user("From here")
    with treering.Conversation(conv._transport, conv.id, "middle").subscribe(after=4_999) as events:
        assert [next(events).revision, next(events).kind] == [5_000, "branch_forked"]


# If one batch is refused, the other batches are still stored.
def test_one_refusal_among_many(db: treering.Treering, conv: treering.Conversation) -> None:
    batches = [
        (conv.id, [new.user("one")]),
        (conv.id, [new.tool_result("never", "asked")]),
        (conv.id, [new.user("three")]),
    ]
    one, two, three = db.append_many(batches)
    assert isinstance(two, treering.CallNotOpen)
    assert isinstance(one, treering.Receipt) and isinstance(three, treering.Receipt)
    assert texts(conv) == ["one", "three"]


@pytest.mark.slow
def test_big_results(tmp_path: Path) -> None:
    lines = [f"{number}: ä line of a long log" for number in range(400_000)]
    text = "\n".join(lines)
    assert len(text.encode()) > 10 << 20
    # In a separate store, because indexing takes a while.
    with treering.local(tmp_path / "store") as db:
        conv = db.create("Big")
        with conv.tool_call("cat", call_id="big") as call:
            call.result(text)
        assert conv.result("big").text == text
        assert conv.result("big", lines=(399_999, 400_000)).text == "\n".join(lines[-2:])
        part = conv.result("big", bytes=(0, 10))
        assert (part.text, part.total_bytes) == (lines[0][:9], len(text.encode()))
        [event] = conv.events(kinds=["tool_result_recorded"])
        assert event.text == text
        huge = "x" * (48 << 20)
        with conv.tool_call("cat", call_id="huge") as call:
            call.result(huge)
        assert conv.result("huge").text == huge
        with pytest.raises(treering.Invalid):
            with conv.tool_call("cat", call_id="too much") as call:
                call.result("x" * (70 << 20))
        assert conv.tool_calls()[0].status == "failed"


# A task that is cancelled while its tool runs must not leave the call open.
def test_cancellation(open_async: Callable[[], AsyncTreering]) -> None:
    async def work() -> None:
        async with open_async() as db:
            conv = await db.create()

            async def tool() -> None:
                async with conv.tool_call("sleep"):
                    await asyncio.sleep(600)

            task = asyncio.create_task(tool())
            while not await conv.open_calls():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            [call] = await conv.tool_calls()
            assert (call.status, call.proto.cancel_reason) == ("cancelled", 2)

            waiting = conv.tool_call("rm", needs_approval=True)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting.wait_for_approval(), 0.3)
            assert len(await conv.open_calls()) == 1
            events = conv.subscribe(from_now=True)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(events.__anext__(), 0.3)
            await events.close()

    run(work())


# Closing a subscription, or the whole client, ends the loop over it without an exception.
def test_a_subscription_is_ended_by_another_task(
    open_async: Callable[[], AsyncTreering],
) -> None:
    async def work() -> None:
        async with open_async() as db:
            conv = await db.create()

            async def follow(events: treering.aio.AsyncSubscription) -> list[str]:
                return [event.kind async for event in events]

            events = conv.subscribe()
            task = asyncio.create_task(follow(events))
            while not events.caught_up:
                await asyncio.sleep(0.01)
            await events.close()
            assert await task == ["conversation_created"]
            left = conv.subscribe()
            task = asyncio.create_task(follow(left))
            while not left.caught_up:
                await asyncio.sleep(0.01)
        assert await task == ["conversation_created"]

    run(work())


def test_many_tasks_and_threads_at_once(
    db: treering.Treering, open_async: Callable[[], AsyncTreering]
) -> None:
    async def work() -> None:
        async with open_async() as shared:

            async def agent(number: int) -> int:
                conv = await shared.create(f"Agent {number}")
                for step in range(5):
                    async with conv.tool_call("step", {"n": step}) as call:
                        await call.result(f"{number}.{step}")
                return len([event async for event in conv.events()])

            assert await asyncio.gather(*map(agent, range(40))) == [16] * 40

    run(work())
    conv = db.create("Threads")
    threads = [threading.Thread(target=conv.user, args=(str(n),)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts(conv)) == sorted(map(str, range(20)))


def test_asyncio_from_end_to_end(open_async: Callable[[], AsyncTreering]) -> None:
    async def work() -> None:
        async with open_async() as db:
            conv = await db.open("session", title="Async")
            await conv.user("Look")
            answer = await conv.assistant(tool_calls=[("c", "ls", {})])
            async with answer.calls[0] as call:
                await call.result("README.md")
            other = await conv.fork(at=2, name="other")
            await other.user("Elsewhere")
            assert (await conv.request("anthropic", budget=10_000)).tokens > 0
            assert await db.search("README", conversation=conv.id)
            async with await conv.spawn("sub") as child:
                await child.assistant("done")

            async def summarise(plan: object) -> str:
                await asyncio.sleep(0)
                return "A summary."

            await conv.assistant("Done.")
            await conv.user("Next")
            await conv.assistant("Sure.")
            assert await conv.compact(summarise, keep_turns=1)
            call = await conv.tool_call("rm", needs_approval=True).request()
            decision = asyncio.create_task(call.wait_for_approval(30))
            [waiting] = await db.pending()
            await db.deny(waiting, by="ada", reason="no")
            with pytest.raises(treering.CallDenied):
                await decision
            async with conv.watch_context() as changes:
                await conv.set_context({"k": [1]})
                assert (await changes.__anext__()).value == [1]

    run(work())


AGENT = """
import sys, time, treering

def model(request):
    results = str(request["messages"]).count("'tool_result'")
    if results == 6:
        return {"id": "end", "content": [{"type": "text", "text": "Counted."}]}
    return {"id": f"msg_{results}", "content": [{"type": "tool_use", "id": f"call_{results}",
            "name": "count", "input": {"n": results}}]}

def count(n):
    time.sleep(0.05)
    return f"counted {n}"

db = treering.local(sys.argv[1])
conv = db.open("job", model="claude-sonnet-4-5")
conv.user("Count to six.", idempotency_key="the question")
print(db._endpoint.pid, flush=True)
while True:
    for call in conv.open_calls():
        call.run(count)
    request = conv.request("anthropic")
    if request["messages"][-1]["role"] == "assistant":
        break
    conv.record("anthropic", model(request), expected=request.revision)
db.close()
"""


# An agent and its server are killed repeatedly at arbitrary moments. When the agent runs again, it
# must reach the same result: no step is lost or repeated.
@pytest.mark.slow
def test_an_agent_that_is_killed_anywhere(tmp_path: Path) -> None:
    store = tmp_path / "store"
    kills = 0
    while True:
        with subprocess.Popen(
            [sys.executable, "-c", AGENT, str(store)], stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdout
            pid = int(agent.stdout.readline())
            try:
                # Wait a little longer each time, so that the agent ends on any machine.
                agent.wait(0.02 * 1.5**kills)
            except subprocess.TimeoutExpired:
                kills += 1
                agent.kill()
                if kills % 2:
                    # The server may have ended by itself, because its client is gone.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                continue
        assert agent.returncode == 0
        break
    assert kills > 2
    with treering.local(store) as db:
        conv = db.conversation("job")
        assert texts(conv) == ["Count to six.", "Counted."]
        results = [event.text for event in conv.events(kinds=["tool_result_recorded"])]
        assert results == [f"counted {n}" for n in range(6)]
        asked = [event.call_id for event in conv.events(kinds=["tool_call_requested"])]
        assert asked == [f"call_{n}" for n in range(6)]
        assert db.verify(deep=True).sound
