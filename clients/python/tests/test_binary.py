"""Finding the program of an installed wheel. pip installs the wheel, as for users."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import treering

SAYS = "#!/bin/sh\necho the program: $*\n"
INFO = "treering-9.0.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this package, with a script where maturin puts the program."""
    path = tmp_path_factory.mktemp("wheel") / "treering-9.0-py3-none-any.whl"
    package = Path(treering.__file__).parent
    with zipfile.ZipFile(path, "w") as file:
        for source in package.rglob("*.py"):
            file.write(source, Path("treering") / source.relative_to(package))
        program = zipfile.ZipInfo("treering-9.0.data/scripts/treering")
        program.external_attr = 0o100755 << 16
        file.writestr(program, SAYS)
        file.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: treering\nVersion: 9.0\n")
        file.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        names = [*file.namelist(), f"{INFO}/RECORD"]
        file.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in names))
    return path


def install(wheel: Path, *where: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *where]
    subprocess.run([*command, str(wheel)], check=True)


def says(packages: Path, path: str = "/nowhere", **variables: str) -> tuple[str, str]:
    """The output of `find_binary` and of `python -m treering` with these packages first."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("TREERING")}
    environment = {**given, "PYTHONPATH": str(packages), "PATH": path, **variables}
    program = "from treering._binary import find_binary; print(find_binary())"

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True
        )
        return (done.stdout or done.stderr).strip()

    return said("-c", program), said("-m", "treering", "ls", "--json")


# pip installs the program into a folder of commands, which may not be on PATH. It must be found
# from the package, wherever the package is installed.
@pytest.mark.parametrize("how", ["--prefix", "--target"])
def test_the_program_of_an_installed_wheel(wheel: Path, tmp_path: Path, how: str) -> None:
    install(wheel, how, str(tmp_path))
    [package] = tmp_path.rglob("treering/__init__.py")
    assert not list(package.parent.rglob("bin"))
    found, said = says(package.parents[1])
    assert Path(found).resolve() == (tmp_path / "bin" / "treering").resolve()
    assert said == "the program: ls --json"


# A package without the program uses the one on PATH, and reports if there is none.
# TREERING_BINARY takes precedence.
def test_a_program_of_the_path_or_named(wheel: Path, tmp_path: Path) -> None:
    install(wheel, "--target", str(tmp_path / "all"))
    program = tmp_path / "all" / "bin" / "treering"
    named = program.rename(tmp_path / "all" / "bin" / "named")
    packages = tmp_path / "all"
    found, said = says(packages)
    assert "NoBinary" in found
    assert "does not include the server" in said

    elsewhere = tmp_path / "elsewhere" / "treering"
    elsewhere.parent.mkdir()
    elsewhere.write_text(SAYS)
    elsewhere.chmod(0o755)
    assert says(packages, str(elsewhere.parent)) == (str(elsewhere), "the program: ls --json")

    found, said = says(packages, str(elsewhere.parent), TREERING_BINARY=str(named))
    assert (found, said) == (str(named), "the program: ls --json")
