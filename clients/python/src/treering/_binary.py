"""Finds the `treering` program."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from treering.errors import NoBinary

NAME = "treering.exe" if os.name == "nt" else "treering"


def find_binary() -> str:
    """Returns the path of `treering`: from TREERING_BINARY, else the wheel, else the PATH."""
    if given := os.environ.get("TREERING_BINARY"):
        if not shutil.which(given):
            raise NoBinary(f"TREERING_BINARY is {given}, but there is no such program")
        return given
    for path in _installed():
        if path.is_file():
            return str(path)
    if found := shutil.which(NAME):
        return found
    raise NoBinary("this installation of treering does not include the server")


@contextmanager
def starting(program: str) -> Iterator[None]:
    """Raises `NoBinary` with the name of the program if it cannot be run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
            raise
        raise NoBinary(f"{program} cannot be run: {error.strerror}") from error


def _installed() -> Iterator[Path]:
    """Yields where installers put the wheel's commands: that folder need not be on the PATH."""
    # `pip install --target` puts commands beside the packages, but records another path.
    yield Path(__file__).resolve().parents[1] / "bin" / NAME
    try:
        files = distribution("treering").files
    except PackageNotFoundError:
        return
    for file in files or ():
        # In venvs, and with `--user` and `--prefix`, commands are outside of the packages.
        if file.name == NAME and ".." in file.parts:
            yield Path(str(file.locate())).resolve()
