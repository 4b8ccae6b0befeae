"""Every block of Python in the pages on adapters must run, against the model of these tests."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from ..test_pages import HERE, run_page
from .model import agent_environment, serving

PAGES = sorted((HERE / "docs" / "adapters").glob("*.md"))
NEEDS = {
    "claude-agent-sdk": "claude_agent_sdk",
    "openai-agents": "agents",
    "langgraph": "langgraph",
    "pydantic-ai": "pydantic_ai",
    "google-adk": "google.adk",
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.import_module(NEEDS[page.stem])
    except ImportError:
        pytest.skip(f"{NEEDS[page.stem]} is not installed")
    with serving() as model:
        for name, value in agent_environment(model, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        run_page(page)
