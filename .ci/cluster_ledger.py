"""A client of a cluster that keeps a ledger: what it appended, what it was told, what it read.

Threads append to conversations, read and follow them through all nodes. Most appends are sent once,
others are repeated by the Python client under an idempotency key. Contents are messages of real
conversations. Commands come on standard input, one a line. The answers end with `ok` or `failed`:

    mark              a fault begins
    probe NODE...     waits until each of these nodes appends to and reads each conversation
    report            the same for all nodes; then checks everything that happened so far
    final             the same, reading each conversation as a whole through each node, and waiting
                      for the subscriptions; then ends

Usage: cluster_ledger.py CONVERSATIONS FILE.jsonl.zst[,FILE.jsonl.zst] NAME=HOST:PORT...
"""

from __future__ import annotations

import io
import itertools
import json
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc
import zstandard
from cluster_history import (
    ACKNOWLEDGED,
    REFUSED,
    UNKNOWN,
    Append,
    History,
    Label,
    Read,
    Seen,
    problems,
)

import treering
from treering import _methods, _requests, errors, new
from treering._wire import options

WRITERS, KEYED_WRITERS, READERS = 2, 1, 2
"""Threads for each node."""
PAUSE_MAX, PAUSE_AFTER_FAILURE = 0.06, 0.2
"""Longest pause of a thread between two calls, and its pause after a failure, in seconds."""
APPEND_TIMEOUT, READ_TIMEOUT, KEYED_TIMEOUT = 15.0, 5.0, 30.0
"""How long a call may take, in seconds."""
PROBE_TIMEOUT = 120.0
"""How long the cluster may take to serve everything again, in seconds."""
FOLLOW_TIMEOUT = 90.0
"""How late events of subscriptions may come: a client notices after 50 s that a node is gone."""
TAIL = 8
"""How many known events a read shows again."""
PROBLEMS_SHOWN = 12
CLOCK_ERROR_SHOWN = 300.0
"""An event's time that is so many seconds off is reported."""
LONG_TEXT, LONG_SHARE = 30_000, 0.01
"""Texts with at least this many bytes are sent in this share of the appends."""


def texts_of(path: Path) -> Iterator[str]:
    """The texts of the messages of recorded conversations."""
    with path.open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file)
        for line in io.TextIOWrapper(plain, encoding="utf-8"):
            for message in json.loads(line)["messages"]:
                if text := message.get("content"):
                    yield text


def digest(text: str) -> bytes:
    """A short hash of a text."""
    return blake2b(text.encode(), digest_size=8).digest()


def outcome_of(error: errors.TreeringError) -> tuple[str, str]:
    """What an error says about an append that was sent once: its outcome, and the reason."""
    if error.rule:
        return (UNKNOWN if error.rule == "UNKNOWN_OUTCOME" else REFUSED), error.rule
    # Without a connection nothing was sent.
    if error.code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in error.message:
        return REFUSED, "not connected"
    return UNKNOWN, error.code.name if error.code else type(error).__name__


