"""Is a hostile program reported and contained, with the system's walls and without them?"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation import sandbox
from moesaic.lab.evaluation.sandbox import Limits, ProgramResult, run_program

SHORT_S, PLENTY_S = 0.4, 10.0
FORKING = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
# Past Python's own checks: what the system refuses, or what is ended afterwards.
DAEMON = """
import os, _posixsubprocess
reading, writing = os.pipe()
for _ in range(50):
    try:
        _posixsubprocess.fork_exec(
            [b"sleep", b"31415.9"], [b"/bin/sleep"], True, (), None, [], -1, -1, -1, -1, -1, -1,
            reading, writing, True, True, -1, None, None, None, -1, None, False)
    except BlockingIOError:
        pass
while True:
    pass
"""

ENDLESS = (
    "while True: pass",
    "while True: print('x' * 10000)",
    "import os\nos.closerange(3, 99)\nwhile True: pass",
    FORKING,
)
# program -> why it does not pass
HOSTILE = {
    "import os\nos.fork()": "os.fork is not allowed",
    "kept = []\nwhile True: kept.append(bytearray(10**7))": "out of memory",
    "bytearray(1 << 45)": "out of memory",
    "file = open('big', 'wb')\nwhile True: file.write(bytes(10**6)); file.flush()": "too large",
    "for n in range(10**6): open(str(n), 'wb').write(bytes(10**6))": "not allowed",
    "input()": "EOFError",
    "import os; os._exit(0)": "left before its end",
    "raise SystemExit(0)": "SystemExit",
    "import socket; socket.create_connection(('127.0.0.1', 9))": "not allowed",
    "import subprocess; subprocess.run(['true'])": "not allowed",
    "import os; os.system('true')": "not allowed",
    "import os; os.kill(os.getppid(), 9)": "not allowed",
    "import ctypes; ctypes.CDLL(None)": "not allowed",
    "import sqlite3; sqlite3.connect('/tmp/a.db')": "not allowed",
    "import os; os.closerange(0, 99)": "left before its end",
    "def f(x: List[int]): pass": "'List' is not defined",
    "x = '\ud800'": "SyntaxError",
    "def again(): return again()\nagain()": "RecursionError",
    "assert 1 == 2, 'no'": "AssertionError: no",
    "def (": "SyntaxError",
    "x = 1\x00": "null bytes",
    "class Odd(Exception):\n  def __str__(self): 1 / 0\nraise Odd": "an error without a message",
}


def ran(source: str, separate: bool, seconds: float = PLENTY_S) -> ProgramResult:
    limits = Limits(seconds=seconds, memory_bytes=1 << 28, separate=separate)
    return run_program(source, limits)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: " ".join(source.split())[:40])
def test_what_a_program_does_wrong_is_said(source: str, separate: bool) -> None:
    outcome = ran(source, separate)
    assert not outcome.passed
    assert HOSTILE[source] in outcome.why


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("source", ENDLESS, ids=lambda source: " ".join(source.split())[:40])
def test_what_does_not_end_is_ended(source: str, separate: bool) -> None:
    outcome = ran(source, separate, SHORT_S)
    assert (outcome.passed, outcome.why) == (False, "out of time")


@pytest.mark.parametrize("separate", [True, False])
def test_a_good_program_passes(separate: bool) -> None:
    lines = (
        "import math, os, sys, tempfile",
        "assert math.gcd(12, 18) == 6",
        "open('mine', 'w').write('x'); assert open('mine').read() == 'x'; os.remove('mine')",
        "assert not set(os.environ) - {'LC_CTYPE'}, os.environ",  # which Python sets itself
        "assert sys.flags.isolated",
        "import pickle",
        "class Mine: pass",
        "assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)",
        "if __name__ == '__main__': print(1 / int(input()))",  # a script's part is no test
        "import atexit; atexit.register(lambda: 1 / 0)",
    )
    assert ran("\n".join(lines), separate) == ProgramResult(True, "", ran("", separate).separated)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize(
    "action",
    [
        "open({path!r}, 'w')",
        "import os; os.open({path!r}, os.O_WRONLY | os.O_CREAT)",
        "import os; os.remove({path!r})",
        "import os; os.rename({path!r}, 'mine')",
        "import os; os.truncate({path!r}, 0)",
        "import os; os.remove('theirs', dir_fd=os.open({folder!r}, os.O_RDONLY))",
        "import shutil; shutil.rmtree({folder!r})",
        "import os; os.symlink({folder!r}, 'link'); open('link/theirs', 'w')",
    ],
)
def test_nothing_outside_is_changed(action: str, separate: bool, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    outcome = ran(action.format(path=str(theirs), folder=str(tmp_path)), separate)
    assert not outcome.passed
    assert theirs.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [theirs]


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_survives(separate: bool) -> None:
    assert ran(DAEMON, separate, SHORT_S).why == "out of time"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"31415.9" in _read(path)]
    assert left == []


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = "open('a', 'w').write('x'); import os; os.mkdir('b'); assert False"
    assert ran(source, True).why == ran(source, False).why == "AssertionError"
    assert list(tmp_path.iterdir()) == []


def test_walls_hold_where_python_does_not_look(tmp_path: Path) -> None:
    """`os.open` does not announce the folder that its path starts from."""
    source = (
        "import os\nos.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open({!r}, os.O_RDONLY))"
    )
    outcome = ran(source.format(str(tmp_path)), True)
    if "files" not in outcome.separated:
        pytest.skip("this system does not let programs be separated from its files")
    assert "Read-only file system" in outcome.why
    assert list(tmp_path.iterdir()) == []


def test_other_processes_are_not_seen() -> None:
    """Their command lines and environments may have secrets."""
    source = "import os\nassert not [n for n in os.listdir('/proc') if n.isdigit() and n != '1']"
    outcome = ran(source, True)
    if "processes" not in outcome.separated:
        pytest.skip("this system does not let programs be separated from its processes")
    assert outcome.passed, outcome.why


def test_a_guard_that_fails_fails_its_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "guard.py"
    broken.write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    assert ran("", True) == ProgramResult(False, "its guard ended with status 1: no memory", ())
    with pytest.raises(ImpossibleSetting, match=r"cannot be run here: .* no memory"):
        sandbox.walls()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_our_own_process_is_as_before() -> None:
    ran("import os; os.chdir('/')", True)
    assert os.getcwd() == str(Path.cwd())
    assert os.access(os.getcwd(), os.W_OK)
