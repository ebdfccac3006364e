"""Do output files appear whole or not at all, in the place of nothing but a file, and leave no
rest behind?"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import refuse_special, whole_file
from moesaic.core.folders import temporary_folder, whole_folder

_KILLED = """
import os, signal, sys
from moesaic.core.files import whole_file
with whole_file(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(path: Path, content: bytes = b"new") -> None:
    with whole_file(path) as stream:
        stream.write(content)


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with whole_file(target) as stream:
        stream.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask


def test_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "pipe"
    os.mkfifo(target)
    with pytest.raises(ImpossibleSetting, match="is a pipe: give the name of a file"):
        write(target)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ImpossibleSetting, match="is a pipe"):
        write(link)
    assert stat.S_ISFIFO(target.stat().st_mode)
    assert names(tmp_path) == ["link", "pipe"]


def test_a_socket_a_directory_and_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for path, what in (
        ("socket", "a socket"),
        (tmp_path, "a directory"),
        ("/dev/null", "a device"),
    ):
        with pytest.raises(ImpossibleSetting, match=f"^output '.*' is {what}: give"):
            write(Path(path))
        with pytest.raises(ImpossibleSetting, match=f"^--record '.*' is {what}: give"):
            refuse_special(path, "--record")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    refuse_special("nothing yet")


def test_what_came_in_between_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def late() -> None:
        with whole_file(target) as stream:
            stream.write(b"new")
            os.mkfifo(target)

    with pytest.raises(ImpossibleSetting, match="is a pipe"):
        late()
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_reported_with_the_file(number: int, tmp_path: Path) -> None:
    target = tmp_path / "file"

    def full() -> None:
        with whole_file(target):
            raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        full()
    assert caught.value.filename == str(target)
    assert names(tmp_path) == []


def test_other_errors_keep_their_file(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def missing() -> None:
        with whole_file(target):
            (tmp_path / "other").read_bytes()

    with pytest.raises(FileNotFoundError) as caught:
        missing()
    assert caught.value.filename == str(tmp_path / "other")
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "no folder" / "file")
    assert caught.value.filename == str(tmp_path / "no folder" / "file")


def test_the_rest_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "file"
    command = [sys.executable, "-c", _KILLED, str(target)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".file.")
    write(tmp_path / "another")
    assert names(tmp_path) == sorted([left, "another"])
    write(target)
    assert names(tmp_path) == ["another", "file"]


def test_what_is_being_written_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with whole_file(target) as first:
        first.write(b"first")
        write(target, b"second")
        assert target.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


# Does a folder appear whole or not at all?


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


_KILLED_WITH_FOLDER = """
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
    done = subprocess.run([sys.executable, "-c", _KILLED_WITH_FOLDER, str(tmp_path)], check=False)
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
