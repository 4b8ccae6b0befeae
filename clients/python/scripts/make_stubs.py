"""Generates `treering/v1` from the repository's `proto`. The compiler is so old that any
protobuf from 4.21 on can load the generated modules.

Usage: make_stubs.py [--check]

Needs Python 3.11 or older (the compiler has no newer wheels) with
`grpcio-tools==1.51.3`, `mypy-protobuf==3.4.0` and `setuptools<80`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

HERE = Path(__file__).resolve().parents[1]
PROTO = HERE.parents[1] / "proto"
TARGET = HERE / "src" / "treering" / "v1"


OPTIONS = "treering/v1/options.proto"

NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Role", "RoleName", ()),
    ("Decision", "DecisionName", ()),
    ("CancelReason", "CancelReasonName", ()),
    ("CompactionTrigger", "CompactionTriggerName", ()),
    ("Provider", "ProviderName", ()),
    ("QueryMode", "QueryModeName", ("",)),
    ("SearchBy", "SearchByName", ()),
    ("CallStatus", "CallStatusName", ("unspecified",)),
    ("EventKind", "KindName", ()),
)
"""Enums, the types of their names, and additional names."""


def protoc(*arguments: str) -> None:
    """Runs the compiler."""
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)


def names(described: FileDescriptorSet) -> str:
    """Generates the types of the names of enum values, for type checkers."""
    enums = {enum.name: enum.value for file in described.file for enum in file.enum_type}
    lines = ['"""Words for the values of enums: "user" for `ROLE_USER`."""', ""]
    lines += ["from typing import Literal", ""]
    for enum, kind, more in NAMES:
        prefix = re.sub("(?<!^)(?=[A-Z])", "_", enum).upper()
        words = [value.name.removeprefix(f"{prefix}_").lower() for value in enums[enum][1:]]
        if enum == "Provider":
            words = [word.replace("_", "-") for word in words]
        lines += [f"{kind} = Literal[", *(f'    "{word}",' for word in [*words, *more]), "]"]
    return "\n".join(lines) + "\n"


def without_options(described: FileDescriptorSet) -> None:
    """Removes the options of the schema, which only the server's build reads: protobuf 5 in pure
    Python cannot load extensions from a compiler this old."""
    # The extensions are unknown fields: they are not registered here.
    described.DiscardUnknownFields()
    described.file.remove(next(file for file in described.file if file.name == OPTIONS))
    for file in described.file:
        if OPTIONS in file.dependency:
            file.dependency.remove(OPTIONS)
        messages = list(file.message_type)
        for message in messages:
            messages.extend(message.nested_type)
        fields = [field for message in messages for field in message.field]
        methods = [method for service in file.service for method in service.method]
        parts: list[DescriptorProto | FieldDescriptorProto | MethodDescriptorProto] = [
            *messages,
            *fields,
            *methods,
        ]
        for part in parts:
            if not part.options.ByteSize():
                part.ClearField("options")
        # The compiler adds JSON names to descriptors, but not to modules.
        for field in fields:
            field.ClearField("json_name")


def compiled(out: Path) -> dict[str, str]:
    """Generates the modules, and their stubs for type checkers."""
    files = sorted(str(file.relative_to(PROTO)) for file in PROTO.rglob("*.proto"))
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    path = out / "described.bin"
    whole = ("--include_imports", "--include_source_info", f"--descriptor_set_out={path}")
    protoc(f"-I{PROTO}", *whole, *files)
    described = FileDescriptorSet.FromString(path.read_bytes())
    without_options(described)
    path.write_bytes(described.SerializeToString())
    files.remove(OPTIONS)
    protoc(
        *(f"--descriptor_set_in={path}", f"--plugin=protoc-gen-mypy={plugin}"),
        *(f"--python_out={out}", f"--mypy_out=quiet:{out}", *files),
    )
    made = out / "treering" / "v1"
    stubs = {file.name: file.read_text() for file in sorted(made.glob("*_pb2.py*"))}
    return {**stubs, "names.py": names(described)}


def main() -> int:
    """Writes the stubs, or with --check prints those that are not current."""
    with tempfile.TemporaryDirectory() as folder:
        stubs = compiled(Path(folder))
    generated = [*TARGET.glob("*_pb2.py*"), *TARGET.glob("names.py")]
    there = {file.name: file.read_text() for file in generated}
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
