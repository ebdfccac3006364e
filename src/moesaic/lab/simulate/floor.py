"""The physical floor: the least time the same bytes and products could take.

A layer's missing experts must be read by the CPU or another device, or cross the link (those
already under way apart), and all its weights must be read by one of them or the GPU. At the best
(fractional) split,
without any fixed cost, no schedule ends before the larger of the two cuts, nor before all devices
multiplying at full rate."""

from __future__ import annotations

from moesaic.core.dtypes import weight_bytes
from moesaic.core.report import StepReport
from moesaic.core.step import Step
from moesaic.core.units import GB
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.attended import attended


class Floor:
    def __init__(self, physics: Physics) -> None:
        machine, model = physics.machine, physics.model
        self._physics = physics
        others = list(map(machine.processor, machine.flat.devices))
        self._host = GB * sum(each.effective_bandwidth_gb_s for each in (machine.cpu, *others))
        self._gpu = machine.gpu.effective_bandwidth_gb_s * GB
        self._link = machine.pcie.bandwidth_gb_s * GB
        self._links = self._link + GB * sum(e.bandwidth_gb_s for e in machine.flat.links.values())
        self._rate = 1e12 * sum(
            each.effective_tflops(physics.expert_dtype)
            for each in (machine.cpu, machine.gpu, *others)
        )
        self._dense_rate = 1e12 * machine.gpu.effective_tflops(physics.dense_dtype)
        self._shared = weight_bytes(model.shared_params, physics.dense_dtype)

    def step_s(self, step: Step, report: StepReport, uses: int | None = None) -> float:
        """One step, given what each of its layers found in GPU memory; `uses` are the experts that
        its tokens use in a layer together (None: top-k each)."""
        pairs = step.tokens * self._top_k if uses is None else uses
        routed_flops = 2 * self._physics.model.expert_params * pairs
        layers = sum(
            self._layer_s(layer.active, layer.active - layer.hits - layer.coming, routed_flops)
            for layer in report.layers
        )
        return layers + self._dense_s(step)

    def moving_s(self, size: int) -> float:
        """So many bytes over all links, whenever."""
        return size / self._links

    @property
    def _top_k(self) -> int:
        return self._physics.model.top_k

    def _layer_s(self, active: int, missing_experts: int, flops: float) -> float:
        expert = self._physics.expert_bytes
        missing = missing_experts * expert / (self._host + self._link)
        reading = (active * expert + self._shared) / (self._host + self._gpu)
        return max(missing, reading, self._shared / self._gpu, flops / self._rate)

    def _dense_s(self, step: Step) -> float:
        """Attention, dense layers and the head, on the GPU, all layers."""
        model, dtype = self._physics.model, self._physics.dense_dtype
        dense_layers = model.num_layers - model.num_moe_layers
        params = (
            model.all_attention_params
            + model.num_moe_layers * model.router_params
            + dense_layers * model.dense_ffn_params
        )
        seen = attended(model, step)
        per_layer = self._physics.kv_read_bytes(seen.kv_tokens, seen.windowed_tokens)
        kv_bytes = model.num_layers * (per_layer + seen.state_bytes)
        reading = (weight_bytes(params + model.head_params, dtype) + kv_bytes) / self._gpu
        flops = 2.0 * params * step.tokens + 2.0 * model.head_params * step.num_sequences
        return max(reading, flops / self._dense_rate)
