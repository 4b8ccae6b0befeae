"""Puts the `treering` program into the wheel, stripped, and names the platform that it needs.

TREERING_BINARY names the program; without it, `target/release/treering` of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
RELEASE = ROOT.parents[1] / "target" / "release"
NAME = "treering.exe" if os.name == "nt" else "treering"


class BinaryHook(BuildHookInterface[Any]):
    """Runs before a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Copies the program in. An editable install takes what is on the PATH instead."""
        if version == "editable":
            return
        binary = Path(os.environ.get("TREERING_BINARY") or RELEASE / NAME)
        if not binary.is_file():
            raise RuntimeError(
                f"there is no program at {binary}: build it (cargo build --release), "
                "or name one in TREERING_BINARY"
            )
        copy = ROOT / "build" / NAME
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(binary, copy)
        copy.chmod(0o755)
        strip(copy)
        build_data["force_include"][str(copy)] = f"treering/bin/{NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(copy)}"


def strip(binary: Path) -> None:
    """Takes symbols out: they are most of it, and serve debuggers only."""
    if tool := shutil.which("strip"):
        flags = ["-x"] if sysconfig.get_platform().startswith("macosx") else []
        subprocess.run([tool, *flags, str(binary)], check=True)


def platform(binary: Path) -> str:
    """The wheel's platform. On Linux, the oldest glibc that has all that the program names."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not name.startswith("linux"):
        return name
    wanted = re.findall(rb"GLIBC_(\d+)\.(\d+)", binary.read_bytes())
    if not wanted:
        return name.replace("linux", "musllinux_1_2", 1)
    major, minor = max((int(major), int(minor)) for major, minor in wanted)
    return name.replace("linux", f"manylinux_{major}_{minor}", 1)
