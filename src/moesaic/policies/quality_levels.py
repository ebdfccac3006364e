"""`--quality`: how much of a model's quality may be given up for speed, in one word or by a file
that `moesaic calibrate` has written for a model and prompts of one's own.

Light: `--help` reads the names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadFile, FileError, ImpossibleSetting, UnknownName
from moesaic.core.parsing import read_json
from moesaic.policies.gate import FULL

FORMAT = "moesaic-quality-1"  # of the files
COMMAND = "moesaic reproduce mobile --only accuracy"  # its rows table3/gamma=... have the costs
MEASURED_ON = f"moesaic-20m, 80 held-out problems, greedy, fp32 ({COMMAND})"


@dataclass(frozen=True, slots=True)
class QualityLevel:
    """A gate, what it costs, and where that was measured."""

    name: str
    gate: str
    cost: str
    measured_on: str
    model: str | None = None  # the only one it is for; None: any

    def __str__(self) -> str:
        return f"{self.name}: {self.gate}; {self.cost} (measured: {self.measured_on})"


LEVELS: dict[str, QualityLevel] = {
    level.name: level
    for level in (
        QualityLevel("strict", FULL, "nothing is lost", "by definition"),
        QualityLevel(
            "balanced",
            "big-little:gamma=0.99",
            "82.5 % instead of 86.3 % right, 8.8 % of tokens run again",
            MEASURED_ON,
        ),
        QualityLevel(
            "fast",
            "big-little:gamma=0.9",
            "72.5 % instead of 86.3 % right, 4.6 % of tokens run again",
            MEASURED_ON,
        ),
    )
}


def quality_level(asked: str) -> QualityLevel:
    """The level of this name, or of a file; raises for others."""
    if asked in LEVELS:
        return LEVELS[asked]
    path = Path(asked)
    if path.is_file():
        return _from_file(path)
    if path.suffix == ".json" or path.parent != Path("."):
        raise ImpossibleSetting(
            f"quality {asked!r}: there is no such file; `moesaic calibrate` writes one, or use "
            f"{', '.join(LEVELS)}"
        )
    raise UnknownName("quality", asked, LEVELS)


def _from_file(path: Path) -> QualityLevel:
    fields = _fields(path)
    found = {name: fields.get(name) for name in ("gate", "cost", "measured_on", "model")}
    missing = [name for name, value in found.items() if not isinstance(value, str)]
    if fields.get("format") != FORMAT or missing:
        raise BadFile(
            f"quality {str(path)!r} is no file of `moesaic calibrate` (format {FORMAT}): give one, "
            f"or {', '.join(LEVELS)}"
        )
    return QualityLevel(path.name, **{name: str(value) for name, value in found.items()})


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = read_json(path, FileError)
    except FileError:
        return {}
    return fields if isinstance(fields, dict) else {}
