"""Items: values in the memory of a namespace, under paths and keys."""

from __future__ import annotations

import json

import pytest

import treering
from treering import errors, items, new


def test_items_come_back(db: treering.Treering) -> None:
    # The next program must read an item unchanged, and find it by its values and words.
    ada, bob = ("users", "ada"), ("users", "bob")
    db.items.put(ada, "likes", {"answers": "short", "level": 3})
    db.items.put(bob, "likes", {"answers": "long", "level": 1, "in": {"n": 1}})
    item = db.items.get(ada, "likes")
    assert item and item.value == {"answers": "short", "level": 3}
    assert item.expires_at is None and item.created_at == item.updated_at
    assert db.items.get(("users",), "likes") is None

    found = db.items.search(("users",), where=[("level", ">=", 2), ("answers", "=", "short")])
    assert [each.path for each in found] == [ada]
    assert [each.path for each in db.items.search(where=[(("in", "n"), "=", 1)])] == [bob]
    words = db.items.search(query="long")
    assert [each.path for each in words] == [bob] and words[0].score
    assert db.items.paths(prefix=("*", "ada")) == [ada]
    assert db.items.paths(depth_max=1) == [("users",)]

    assert db.items.delete(bob, "likes")
    assert not db.items.delete(bob, "likes")
    assert db.items.get(bob, "likes") is None
    with pytest.raises(TypeError, match="sequence of labels"):
        db.items.get("users", "likes")
    with pytest.raises(errors.Invalid):
        db.items.put(("*",), "k", 1)


def test_a_batch_of_items_is_one_step(db: treering.Treering) -> None:
    # A batch reads the state from before the batch, and applies all its changes at once.
    path = ("batch",)
    results = db.items.batch(
        [items.put(path, "a", 1), items.put(path, "b", 2), items.get(path, "a")],
        idempotency_key="batch",
    )
    assert not results[2].got.HasField("item")
    assert sorted(each.key for each in db.items.search(path)) == ["a", "b"]
    # A repeated batch changes nothing.
    db.items.put(path, "a", 3)
    db.items.batch([items.put(path, "a", 1)], idempotency_key="batch")
    kept = db.items.get(path, "a")
    assert kept and kept.value == 3
    large = "x" * (2 << 20)
    db.items.batch([items.put(path, name, large) for name in "abc"])
    assert [len(each.value) for each in db.items.search(path)] == [len(large)] * 3


def test_items_live_as_long_as_they_are_read(db: treering.Treering) -> None:
    path = ("short",)
    db.items.put(path, "k", "v", ttl=3600)
    first = db.items.get(path, "k", refresh_ttl=True)
    second = db.items.get(path, "k")
    assert first and second and first.expires_at and second.expires_at
    assert second.expires_at > first.expires_at
    assert (second.created_at, second.updated_at) == (first.created_at, first.updated_at)
    with pytest.raises(ValueError, match="ttl"):
        db.items.put(path, "k", "v", ttl=0)


def test_a_state_says_what_it_is_like(db: treering.Treering) -> None:
    # Each state is stored as a difference from the one before, and is read in full.
    conv = db.create("A state that grows")
    state = {"messages": ["x" * 5000]}
    for number in range(5):
        state["messages"].append(f"message {number}")
        conv.append([new.custom("state", state, key="state", delta_of="state")])
    for number, event in enumerate(conv.events(types="state")):
        assert len(json.loads(event.body.data)["messages"]) == number + 2
    with pytest.raises(errors.Invalid):
        conv.append([new.custom("state", state, delta_of="a\0b")])
