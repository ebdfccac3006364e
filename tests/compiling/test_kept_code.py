"""Do processes that compile at the same time leave each other's code alone?"""

from __future__ import annotations

import errno
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from shutil import copytree
from threading import Barrier
from time import sleep
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from moesaic.compiling import kept_code
from moesaic.compiling.kept_code import SharedFiles, kept, kept_c_function

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


# Do two processes that need the same code at the same time compile it once?

# Numba calls the body of an `overload` while it compiles the caller.
PROGRAM = """
import sys
from pathlib import Path
from time import sleep

from numba.extending import overload

from moesaic.compiling.kept_code import kept

def slow(x): ...

@overload(slow)
def _slow(x):
    sleep(1.5)
    return lambda x: x

def calling(x):
    return slow(x) + 1

def failing(x):
    return slow(x).no_such_name

folder, number = sys.argv[1:]

def meet(where):
    met = Path(folder) / where
    met.mkdir(exist_ok=True)
    (met / number).touch()
    while len(list(met.iterdir())) < 2:
        sleep(0.01)

meet("begun")
function = kept(failing if "failing" in folder else calling, folder)
try:
    assert function(1) == 2
except Exception as error:
    print(type(error).__name__)
else:
    print(sum(function.stats.cache_hits.values()))
meet("ended")  # what a process still held would keep the other from its end
"""


def both_at_once(folder: Path) -> list[str]:
    folder.mkdir()
    program = folder / "program.py"  # numba keeps no code of functions without a file
    program.write_text(PROGRAM)
    both = [
        subprocess.Popen(
            [sys.executable, program, folder, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    return sorted(process.communicate(timeout=120)[0].strip() for process in both)


def test_one_compiles_and_the_other_loads(tmp_path: Path) -> None:
    assert both_at_once(tmp_path / "working") == ["0", "1"]


def test_after_a_failure_the_other_goes_on(tmp_path: Path) -> None:
    assert both_at_once(tmp_path / "failing") == ["TypingError", "TypingError"]


def test_other_arguments_are_compiled_in_between(tmp_path: Path) -> None:
    """A function may call itself with other arguments: numba asks again before it has saved."""
    files = SharedFiles(str(tmp_path), "function", "stamp")
    files.compile_alone()
    files.compile_alone()
    files.let_others_compile()
    another = SharedFiles(str(tmp_path), "function", "stamp")
    another.compile_alone()
    another.let_others_compile()


# Is compiled code that cannot be read compiled again, and replaced?


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
        patched.setattr(kept_code, "whole_file", interrupted)
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
    monkeypatch.setattr(kept_code, "whole_file", full)
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
