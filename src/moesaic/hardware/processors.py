"""Processors: the GPU, the CPU, and any other device with compute units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.numbers import (
    Checked,
    Count,
    Fraction,
    NotNegative,
    Part,
    PartRates,
    Positive,
    Rates,
    TokenCount,
    TokenFactors,
)

# What a GPU's description may state beside the costs of layers and experts.
FIXED_COSTS = {
    "launch": "extra for a layer's first expert: one launch serves all",
    "step": "of a step beside its layers: its launch, logits to the host",
}


class Processor(Checked):
    """What all have in common: memory to stream weights from, units to multiply them."""

    __slots__ = ()
    name: str
    memory_bandwidth_gb_s: float
    bandwidth_efficiency: float
    matmul_tflops: Mapping[str, float]
    matmul_efficiency: float
    expert_overhead_us: float
    expert_gb_s: Mapping[str, float]
    reads_gb_s: Mapping[Part, float]
    expert_factor: Mapping[TokenCount, float]

    def expert_bandwidth_gb_s(self, dtype: str) -> float:
        """What one expert's weights, stored in `dtype`, are read at: measured, or as everything
        else. Kernels that unpack weights for every use stay far below the memory's speed."""
        return self.expert_gb_s.get(dtype, self.effective_bandwidth_gb_s)

    def factors(self, dtype: str) -> dict[int, float]:
        """By token count: the measured time of an expert over that of its roofline; in between,
        factors lie on straight lines."""
        table = self.expert_factor.items()
        return {int(key.partition("-")[2]): f for key, f in table if key.startswith(f"{dtype}-")}

    @property
    def effective_bandwidth_gb_s(self) -> float:
        """What expert kernels reach when weights stream from this processor's memory."""
        return self.memory_bandwidth_gb_s * self.bandwidth_efficiency

    def effective_tflops(self, dtype: str) -> float:
        """What large matrix products reach with weights stored in `dtype`.

        fp16 counts as bf16 unless the machine says otherwise."""
        rate = self._rate(dtype)
        if rate is None:
            stated = ", ".join(self.matmul_tflops)
            raise ImpossibleSetting(
                f"{self.name} has no matmul rate for {dtype!r} weights; stated: {stated}."
            )
        return rate * self.matmul_efficiency

    def multiplies(self, dtype: str) -> bool:
        return self._rate(dtype) is not None

    def _rate(self, dtype: str) -> float | None:
        rates = self.matmul_tflops
        return rates.get(dtype, rates.get("bf16") if dtype == "fp16" else None)


@dataclass(frozen=True, slots=True)
class GpuSpec(Processor):
    name: str
    memory_gb: Positive  # 10^9 bytes
    memory_bandwidth_gb_s: Positive  # peak
    bandwidth_efficiency: Fraction  # of the peak, reached by expert kernels
    matmul_tflops: Rates = field(hash=False)  # dense peak, per weight precision
    matmul_efficiency: Fraction  # of the peak, reached by large grouped products
    expert_overhead_us: NotNegative  # fixed cost of one expert, whatever its tokens
    layer_overhead_us: NotNegative  # fixed cost of one layer's attention, norms and router
    expert_gb_s: Rates = field(default_factory=dict, hash=False)  # where it differs, by precision
    reads_gb_s: PartRates = field(default_factory=dict, hash=False)  # see DeviceSpec
    expert_factor: TokenFactors = field(default_factory=dict, hash=False)  # see Processor.factors
    once_us: PartRates = field(default_factory=dict, hash=False)  # of `FIXED_COSTS`

    @property
    def launch_us(self) -> float:
        return self.once_us.get("launch", 0.0)

    @property
    def step_overhead_us(self) -> float:
        return self.once_us.get("step", 0.0)


@dataclass(frozen=True, slots=True)
class CpuSpec(Processor):
    name: str
    cores: Count  # those used
    memory_gb: Positive  # 10^9 bytes
    memory_bandwidth_gb_s: Positive  # peak of the channels, or what the cores can draw
    bandwidth_efficiency: Fraction
    matmul_tflops: Rates = field(hash=False)
    matmul_efficiency: Fraction
    expert_overhead_us: NotNegative  # dispatching one expert to the threads
    first_expert_us: NotNegative  # extra for a layer's first expert (HybriMoE Fig. 3e)
    expert_gb_s: Rates = field(default_factory=dict, hash=False)  # where it differs, by precision
    tiles_from: Rates = field(default_factory=dict, hash=False)  # tokens, see kernels/crossover.py
    reads_gb_s: PartRates = field(default_factory=dict, hash=False)  # see DeviceSpec
    expert_factor: TokenFactors = field(default_factory=dict, hash=False)  # see Processor.factors


@dataclass(frozen=True, slots=True)
class DeviceSpec(Processor):
    """A device beside GPU and CPU. It computes from the memory it owns; `reads_gb_s` says which
    other memories or placements it can compute from, and how fast it reads them."""

    name: str
    memory_bandwidth_gb_s: Positive
    bandwidth_efficiency: Fraction
    matmul_tflops: Rates = field(hash=False)  # for the precisions it can multiply
    matmul_efficiency: Fraction
    expert_overhead_us: NotNegative
    first_expert_us: NotNegative
    expert_gb_s: Rates = field(default_factory=dict, hash=False)
    reads_gb_s: PartRates = field(default_factory=dict, hash=False)
    expert_factor: TokenFactors = field(default_factory=dict, hash=False)  # see Processor.factors
