"""What a gate has done, as a person reads it."""

from __future__ import annotations

from typing import Any

from moesaic.cli.shared.output import in_time


def gate_lines(gate: dict[str, Any]) -> list[tuple[str, str]]:
    """What a gate other than full has done, where tokens were decoded."""
    if gate["tokens_per_check"] is not None:
        return _draft_lines(gate)
    if gate["fallback_ratio"] is None:
        return []
    accuracy, predicted = gate["prefetch_accuracy"], gate["predicted_speedup"]
    wanted = "" if accuracy is None else f", {accuracy:.1%} of their experts predicted"
    times = f"{in_time(gate['little_s'])} in little passes, {in_time(gate['big_s'])} in big ones"
    lines = [
        ("fallback", f"{gate['fallback_ratio']:.1%} of tokens ran again{wanted}"),
        ("passes", times),
    ]
    if predicted is not None:
        measured = gate["measured_speedup"]
        beside = "" if measured is None else f"; measured {measured:.2f} x"
        where = f"T from {gate['full_from']}"
        lines.append(("speedup", f"{predicted:.2f} x by the paper's equation, {where}{beside}"))
    return lines


def _draft_lines(gate: dict[str, Any]) -> list[tuple[str, str]]:
    acceptance, saved = gate["acceptance"], gate["reads_saved"]
    stood = "" if acceptance is None else f"{acceptance:.1%} of drafts were accepted, "
    times = f"{in_time(gate['little_s'])} in drafts, {in_time(gate['big_s'])} in checks"
    lines = [
        ("drafts", f"{stood}{gate['tokens_per_check']:.2f} tokens per check"),
        ("passes", times),
    ]
    if gate["reads_per_token"] is not None:
        word = "fewer" if saved is None or saved >= 0 else "more"
        than = "" if saved is None else f", {abs(saved):.1%} {word} than top-k in every layer"
        lines.append(("reads", f"{gate['reads_per_token']:.1f} experts per token{than}"))
    if gate["measured_speedup"] is not None:
        lines.append(("speedup", f"{gate['measured_speedup']:.2f} x over all experts"))
    return lines
