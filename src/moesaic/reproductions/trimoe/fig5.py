"""Figure 5: what GPU, CPU and NDP units reach by the tokens an expert has, and section 3.1's claim
about warm experts on the units. Throughput of one expert of Qwen3-235B: its operations over its
time, with the time its weights take to come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moesaic.core.offloading import CPU, GPU
from moesaic.hardware.machine_reader import load_machine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.tri.layout import spread
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, plain
from moesaic.reproductions.trimoe.fig3 import DEFINITION
from moesaic.reproductions.trimoe.runs import CACHE_RATIO, Workload, routed

TOKENS = tuple(1 << power for power in range(11))
PATHS = {
    "gpu": "GPU, expert in GPU memory",
    "gpu-pcie": "GPU, expert loaded over PCIe",
    "cpu": "CPU, expert striped",
    "cpu-localized": "CPU, expert in one DIMM",
    "ndp": "one NDP unit",
    "ndp-all": "all NDP units, one expert each",
}
AMX_TOKENS = (32, 256)  # "tens to hundreds"


@dataclass(frozen=True, slots=True)
class Roofline:
    """TFLOPS by path and tokens."""

    model: str = paper.QWEN

    @property
    def group(self) -> object:
        return self

    def execute(self) -> dict[tuple[str, int], float]:
        physics = Physics(load_machine(paper.MACHINE), load_model(self.model))
        return {
            (path, tokens): tflops(physics, path, tokens) for path in PATHS for tokens in TOKENS
        }


def tflops(physics: Physics, path: str, tokens: int) -> float:
    operations = 2 * physics.model.expert_params * tokens
    units = physics.machine.ndp.count if physics.machine.ndp is not None else 0
    if path == "gpu-pcie":
        taken = max(physics.expert_ns(GPU, tokens), physics.transfer_ns)
    elif path.startswith("cpu"):
        where = "whole@dimm0" if path == "cpu-localized" else None
        taken = physics.expert_ns(CPU, tokens, where)
    else:
        taken = physics.expert_ns("ndp0" if path.startswith("ndp") else GPU, tokens)
    return operations * (units if path == "ndp-all" else 1) / taken / 1e3


@dataclass(frozen=True, slots=True)
class WarmOnUnits:
    """The busiest unit's time with cold and warm experts over that with cold ones alone, both
    balanced over the units by what they got in the same step."""

    work: Workload

    @property
    def group(self) -> object:
        return self.work

    def execute(self) -> float:
        spec = self.work.spec()
        physics = Physics(load_machine(paper.MACHINE), spec)
        loads, _ = routed(self.work)
        assert physics.machine.ndp is not None
        units, experts = physics.machine.ndp.count, spec.num_experts
        cold, hot = round(paper.COLD_EXPERTS * experts), round(CACHE_RATIO * experts)
        cost = [0, *(physics.expert_ns("ndp0", n) for n in range(1, self.work.batch + 1))]
        took = np.array(cost, dtype=np.float64)[np.sort(loads[:: len(loads) // 4], axis=-1)]
        every = took.reshape(-1, experts)
        few = sum(busiest(row[:cold], units) for row in every)
        many = sum(busiest(row[: experts - hot], units) for row in every)
        return float(many / few)


def busiest(times: np.ndarray, units: int) -> float:
    where = spread(times, units)
    return float(np.bincount(where, weights=times, minlength=units).max())


def wanted() -> Iterator[Claim]:
    line = Roofline()
    machine = load_machine(paper.MACHINE)
    peak = machine.gpu.matmul_tflops["bf16"]
    text = f"physics of {paper.MACHINE}, one bf16 expert of Qwen3-235B-A22B"

    def share(done: Done) -> float:
        return float(done[line]["gpu", paper.GPU_TOKENS]) / peak

    claim = f"share of the GPU's peak with {paper.GPU_TOKENS} tokens (the paper: at least)"
    name, assumed = "fig5/gpu-share", "efficiencies of the description are assumed"
    yield plain(name, claim, paper.GPU_SHARE, "share", f"{text}; {assumed}", (line,), share)
    for tokens, stated in zip(AMX_TOKENS, paper.AMX_TFLOPS, strict=True):

        def amx(done: Done, tokens: int = tokens) -> float:
            return float(done[line]["cpu", tokens])

        claim = f"CPU throughput with {tokens} tokens (the paper: 10 to 40 with tens to hundreds)"
        yield plain(f"fig5/amx-{tokens}", claim, stated, "TFLOPS", text, (line,), amx)
    unit = machine.ndp
    assert unit is not None

    def ridge(done: Done) -> float:
        return unit.tflops * 1e3 / unit.memory_bandwidth_gb_s

    claim = "tokens from which an NDP unit computes longer than it reads, at peak rates"
    yield plain("fig5/ndp-ridge", claim, None, "tokens", text, (), ridge)
    for work in (Workload(paper.QWEN, 512), Workload(paper.QWEN, 512, "real-skew")):
        item = WarmOnUnits(work)

        def factor(done: Done, item: WarmOnUnits = item) -> float:
            return float(done[item])

        claim = "time of the NDP units if they take warm experts as well as cold ones"
        words = f"physics of {paper.MACHINE}, batch 512, {work.words}; {DEFINITION}"
        name = f"fig5/warm-on-ndp/{work.data}"
        yield plain(name, claim, paper.WARM_ON_NDP, "x", words, (item,), factor)
    for path, words in PATHS.items():
        for tokens in TOKENS:

            def value(done: Done, key: tuple[str, int] = (path, tokens)) -> float:
                return float(done[line][key])

            claim = f"throughput with {tokens} tokens: {words}"
            yield plain(f"fig5/{path}/{tokens}", claim, None, "TFLOPS", text, (line,), value)
