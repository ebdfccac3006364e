"""What a gate has done, as a person reads it."""

from __future__ import annotations

from typing import Any

from moesaic.cli.shared.in_time import in_time


def gate_lines(gate: dict[str, Any]) -> list[tuple[str, str]]:
    """What a gate other than full has done, where tokens were decoded."""
    if gate["fallback_ratio"] is None:
        return []
    accuracy, predicted = gate["prefetch_accuracy"], gate["predicted_speedup"]
    predicted = "" if accuracy is None else f", {accuracy:.1%} of their experts predicted"
    times = f"{in_time(gate['little_s'])} in little passes, {in_time(gate['big_s'])} in big ones"
    lines = [
        ("fallback", f"{gate['fallback_ratio']:.1%} of tokens ran again{predicted}"),
        ("passes", times),
    ]
    if predicted is not None:
        measured = gate["measured_speedup"]
        beside = "" if measured is None else f"; measured {measured:.2f} x"
        where = f"T from {gate['full_from']}"
        lines.append(("speedup", f"{predicted:.2f} x by the paper's equation, {where}{beside}"))
    return lines
