"""Generates `treering/_sync` from `treering/_async`.

Usage: make_sync.py [--check]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "treering"

WORDS = [
    (r"AsyncGenerator\[(.+?), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncIterable\b", "Iterable"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync(Transport|Treering|Conversation|SubContext|Call|Answer|Replay|Items)\b", r"\1"),
    (r"\bAsync(Subscription|ContextWatch)\b", r"\1"),
    (r"\bAsync(Wire|Stream)\b", r"Sync\1"),
    (r"\bdespite_async\b", "despite_sync"),
    (r"\b_async\b", "_sync"),
    (r"\btreering\.aio\.", "treering."),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait (?=\w|\()", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\.aclose\(\)", ".close()"),
    (r"\bdef aclose\(", "def close("),
    (r", Awaitable\b|\bAwaitable, ", ""),
    (r'"str \| Awaitable\[str\]"', "str"),
    (r"\(await |\(await\b", "("),
]
HEADER = "# Made of {} by scripts/make_sync.py: change that, and run it again.\n"


def translated(text: str) -> str:
    """Translates asyncio code to code for threads."""
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def made() -> dict[str, str]:
    """Generates the files of `_sync`, formatted."""
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted((SOURCE / "_async").glob("*.py")):
            text = file.read_text()
            if file.name != "__init__.py":
                text = HEADER.format(f"_async/{file.name}") + translated(text)
            (Path(folder) / file.name).write_text(text)
        # With this project's rules, although the folder is outside of the project.
        config = ["--config", str(SOURCE.parents[1] / "pyproject.toml"), "--quiet", folder]
        ruff = [sys.executable, "-m", "ruff"]
        subprocess.run([*ruff, "check", "--fix-only", "--select", "I,F401", *config], check=True)
        subprocess.run([*ruff, "format", *config], check=True)
        return {file.name: file.read_text() for file in sorted(Path(folder).glob("*.py"))}


def main() -> int:
    """Writes the files, or with --check prints those that are not current."""
    target = SOURCE / "_sync"
    files = made()
    if "--check" not in sys.argv:
        target.mkdir(exist_ok=True)
        for old in target.glob("*.py"):
            old.unlink()
        for name, text in files.items():
            (target / name).write_text(text)
        return 0
    there = {file.name: file.read_text() for file in target.glob("*.py")}
    stale = sorted(name for name in files | there if files.get(name) != there.get(name))
    if stale:
        print(f"not current: {', '.join(stale)}; run scripts/make_sync.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
