"""`python -m treering.semantic`: prints the folder of the local model."""

from __future__ import annotations

import sys

from treering.errors import NoModel
from treering.semantic import folder

if __name__ == "__main__":
    try:
        print(folder())
    except (NoModel, OSError) as error:
        sys.exit(str(error))
