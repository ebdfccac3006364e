"""How long things truly take on a described machine: bytes, operations and fixed costs.

This is the simulator's truth. Policies never see it; they measure it through probes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from moesaic.core.dtypes import weight_bytes
from moesaic.core.layer_plan import PARTS
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.step import Step
from moesaic.core.topology import Topology
from moesaic.core.units import GB, NS_PER_S, ns_from_us
from moesaic.hardware.dimms import NdpDevice
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_topology import placement_name
from moesaic.hardware.ndp_unit_time import Expert, channel_bytes, unit_ns
from moesaic.hardware.processors import Processor
from moesaic.hardware.roofline import fixed_ns, measured_factor, roofline_ns
from moesaic.model_info.attended import attended
from moesaic.model_info.kv_dtypes import AS_COMPUTED, kv_token_bytes
from moesaic.model_info.model_spec import ModelSpec

ACTIVATIONS = "bf16"  # and the KV cache, unless it is in int8


@dataclass(frozen=True, slots=True)
class Physics:
    """One model on one machine; `expert_dtype` and `dense_dtype` are how weights are stored,
    `kv_dtype` the KV cache of layers that keep every token."""

    machine: MachineSpec
    model: ModelSpec
    expert_dtype: str = "bf16"
    dense_dtype: str = "bf16"
    kv_dtype: str = AS_COMPUTED

    @property
    def topology(self) -> Topology:
        return self.machine.topology()

    def expert_ns(
        self, device: str, tokens: int, placement: str | None = None, parts: int = PARTS
    ) -> int:
        """One routed expert, not the first of its layer, from the device's own memory or from
        where it lies; or so many thousandths of it."""
        processor = self.machine.processor(device)
        if isinstance(processor, NdpDevice):
            return self._near_data_ns(processor, tokens, parts)
        size, flops = self.expert_bytes, 2 * self.model.expert_params * tokens
        if parts != PARTS:
            size, flops = -(-size * parts // PARTS), -(-flops * parts // PARTS)
        rate = self._reading_gb_s(processor, placement)
        taken = roofline_ns(processor, size, flops, self.expert_dtype, rate)
        if processor.expert_factor:
            taken = round(taken * measured_factor(processor, self.expert_dtype, tokens))
        return ns_from_us(processor.expert_overhead_us) + taken

    def _near_data_ns(self, device: NdpDevice, tokens: int, parts: int) -> int:
        """The unit's own time, and its activations on the channel before and after."""
        tflops = device.effective_tflops(self.expert_dtype)  # or it cannot multiply such weights
        expert, dimms = self._expert(parts), self.machine.dimms
        assert dimms is not None, "units are in DIMMs"
        carrying = channel_bytes(expert, tokens) / (dimms.host_gb_s * GB) * NS_PER_S
        computing = unit_ns(device.unit, expert, tokens, tflops)
        return ns_from_us(device.expert_overhead_us) + round(computing + carrying)

    def _expert(self, parts: int) -> Expert:
        """So many thousandths of an expert's width."""
        model = self.model
        width = -(-model.expert_intermediate * parts // PARTS)
        return Expert(model.hidden_size, width, -(-self.expert_bytes * parts // PARTS))

    def channel_bytes(self, tokens: int) -> int:
        """Activations of one expert's tokens to where it is computed, results back."""
        return channel_bytes(self._expert(PARTS), tokens)

    def _reading_gb_s(self, processor: Processor, placement: str | None) -> float:
        for name, rate in processor.reads_gb_s.items():
            if placement_name(self.machine.flat, name) == placement:
                return rate
        return processor.expert_bandwidth_gb_s(self.expert_dtype)

    def first_ns(self, device: str) -> int:
        """What the first expert of a layer costs more than the following ones."""
        processor = self.machine.processor(device)
        return fixed_ns(processor, "first_expert_us") + fixed_ns(processor, "launch_us")

    def probed_ns(self, device: str, tokens: int, placement: str | None = None) -> int:
        """One expert as a machine is measured: where one launch serves a token's experts, each has
        its share of that."""
        alone = self.expert_ns(device, tokens, placement)
        launch = fixed_ns(self.machine.processor(device), "launch_us")
        return alone + round(launch / self.model.top_k)

    @property
    def cpu_first_ns(self) -> int:
        return self.first_ns(CPU)

    @property
    def expert_bytes(self) -> int:
        return self.model.expert_bytes(self.expert_dtype)

    def move_ns(self, link: str, share: Fraction = Fraction(1)) -> int:
        """One expert, or a share of it, over a link."""
        spec = self.machine.link(link)
        flight = self.carried_bytes(share) / (spec.bandwidth_gb_s * GB) * NS_PER_S
        return ns_from_us(spec.latency_us) + round(flight)

    def carried_bytes(self, share: Fraction) -> int:
        return ceil(self.expert_bytes * share)

    @property
    def transfer_ns(self) -> int:
        """One expert from the host to the accelerator."""
        return self.move_ns(PCIE)

    def attention_ns(self, device: str, step: Step) -> int:
        """One layer's attention, norms and router: weights and KV cache read, products done."""
        model, tokens = self.model, step.tokens
        params = model.attention_params + model.router_params
        size = weight_bytes(params, self.dense_dtype)
        seen = attended(model, step)
        size += round(self.kv_read_bytes(seen.kv_tokens, seen.windowed_tokens))
        size += round(seen.state_bytes)
        flops = 2 * params * tokens + seen.pairs * model.attention_flops_per_pair
        flops += seen.state_flops
        processor = self.machine.processor(device)
        overhead = fixed_ns(processor, "layer_overhead_us")
        return overhead + roofline_ns(processor, size, flops, self.dense_dtype)

    def kv_bytes(self, step: Step) -> int:
        """Keys and values of earlier tokens that one layer's attention reads."""
        seen, model = attended(self.model, step), self.model
        windowed = seen.windowed_tokens - step.tokens * len(model.window_layers) / model.num_layers
        return round(self.kv_read_bytes(max(seen.kv_tokens - step.tokens, 0.0), max(windowed, 0.0)))

    def kv_read_bytes(self, tokens: float, windowed: float = 0.0) -> float:
        """Keys and values of so many tokens in one layer; those that layers with a window keep are
        not rounded."""
        as_computed = kv_token_bytes(self.model, ACTIVATIONS)
        kept = kv_token_bytes(self.model, ACTIVATIONS, self.kv_dtype)
        return tokens * as_computed - (tokens - windowed) * (as_computed - kept)

    def kv_on_cpu_ns(self, step: Step) -> int:
        """One layer's attention to earlier tokens, by the CPU."""
        own = Step.of((each.new_tokens, 0) for each in step.sequences)
        pairs = attended(self.model, step).pairs - attended(self.model, own).pairs
        flops = max(pairs, 0.0) * self.model.attention_flops_per_pair
        cpu = self.machine.processor(CPU)
        return fixed_ns(cpu, "first_expert_us") + roofline_ns(
            cpu, self.kv_bytes(step), flops, "bf16"
        )

    def shared_ns(self, device: str, tokens: int) -> int:
        """The shared experts of one MoE layer; 0 where the model has none."""
        return self._dense_block_ns(device, self.model.shared_params, tokens)

    def dense_layer_ns(self, device: str, step: Step) -> int:
        """A whole layer without routed experts."""
        block = self._dense_block_ns(device, self.model.dense_ffn_params, step.tokens)
        return self.attention_ns(device, step) + block

    def head_ns(self, sequences: int) -> int:
        """The vocabulary projection, one position per sequence, and what a step costs beside its
        layers."""
        step = fixed_ns(self.machine.processor(GPU), "step_overhead_us")
        return step + self._dense_block_ns(GPU, self.model.head_params, sequences)

    def _dense_block_ns(self, device: str, params: int, tokens: int) -> int:
        if params == 0:
            return 0
        processor = self.machine.processor(device)
        size = weight_bytes(params, self.dense_dtype)
        overhead = ns_from_us(processor.expert_overhead_us)
        return overhead + roofline_ns(processor, size, 2 * params * tokens, self.dense_dtype)
