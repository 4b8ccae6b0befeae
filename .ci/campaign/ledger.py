"""Records the server's answers to a client, to compare them with the store afterwards.

An entry is one batch under one idempotency key. It is recorded before it is sent, and
updated when it is answered. So each batch is acknowledged (the store must have it once, at
the position and with the ids of the answer), refused (the store must not have it), or open
(the store has all of it or nothing; after a retry with its key, it has it once).
"""

import hashlib
import json
import threading
from collections import defaultdict

import client
import grpc

# States of a batch. Open: no answer has said whether the store has it.
OPEN, ACKNOWLEDGED, REFUSED = "open", "acknowledged", "refused"

CERTAIN_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
}


def digest(event):
    """A hash of an event's body, sent or stored."""
    body = getattr(event, event.WhichOneof("body"))
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


class Entry:
    """A batch and its state."""

    def __init__(self, number, writer, conversation, branch, key, events):
        self.number, self.writer = number, writer
        self.conversation, self.branch, self.key, self.events = conversation, branch, key, events
        self.digests = [digest(e) for e in events]
        self.state, self.places = OPEN, []

    def __str__(self):
        at = f" at revisions {self.places[0][1]}–{self.places[-1][1]}" if self.places else ""
        return f"batch {self.key} ({self.state}, {len(self.events)} events) of {self.conversation}{at}"


