"""Cost tables of a machine known by a few rates: TriMoE's Table 1 and its like.

For analysis without a simulator; a belief measured on a machine gives the same `TriCosts`
(belief_costs.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.policies.tri.costs import OWN_SHARE, TriCosts, tri_costs


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
