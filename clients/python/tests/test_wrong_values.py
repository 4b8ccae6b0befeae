"""What a program gives by mistake: it is told so, in its own words, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import treering
from treering import items, new

NAN = float("nan")


# NaN in arguments was stored as what no reader of JSON takes, and stood so in requests; in a
# context or an item the server refused it without saying which, or what.
def test_numbers_that_json_has_not(db: treering.Treering, conv: treering.Conversation) -> None:
    said: list[tuple[Callable[[], Any], str]] = [
        (lambda: conv.tool_call("f", {"x": NAN}), r"arguments\['x'\] is NaN"),
        (lambda: conv.assistant(tool_calls=[("c", "f", {"x": [1, NAN]})]), r"\['x'\]\[1\] is NaN"),
        (lambda: new.tool_call("c", "f", {"x": -float("inf")}), r"\['x'\] is -Infinity"),
        (lambda: conv.set_context({"fine": 1, "odd": NAN}), "the value of 'odd' is NaN"),
        (lambda: db.items.put(("a",), "k", {"n": {"m": NAN}}), r"of 'k'\['n'\]\['m'\] is NaN"),
        (lambda: items.conditions([("n", "=", NAN)]), "the value for 'n' is NaN"),
        (lambda: conv.tool_result("c", structured={NAN: 1}), "a key of structured is NaN"),
        (lambda: db.create(parameters={"temperature": NAN}), r"parameters\['temperature'\] is NaN"),
        (lambda: conv.change(metadata={"m": NAN}), r"metadata\['m'\] is NaN"),
        (lambda: conv.request("anthropic", policy={"p": NAN}), r"policy\['p'\] is NaN"),
    ]
    before = conv.head()
    for give, what in said:
        with pytest.raises(ValueError, match=what + ".*give None or a text"):
            give()
    assert conv.head() == before
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ValueError, match="Circular"):
        new.tool_call("c", "f", ring)
    # What a tool returns is text for the model, and what a model wrote stays as it wrote it.
    asked = conv.assistant(tool_calls=[("c", "f", '{"x": NaN}')]).calls[0]
    asked.run(lambda x: {"loss": x})
    assert conv.result("c").text == '{"loss":NaN}'
