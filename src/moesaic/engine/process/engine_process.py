"""One process with an engine: how it is started, watched, and described after its end.

It has a folder that only this user can enter: the socket, a log of what it writes to its standard
streams, and a record of its steps. It ends with its parent: its standard input is a pipe that
nothing but the parent's end closes and, on Linux, the kernel kills it when the thread that has
started it ends."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zmq

from moesaic.core.errors import ImpossibleSetting, printable
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.preparation import PathLike
from moesaic.engine.process.process_options import ProcessOptions
from moesaic.engine.process.step_record import StepRecord

SOCKET, LOG, STEPS = "socket", "engine.log", "steps"
_PREFIX = "moesaic-engine-"
_CHILD = "moesaic.engine.process.child"
_LONGEST_ADDRESS = 100  # characters of a Unix socket's path; the system's limit is 104 or 108
_LOG_BYTES, _LOG_LINES, _LINE = 16_384, 20, 300  # the end of a log that an error shows
_CRASH = "Fatal Python error"


@dataclass(frozen=True, slots=True)
class Launch:
    """What the process is to run. Everything of texts but constraints is the caller's."""

    folder: Path  # of the model
    settings: EngineSettings
    eos_ids: frozenset[int]
    record: PathLike | None
    options: ProcessOptions


class EngineProcess:
    """Must be made, and is watched, by a thread that lives as long as the process may."""

    def __init__(self, launch: Launch) -> None:
        if not zmq.has("ipc"):
            raise ImpossibleSetting(
                "an engine in a process of its own needs Unix sockets, which this system has not: "
                "leave out `process`"
            )
        settings = pickle.dumps(launch, protocol=pickle.HIGHEST_PROTOCOL)
        _remove_stale_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_short_folder()))
        try:
            self.record = StepRecord.create(self.folder / STEPS)
            self._log = _locked_log(self.folder)
            self._process = _start(self.folder, self._log)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, self.folder)
        self.ended_fd = _pidfd(self._process.pid)  # can be read when it has ended; None: no such
        stdin = self._process.stdin
        assert stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # it has ended already, which is found out like later ends
            stdin.write(settings)
            stdin.flush()

    @property
    def address(self) -> str:
        return f"ipc://{self.folder / SOCKET}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def removed(self) -> bool:
        return not self._end.alive

    def kill(self) -> None:
        self._process.kill()

    def remove(self) -> None:
        """End it, if it has not ended, and leave nothing of it."""
        self._end()
        if self.ended_fd is not None:
            os.close(self.ended_fd)
            self.ended_fd = None
        self._log.close()
        self.record.close()

    def end_text(self, connection: int | None, without_progress_s: float | None = None) -> str:
        """How it ended, what it was doing for this connection, and the last that it wrote."""
        if without_progress_s is not None:
            how = f"made no progress for {without_progress_s:g} s and was ended"
        else:
            how = _status_text(self._process.wait())
        lines = self._log_lines()
        log = "".join(f"\n  {line}" for line in lines) if lines else " It has no lines."
        return f"the engine's process {self.pid} {how}. {self._step_text(connection)} Its log:{log}"

    def _step_text(self, connection: int | None) -> str:
        step = self.record.read()
        if not step.under_way:
            return "No step was under way."
        own = [str(number) for whose, number in step.requests if whose == connection]
        others = len(step.requests) - len(own)
        named = [f"{'request' if len(own) == 1 else 'requests'} {', '.join(own)}"] if own else []
        named += [f"{others} of other callers"] if others else []
        return f"It was in step {step.begun}, with {' and '.join(named) or 'no requests'}."

    def _log_lines(self) -> list[str]:
        try:
            with (self.folder / LOG).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        lines = [printable(line[:_LINE]) for line in text.splitlines() if line.strip()]
        crashes = [place for place, line in enumerate(lines) if line.startswith(_CRASH)]
        if crashes:  # what follows are the stacks of all threads
            return lines[crashes[-1] :][:_LOG_LINES]
        return lines[-_LOG_LINES:]


def _locked_log(folder: Path) -> IO[bytes]:
    """The lock is held while either process has the file open: see `_remove_stale_folders`. The
    file has its name only then."""
    unlocked = folder / f"{LOG}.new"
    log = unlocked.open("ab")
    fcntl.flock(log, fcntl.LOCK_EX)
    unlocked.rename(folder / LOG)
    return log


def _start(folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        # -P: the working directory is not searched for modules first
        [sys.executable, "-P", "-u", "-X", "faulthandler", "-m", _CHILD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # an interrupt is the caller's business
    )


def _end(owner: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    if os.getpid() != owner:  # a fork ends, and the engine is not its own
        return
    process.kill()  # what has ended already keeps its own status
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _status_text(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    why = ", as when memory runs out" if -status == signal.SIGKILL else ""
    return f"was ended by {name}{why}"


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an older kernel, or a sandbox that forbids it
        return None


def _short_folder() -> str:
    """The folder for temporary files, unless a socket in it would have too long a path."""
    usual = tempfile.gettempdir()
    address = os.path.join(os.path.abspath(usual), f"{_PREFIX}12345678", SOCKET)
    return usual if len(os.fsencode(address)) <= _LONGEST_ADDRESS else "/tmp"


def _remove_stale_folders() -> None:
    """Folders whose engine and parent were both killed: their logs are not locked any more."""
    for log in Path(_short_folder()).glob(f"{_PREFIX}*/{LOG}"):
        with suppress(OSError), log.open("rb") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(log.parent, ignore_errors=True)
