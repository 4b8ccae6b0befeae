"""`python -m treering`: runs the program `treering`, for example the one in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys

from treering._binary import find_binary
from treering.errors import NoBinary


def main() -> int:
    """Runs the program in place of this process (on Windows: as a child)."""
    try:
        binary = find_binary()
    except NoBinary as error:
        print(error, file=sys.stderr)
        return 1
    if os.name == "nt":
        return subprocess.call([binary, *sys.argv[1:]])
    os.execv(binary, ["treering", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
