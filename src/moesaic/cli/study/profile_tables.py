"""A measured machine as tables."""

from __future__ import annotations

from typing import Any

import click

from moesaic.cli.shared.output import print_table
from moesaic.machines.accelerators import has_slots


def print_profile(profile: dict[str, Any]) -> None:
    devices = {"accelerator": profile["gpu"], "cpu": profile["cpu"]}
    if not has_slots(profile["accelerator"]):
        del devices["accelerator"]
    rows = [
        [name, dtype, *(round(us) for us in times.values())]
        for name, device in devices.items()
        for dtype, times in device["experts"]["by_tokens"].items()
    ]
    tokens = next(iter(profile["cpu"]["experts"]["by_tokens"].values()))
    print_table(
        "One expert of 2048 x 1024, microseconds by number of tokens "
        f"(accelerator: {profile['accelerator']})",
        ["device", "dtype", *(str(t) for t in tokens)],
        rows,
    )
    for name, device in devices.items():
        experts, count = device["experts"], device["threads"]
        who = "1 thread reads" if count == 1 else f"{count} threads read"
        click.echo(
            f"{name}: {who} {device['stream_gb_s']:.1f} GB/s; experts "
            f"inside the engine {experts['bandwidth_gb_s']:.1f} GB/s beyond "
            f"{experts['overhead_us']:.0f} us each"
        )
    link, engine = profile["link"], profile["engine"]
    if has_slots(profile["accelerator"]):
        click.echo(
            f"link: {link['bandwidth_gb_s']:.1f} GB/s after {link['latency_us']:.0f} us, "
            f"{link['overlapped_gb_s']:.1f} GB/s overlapped with CPU experts, which then take "
            f"{link['cpu_slowdown']:.2f} times as long"
        )
    click.echo(
        f"engine: {engine['decision_us']:.0f} us around a layer's experts, "
        f"{engine['lookahead_us']:.0f} us of look-ahead in parallel with them"
    )
