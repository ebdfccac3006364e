"""One measuring command as a process with a time limit, which leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.performance_row import ANY, MOESAIC, PYTHON, RESULT, Conditions

_LAST_LINES = 4
_MOESAIC = (sys.executable, "-c", "from moesaic.cli.main import main; main()")


@dataclass(frozen=True, slots=True)
class Ended:
    printed: str
    said: str  # on standard error
    seconds: float
    problem: str | None  # None: it ended well


def run_command(
    command: Sequence[str],
    limit_s: float,
    conditions: Conditions = ANY,
) -> Ended:
    """`command` begins with a word of performance_row.py."""
    began = perf_counter()
    with TemporaryDirectory(prefix="moesaic-performance-") as folder:
        out, errors, result = (Path(folder) / name for name in ("out", "errors", RESULT))
        words = [str(result) if word == RESULT else word for word in _whole(command)]
        with out.open("w") as printed, errors.open("w") as said:
            with _pinned(conditions.cores):  # whatever it starts is, too
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=printed, stderr=said,
                    start_new_session=True, env=_environment(conditions),
                )  # fmt: skip
            problem = _wait(process, limit_s)
        texts = [path.read_text(errors="replace") for path in (out, errors)]
        if result.exists():
            texts[0] = result.read_text()
    if problem is not None:
        problem = " | ".join([problem, *_last(texts[1])])
    return Ended(texts[0], texts[1], perf_counter() - began, problem)


def _whole(command: Sequence[str]) -> list[str]:
    first = {MOESAIC: _MOESAIC, PYTHON: (sys.executable,)}[command[0]]
    return [*first, *command[1:]]


@contextmanager
def _pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """Processes that are begun meanwhile inherit it."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """What went wrong. The command has a session of its own, so that whatever it started ends with
    it, also when this process is asked to end."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        _end(process)
        signal.signal(signal.SIGTERM, before)
    return None if status == 0 else f"ended with status {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(conditions: Conditions) -> dict[str, str]:
    found, kt = {**os.environ, **conditions.variables}, conditions.kt
    if kt is not None:
        for name, folder in (("PYTHONPATH", kt), ("LD_LIBRARY_PATH", kt / "kt_kernel.libs")):
            found[name] = os.pathsep.join(part for part in (found.get(name), str(folder)) if part)
    return found


def _last(said: str) -> list[str]:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-_LAST_LINES:] or ["it said nothing"]
