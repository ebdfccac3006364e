"""How long things truly take on a described machine: bytes, operations and fixed costs.

This is the simulator's truth. Policies never see it; they measure it through probes."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.dtypes import weight_bytes
from moesaic.core.step import Step
from moesaic.core.units import GB, NS_PER_S, ns_from_us
from moesaic.core.view import CPU, GPU
from moesaic.hardware.spec import CpuSpec, GpuSpec, MachineSpec
from moesaic.model_info.model_spec import ModelSpec

ACTIVATION_BYTES = 2  # activations and the KV cache are 16-bit


@dataclass(frozen=True, slots=True)
class Physics:
    """One model on one machine; `expert_dtype` and `dense_dtype` are how weights are stored."""

    machine: MachineSpec
    model: ModelSpec
    expert_dtype: str = "bf16"
    dense_dtype: str = "bf16"

    def expert_ns(self, device: str, tokens: int) -> int:
        """One routed expert, not the first of its layer."""
        processor = self._processor(device)
        size, flops = self.expert_bytes, 2 * self.model.expert_params * tokens
        overhead = ns_from_us(processor.expert_overhead_us)
        rate = processor.expert_bandwidth_gb_s(self.expert_dtype)
        return overhead + roofline_ns(processor, size, flops, self.expert_dtype, rate)

    @property
    def cpu_first_ns(self) -> int:
        return ns_from_us(self.machine.cpu.first_expert_us)

    @property
    def expert_bytes(self) -> int:
        return self.model.expert_bytes(self.expert_dtype)

    @property
    def transfer_ns(self) -> int:
        link = self.machine.pcie
        flight = self.expert_bytes / (link.bandwidth_gb_s * GB) * NS_PER_S
        return ns_from_us(link.latency_us) + round(flight)

    def attention_ns(self, device: str, step: Step) -> int:
        """One layer's attention, norms and router: weights and KV cache read, products done."""
        model, tokens = self.model, step.tokens
        params = model.attention_params + model.router_params
        size = weight_bytes(params, self.dense_dtype)
        size += step.kv_tokens * model.kv_values_per_token * ACTIVATION_BYTES
        flops = 2 * params * tokens + step.attention_pairs * model.attention_flops_per_pair
        overhead = ns_from_us(self.machine.gpu.layer_overhead_us) if device == GPU else 0
        return overhead + roofline_ns(self._processor(device), size, flops, self.dense_dtype)

    def shared_ns(self, device: str, tokens: int) -> int:
        """The shared experts of one MoE layer; 0 where the model has none."""
        return self._dense_block_ns(device, self.model.shared_params, tokens)

    def dense_layer_ns(self, device: str, step: Step) -> int:
        """A whole layer without routed experts."""
        block = self._dense_block_ns(device, self.model.dense_ffn_params, step.tokens)
        return self.attention_ns(device, step) + block

    def head_ns(self, sequences: int) -> int:
        """The vocabulary projection: one position per sequence."""
        return self._dense_block_ns(GPU, self.model.head_params, sequences)

    def _dense_block_ns(self, device: str, params: int, tokens: int) -> int:
        if params == 0:
            return 0
        processor = self._processor(device)
        size = weight_bytes(params, self.dense_dtype)
        overhead = ns_from_us(processor.expert_overhead_us)
        return overhead + roofline_ns(processor, size, 2 * params * tokens, self.dense_dtype)

    def _processor(self, device: str) -> GpuSpec | CpuSpec:
        assert device in (GPU, CPU), f"no such device: {device}"
        return self.machine.gpu if device == GPU else self.machine.cpu


def roofline_ns(
    processor: GpuSpec | CpuSpec, size: int, flops: float, dtype: str, gb_s: float | None = None
) -> int:
    """The longer of reading the weights, at the processor's usual rate or at `gb_s`, and
    multiplying with them."""
    reading = size / ((gb_s or processor.effective_bandwidth_gb_s) * GB)
    multiplying = flops / (processor.effective_tflops(dtype) * 1e12)
    return round(max(reading, multiplying) * NS_PER_S)
