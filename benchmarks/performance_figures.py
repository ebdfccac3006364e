"""What a measurement printed, cut down to the figures that the page shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Figure = dict[str, Any]
_DIGITS = 4  # significant ones
_NEVER = "(static-layers)"


def figures(reader: str, printed: str) -> list[Figure]:
    """Raises ValueError where it is not what the reader expects."""
    try:
        return [_rounded(each) for each in READERS[reader](printed)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the result has no {error}") from None


def notes(said: str) -> list[str]:
    """Of what a command said beside its result: what it could not compare, but for strategies that
    no machine of its kind can run."""
    lines = (line.strip() for line in said.splitlines())
    return [line for line in lines if line.startswith("not compared") and _NEVER not in line]


def _document(printed: str) -> dict[str, Any]:
    begin = printed.find("{")
    if begin < 0:
        raise ValueError("no JSON was printed")
    found: dict[str, Any] = json.loads(printed[begin:])
    return found


def _lines(printed: str) -> Iterable[Figure]:
    found = [json.loads(line) for line in printed.splitlines() if _whole(line)]
    if not found:
        raise ValueError("no JSON was printed")
    return found


def _whole(line: str) -> bool:
    """A command that was stopped may have left the half of one."""
    return line.startswith("{") and line.rstrip().endswith("}")


def _against(printed: str) -> Iterable[Figure]:
    for row in _document(printed)["rows"]:
        rate, times = row["tokens_per_s"], row["times"]
        figure = {"test": row["test"], "name": row["name"], "tokens_per_s": rate["median"]}
        figure |= {"low": rate["low"], "high": rate["high"]}
        if times is not None:
            figure |= {"times": times["median"], "times_low": times["low"]}
            figure |= {"times_high": times["high"]}
        yield figure


def _bench(printed: str) -> Iterable[Figure]:
    """Our own systems, then other programs."""
    found = _document(printed)
    for row in found["rows"]:
        yield {
            "test": row["test"], "name": row["system"], "cache_ratio": row["cache_ratio"],
            "tokens_per_s": row["tokens_per_s"], "stdev": row["stdev"],
            "floor_ratio": row["floor_ratio"], "hit_rate": row["hit_rate"],
            "us_a_layer": row["overhead_us_per_layer"],
        }  # fmt: skip
    for row in found.get("peers") or []:
        yield {
            "test": row["test"], "name": row["program"], "cache_ratio": row["cache_ratio"],
            "tokens_per_s": row["tokens_per_s"], "stdev": row["stdev"], "words": row["words"],
        }  # fmt: skip


def _fidelity(printed: str) -> Iterable[Figure]:
    names = ("model", "system", "cache_ratio", "predicted_ms", "measured_ms", "error", "driven")
    return [{name: row[name] for name in names} for row in _document(printed)["rows"]]


def _profile(printed: str) -> Iterable[Figure]:
    """Plain values only: what was described, by name."""
    for described in _document(printed)["profiles"]:
        yield {
            name: value
            for name, value in described.items()
            if isinstance(value, str | int | float | bool)
        }


def _kernels(printed: str) -> Iterable[Figure]:
    for row in _document(printed)["rows"]:
        figure = {name: row[name] for name in ("model", "tokens", "dtype", "by")}
        yield figure | {
            "ms": row["ms"]["median"], "gb_s": row["gb_s"]["median"],
            **{f"over_{who}": times["median"] for who, times in row["times_faster"].items()},
        }  # fmt: skip


READERS: Mapping[str, Callable[[str], Iterable[Figure]]] = {
    "against": _against, "bench": _bench, "lines": _lines, "fidelity": _fidelity,
    "profile": _profile, "kernels": _kernels,
}  # fmt: skip


def _rounded(figure: Figure) -> Figure:
    return {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for name, value in figure.items()
        if value is not None
    }
