"""Makes `treering/v1` of the repository's `proto`, with a compiler old enough that any
protobuf from 4.21 on can load what it makes.

Usage: make_stubs.py [--check]

Needs Python 3.11 or older (the compiler has no newer wheels) with
`grpcio-tools==1.51.3`, `mypy-protobuf==3.4.0` and `setuptools<80`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PROTO = HERE.parents[1] / "proto"
TARGET = HERE / "src" / "treering" / "v1"


def compiled(out: Path) -> dict[str, str]:
    """The stubs: modules and what type checkers read."""
    files = sorted(str(file.relative_to(PROTO)) for file in PROTO.rglob("*.proto"))
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"),
            *(f"--plugin=protoc-gen-mypy={plugin}", f"--python_out={out}"),
            *("--mypy_out=quiet:" + str(out), *files),
        ],
        check=True,
    )
    made = out / "treering" / "v1"
    return {file.name: file.read_text() for file in sorted(made.glob("*_pb2.py*"))}


def main() -> int:
    """Writes the stubs, or with --check says which are not current."""
    with tempfile.TemporaryDirectory() as folder:
        stubs = compiled(Path(folder))
    there = {file.name: file.read_text() for file in TARGET.glob("*_pb2.py*")}
    if "--check" in sys.argv:
        stale = sorted(name for name in stubs | there if stubs.get(name) != there.get(name))
        if stale:
            print(f"not current: {', '.join(stale)}; run scripts/make_stubs.py", file=sys.stderr)
        return bool(stale)
    for name in there:
        (TARGET / name).unlink()
    for name, text in stubs.items():
        (TARGET / name).write_text(text)
    shutil.rmtree(TARGET / "__pycache__", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
