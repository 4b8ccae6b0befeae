"""Every example in every docstring must run, with threads and with asyncio."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treering
from treering import new

MODULES = [
    module.name
    for module in pkgutil.walk_packages(treering.__path__, "treering.")
    if not module.name.startswith(("treering.v1", "treering.__main__"))
]


def examples() -> Iterator[tuple[str, str]]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # The module is an adapter whose framework is not installed.
            assert error.name and not error.name.startswith("treering"), name
            continue
        for test in finder.find(module, name):
            if test.examples:
                yield name, test.name


FOUND = sorted(examples())


def play(examples: list[doctest.Example], names: dict[str, Any], name: str) -> None:
    """Runs the examples in order; they may contain top-level `await`."""
    checker = doctest.OutputChecker()
    with Runner() as runner:
        for example in examples:
            code = compile(example.source, f"<{name}>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                step = types.FunctionType(code, names)
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(step())
                else:
                    step()
            got = said.getvalue()
            fine = checker.check_output(example.want, got, doctest.ELLIPSIS)
            assert fine, f"{name}:\n{example.source}wanted {example.want!r}\ngot    {got!r}"
        if "db" in names and isinstance(names["db"], treering.aio.AsyncTreering):
            runner.run(names["db"].close())


class Runner:
    """One loop for all examples of a docstring, also on Python 3.10."""

    def __enter__(self) -> Runner:
        self.loop = asyncio.new_event_loop()
        return self

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def __exit__(self, *_: object) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.mark.parametrize(("module", "name"), FOUND, ids=[name for _, name in FOUND])
def test_an_example(module: str, name: str, store: Path, namespace: str, tmp_path: Path) -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = finder.find(importlib.import_module(module), module)
    [test] = [test for test in tests if test.name == name]
    names: dict[str, Any] = {"treering": treering, "new": new, "folder": tmp_path / "folder"}
    if "._async." in module or module.endswith(".aio"):
        names["db"] = treering.aio.local(store, namespace=namespace)
        start = "conv = await db.create('Example')"
    else:
        names["db"] = treering.local(store, namespace=namespace)
        start = "conv = db.create('Example')"
    play([doctest.Example(start, ""), *test.examples], names, name)
    if isinstance(names["db"], treering.Treering):
        names["db"].close()


def test_there_are_examples_for_both() -> None:
    sync = [name for module, name in FOUND if "._sync." in module]
    both = [name for module, name in FOUND if "._async." in module]
    assert len(sync) == len(both) > 20
