"""The licences and notices of the crates linked into the program on this platform.

Usage: notices.py > THIRD-PARTY-NOTICES.txt

The list of crates is that of the bill of materials (sbom.py). The texts are the files that each
crate has, C code included; a text that several crates have is printed once.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import sbom

TEXT = re.compile(r"(un)?licen[cs]e|notice|copyright|copying", re.IGNORECASE)
NOT_TEXT = {".rs", ".py", ".json", ".toml", ".sh", ".spdx", ".h", ".c"}
RULE = "=" * 80


def packages() -> list[dict]:
    """What is linked, without the project's own crates."""
    asked = ["cargo", "metadata", "--locked", "--format-version", "1"]
    said = subprocess.run(asked, cwd=sbom.ROOT, check=True, stdout=subprocess.PIPE).stdout
    linked = sbom.names("normal,no-proc-macro")
    return [
        each
        for each in json.loads(said)["packages"]
        if each["source"] and (each["name"], each["version"]) in linked
    ]


def texts(folder: Path) -> list[Path]:
    """The files with licences and notices of a crate.

    `COPYING` counts only where no other file does: in zstd, for one, it is the GPL, which is only
    one of two licences to choose from.
    """
    found = sorted(
        path
        for path in folder.rglob("*")
        if TEXT.match(path.name) and path.suffix not in NOT_TEXT and path.is_file()
    )
    others = {path.parent for path in found if not path.name.upper().startswith("COPYING")}
    return [
        path
        for path in found
        if path.parent not in others or not path.name.upper().startswith("COPYING")
    ]


def main() -> None:
    crates = packages()
    # Each text, with the files that have it. Texts that differ only in white space are the same.
    having: dict[str, tuple[str, list[str]]] = {}
    without = []
    for crate in sorted(crates, key=lambda each: (each["name"], each["version"])):
        name = f"{crate['name']} {crate['version']}"
        folder = Path(crate["manifest_path"]).parent
        found = texts(folder)
        for path in found:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            file = f"{name}: {path.relative_to(folder).as_posix()}"
            having.setdefault(" ".join(text.split()), (text, []))[1].append(file)
        if not found:
            authors = ", ".join(crate["authors"]) or crate["repository"] or "unknown"
            without.append(f"{name}: {crate['license']}; by {authors}")
    print(f"The program contains {len(crates)} crates of others, under the licences below.")
    print("Crates without a licence file, with the licence and the authors that they declare:\n")
    print(*without, sep="\n")
    for text, names in having.values():
        print(f"\n{RULE}", *names, f"{RULE}\n", text, sep="\n")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    main()
