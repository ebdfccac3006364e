"""Layers of the three models of TriMoE's Table 2 for the benchmarks of three-device scheduling.

Costs are those of a machine known by a few rates, the paper's Table 1. Loads are synthetic, with
the skew of TriMoE's Fig. 3 and a popularity that drifts. A layout is made from the steps before; a
wrong one has 22 % of its experts in each other's places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moesaic.policies.tri.costs import OWN_SHARE, TriCosts, tri_costs
from moesaic.policies.tri.layer import Ints, Places
from moesaic.policies.tri.layout import offline_layout
from moesaic.reproductions.trimoe.beyond import shuffled
from moesaic.workloads.synthetic.expert_loads import LoadProcess

BATCHES = (32, 64, 128, 256, 512, 768)
WRONG = (0.0, 0.22)
PROFILE_STEPS = 32
RESIDENT = 1 / 12  # of the experts are in GPU memory: 35 GB of DeepSeek-V2 or Qwen3-235B


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s, TFLOPS and microseconds. The defaults are Table 1; the efficiencies and the launch
    time are presumed: with them the GPU reaches 30 % of its peak at 256 tokens of an expert of
    Qwen3-235B, as in the paper's Fig. 5, and the CPU a third of its peak, as kTransformers
    measured for AMX."""

    gpu_tflops: float = 819.6
    gpu_gb_s: float = 2040.0
    gpu_efficiency: float = 0.75
    gpu_launch_us: float = 12.0
    cpu_tflops: float = 90.1
    cpu_efficiency: float = 0.33
    cpu_launch_us: float = 2.0
    host_gb_s: float = 307.2
    pcie_gb_s: float = 64.0
    dimms: int = 16
    channels: int = 8
    ndp_gflops: float = 256.0
    ndp_gb_s: float = 153.6
    link_gb_s: float = 25.0


@dataclass(frozen=True, slots=True)
class ExpertSize:
    hidden: int
    intermediate: int
    bytes_per_weight: float = 2.0

    @property
    def weights(self) -> int:
        """Gate, up and down projection."""
        return 3 * self.hidden * self.intermediate

    @property
    def num_bytes(self) -> float:
        return self.weights * self.bytes_per_weight


TABLE_1 = Rates()


def costs_from_rates(
    rates: Rates,
    expert: ExpertSize,
    max_tokens: int,
    *,
    contention: str = OWN_SHARE,
    shared: bool = True,
    pipelined: bool = False,
) -> TriCosts:
    tokens = np.arange(max_tokens + 1)
    flops = 2.0 * expert.weights * tokens
    channel_gb_s = rates.host_gb_s / rates.channels
    gpu = (
        rates.gpu_launch_us * 1e3
        + np.maximum(expert.num_bytes / rates.gpu_gb_s, flops / (rates.gpu_tflops * 1e3))
        / rates.gpu_efficiency
    )
    cpu = rates.cpu_launch_us * 1e3 + flops / (rates.cpu_tflops * 1e3 * rates.cpu_efficiency)
    ndp = flops / rates.ndp_gflops
    # Partial results of a split expert cross the host channel once per DIMM and token.
    gather_ns = 2 * 2.0 * expert.hidden / channel_gb_s
    return tri_costs(
        np.stack([gpu, cpu, ndp]),
        pcie_ns=expert.num_bytes / rates.pcie_gb_s,
        striped_ns=expert.num_bytes / rates.host_gb_s,
        localized_ns=expert.num_bytes / channel_gb_s,
        internal_ns=expert.num_bytes / rates.ndp_gb_s,
        dimms=rates.dimms,
        channels=rates.channels,
        contention=contention,
        shared=shared,
        pipelined=pipelined,
        gather_ns=gather_ns,
    )


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    layers: int  # MoE layers
    experts: int
    top_k: int
    size: ExpertSize

    @property
    def slots(self) -> int:
        """Per layer."""
        return round(RESIDENT * self.experts)


MODELS = (
    Model("DeepSeek-V2", 59, 160, 6, ExpertSize(5120, 1536)),
    Model("Qwen3-235B-A22B", 94, 128, 8, ExpertSize(4096, 1536)),
    Model("GLM-4.5-Air", 45, 128, 8, ExpertSize(4096, 1408)),
)


@dataclass(frozen=True, slots=True)
class Case:
    model: Model
    batch: int
    wrong: float
    costs: TriCosts
    layout: Places
    loads: Ints  # of the step to schedule


def cases(
    layers: int, contention: str = "own-share", shared: bool = True, seed: int = 0
) -> Iterator[Case]:
    for model in MODELS:
        for batch in BATCHES:
            costs = costs_from_rates(
                TABLE_1, model.size, batch, contention=contention, shared=shared
            )
            process = LoadProcess(layers, model.experts, model.top_k, batch, seed=seed + batch)
            loads = np.stack(list(process.steps(PROFILE_STEPS + 1)))
            for layer in range(layers):
                right = offline_layout(costs, loads[:-1, layer], model.slots)
                for wrong in WRONG:
                    layout = shuffled(right, wrong, seed + layer) if wrong else right
                    yield Case(model, batch, wrong, costs, layout, loads[-1, layer])
