"""Is compiled code that cannot be read compiled again, and replaced?"""

from __future__ import annotations

import errno
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import pytest

from moesaic.compiling import kept_code, shared_files
from moesaic.compiling.kept_code import kept, kept_c_function


def doubled(number: int) -> int:
    return 2 * number


def loaded(folder: Path) -> bool:
    """Whether calling the function found its code there; the result is right in any case."""
    function: Any = kept(doubled, str(folder))
    assert function(21) == 42
    return bool(sum(function.stats.cache_hits.values()) == 1)


def loaded_for_c(folder: Path) -> bool:
    function = kept_c_function("int64(int64)", doubled, str(folder))
    assert function.ctypes(21) == 42
    return bool(function.cache_hits == 1)


def one_bit_changed(content: bytes) -> bytes:
    at = 2 * len(content) // 3
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "a few bytes": lambda content: content[:5],
    "random bytes": lambda content: Random(1).randbytes(len(content)),
    "another pickle": lambda content: pickle.dumps(["not", "code"]),
    "one bit changed": one_bit_changed,
    "zeros": lambda content: bytes(len(content)),
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    assert not loaded(folder)
    assert not loaded_for_c(folder)
    assert loaded(folder)
    assert loaded_for_c(folder)
    return folder


@pytest.mark.parametrize("found", [loaded, loaded_for_c])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_a_miss_and_is_written_again(
    kind: str, ending: str, found: Callable[[Path], bool], intact: Path, tmp_path: Path
) -> None:
    folder = copytree(intact, tmp_path / "damaged")
    files = list(folder.rglob(f"*.{ending}"))
    assert files
    for file in files:
        file.write_bytes(DAMAGE[kind](file.read_bytes()))
    assert not found(folder)
    assert found(folder)


def test_an_interrupted_save_leaves_what_was_there(
    intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(intact, tmp_path / "kept")
    before = {file.name: file.read_bytes() for file in folder.rglob("*.nb?")}

    def interrupted(path: str) -> Any:
        raise KeyboardInterrupt

    function: Any = kept(doubled, str(folder))
    with monkeypatch.context() as patched:
        patched.setattr(shared_files, "whole_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            function(2.5)
    assert {file.name: file.read_bytes() for file in folder.rglob("*.nb?")} == before
    assert function(2.5) == 5.0


def test_code_that_cannot_be_saved_is_used_and_announced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: str) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept_code._announce_unkept.cache_clear()
    monkeypatch.setattr(shared_files, "whole_file", full)
    function: Any = kept(doubled, str(tmp_path))
    with caplog.at_level(logging.WARNING, "moesaic"):
        assert function(21) == 42
        assert function(2.5) == 5.0
    [said] = caplog.messages
    assert "No space left on device" in said
    assert str(tmp_path) in said


@pytest.mark.parametrize("place", [None, "a file"])
def test_without_a_folder_code_is_compiled_and_not_kept(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    folder = None if place is None else str(tmp_path / place)
    function: Any = kept(doubled, folder)
    assert function(21) == 42
    assert kept_c_function("int64(int64)", doubled, folder).ctypes(21) == 42
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
