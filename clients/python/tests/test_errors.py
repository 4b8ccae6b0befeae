"""Refusals: each reason that the server gives has its own class."""

from __future__ import annotations

import inspect
import re
import socket
import time
from pathlib import Path

import pytest

import treering
from treering import errors, new
from treering._methods import Again
from treering._retry import STRANGER_PATIENCE, Attempts

ROOT = Path(__file__).resolve().parents[3]


def test_two_writers(conv: treering.Conversation) -> None:
    conv.user("one", expected=1)
    with pytest.raises(treering.RevisionMismatch) as refused:
        conv.user("two", expected=1)
    assert (refused.value.expected, refused.value.actual) == (1, 2)
    assert refused.value.reason == refused.value.rule == "REVISION_MISMATCH"
    assert isinstance(refused.value, treering.Conflict)
    assert "decide again" in str(refused.value)


def test_refusals_have_their_classes(db: treering.Treering, conv: treering.Conversation) -> None:
    with pytest.raises(treering.ConversationNotFound):
        db.conversation("0199aaaa-0000-7000-8000-000000000000").user("?")
    with pytest.raises(treering.BranchNotFound):
        conv.on("nowhere").user("?")
    with pytest.raises(treering.CallNotOpen):
        conv.tool_result("never", "x")
    with pytest.raises(treering.ConversationExists):
        db.append([new.created()], conversation=conv.id)
    with pytest.raises(treering.EmptyBatch):
        conv.append([])
    conv.append([new.user("a")], idempotency_key="k")
    with pytest.raises(treering.IdempotencyConflict):
        conv.append([new.user("b")], idempotency_key="k")
    assert db.known_keys(["k", "l"]) == [True, False]
    with pytest.raises(treering.NotFound):
        conv.fork(at=99, name="late")
    conv.fork(name="twice")
    with pytest.raises(treering.BranchNameTaken):
        conv.fork(name="twice")
    with pytest.raises(treering.Invalid):
        conv.append([new.tool_call("c", "t", "[" * 1_000 + "]" * 1_000)])
    conv.seal()
    with pytest.raises(treering.Sealed):
        conv.user("more")


# Two calls of `create` with one source id made two conversations. The later error named neither
# them nor `open`.
def test_a_name_that_was_given_twice(db: treering.Treering) -> None:
    twice = {db.create(source_id="sid").id, db.create(source_id="sid").id}
    with pytest.raises(treering.AmbiguousSourceId, match=r"`db\.open` begins one only") as refused:
        db.conversation("sid").user("?")
    assert "`db.find(id)`" in refused.value.advice
    assert {summary.conversation_id for summary in db.find("sid")} == twice
    assert db.open("other").id == db.open("other").id


def test_an_address_where_nobody_is() -> None:
    with treering.connect("127.0.0.1:1", timeout=30) as db:
        with pytest.raises(treering.Unreachable) as refused:
            db.stats()
    assert "running" in refused.value.advice
    with pytest.raises(treering.Unreachable):
        db.stats()


# An address without a server was tried for five seconds, so a mistyped one was slow to report. A
# server that has answered before may be restarting, so it is tried for longer.
def test_how_long_an_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def tried(*, has_answered: bool) -> float:
        nonlocal now
        now = 0.0
        patience = None if has_answered else STRANGER_PATIENCE
        attempts = Attempts(Again.ALWAYS, False, 60.0, patience, _began=0.0)
        while (pause := attempts.pause_after(errors.Unreachable("refused"))) is not None:
            now += pause + 0.001
        return now

    assert 0.5 < tried(has_answered=False) < 1
    assert tried(has_answered=True) > 50


# A server that accepts connections and never answers. (A real server might answer before the
# timeout.)
def test_too_little_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with treering.connect(f"http://127.0.0.1:{port}") as db:
            conv = db.conversation("0199aaaa-0000-7000-8000-000000000000")
            with pytest.raises((treering.DeadlineExceeded, treering.Unavailable)):
                conv.append([new.user("late")], timeout=0.3)


# Programs could not catch a reason without a class.
def test_every_reason_has_a_class() -> None:
    if not (ROOT / "src" / "server").is_dir():
        pytest.skip("only beside the server's sources")
    rules = (ROOT / "src/domain/rejection.rs").read_text()
    reasons = set(re.findall(r'=> "([A-Z_]+)"', rules))
    status = (ROOT / "src/server/status/mod.rs").read_text()
    reasons |= set(re.findall(r'Code::\w+, "([A-Z_]+)"', status))
    for file in (ROOT / "src/server").rglob("*.rs"):
        if "test" not in file.name:
            reasons |= set(re.findall(r'with_error_info\(\s*"([A-Z_]+)"', file.read_text()))
    admission = "".join(file.read_text() for file in (ROOT / "src/server/admission").glob("*.rs"))
    reasons |= set(re.findall(r'"((?:[A-Z]+_)+[A-Z]+)"', admission)) - {"OUT_DIR"}
    assert len(reasons) > 50
    assert reasons - set(errors.BY_REASON) == set()


def test_every_class_says_what_to_do() -> None:
    for reason, kind in errors.BY_REASON.items():
        assert kind.advice, reason
        assert inspect.getdoc(kind) and getattr(treering, kind.__name__) is kind
