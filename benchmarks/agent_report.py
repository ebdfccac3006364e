"""What `benchmarks.agent_replay` has found: medians over rounds turn by turn, and a summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from moesaic.cli.shared.output import print_table
from moesaic.hardware.host import usable_cores

OURS = "this"


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """One turn in one round."""

    prompt: int  # tokens
    known: int  # of them at the beginning, computed in the turn before
    cached: int  # of them, which the engine did not read
    ttft_ms: float
    floor_ms: float
    floor_cached: int  # of the floor's context, which is as long as what is known
    cpu_ratio: float  # CPU time of the whole turn, its answer included, over the floor's
    edited: bool = False

    @property
    def ratio(self) -> float:
        return self.ttft_ms / self.floor_ms


def report(kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "command": ["python", "-m", "benchmarks.agent_replay", *sys.argv[1:]],
        "cores": usable_cores(),
        "kinds": {
            kind: {
                "engine": found["engine"],
                "options": found["options"],
                "turns": {
                    name: [turn_row(turn, name) for turn in zip(*found["rounds"], strict=True)]
                    for name in found["options"]
                },
                "summary": {
                    name: summary([[turn[name] for turn in turns] for turns in found["rounds"]])
                    for name in found["options"]
                },
                "rounds": [
                    [{name: asdict(each) for name, each in turn.items()} for turn in turns]
                    for turns in found["rounds"]
                ],
            }
            for kind, found in kinds.items()
        },
    }


def turn_row(rounds: Sequence[dict[str, TurnTimes]], name: str) -> dict[str, Any]:
    """One turn: lengths are equal in all rounds."""
    found = [each[name] for each in rounds]
    first = found[0]
    return {
        "prompt": first.prompt,
        "new": first.prompt - first.known,
        "known": first.known,
        "cached": median(each.cached for each in found),
        "ttft_ms": median(each.ttft_ms for each in found),
        "floor_ms": median(each.floor_ms for each in found),
        "floor_cached": min(each.floor_cached for each in found),
        "ratio": median(each.ratio for each in found),
        "cpu_ratio": median(each.cpu_ratio for each in found),
        "edited": first.edited,
    }


def summary(rounds: Sequence[Sequence[TurnTimes]]) -> dict[str, Any]:
    """Over the turns after the first, which has nothing to find; medians over the rounds."""
    later = [turns[1:] or turns for turns in rounds]
    known = sum(each.known for turns in later for each in turns)
    read = [each for turns in rounds for each in turns if each.edited]
    return {
        "ttft_s": median(sum(each.ttft_ms for each in turns) / 1e3 for turns in later),
        "floor_s": median(sum(each.floor_ms for each in turns) / 1e3 for turns in later),
        "ratio": median(
            sum(each.ttft_ms for each in turns) / sum(each.floor_ms for each in turns)
            for turns in later
        ),
        "edited_ratio": median(each.ratio for each in read) if read else None,
        "found": sum(min(each.cached, each.known) for turns in later for each in turns) / known
        if known
        else None,
    }


def print_report(result: dict[str, Any]) -> None:
    for kind, found in result["kinds"].items():
        engine = found["engine"]
        for name, options in found["options"].items():
            print(f"{name}: {', '.join(f'{key} {value}' for key, value in options.items())}")
        for name, rows in found["turns"].items():
            print_table(
                f"{kind}: {engine['shape']}, {engine['layers']} layers, {name}; medians of "
                f"{len(found['rounds'])} rounds, times in ms; CPU: of a whole turn over the floor",
                ("turn", "prompt", "new", "cached", "TTFT", "floor", "ratio", "CPU",
                 "floor cached", ""),
                [_turn_cells(number, row) for number, row in enumerate(rows)],
            )  # fmt: skip
    print_table(
        "Turns after the first together: seconds, and times the floor; found: share of the "
        "conversation computed before that was not read again",
        ("model", "who", "TTFT", "floor", "ratio", "edited turn", "found"),
        [
            _summary_cells(kind, name, one)
            for kind, found in result["kinds"].items()
            for name, one in found["summary"].items()
        ],
    )


def _turn_cells(number: int, row: dict[str, Any]) -> list[str]:
    return [
        str(number),
        *(f"{row[name]:.0f}" for name in ("prompt", "new", "cached")),
        *(f"{row[name]:.1f}" for name in ("ttft_ms", "floor_ms")),
        f"{row['ratio']:.2f}",
        f"{row['cpu_ratio']:.2f}",
        str(row["floor_cached"]),
        "edited" if row["edited"] else "",
    ]


def _summary_cells(kind: str, name: str, one: dict[str, Any]) -> list[str | None]:
    edited, found = one["edited_ratio"], one["found"]
    return [
        kind,
        name,
        *(f"{one[key]:.2f}" for key in ("ttft_s", "floor_s", "ratio")),
        None if edited is None else f"{edited:.2f}",
        None if found is None else f"{found:.1%}",
    ]
