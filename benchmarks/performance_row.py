"""One measurement of docs/performance.md: a command, and under which conditions it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.performance_options import MeasurementOptions

MOESAIC, PYTHON = "moesaic", "python"  # first words of commands
CPU = ("--accelerator", "none")
RESULT = "RESULT.json"  # in a command: a file that it writes, instead of printing


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of a command and of every program that it starts."""

    cores: tuple[int, ...] = ()  # it is pinned to; none: to no cores
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment, added
    kt: Path | None = None  # a folder with kt_kernel that it may import

    @property
    def words(self) -> tuple[str, ...]:
        """Before the command, in a shell."""
        set_first = tuple(f"{name}={value}" for name, value in self.variables.items())
        pinned = ("taskset", "-c", ",".join(map(str, self.cores))) if self.cores else ()
        return (*set_first, *pinned)


ANY = Conditions()


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    name: str
    command: tuple[str, ...]
    seconds: int  # expected
    reader: str  # of what it prints, in performance_figures.py
    missing: str | None = None  # why it cannot be measured here
    conditions: Conditions = ANY

    @property
    def key(self) -> str:
        return f"{self.section}:{self.name}"

    @property
    def limit_s(self) -> float:
        """Three times what is expected, and less than ten minutes."""
        return min(60 + 3.0 * self.seconds, 590.0)


def against(asked: MeasurementOptions, *programs: str) -> list[str]:
    """Options of `moesaic bench` for those programs whose place is known."""
    paths = {"llama.cpp": asked.programs.llama, "ik_llama.cpp": asked.programs.ik}
    words = []
    for name in programs:
        path = paths.get(name)
        if name == "transformers":
            words += ["--against", name]
        elif path is not None:
            words += ["--against", f"{name}={path}"]
    return words
