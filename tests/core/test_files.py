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
