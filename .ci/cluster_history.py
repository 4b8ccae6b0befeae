"""What clients did and saw, and whether a correct cluster can have answered so.

A branch is a register to which events are appended. Its revisions give all appends an order. Each
read shows the branch up to some revision, and so has a place in that order. The history is
linearizable if this order agrees with time: a call that ended before another one began stands
before it.

`python cluster_history.py` checks the checker with forged histories.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"


class Label(NamedTuple):
    """Names an event: the append that sent it, and its place among the events of that append."""

    append: int
    part: int

    def __str__(self) -> str:
        return f"{self.append}/{self.part}"


class Seen(NamedTuple):
    """An event as a read showed it."""

    revision: int
    label: Label | None
    """None for an event that no append of the ledger sent."""
    digest: bytes


@dataclass(frozen=True)
class Append:
    """An append: times in seconds, outcome, and where the events are said to be."""

    branch: str
    number: int
    digests: tuple[bytes, ...]
    start: float
    end: float
    outcome: str
    first_revision: int = 0
    """Revision of its first event, if it was acknowledged."""
    expected_head: int | None = None
    node: str = ""
    reason: str = ""

    def labels(self) -> Iterator[Label]:
        """The events, in order."""
        return (Label(self.number, part) for part in range(len(self.digests)))


@dataclass(frozen=True)
class Read:
    """A read of a branch, from one revision to the end that it had."""

    branch: str
    first: int
    start: float
    end: float
    seen: tuple[Seen, ...]
    node: str = ""
    followed: bool = False
    """It is an event of a subscription, which may come late."""

    @property
    def head(self) -> int:
        """The last revision that the branch had at the time of the read, or an upper bound."""
        return self.seen[-1].revision if self.seen else self.first - 1


@dataclass
class History:
    """All calls whose outcome is known by now, and those that may still have an effect."""

    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


def problems(history: History) -> list[str]:
    """What no correct cluster can have done."""
    appends, reads = defaultdict(list), defaultdict(list)
    for append in history.appends:
        appends[append.branch].append(append)
    for read in history.reads:
        reads[read.branch].append(read)
    return [
        f"conversation {branch}: {problem}"
        for branch in sorted({*appends, *reads})
        for problem in _Branch(appends[branch], reads[branch]).problems()
    ]


class _Branch:
    """The calls of one branch."""

    def __init__(self, appends: list[Append], reads: list[Read]) -> None:
        self.appends = appends
        self.reads = reads
        self.at: dict[int, set[tuple[Label | None, bytes]]] = defaultdict(set)
        self.revisions: dict[Label, set[int]] = defaultdict(set)
        for read in reads:
            for revision, label, digest in read.seen:
                self.at[revision].add((label, digest))
                if label is not None:
                    self.revisions[label].add(revision)
        # Where no read may end: the next event is of the same append.
        self.inner = {
            revision
            for append in appends
            for label in append.labels()
            if label.part < len(append.digests) - 1
            for revision in self.revisions.get(label, ())
        }

    def problems(self) -> Iterator[str]:
        yield from self._places()
        yield from self._strangers()
        for append in self.appends:
            yield from self._one_append(append)
        for read in self.reads:
            yield from self._one_read(read)
        yield from self._times()

    def _places(self) -> Iterator[str]:
        for revision, events in self.at.items():
            if len(events) > 1:
                shown = sorted(str(label) for label, _ in events)
                yield f"revision {revision} has {len(events)} events: {', '.join(shown)}"
        for label, revisions in self.revisions.items():
            if len(revisions) > 1:
                yield f"event {label} is there {len(revisions)} times, at {sorted(revisions)}"

    def _strangers(self) -> Iterator[str]:
        sent = {label for append in self.appends for label in append.labels()}
        for label in self.revisions.keys() - sent:
            yield f"event {label} was never sent"

    def _one_append(self, append: Append) -> Iterator[str]:
        name = f"append {append.number} ({append.outcome})"
        shown = [self.revisions.get(label, set()) for label in append.labels()]
        if append.outcome == REFUSED and any(shown):
            yield f"{name} was refused with {append.reason}, and its events are there"
        if any(shown) and not all(shown):
            yield f"{name} is there in part"
        for part, (revisions, digest) in enumerate(zip(shown, append.digests, strict=True)):
            wanted = append.first_revision + part
            if append.outcome == ACKNOWLEDGED and wanted not in revisions:
                yield f"{name} is lost: revision {wanted} does not have its event {part}"
            for revision in revisions:
                if (Label(append.number, part), digest) not in self.at[revision]:
                    yield f"{name} has other content at revision {revision}"
        wanted = append.first_revision if append.expected_head is None else append.expected_head + 1
        if append.outcome == ACKNOWLEDGED and append.first_revision != wanted:
            yield f"{name} expected head {append.expected_head}, and is at {append.first_revision}"

    def _one_read(self, read: Read) -> Iterator[str]:
        shown = [seen.revision for seen in read.seen]
        if shown != list(range(read.first, read.first + len(shown))):
            yield f"a read from {read.first} through {read.node} shows the revisions {shown}"
        if read.head in self.inner and not read.followed:
            yield f"a read through {read.node} ends in the middle of an append, at {read.head}"

    def _times(self) -> Iterator[str]:
        """Compares the order of revisions with time."""
        calls = [*self._placed_appends(), *self._placed_reads()]
        ended = sorted(calls, key=lambda call: call.end)
        next_end, before = 0, _Call(0.0, 0.0, 0.0, 0.0, "nothing")
        for call in sorted(calls, key=lambda call: call.start):
            while ended[next_end].end < call.start:
                before = max(before, ended[next_end], key=lambda each: each.last)
                next_end += 1
            if before.last > call.first:
                yield f"{call.what} began {call.start - before.end:.3f} s after {before.what} ended"

    def _placed_appends(self) -> Iterator[_Call]:
        for append in self.appends:
            first = append.first_revision
            if append.outcome != ACKNOWLEDGED:
                first = min(self.revisions.get(Label(append.number, 0), ()), default=0)
            if first:
                last = first + len(append.digests) - 1
                # Without an acknowledgement it may have taken effect at any later time.
                end = append.end if append.outcome == ACKNOWLEDGED else float("inf")
                what = f"append {append.number} at revision {first} through {append.node}"
                yield _Call(append.start, end, first, last, what)

    def _placed_reads(self) -> Iterator[_Call]:
        for read in self.reads:
            place = read.head + 0.5
            what = f"a read up to revision {read.head} through {read.node}"
            start = float("-inf") if read.followed else read.start
            yield _Call(start, read.end, place, place, what)


class _Call(NamedTuple):
    """A call and its place in the order of revisions: from `first` to `last`."""

    start: float
    end: float
    first: float
    last: float
    what: str


def _forged() -> Iterable[tuple[str, str, History]]:
    """Histories: a name, what the checker must say about each (nothing if it is correct)."""
    a, b, c = b"a", b"b", b"c"

    def acked(number: int, at: int, start: float, end: float, *digests: bytes) -> Append:
        return Append("x", number, digests or (a,), start, end, ACKNOWLEDGED, at)

    def read(start: float, end: float, *seen: tuple[int, int, bytes], first: int = 1) -> Read:
        shown = tuple(Seen(at, Label(number, 0), digest) for at, number, digest in seen)
        return Read("x", first, start, end, shown)

    def lost(number: int, outcome: str) -> Append:
        return Append("x", number, (b,), 2, 3, outcome, reason="BUSY")

    one, two = acked(1, 1, 0, 1), acked(2, 2, 2, 3, b)
    both = read(4, 5, (1, 1, a), (2, 2, b))
    yield "correct", "", History([one, two], [read(1.5, 1.8, (1, 1, a)), both])
    yield "correct, concurrent", "", History([one, two], [read(2.5, 2.8, (1, 1, a)), both])
    yield "correct, unknown and there", "", History([one, lost(2, UNKNOWN)], [both])
    yield (
        "correct, unknown and late",
        "",
        History([one, lost(2, UNKNOWN)], [read(4, 5, (1, 1, a)), replace(both, start=6, end=7)]),
    )
    yield "correct, refused", "", History([one, lost(2, REFUSED)], [read(4, 5, (1, 1, a))])
    yield "lost", "is lost", History([one, two], [read(2, 2.5, (1, 1, a))])
    yield (
        "replaced",
        "has 2 events",
        History([one, two, acked(3, 2, 4, 5, c)], [both, read(6, 7, (1, 1, a), (2, 3, c))]),
    )
    yield "twice", "is there 2 times", History([one], [read(4, 5, (1, 1, a), (2, 1, a))])
    yield (
        "unknown twice",
        "is there 2 times",
        History([one, lost(2, UNKNOWN)], [read(4, 5, (1, 1, a), (2, 2, b), (3, 2, b))]),
    )
    yield "refused but there", "was refused", History([one, lost(2, REFUSED)], [both])
    yield "never sent", "never sent", History([one], [both])
    yield "changed", "other content", History([one, two], [read(4, 5, (1, 1, a), (2, 2, c))])
    yield "elsewhere", "is lost", History([one, two], [read(4, 5, (1, 2, b), (2, 1, a))])
    yield "gap", "shows the revisions", History([one], [read(4, 5, (1, 1, a), (3, 1, a))])
    yield "stale", "began", History([one, two], [both, read(3.5, 3.8, (1, 1, a))])
    yield "stale and empty", "began", History([one, two], [both, read(3.5, 3.8, first=2)])
    followed = replace(read(4, 5, (2, 2, b), first=2), followed=True)
    yield "followed", "", History([one, two], [both, replace(followed, end=9)])
    yield "followed, then gone", "began", History([one, two], [followed, read(6, 7, (1, 1, a))])
    late = [replace(two, start=2, end=9), one]
    yield "back", "began", History(late, [both, read(5.5, 6, (1, 1, a))])
    yield "foreseen", "began", History([one, two], [read(1.2, 1.5, (1, 1, a), (2, 2, b))])
    swapped = [acked(1, 2, 0, 1), acked(2, 1, 2, 3, b)]
    yield "swapped", "began", History(swapped, [read(4, 5, (1, 2, b), (2, 1, a))])
    pair = Append("x", 1, (a, b), 0, 9, ACKNOWLEDGED, 1)
    whole = Read("x", 1, 9.5, 10, (Seen(1, Label(1, 0), a), Seen(2, Label(1, 1), b)))
    yield "correct, a batch", "", History([pair], [whole])
    yield "half a batch", "in the middle", History([pair], [whole, read(4, 5, (1, 1, a))])
    torn = replace(pair, outcome=UNKNOWN, first_revision=0)
    yield "torn", "in part", History([torn], [read(4, 5, (1, 1, a))])
    wrong = replace(two, expected_head=0)
    yield "wrong head", "expected head", History([one, wrong], [both])


def check_the_checker() -> int:
    """Raises if a forged history passes, or a correct one fails. Returns how many were checked."""
    count = 0
    for name, wanted, history in _forged():
        found = problems(history)
        said = any(wanted in problem for problem in found) if wanted else not found
        if not said:
            raise AssertionError(f"the history '{name}' is judged {found or 'correct'}")
        count += 1
    return count


if __name__ == "__main__":
    print(f"the checker judges {check_the_checker()} forged histories as it must")
    sys.exit()
