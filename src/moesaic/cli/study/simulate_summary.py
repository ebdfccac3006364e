"""A simulated run as a person reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.cli.shared.output import in_time, print_table
from moesaic.hardware.dimm_parts import DIMM_LINK
from moesaic.lab.simulate.workload import provenance
from moesaic.policies.gate import FULL


def print_summary(result: dict[str, Any]) -> None:
    """`result` is what `simulate --json` prints."""
    policies = result["policies"]
    kinds = ["schedule", "cache", "prefetch"]
    if policies["gate"] != FULL:
        kinds.append("gate")
    names = " + ".join(policies[kind] for kind in kinds)
    title = f"{result['model']} on {result['machine']}, {result['phase']}: {names}"
    rows = [*_setting(result), *_speed(result), *gate_lines(result["gate"]), *_work(result)]
    print_table(title, ("what", "value"), rows)


def _setting(result: dict[str, Any]) -> list[tuple[str, str]]:
    trace = result["trace"]
    return [
        ("GPU cache", f"{result['cache_ratio']:.0%}: {result['slots']} experts"),
        ("weights", f"{result['expert_dtype']} experts, {result['dense_dtype']} elsewhere"),
        ("measured", _measured(result)),
        ("routing", provenance(trace["source"], trace["origin"])),
    ]


def _measured(result: dict[str, Any]) -> str:
    if result["phase"] == "prefill":
        return f"{result['steps']} prompts, {result['tokens']} tokens together"
    batch = result["batch"]
    return f"{result['steps']} steps of {batch} {'token' if batch == 1 else 'tokens'}"


def _speed(result: dict[str, Any]) -> list[tuple[str, str]]:
    latency = result["latency_s"]
    what = "time to first token" if result["phase"] == "prefill" else "time per step"
    if result["gate"]["fallback_ratio"]:
        what = "time between tokens"
    floor, ratio = result["floor_s"] / result["steps"], result["floor_ratio"]
    layers = result["floor_parts_s"]["layers"] / result["steps"]
    which = f" for the bytes moved ({in_time(layers)} for the layers)" if layers < floor else ""
    return [
        (what, ", ".join(f"{in_time(latency[key])} {key}" for key in ("mean", "p50", "p99"))),
        ("tokens per second", f"{result['tokens_per_s']:.1f}"),
        ("physical floor", f"{in_time(floor)} per step{which}; this is {ratio:.2f} x it"),
    ]


def _work(result: dict[str, Any]) -> list[tuple[str, str]]:
    busy = ", ".join(_busy(result["utilization"]))
    moved = result["bytes_moved"] / result["steps"] / 1e6
    accuracy = ", ".join(f"{share:.0%}" for share in result["prediction_accuracy"])
    elapsed = result["tokens"] / result["tokens_per_s"]
    return [
        ("hit rate", f"{result['hit_rate']:.1%} of active experts were in GPU memory"),
        ("busy", busy),
        (_moved(result["utilization"]), f"{moved:.1f} MB per step"),
        ("planning", f"{result['planning_s'] / elapsed:.2%} of the time"),
        (
            "predictions",
            f"{accuracy} right, 1 layer ahead and further" if accuracy else "none made",
        ),
        ("simulated in", in_time(result["wall_s"])),
    ]


def _busy(utilization: dict[str, float]) -> Iterator[str]:
    """Lanes that differ in their numbers only are one entry: ndp0 to ndp15."""
    alike: dict[str, dict[str, float]] = {}
    for lane, share in utilization.items():
        alike.setdefault(re.sub(r"\d+", "", lane), {})[lane] = share
    for lanes in alike.values():
        first, last = next(iter(lanes)), next(reversed(lanes))
        mean, least, largest = fmean(lanes.values()), min(lanes.values()), max(lanes.values())
        if first == last:
            yield f"{first} {mean:.0%}"
        else:
            yield f"{first} to {last} {mean:.0%} ({least:.0%} to {largest:.0%})"


def _moved(utilization: dict[str, float]) -> str:
    """Between DIMMs experts are moved, too."""
    between = any(lane.startswith(DIMM_LINK) for lane in utilization)
    return "moved over links" if between else "moved to the GPU"
