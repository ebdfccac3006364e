"""Does a folder appear whole or not at all?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic.core.folders import temporary_folder, whole_folder


def test_it_appears_at_the_end_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with whole_folder(target) as fresh:
        (fresh / "file").write_text("new")
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (target / "file").read_text() == "new"


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for names in (("a", "b"), ("c",)):
        with whole_folder(target) as fresh:
            for name in names:
                (fresh / name).touch()
    assert [path.name for path in target.iterdir()] == ["c"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()

    def half() -> None:
        with whole_folder(target) as fresh:
            (fresh / "new").touch()
            raise error

    with pytest.raises(error):
        half()
    assert list(tmp_path.iterdir()) == [target]
    assert [path.name for path in target.iterdir()] == ["old"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("name", "done", "left"),
    [("made", False, "old"), ("made", True, "old"), ("new", False, "old"), ("new", True, "new")],
)
def test_an_error_between_the_renames_loses_nothing(
    name: str,
    done: bool,
    left: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the renaming of `name`, before or after it is `done`; what is `left` there is whole."""
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    rename = Path.rename

    def failing(self: Path, where: Path) -> Path:
        if self.name != name:
            return rename(self, where)
        if done:
            rename(self, where)
        raise error

    def replace() -> None:
        with whole_folder(target) as fresh:
            (fresh / "new").touch()
            monkeypatch.setattr(Path, "rename", failing)

    with pytest.raises(error):
        replace()
    assert list(tmp_path.iterdir()) == [target]
    assert [path.name for path in target.iterdir()] == [left]


_KILLED = """
import os, sys
from pathlib import Path
from moesaic.core.folders import temporary_folder, whole_folder
with temporary_folder("own-", Path(sys.argv[1])) as folder, whole_folder(sys.argv[1] + "/made"):
    (folder / "file").touch()
    os.kill(os.getpid(), 9)
"""


def aged(folder: Path) -> None:
    """As if nothing had been made lately."""
    for path in folder.iterdir():
        os.utime(path, (0, 0))


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    aged(tmp_path)
    with temporary_folder("own-", tmp_path) as folder, whole_folder(tmp_path / "made") as fresh:
        assert {path.name for path in tmp_path.iterdir()} == {folder.name, fresh.parent.name}
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_is_in_use_new_or_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "own-link").symlink_to(tmp_path)
    (tmp_path / "own-file").touch()
    (tmp_path / "own-new").mkdir()
    (tmp_path / "other").mkdir()
    with temporary_folder("own-", tmp_path) as used:
        os.utime(used, (0, 0))
        with temporary_folder("own-", tmp_path):
            assert used.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("own-link", "own-file", "own-new", "other")
    }


def test_a_folder_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    """The process was killed after it had moved the old one away."""
    (tmp_path / ".made.x" / "old").mkdir(parents=True)
    (tmp_path / ".made.x" / "old" / "file").touch()
    aged(tmp_path)
    with pytest.raises(ValueError, match="half"), whole_folder(tmp_path / "made"):
        raise ValueError("half")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["file"]
    assert len(list(tmp_path.iterdir())) == 1
