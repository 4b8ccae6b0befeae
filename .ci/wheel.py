"""What the Python package's wheel and source distribution contain: wheel.py SDIST [WHEEL]"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ELF = b"\x7fELF"
SYMBOLS = 2
"""The section type SHT_SYMTAB: the symbol table, which `strip` removes."""
OF_SDIST = {
    *("Cargo.lock", "Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "PKG-INFO", "README.md"),
    *("benches", "clients", "examples", "proto", "pyproject.toml", "src"),
    "tests",
}
"""`tests` has one file, which a manifest names."""
BYTES_MAX = 5_000_000


def sections(program: bytes) -> list[int]:
    """The section types of a 64-bit ELF program."""
    table = int.from_bytes(program[0x28:0x30], "little")
    size = int.from_bytes(program[0x3A:0x3C], "little")
    count = int.from_bytes(program[0x3C:0x3E], "little")
    starts = (table + number * size for number in range(count))
    return [int.from_bytes(program[at + 4 : at + 8], "little") for at in starts]


def check_wheel(path: str) -> None:
    """Checks that the wheel has the package as in git, and a program for its platform tag."""
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())
        [where] = [name for name in names if name.endswith(".data/scripts/treering")]
        assert file.getinfo(where).external_attr >> 16 & 0o111, "the program is not executable"
        program = file.read(where)
        [bill] = [name for name in names if ".dist-info/sboms/" in name]
        with tempfile.TemporaryDirectory() as folder:
            checked = [sys.executable, "packaging/sbom.py", "check", file.extract(bill, folder)]
            subprocess.run(checked, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "clients/python/src"], check=True, capture_output=True, text=True
    ).stdout.split()
    wanted = {name.removeprefix("clients/python/src/") for name in listed}
    package = {name for name in names if name.startswith("treering/")}
    assert package == wanted, f"not in both: {sorted(package ^ wanted)}"

    assert program.startswith(ELF) and SYMBOLS not in sections(program), "not stripped"
    glibc = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", program)), default=0)
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_\w+\.", path)
    assert tag, f"no platform of many Linuxes: {path}"
    assert glibc <= int(tag[1]), f"it needs glibc 2.{glibc}: {path}"
    print(f"{len(package)} files and a program of {len(program)} bytes, for glibc 2.{glibc}")


def check_sdist(path: str) -> None:
    """Checks that it has only the sources that the build needs."""
    with tarfile.open(path) as file:
        members = [member.name.partition("/")[2] for member in file.getmembers()]
    tops = {name.partition("/")[0] for name in members}
    assert tops == OF_SDIST, f"not in both: {sorted(tops ^ OF_SDIST)}"
    others = [name for name in members if name.startswith(("clients/", "tests/"))]
    assert sorted(others) == ["clients/python/README.md", "tests/testkit.rs"], others
    assert "src/treering/_binary.py" in members and "src/cli/main.rs" in members
    print(f"{len(members)} files of source")


check_sdist(sys.argv[1])
for wheel in sys.argv[2:]:
    check_wheel(wheel)
