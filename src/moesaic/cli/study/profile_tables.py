"""A measured machine as tables."""

from __future__ import annotations

from typing import Any

import click

from moesaic.cli.shared.output import print_table
from moesaic.machines.accelerators import has_slots


def print_profile(profile: dict[str, Any]) -> None:
    if "times" in profile:
        print_cuda_profile(profile)
        return
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


def print_cuda_profile(profile: dict[str, Any]) -> None:
    """A machine with a GPU: experts, what is around them, and the system that follows."""
    times, choice = profile["times"], profile["choice"]
    rows = [
        [device, dtype, *(round(us, 1) for us in costs[f"{device}_us"].values())]
        for device in ("gpu", "cpu")
        for dtype, costs in times["experts"].items()
    ]
    tokens = next(iter(times["experts"].values()))["gpu_us"]
    title = f"One more expert of {times['model']}, microseconds by number of tokens"
    print_table(title, ["device", "dtype", *map(str, tokens)], rows)
    columns = ["dtype", "launch", "CPU's first", "demanded", "copied in a row", "CPU slowed by"]
    costs = [
        [dtype, *(round(each[name], 1) for name in _MORE), f"{each['cpu_slowed'] / 1000:.0%}"]
        for dtype, each in times["experts"].items()
    ]
    print_table("Around them, microseconds", columns, costs)
    layer = times["layer"]
    click.echo(
        f"decode steps: {_driven(times['why_layerwise'])}; {layer['between_us']:.0f} us from "
        f"a layer's sum to the next plan, deciding {layer['plan_us']:.1f} us (static "
        f"{layer['static_plan_us']:.1f}), look-ahead {layer['ahead_us']:.1f} us, "
        f"{layer['before_us'] + layer['after_us']:.0f} us before and after the layers"
    )
    click.echo(
        f"memory: the GPU reads {profile['gpu_read_gb_s']:.0f} GB/s, the CPU "
        f"{profile['cpu_read_gb_s']:.0f}"
    )
    speeds = [[name, *(round(rate) for rate in rates)] for name, rates in choice["speeds"].items()]
    print_table("Simulated with these costs, tokens/s", ["system", *choice["cases"]], speeds)
    click.echo(f"default system: {choice['system']} ({choice['because']})")


_MORE = ("launch_us", "cpu_first_us", "demanded_us", "copy_us")


def _driven(because: str | None) -> str:
    return "as CUDA graphs" if because is None else f"layer by layer ({because})"
