"""How TriMoE's speedup over the best baseline hangs on each choice that the paper leaves open:
Qwen3-235B-A22B, batch 512, one thing changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, over_best
from moesaic.reproductions.trimoe.runs import Run, Workload

WORK = Workload(paper.QWEN, 512)
BASE = Run(WORK, paper.OURS)
STEADY = replace(WORK, data="steady")
CLASSES = replace(WORK, data="three-classes")
PEAK = (
    ("cpu.bandwidth_efficiency", 1.0),
    ("dimms.channel_efficiency", 1.0),
    ("ndp.bandwidth_efficiency", 1.0),
)
NO_OVERHEADS = (("cpu.first_expert_us", 0.0), ("cpu.expert_overhead_us", 0.0))
CHOICES: dict[str, tuple[str, Run]] = {
    "base": ("own-share, shared channels, two links, 1 in 12 cached, chat", BASE),
    "contention=full": ("reads occupy DIMMs for their whole duration", replace(BASE, rule="full")),
    "contention=none": ("reads do not occupy DIMMs", replace(BASE, rule="none")),
    "unshared": ("CPU and PCIe each have the whole bandwidth", replace(BASE, shared=False)),
    "pipelined": ("schedules believe that loads overlap", replace(BASE, pipelined=True)),
    "links=1": ("one DIMM-Link per DIMM", replace(BASE, changes=(("dimm_link.links", 1),))),
    "links=8": ("eight DIMM-Links per DIMM", replace(BASE, changes=(("dimm_link.links", 8),))),
    "cache=1/24": ("half the GPU cache", replace(BASE, cache_ratio=1 / 24)),
    "cache=1/6": ("twice the GPU cache", replace(BASE, cache_ratio=1 / 6)),
    "cache=1/3": ("four times the GPU cache, which does not fit", replace(BASE, cache_ratio=1 / 3)),
    "drift=none": ("popularity does not drift", replace(BASE, work=STEADY)),
    "drift=slow": (
        "27% drifts over 32 steps",
        replace(BASE, work=replace(WORK, data="slow-drift")),
    ),
    "drift=together": (
        "27% drifts over 3 steps",
        replace(BASE, work=replace(WORK, data="together")),
    ),
    "skew=real": ("the skew of a real trace", replace(BASE, work=replace(WORK, data="real-skew"))),
    "skew=classes": ("Fig. 3's three classes read literally", replace(BASE, work=CLASSES)),
    "skew=classes,contention=none": (
        "Fig. 3's three classes, reads do not occupy DIMMs",
        Run(CLASSES, paper.OURS, "none"),
    ),
    "bandwidth=peak": ("DRAM streams at its peak", replace(BASE, changes=PEAK)),
    "overheads=none": ("the CPU starts experts for nothing", replace(BASE, changes=NO_OVERHEADS)),
    "as-in-the-equations": (
        "equations 1 to 7 as printed: unshared, peak rates, no contention, no drift",
        Run(STEADY, paper.OURS, "none", shared=False, changes=PEAK + NO_OVERHEADS),
    ),
}


def wanted() -> Iterator[Claim]:
    for name, (words, run) in CHOICES.items():
        for system in (paper.OURS, paper.BEYOND):
            claim = f"{system} over the best baseline: {words}"
            cell = Cell.of(replace(run, system=system))
            yield over_best(f"sensitivity/{name}/{system}", claim, None, [cell])
