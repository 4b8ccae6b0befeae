"""Every block of Python in the pages of documentation must run and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[1]
PAGES = [HERE / "README.md", *sorted((HERE / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


def run_page(page: Path) -> None:
    """Runs the page's blocks in this folder, and compares what they print."""
    names: dict[str, Any] = {}
    said = ""
    shown = 0
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "text":
            assert said == text, f"{page.name} says\n{text}and it printed\n{said}"
            shown += 1
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, page.name, "exec"), names)
        said = out.getvalue()
    assert shown > 1
