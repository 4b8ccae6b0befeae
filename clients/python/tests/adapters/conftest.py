"""Fixtures of the tests of adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .model import Model, serving


@pytest.fixture
def model() -> Iterator[Model]:
    with serving() as model:
        yield model
