"""`moesaic dram`: one DRAM sub-channel at command level serves a pattern of requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.simulation_options import json_option

if TYPE_CHECKING:
    from moesaic.machines.sim.dram.pattern import Pattern
    from moesaic.machines.sim.dram.timing import Timing


@click.command()
@click.option(
    "--timing",
    default="ddr5-4800-trimoe",
    show_default=True,
    metavar="NAME|FILE",
    help="Timing set: ddr5-4800-trimoe, ddr5-5600, ddr4-3200, or a TOML file.",
)
@click.option(
    "--pattern",
    default="stream",
    show_default=True,
    metavar="NAME|FILE",
    help="Requests: a file of lines `R rank bg bank row col` (or `W ...`), or stream, "
    "stream-ranks, stream-rank-rows, same-bank-group, single-bank, row-conflict, random, "
    "random-ranks.",
)
@click.option(
    "--in-flight",
    type=int,
    default=32,
    show_default=True,
    metavar="W",
    help="Requests between arrival and complete data.",
)
@click.option("--refresh/--no-refresh", default=True, show_default=True, help="Refresh every rank.")
@click.option("--ranks", type=int, help="Ranks on the sub-channel.  [the timing set's]")
@click.option("--requests", type=int, help="Requests of a named pattern.  [100000]")
@click.option("--seed", type=int, help="Of random patterns and writes.  [0]")
@click.option("--write-share", type=float, help="Share of writes in a named pattern.  [0]")
@json_option
def dram(
    timing: str,
    pattern: str,
    in_flight: int,
    refresh: bool,
    ranks: int | None,
    as_json: bool,
    **named: float | None,
) -> None:
    """Serve a pattern of requests from one DRAM sub-channel, command by command.

    Requests enter in order while fewer than W are in flight; the controller is FR-FCFS with open
    rows. docs/dram.md has every rule."""
    from moesaic.cli.shared.output import print_json
    from moesaic.machines.sim.dram.compiled import compiled_before
    from moesaic.machines.sim.dram.simulate import simulate
    from moesaic.machines.sim.dram.timing_file import load_timing

    memory = load_timing(timing)
    memory = memory if ranks is None else memory.with_ranks(ranks)
    requests = _requests(pattern, memory, {k: v for k, v in named.items() if v is not None})
    if in_flight >= 1 and not compiled_before():
        click.echo("compiling the DRAM simulator, once", err=True)
    result = simulate(memory, requests, in_flight, refresh=refresh)
    conditions = {
        "timing": memory.name,
        "pattern": pattern,
        "requests": result.requests,
        "in_flight": in_flight,
        "refresh": refresh,
        "ranks": memory.geometry.ranks,
        "peak_gb_s": memory.peak_gb_s,
    }
    if as_json:
        print_json(result.as_dict() | conditions)
        return
    _show(result.as_dict(), conditions, memory)


def _requests(name: str, memory: Timing, named: dict[str, Any]) -> Pattern:
    """A pattern by name, else by the path of its file."""
    from moesaic.core.errors import ImpossibleSetting, UnknownName
    from moesaic.machines.sim.dram.named_patterns import PATTERNS, named_pattern
    from moesaic.machines.sim.dram.pattern_file import read_pattern

    if name in PATTERNS:
        count = named.pop("requests", 100_000)
        return named_pattern(name, memory.geometry, count, **named)
    if not os.path.isfile(name) and os.sep not in name and "." not in name:
        raise UnknownName("pattern (and no such file)", name, PATTERNS)
    if named:
        given = ", ".join(f"--{each.replace('_', '-')}" for each in named)
        raise ImpossibleSetting(f"{given}: for named patterns; the file {name} says it all")
    return read_pattern(name, memory.geometry)


def _show(result: dict[str, Any], conditions: dict[str, Any], memory: Timing) -> None:
    from moesaic.cli.shared.output import print_table

    refresh = "with refresh" if conditions["refresh"] else "without refresh"
    share = result["bandwidth_gb_s"] / memory.peak_gb_s
    rows = [
        ("cycles", result["cycles"], f"{memory.nanoseconds(result['cycles']) / 1000:.4g} us"),
        (
            "bandwidth",
            f"{result['bandwidth_gb_s']:.4g}",
            f"GB/s, {share:.1%} of {memory.peak_gb_s:g}",
        ),
        (
            "latency",
            f"{result['latency_nck']:.4g}",
            f"nCK on average, {memory.nanoseconds(result['latency_nck']):.4g} ns",
        ),
        ("row hits", f"{result['hit_rate']:.2%}", "of requests"),
    ]
    title = (
        f"{memory.title}\n{conditions['pattern']}: {conditions['requests']} requests, "
        f"{conditions['in_flight']} in flight, {conditions['ranks']} ranks, {refresh}"
    )
    print_table(title, ("what", "value", "unit"), rows)
