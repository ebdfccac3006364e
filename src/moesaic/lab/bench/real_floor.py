"""The physical floor of a measured run: the least time its bytes and products could have taken, at
the rates this machine shows in the same run with the same threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moesaic.core.dtypes import BITS_PER_WEIGHT, weight_bytes
from moesaic.core.report import StepReport
from moesaic.core.step import Step
from moesaic.core.units import GB
from moesaic.hardware.machine_spec import CpuSpec, GpuSpec, LinkSpec, MachineSpec, PlannerSpec
from moesaic.lab.bench.rates import MeasuredRates, Rates
from moesaic.lab.simulate.floor import Floor
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.attended import attended
from moesaic.model_info.dense_bytes import DensePrecision, packed_dense_bytes
from moesaic.model_info.model_spec import ModelSpec


class StepFloor(Protocol):
    def step_s(self, step: Step, report: StepReport) -> float:
        """Seconds that one step takes at least, given what its layers found where."""

    def moving_s(self, size: int) -> float:
        """So many bytes over the link, whenever."""


@dataclass(frozen=True, slots=True)
class CpuFloor:
    """Without an accelerator: all that a step uses is read once, all products are done."""

    spec: ModelSpec
    dtype: str
    expert_dtype: str
    rates: Rates
    packed: DensePrecision | None = None  # of the dense matrices, where they are packed

    def step_s(self, step: Step, report: StepReport) -> float:
        reading = self.bytes_read(step, report) / (self.rates.read_gb_s * GB)
        return max(reading, self.flops(step) / (self.rates.tflops * 1e12))

    def moving_s(self, size: int) -> float:
        assert not size, "there is no link"
        return 0.0

    def bytes_read(self, step: Step, report: StepReport) -> int:
        spec = self.spec
        experts = sum(layer.active for layer in report.layers) * spec.expert_bytes(
            self.expert_dtype
        )
        seen = attended(spec, step)
        remembered = round(spec.num_layers * seen.kv_tokens) * spec.kv_values_per_token
        states = round(spec.num_layers * seen.state_bytes)
        return experts + self._dense_bytes() + weight_bytes(remembered, self.dtype) + states

    def _dense_bytes(self) -> int:
        """All that every step reads: everything but routed experts and embedding."""
        spec = self.spec
        if self.packed is None:
            return weight_bytes(_dense_params(spec) + spec.head_params, self.dtype)
        embedding = weight_bytes(spec.head_params, self.dtype)
        return packed_dense_bytes(spec, self.dtype, self.packed) - embedding

    def flops(self, step: Step) -> float:
        spec = self.spec
        routed = spec.num_moe_layers * spec.top_k * spec.expert_params
        products = 2.0 * step.tokens * (_dense_params(spec) + routed)
        seen = attended(spec, step)
        per_layer = seen.pairs * spec.attention_flops_per_pair + seen.state_flops
        attention = spec.num_layers * per_layer
        return products + attention + 2.0 * step.num_sequences * spec.head_params


def _dense_params(spec: ModelSpec) -> int:
    """Everything but routed experts, embedding and head."""
    dense_layers = spec.num_layers - spec.num_moe_layers
    return (
        spec.all_attention_params
        + spec.num_moe_layers * (spec.router_params + spec.shared_params)
        + dense_layers * spec.dense_ffn_params
    )


def make_floor(
    rates: MeasuredRates,
    spec: ModelSpec,
    dtype: str,
    expert_dtype: str,
    packed: DensePrecision | None = None,
) -> StepFloor:
    if rates.accelerator is None:
        return CpuFloor(spec, dtype, expert_dtype, rates.cpu, packed)
    # Where parts differ, as if all were the smallest: it is a floor.
    dense = dtype if packed is None else min(packed, key=BITS_PER_WEIGHT.__getitem__)
    return Floor(Physics(_machine(rates), spec, expert_dtype, dense))


def run_floor_s(
    floor: StepFloor, steps: Sequence[Step], reports: Sequence[StepReport], arrived: int
) -> float:
    """Of all steps together; `arrived` bytes came over the link meanwhile."""
    layers = sum(floor.step_s(step, report) for step, report in zip(steps, reports, strict=True))
    return max(layers, floor.moving_s(arrived))


def _machine(rates: MeasuredRates) -> MachineSpec:
    """The measured rates as a machine without any fixed cost."""
    gpu, link = rates.accelerator, rates.link_gb_s
    assert gpu is not None, "only a machine with an accelerator has cuts"
    assert link is not None, "it has a link"
    every, memory_gb = 1.0, 1.0  # nothing is lost; how much fits is not the floor's business
    return MachineSpec(
        name="measured",
        title="measured",
        description="",
        notes=(),
        gpu=GpuSpec(
            "accelerator", memory_gb, gpu.read_gb_s, every, _same(gpu.tflops), every, 0.0, 0.0
        ),
        cpu=CpuSpec(
            "cpu", rates.cpu.threads, memory_gb, rates.cpu.read_gb_s, every,
            _same(rates.cpu.tflops), every, 0.0, 0.0,
        ),
        pcie=LinkSpec(link, 0.0),
        planner=PlannerSpec(0.0, 0.0, 0.0, 0.0),
        sources={},
    )  # fmt: skip


def _same(tflops: float) -> dict[str, float]:
    """Weights of every precision are multiplied in the activations'."""
    return dict.fromkeys(BITS_PER_WEIGHT, tflops)
