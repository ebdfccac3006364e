"""Do processes that compile at the same time leave each other's code alone?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from moesaic.compiling.shared_files import SharedFiles

SAVERS = 4


def saved_at_once(kind: type[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is found for each of several keys that were saved at the same time, by savers that are
    interrupted after they have read the index."""
    read = IndexDataCacheFile._load_index

    def slowly(files: Any) -> Any:
        index = read(files)
        sleep(0.05)
        return index

    together = Barrier(SAVERS)

    def save(key: int) -> None:
        files = kind(str(folder), "function", "stamp")
        together.wait()
        files.save(key, f"code for {key}")

    monkeypatch.setattr(IndexDataCacheFile, "_load_index", slowly)
    with ThreadPoolExecutor(SAVERS) as pool:
        list(pool.map(save, range(SAVERS)))
    monkeypatch.undo()
    return [kind(str(folder), "function", "stamp").load(key) for key in range(SAVERS)]


def test_every_key_has_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = saved_at_once(SharedFiles, tmp_path, monkeypatch)
    assert found == [f"code for {key}" for key in range(SAVERS)]


def test_without_a_lock_it_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, numba has learned it, and nothing of ours is needed."""
    found = saved_at_once(IndexDataCacheFile, tmp_path, monkeypatch)
    assert found != [f"code for {key}" for key in range(SAVERS)]


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    files = SharedFiles(str(tmp_path / "gone"), "function", "stamp")
    assert files.load("key") is None
    files.save("key", "code")
    assert files.load("key") == "code"


def test_what_is_compiled_is_kept_so() -> None:
    from moesaic.policies.brain import handle

    jitted: Any = handle.fill
    assert isinstance(jitted._cache._cache_file, SharedFiles)
