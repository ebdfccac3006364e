"""Runs the measurements one after the other and writes down all results after each."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.performance_figures import figures, notes
from benchmarks.performance_options import MeasurementOptions
from benchmarks.performance_process import Ended, run_command
from benchmarks.performance_row import PYTHON, Row
from benchmarks.performance_rows import SECTIONS, all_rows, shown
from moesaic.core.errors import UnknownName
from moesaic.core.files import whole_file

_MACHINE = (PYTHON, "-m", "benchmarks.performance_machine")
_LEAST_S = 5.0  # no command is begun with less
_ROOT = Path(__file__).parents[1]
Say = Callable[[str], None]


def chosen(rows: Sequence[Row], only: str | None) -> list[Row]:
    """Sections, or single rows as SECTION:ROW, in the order in which they are named."""
    if only is None:
        return list(rows)
    names = [name.strip() for name in only.split(",")]
    known = (*SECTIONS, *(row.key for row in rows))
    for name in names:
        if name not in known:
            raise UnknownName("section", name, known)
    found = {row.key: row for name in names for row in rows if name in (row.section, row.key)}
    return list(found.values())


def run(
    rows: Sequence[Row],
    asked: MeasurementOptions,
    out: Path,
    seconds: float | None,
    commit: str | None,
    say: Say,
) -> dict[str, Any]:
    """All rows; after an interruption `out` has those that were measured."""
    end = perf_counter() + seconds if seconds is not None else float("inf")
    result: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit or git_commit(),
        "machine": _machine(asked, say),
        "rows": [],
    }
    _write(out, result)
    for row in rows:
        found = _measured(row, asked, end - perf_counter())
        result["rows"].append(found)
        _write(out, result)
        say(_line(row, found))
    return result


def _measured(row: Row, asked: MeasurementOptions, left_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "section": row.section,
        "name": row.name,
        "command": shlex.join(shown(row, asked)).replace("'", ""),
    }
    if row.missing is not None:
        return found | {"failed": row.missing}
    if left_s < _LEAST_S:
        return found | {"failed": "there was no time left"}
    ended = run_command(row.command, min(row.limit_s, left_s), row.conditions)
    found["seconds"] = round(ended.seconds, 1)
    return found | _figures(row, ended)


def _figures(row: Row, ended: Ended) -> dict[str, Any]:
    """Of a command that was stopped, what it had printed by then."""
    found: dict[str, Any] = {}
    if ended.problem is not None:
        found["failed"] = ended.problem.replace(f"{_ROOT}/", "")
    try:
        found["figures"] = figures(row.reader, ended.printed)
    except ValueError as error:
        found.setdefault("failed", f"what it printed cannot be read: {error}")
    said = notes(ended.said)
    return found | ({"notes": said} if said else {})


def _line(row: Row, found: dict[str, Any]) -> str:
    taken = f"{found['seconds']:.0f} s" if "seconds" in found else "not run"
    words = f"{row.key}: {taken} of about {row.seconds}"
    if "figures" in found:
        words += f", {len(found['figures'])} figures"
    if "failed" in found:
        words += f"; FAILED: {found['failed']}"
    return "\n".join([words, *(f"  {note}" for note in found.get("notes", []))])


def _machine(asked: MeasurementOptions, say: Say) -> dict[str, Any]:
    ended = run_command(_MACHINE, 120.0)
    if ended.problem is not None:
        say(f"the machine could not be described: {ended.problem}")
        return {}
    found: dict[str, Any] = json.loads(ended.printed.splitlines()[-1])
    say(f"machine: {found} ({ended.seconds:.0f} s)")
    return found | {"threads": asked.threads}


def git_commit() -> str | None:
    """Short, with a mark where files were changed since."""
    try:
        done = subprocess.run(
            ("git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude", "*"), cwd=_ROOT,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _write(out: Path, result: dict[str, Any]) -> None:
    with whole_file(out, "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")


def _whole(row: Row) -> str:
    return shlex.join((*row.conditions.words, *row.command))


def listed(asked: MeasurementOptions, only: str | None) -> list[str]:
    """What would be run, for a reader."""
    rows = chosen(all_rows(asked), only)
    lines = [f"{row.key} (about {row.seconds} s): {row.missing or _whole(row)}" for row in rows]
    total = sum(row.seconds for row in rows if row.missing is None)
    return [*lines, f"about {total} s on the reference machine"]