class Ledger:
    """All batches of a round. Safe for use from many threads."""

    def __init__(self, namespace="default"):
        self.namespace, self.entries, self.lock = namespace, [], threading.Lock()
        self.retried = 0

    def note(self, writer, conversation, branch, events):
        with self.lock:
            number = len(self.entries)
            entry = Entry(number, writer, conversation, branch, f"k{number}", events)
            self.entries.append(entry)
            return entry

    def send(self, db, entry, seconds=20, expected=None):
        """Sends a batch or sends it again. Returns the error, or None."""
        request = client.events_pb2.AppendRequest(
            conversation_id=entry.conversation,
            branch=entry.branch,
            events=entry.events,
            expected=expected,
            idempotency_key=entry.key,
        )
        try:
            done = db.events.Append(request, metadata=db.metadata, timeout=seconds)
        except grpc.RpcError as error:
            if error.code() in CERTAIN_REFUSALS and entry.state == OPEN:
                entry.state = REFUSED
            return error
        places = [(e.event_id, e.revision, e.position.offset) for e in done.events]
        if entry.state == ACKNOWLEDGED and entry.places != places:
            raise AssertionError(f"{entry} was answered with other places: {places}")
        entry.places, entry.state = places, ACKNOWLEDGED
        return None

    def acknowledged(self):
        return [e for e in self.entries if e.state == ACKNOWLEDGED]

    def events(self):
        return sum(len(e.events) for e in self.acknowledged())

    def settle(self, db, world, seconds=20):
        """Sends all open batches again. The server must accept all of them."""
        for entry in [e for e in self.entries if e.state == OPEN]:
            self.retried += 1
            error = self.send(db, entry, seconds)
            if entry.state == OPEN:
                world.found(f"{entry} is not taken with the disk healthy: {told(error)}")
                return False
        world.count("keyed retries", self.retried)
        self.retried = 0
        return True

    # ---- comparison with the store ----

    def check(self, db, world, why):
        """Compares the whole log with the entries."""
        try:
            stored = list(read_log(db))
        except grpc.RpcError as error:
            world.found(f"{why}: the log cannot be read: {told(error)}")
            return False
        problems = self.compare(stored)
        world.count("events checked", len(stored))
        world.count("checks")
        for problem in problems[:3]:
            world.found(f"{why}: {problem}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""))
            break
        return not problems

    def compare(self, stored):
        problems = []
        by_place = {(e.conversation_id, e.revision): e for e in stored}
        if len(by_place) != len(stored):
            problems.append(f"{len(stored) - len(by_place)} events share a revision with another")
        offsets = [e.position.offset for e in stored]
        if offsets != sorted(set(offsets)):
            problems.append("positions do not rise")
        where = defaultdict(list)
        for event in stored:
            where[event.conversation_id, digest(event)].append(event)
        problems += revisions(stored)
        accounted = 0
        last = {}
        for entry in self.entries:
            found = [where.get((entry.conversation, d), []) for d in entry.digests]
            there = sum(1 for f in found if f)
            accounted += sum(len(f) for f in found)
            if any(len(f) > 1 for f in found):
                problems.append(f"{entry} is there twice")
            if entry.state == ACKNOWLEDGED:
                problems += missing(entry, by_place)
            elif entry.state == REFUSED and there:
                problems.append(f"{entry} was refused and is there")
            elif 0 < there < len(found):
                problems.append(f"{entry} is there in part: {there} of {len(found)} events")
            if there == len(found) and there:
                at = [f[0].revision for f in found]
                if at != list(range(at[0], at[0] + len(at))):
                    problems.append(f"{entry} is torn apart: {at}")
                before = last.get((entry.writer, entry.conversation), 0)
                if at[0] <= before:
                    problems.append(f"{entry} is out of order: {at[0]} after {before}")
                last[entry.writer, entry.conversation] = at[-1]
        own = sum(1 for e in stored if e.WhichOneof("body") != "branch_forked")
        if accounted < own:
            problems.append(f"{own - accounted} events are there that nobody sent")
        return problems

    def check_export(self, world, data, why):
        """Checks that the export has the acknowledged messages, in their order."""
        done = world.run("export", "--format", "openai-chat", data=data)
        if not world.expect(done.code == 0, f"{why}: {done}"):
            return
        exported = {}
        for line in done.out.splitlines():
            one = json.loads(line)
            exported[one["id"]] = [content(m) for m in one["messages"]]
        expected = defaultdict(list)
        for entry in self.acknowledged():
            for event, place in zip(entry.events, entry.places):
                if event.WhichOneof("body") == "message_appended":
                    expected[entry.conversation].append((place[1], client.text_of(event)))
        for conversation, texts in expected.items():
            sent = [text for _, text in sorted(texts)]
            got = [t for t in exported.get(conversation, []) if t is not None]
            world.count("checks")
            if not is_subsequence(sent, got):
                world.found(f"{why}: export has {len(got)} messages of {conversation}, not the {len(sent)} sent")
                return


def content(message):
    """The text of an exported message."""
    said = message.get("content")
    if isinstance(said, list):
        return "".join(part.get("text", "") for part in said)
    return said


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(one in rest for one in part)


def missing(entry, by_place):
    """The first difference between an acknowledged batch and the store, as a list."""
    for (event_id, revision, offset), wanted in zip(entry.places, entry.digests):
        event = by_place.get((entry.conversation, revision))
        if event is None:
            return [f"LOST: {entry}: nothing at revision {revision}"]
        if event.id != event_id or event.position.offset != offset:
            return [f"WRONG: {entry}: another event at revision {revision}"]
        if digest(event) != wanted:
            return [f"WRONG: {entry}: other content at revision {revision}"]
    return []


def revisions(stored):
    """Checks that each conversation's revisions are 1, 2, 3 … in the order of the log."""
    seen = defaultdict(int)
    for event in stored:
        seen[event.conversation_id] += 1
        if event.revision != seen[event.conversation_id]:
            return [f"{event.conversation_id}: revision {event.revision} where {seen[event.conversation_id]} was due"]
    return []


def read_log(db, seconds=120):
    request = client.events_pb2.ReadRequest(log=client.events_pb2.LogSource())
    for batch in db.events.Read(request, metadata=db.metadata, timeout=seconds):
        yield from batch.events


def told(error):
    """An RPC error as a line of text."""
    if error is None:
        return "no error"
    return f"{error.code().name}: {(error.details() or '')[:300]}"
