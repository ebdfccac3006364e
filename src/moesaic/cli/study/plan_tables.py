"""A memory plan and its predicted speed as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from moesaic.cli.shared.output import in_time, print_table
from moesaic.machines.accelerators import has_slots

Row = tuple[str, str, str, str]


def print_plan(described: dict[str, Any]) -> None:
    """`described` is what `plan --json` prints."""
    precisions = f"{described['expert_dtype']} experts, {described['dense_dtype']} elsewhere"
    title = f"{described['model']}: {precisions}"
    print_table(title, ("part", "what", "memory", "GB"), list(_memory(described)))
    print_table("Capacity", ("what", "value"), list(_capacity(described)))
    if described["gpu_unused"] is not None:
        click.echo(f"The GPU is not used: {described['gpu_unused']}")
    if described["longer_sequences"] is not None:
        length = described["longer_sequences"]
        click.echo(f"With --max-sequences 1 a sequence may have {length} tokens.")
    print_notes(described)
    speed = described["speed"]
    if "reason" in speed:
        click.echo(f"Speed is not predicted: {speed['reason']}")
        return
    rows = list(_speed(speed, described["accelerator"]))
    print_table(f"Predicted on {speed['machine']}, synthetic routing", ("what", "value"), rows)


def print_notes(described: dict[str, Any]) -> None:
    """What prevents a model from being run, and what fetching it would take."""
    if described["cannot_run"] is not None:
        click.echo(f"It cannot be run: {described['cannot_run']}")
    if described["download"] is not None:
        click.echo(described["download"]["words"])


def _memory(described: dict[str, Any]) -> Iterator[Row]:
    for part in described["parts"]:
        yield part["name"], part["detail"], _where(part), _gb(part["bytes"])
    there = f"of {_gb(described['available_bytes'])} {described['memory_of']}"
    yield "total", there, "main", _gb(described["main_bytes"])
    if has_slots(described["accelerator"]):
        limit = described["accelerator_limit_bytes"]
        allowed = "no limit of its own" if limit is None else f"of {_gb(limit)} allowed"
        yield "total", allowed, "accelerator", _gb(described["accelerator_bytes"])


def _where(part: dict[str, Any]) -> str:
    memories = {"main": part["main"], "accelerator": part["accelerator"]}
    return " + ".join(memory for memory, there in memories.items() if there)


def _capacity(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    capacity, policies = described["capacity"], described["policies"]
    if has_slots(described["accelerator"]):
        share = f"{capacity['slots']} experts, {capacity['cache_ratio']:.1%} of them all"
        yield "slots", f"{share}, {policies['parameters']['cache']['pool']}"
        names = (policies[kind] for kind in ("schedule", "cache", "prefetch"))
        yield "policies", " + ".join(names)
    else:
        why = "no accelerator is used" if described["gpu_unused"] is None else "see below"
        yield "experts", f"all computed by the CPU: {why}"
    yield "sequences", f"{capacity['sequences']} at once"
    yield "length", f"{capacity['length']} tokens each, prompt and answer together"


def _speed(speed: dict[str, Any], accelerator: str) -> Iterator[tuple[str, str]]:
    decode, prefill = speed["decode"], speed["prefill"]
    yield "decode", f"{_rate(decode)}, {in_time(decode['ms_per_step'] / 1000)} per token"
    prompt = f"a prompt of {prefill['tokens_per_step']} tokens"
    yield "prefill", f"{_rate(prefill)}, {in_time(prefill['ms_per_step'] / 1000)} for {prompt}"
    if has_slots(accelerator):
        yield "hit rate", f"{decode['hit_rate']:.1%} of the experts used in decode have a slot"


def _rate(run: dict[str, Any]) -> str:
    return f"{run['tokens_per_s']:.1f} tokens/s"


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f}"