class Node:
    """A node, and connections to it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._channel = grpc.insecure_channel(address, options=options(address))
        self._append = self._channel.unary_unary(
            _methods.APPEND.path,
            request_serializer=_methods.APPEND.request.SerializeToString,
            response_deserializer=_methods.APPEND.response.FromString,
        )
        self._read = self._channel.unary_stream(
            _methods.READ.path,
            request_serializer=_methods.READ.request.SerializeToString,
            response_deserializer=_methods.READ.response.FromString,
        )
        self._client = treering.connect(address, timeout=KEYED_TIMEOUT)

    def append(self, branch: str, events: list[Any], expected: int | None) -> list[int]:
        """Appends, sending the call once. Returns the revisions."""
        request = _requests.append(branch, "", events, expected, "", "ledger")
        try:
            answer = self._append(request, timeout=APPEND_TIMEOUT)
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from None
        return [event.revision for event in answer.events]

    def append_repeatedly(self, branch: str, events: list[Any]) -> list[int]:
        """Appends, repeating the call under a key until its outcome is known."""
        named = self._client.conversation(branch)
        return list(named.append(events, idempotency_key=str(uuid.uuid4())).revisions)

    def read(self, branch: str, first: int, timeout: float) -> list[Any]:
        """Reads a branch from a revision on, sending the call once."""
        request = _requests.read(
            branch,
            "",
            all_branches=False,
            kinds=(),
            first=first,
            last=0,
            backward=False,
            limit=0,
            headers_only=False,
            filters={},
        )
        try:
            return [event for page in self._read(request, timeout=timeout) for event in page.events]
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from None

    def follow(self, branch: str, after: int) -> Iterator[Any]:
        """Follows a branch from after a revision on."""
        return (event.proto for event in self._client.conversation(branch).subscribe(after=after))

    def create(self, number: int) -> str:
        """Creates a conversation, and returns its id."""
        return self._client.create(f"Ledger {number}").id


class Pace:
    """Lets all threads of the load pause."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        self._running = 0

    def run(self, call: Callable[[], str]) -> str:
        """Makes a call, unless the load pauses: then waits first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            self._running += 1
        try:
            return call()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def pause(self) -> None:
        """Waits until all calls have ended, and begins no others."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: self._running == 0)

    def resume(self) -> None:
        """Goes on."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()


class Ledger:
    """The conversations, the calls, and their history."""

    def __init__(self, nodes: list[Node], conversations: int, texts: list[str]) -> None:
        self.nodes = nodes
        self.texts = [text for text in texts if len(text) < LONG_TEXT]
        self.long_texts = [text for text in texts if len(text) >= LONG_TEXT]
        self.history = History()
        self.pace = Pace()
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)
        self._known: dict[Seen, Seen] = {}
        self.heads: dict[str, int] = {}
        for number in range(conversations):
            self.heads[nodes[number % len(nodes)].create(number)] = 1
        self.branches = list(self.heads)
        self.checked_heads = dict.fromkeys(self.branches, 1)
        self.followed = dict.fromkeys(self.branches, 0)
        """The last revision that the subscription of each branch has yielded."""
        self.broken: list[str] = []
        """Answers that are wrong without a look at others."""
        self.clock_error = 0.0
        """The largest difference between the time of an event and of its first read, in seconds."""

    # ---- calls ----

    def _events(self, number: int) -> tuple[list[Any], tuple[bytes, ...]]:
        """New events of an append, and the hashes of their texts."""
        count = random.choice((1, 1, 1, 2, 3))
        is_long = self.long_texts and random.random() < LONG_SHARE
        texts = random.choices(self.long_texts if is_long else self.texts, k=count)
        labels = [str(Label(number, part)) for part in range(count)]
        events = [new.user(text, author=label) for text, label in zip(texts, labels, strict=True)]
        return events, tuple(map(digest, texts))

    def append(self, node: Node, branch: str, *, keyed: bool = False) -> str:
        """Appends to a branch and writes down what came of it. Returns the reason of a failure."""
        number = next(self._numbers)
        events, digests = self._events(number)
        expected = self.heads[branch] if not keyed and random.random() < 0.1 else None
        start = time.monotonic()
        outcome, reason, revisions = ACKNOWLEDGED, "", [0]
        try:
            if keyed:
                revisions = node.append_repeatedly(branch, events)
            else:
                revisions = node.append(branch, events, expected)
        except errors.TreeringError as error:
            outcome, reason = outcome_of(error)
            # An earlier attempt may have had an effect.
            outcome = UNKNOWN if keyed else outcome
        end = time.monotonic()
        first = revisions[0]
        if revisions != list(range(first, first + len(revisions))):
            self.broken.append(f"append {number} got the revisions {revisions}")
        done = Append(
            branch, number, digests, start, end, outcome, first, expected, node.name, reason
        )
        with self._mutex:
            self.history.appends.append(done)
            self.heads[branch] = max(self.heads[branch], revisions[-1])
        return reason

    def read(self, node: Node, branch: str, first: int, timeout: float = READ_TIMEOUT) -> str:
        """Reads a branch and writes down what was there. Returns the reason of a failure."""
        start = time.monotonic()
        try:
            events = node.read(branch, first, timeout)
        except errors.RevisionNotFound as error:
            # The branch ends before.
            events, first = [], error.head + 1
        except errors.TreeringError as error:
            return outcome_of(error)[1]
        end = time.monotonic()
        with self._mutex:
            seen = tuple(map(self._seen, events))
            done = Read(branch, first, start, end, seen, node.name)
            self.history.reads.append(done)
            self.heads[branch] = max(self.heads[branch], done.head)
        return ""

    def _seen(self, event: Any) -> Seen:
        said = event.message_appended
        label = None
        if said.author:
            label = Label(*map(int, said.author.split("/")))
        text = "".join(part.text for part in said.parts)
        seen = Seen(event.revision, label, digest(text))
        if label is not None and seen not in self._known:
            error = abs(time.time() - event.recorded_at.seconds)
            self.clock_error = max(self.clock_error, error)
        # Events are read often, and kept once.
        return self._known.setdefault(seen, seen)

    # ---- load ----

    def start(self) -> None:
        """Starts the threads of the load."""
        for node in self.nodes:
            calls = [
                *[lambda branch, node=node: self.append(node, branch)] * WRITERS,
                *[lambda branch, node=node: self.append(node, branch, keyed=True)] * KEYED_WRITERS,
                *[lambda branch, node=node: self.read_tail(node, branch)] * READERS,
            ]
            for call in calls:
                threading.Thread(target=self._load, args=(call,), daemon=True).start()

        for number, branch in enumerate(self.branches):
            node = self.nodes[number % len(self.nodes)]
            threading.Thread(target=self._follow, args=(node, branch), daemon=True).start()

    def _follow(self, node: Node, branch: str) -> None:
        """Follows a branch for ever, and writes down what comes."""
        while True:
            try:
                for event in node.follow(branch, self.followed[branch]):
                    self._follow_one(node, branch, event)
            except errors.TreeringError:
                time.sleep(PAUSE_AFTER_FAILURE)

    def _follow_one(self, node: Node, branch: str, event: Any) -> None:
        now, last = time.monotonic(), self.followed[branch]
        with self._mutex:
            if event.revision != last + 1:
                what = f"revision {event.revision} after {last}"
                self.broken.append(f"a subscription to {branch} through {node.name} got {what}")
            seen = (self._seen(event),)
            done = Read(branch, event.revision, now, now, seen, node.name, followed=True)
            self.history.reads.append(done)
            self.followed[branch] = event.revision

    def _load(self, call: Callable[[str], str]) -> None:
        while True:
            branch = random.choice(self.branches)
            failure = self.pace.run(lambda branch=branch: call(branch))
            time.sleep(PAUSE_AFTER_FAILURE if failure else random.uniform(0, PAUSE_MAX))

    def read_tail(self, node: Node, branch: str) -> str:
        """Reads the newest events, some of which are known."""
        return self.read(node, branch, max(1, self.heads[branch] - TAIL))

    # ---- checks ----

    def probe(self, nodes: list[Node]) -> str:
        """Waits until each node serves each conversation. Returns what does not work in the end."""
        end = time.monotonic() + PROBE_TIMEOUT

        def try_one(pair: tuple[Node, str]) -> str:
            node, branch = pair
            while reason := self.append(node, branch) or self.read_tail(node, branch):
                if time.monotonic() > end:
                    return f"{node.name} does not serve conversation {branch}: {reason}"
                time.sleep(0.2)
            return ""

        pairs = [(node, branch) for node in nodes for branch in self.branches]
        with ThreadPoolExecutor(12) as pool:
            return next(filter(None, pool.map(try_one, pairs)), "")

    def check(self, *, whole: bool) -> list[str]:
        """Pauses the load, reads each conversation through each node, and checks the history."""
        self.pace.pause()
        try:
            reads = [
                (node, branch, 1 if whole else max(1, self.checked_heads[branch] - TAIL))
                for node in self.nodes
                for branch in self.branches
            ]
            with ThreadPoolExecutor(6) as pool:
                failed = [*pool.map(lambda each: self.read(*each, timeout=60.0), reads)]
            self.checked_heads = dict(self.heads)
            unread = [
                f"conversation {branch} cannot be read through {node.name}: {reason}"
                for (node, branch, _), reason in zip(reads, failed, strict=True)
                if reason
            ]
            late = self._late_subscriptions() if whole else []
            return unread + late + self.broken + problems(self.history)
        finally:
            self.pace.resume()

    def _late_subscriptions(self) -> list[str]:
        """Waits until the subscriptions have yielded everything. Returns which have not."""
        end = time.monotonic() + FOLLOW_TIMEOUT
        while late := [each for each in self.branches if self.followed[each] < self.heads[each]]:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return [
            f"the subscription to {branch} ended at {self.followed[branch]} of {self.heads[branch]}"
            for branch in late
        ]

    def told(self, mark: float) -> Iterator[str]:
        """What clients saw since a time."""
        with self._mutex:
            appends = [each for each in self.history.appends if each.end >= mark]
            reads = [each for each in self.history.reads if each.end >= mark and not each.followed]
        acked = [each for each in appends if each.outcome == ACKNOWLEDGED]
        counts = Counter((each.outcome, each.reason) for each in appends)
        shown = [f"{count} {' '.join(key).strip()}" for key, count in counts.most_common()]
        yield f"{len(appends)} appends: {', '.join(shown)}; {len(reads)} reads"
        slowest = max((each.end - each.start for each in acked), default=0.0)
        if self.clock_error > CLOCK_ERROR_SHOWN:
            yield f"an event has a time that is {self.clock_error:.0f} s off"
            self.clock_error = 0.0
        write, read = self._gaps(acked, mark), self._gaps(reads, mark)
        yield (
            f"the longest time without an acknowledged append: {write[0]:.1f} to {write[1]:.1f} s "
            f"by conversation; without an answered read: {read[0]:.1f} to {read[1]:.1f} s; "
            f"slowest acknowledged append {slowest:.1f} s"
        )

    def _gaps(self, calls: list[Any], mark: float) -> tuple[float, float]:
        """The shortest and the longest, over conversations, of the longest times without a call."""
        now = time.monotonic()
        longest = []
        for branch in self.branches:
            ends = sorted(each.end for each in calls if each.branch == branch)
            times = itertools.pairwise([mark, *ends, now])
            longest.append(max(later - earlier for earlier, later in times))
        return min(longest), max(longest)


def say(text: str) -> None:
    """Prints a line of an answer."""
    print(text, flush=True)


def obey(ledger: Ledger, command: str, nodes: list[Node], mark: float) -> str:
    """Obeys `probe`, `report` or `final`. Returns what went wrong."""
    if failure := ledger.probe(nodes):
        return failure
    names = ", ".join(node.name for node in nodes)
    say(f"   {names} served everything {time.monotonic() - mark:.1f} s after the fault began")
    if command == "probe":
        return ""
    for text in ledger.told(mark):
        say(f"   {text}")
    found = ledger.check(whole=command == "final")
    for problem in found[:PROBLEMS_SHOWN]:
        say(f"   {problem}")
    if found:
        return f"the history is wrong in {len(found)} places"
    history = ledger.history
    say(f"   right so far: {len(history.appends)} appends, {len(history.reads)} reads")
    return ""


def serve(ledger: Ledger) -> None:
    """Obeys commands until `final`."""
    mark = time.monotonic()
    by_name = {node.name: node for node in ledger.nodes}
    for line in sys.stdin:
        command, *names = line.split()
        failure = ""
        if command == "mark":
            mark = time.monotonic()
        else:
            nodes = [by_name[name] for name in names] or ledger.nodes
            failure = obey(ledger, command, nodes, mark)
        say(f"failed {failure}" if failure else "ok")
        if command == "final":
            return


def main() -> None:
    """Starts the load, and obeys commands until `final`."""
    conversations, files, *addresses = sys.argv[1:]
    texts = [text for path in files.split(",") for text in texts_of(Path(path))]
    nodes = [Node(*each.split("=")) for each in addresses]
    ledger = Ledger(nodes, int(conversations), texts)
    ledger.start()
    say("ok")
    serve(ledger)


if __name__ == "__main__":
    main()
