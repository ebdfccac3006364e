"""Runs a generated program in a process of its own, with limited time, memory and disk space.

Made against accidents, not against attackers: see docs/evaluation.md for what it is not. The other
half, `sandbox_child`, sets the limits and runs the program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.folders import temporary_folder

_CHILD = Path(__file__).with_name("sandbox_child.py")
WALLS = ("network", "processes", "files")  # what a program may be separated from
_GRACE_S = 10.0  # beyond the program's own time: for starting and for ending what it started


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one program."""

    seconds: float = 10.0  # by the clock; and of one processor
    memory_bytes: int = 1 << 30  # of addresses
    file_bytes: int = 1 << 20  # of one file
    folder_bytes: int = 1 << 24  # of all files together, where the system can separate them
    open_files: int = 64
    separate: bool = True  # from network, processes and files, as far as the system allows it


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended. `separated` are the things of the system it could not even reach."""

    passed: bool
    why: str  # it did not pass, in a few words; empty if it did
    separated: tuple[str, ...]


def run_program(source: str, limits: Limits) -> ProgramResult:
    """It has passed if it reached its end. Nothing it wrote or started is left afterwards."""
    with temporary_folder("moesaic-program-") as folder:
        command = [sys.executable, "-I", str(_CHILD), str(folder), json.dumps(asdict(limits))]
        try:
            done = subprocess.run(
                command,
                input=source.encode("utf-8", "surrogatepass"),  # halves of pairs fail there
                capture_output=True,
                env={},
                cwd="/",
                timeout=limits.seconds + _GRACE_S,
                start_new_session=True,  # Ctrl-C is for us
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ProgramResult(False, "out of time", ())
    return _outcome(done)


def walls() -> tuple[str, ...]:
    """What this system separates programs from. Refuses where it cannot run any."""
    tried = run_program("", Limits(seconds=60.0))
    if not tried.passed:
        raise ImpossibleSetting(
            f"generated programs cannot be run here: an empty one does not pass ({tried.why})"
        )
    return tried.separated


def _outcome(done: subprocess.CompletedProcess[bytes]) -> ProgramResult:
    try:
        outcome = json.loads(done.stdout)
        return ProgramResult(outcome["passed"], outcome["why"], tuple(outcome["separated"]))
    except (ValueError, KeyError, TypeError):
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        why = f"its guard ended with status {done.returncode}: {said[-1][:200]}"
        return ProgramResult(False, why, ())
