"""Figure 6 by where the KV cache lies: in main memory, as in the paper, or in the 80 GB of the
paper's GPU, beside as many experts as then fit. All other rows have a larger, imagined card.
Routing is `chat`, contention own-share.

The paper says that KV is in host DIMMs and that the GPU does attention, so it comes over PCIe; its
source for that, MoE-Gen, lets the CPU compute with it. Both are here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from statistics import fmean

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.gpu_memory import largest_ratio
from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY, ON_CPU, READ_OVER_PCIE
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import Run, Workload
from moesaic.reproductions.trimoe.simulated import whole_settings

ROOMY, FITS = "roomy", "fits"
WAYS = {
    ROOMY: "KV cache and 1 in 12 experts in GPU memory, whatever they take",
    READ_OVER_PCIE: "KV cache in main memory, read over PCIe",
    ON_CPU: "KV cache in main memory, attention to it by the CPU",
    FITS: "KV cache in the GPU's 80 GB, with as many experts as fit beside it",
}


@lru_cache(maxsize=64)
def fitting_ratio(model: str, batch: int) -> float | None:
    """The share of experts that fits beside the KV cache in the paper's GPU; None: nothing fits."""
    gpu = load_machine(paper.MACHINE).gpu
    settings = whole_settings(Run(Workload(model, batch), paper.OURS))
    ratio = largest_ratio(settings.need, settings.policies, gpu.memory_gb)
    experts = load_model(model).num_experts
    return None if ratio is None or round(ratio * experts) == 0 else ratio


def run_of(way: str, work: Workload) -> Run | None:
    base = Run(work, paper.OURS)
    if way == ROOMY:
        return base
    if way != FITS:
        return replace(base, kv_cache=way, gpu_memory_gb=None)
    ratio = fitting_ratio(work.model, work.batch)
    if ratio is None:
        return None
    return replace(base, kv_cache=IN_GPU_MEMORY, gpu_memory_gb=None, cache_ratio=ratio)


def wanted() -> Iterator[Claim]:
    for way, model in product(WAYS, paper.MODELS):
        by_batch = {str(batch): [run_of(way, Workload(model, batch))] for batch in paper.BATCHES}
        every = [run for runs in by_batch.values() for run in runs]
        for batch, runs in {**by_batch, "average": every}.items():
            cells = [Cell.of(run) for run in runs if run is not None]
            if cells:
                yield _row(f"memory/{model}/{batch}/{way}", way, cells, False)
                yield _row(f"memory-layer/{model}/{batch}/{way}", way, cells, True)


def _row(name: str, way: str, cells: list[Cell], whole: bool) -> Claim:
    def row(done: Done) -> Row:
        gains = [_speedup(done, cell, whole) for cell in cells]
        first = outcome(done, cells[0].run)
        layer = "MoE layer with the attention before it" if whole else "MoE layer"
        claim = f"TriMoE over the best baseline, {layer}: {WAYS[way]}"
        text = f"mean of {len(gains)} from {min(gains):.2f} to {max(gains):.2f}; first: experts "
        text += f"{first.layer_ms:.2f} ms, between layers {first.window_ms:.2f} ms; "
        text += cells[0].run.words
        return Row(name, claim, None, fmean(gains), "x", text, again(name))

    return Claim(name, tuple(run for cell in cells for run in cell.items), row)


def _speedup(done: Done, cell: Cell, whole: bool) -> float:
    def taken(run: Run) -> float:
        found = outcome(done, run)
        return found.layer_ms + (found.window_ms if whole else 0.0)

    return min(taken(run) for run in cell.baselines) / taken(cell.run)
