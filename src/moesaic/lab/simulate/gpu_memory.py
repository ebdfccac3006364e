"""What a simulated run keeps in GPU memory, by the arithmetic of the engine's memory plan, and the
refusal of what does not fit.

Libraries, captured graphs and what allocation wastes are not counted: they depend on an
implementation, and a description states what is usable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from moesaic.core.dtypes import weight_bytes
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.memory.fitting import largest
from moesaic.engine.memory.sizes import Sizes
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY, READ_OVER_PCIE
from moesaic.model_info.kv_dtypes import AS_COMPUTED, INT8
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet

_BUFFERS = 2  # layers whose keys and values are in GPU memory while the others are in main memory


class Need(NamedTuple):
    """What is to be in GPU memory. A sequence has `played` tokens at most behind its `context`."""

    model: ModelSpec
    expert_dtype: str
    dense_dtype: str
    slots: int
    sequences: int
    step_tokens: int
    context: int
    played: int
    kv_cache: str
    kv_dtype: str = AS_COMPUTED

    @property
    def length(self) -> int:
        return self.context + self.played

    @property
    def _sizes(self) -> Sizes:
        """Activations, keys and values are in 16 bit."""
        return Sizes(
            self.model, "bf16", self.expert_dtype, self.sequences, self.step_tokens,
            lanes=2, by_rows=True, kv_dtype=self.kv_dtype,
        )  # fmt: skip

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all layers, wherever they are: every sequence has whole blocks."""
        return self._sizes.kv_cache(self.length)

    def parts(self) -> dict[str, int]:
        """Name and condition -> bytes."""
        model, sizes = self.model, self._sizes
        dense = weight_bytes(model.resident_params, self.dense_dtype)
        sequences = f"{self.sequences} x {self.length} tokens"
        found = {
            f"dense weights ({self.dense_dtype})": dense,
            f"{self.slots} experts ({self.expert_dtype})": self.slots
            * model.expert_bytes(self.expert_dtype),
        }
        if self.kv_cache == IN_GPU_MEMORY:
            found[f"KV cache ({sequences})"] = self.kv_bytes
        elif self.kv_cache == READ_OVER_PCIE:
            layers = max(model.kv_layers, 1)
            found[f"KV cache of {_BUFFERS} layers ({sequences})"] = (
                min(_BUFFERS, layers) * self.kv_bytes // layers
            )
        if sizes.states:
            found["recurrent state"] = sizes.states
        found["activations"] = sizes.device_workspace(self.length)
        return found

    @property
    def gpu_bytes(self) -> int:
        return sum(self.parts().values())

    @property
    def main_kv_bytes(self) -> int:
        """Keys and values in main memory."""
        return 0 if self.kv_cache == IN_GPU_MEMORY else self.kv_bytes


def check_memory(need: Need, machine: MachineSpec, policies: PolicySet, cache_ratio: float) -> None:
    """Refuse what does not fit: experts and any KV cache placed there in main memory; the
    rest in GPU memory. Or all of it in the one memory that GPU and CPU share."""
    if machine.unified is not None:
        _check_unified(need, machine, machine.unified.memory_gb, cache_ratio)
        return
    _check_main_memory(need, machine)
    gpu = machine.gpu
    if need.gpu_bytes > gpu.memory_gb * GB:
        parts = ", ".join(f"{name} {size / GB:.1f} GB" for name, size in need.parts().items())
        changes = ", or ".join(_changes(need, policies, gpu.memory_gb))
        raise ImpossibleSetting(
            f"{need.model.name} at cache ratio {cache_ratio:g} needs {_up(need.gpu_bytes):g} GB of "
            f"GPU memory: {parts}; {gpu.name} has {gpu.memory_gb:g} GB (gpu.memory_gb). Use "
            f"{changes}"
        )


def largest_ratio(need: Need, policies: PolicySet, gpu_memory_gb: float) -> float | None:
    """The largest cache ratio that fits so much GPU memory, in thousandths; None: not even
    none."""
    model = need.model

    def fits(thousandths: int) -> bool:
        ratio = thousandths / 1000
        slots = policies.slots_at(ratio, model.num_moe_layers, model.num_experts)
        return need._replace(slots=slots).gpu_bytes <= gpu_memory_gb * GB

    return largest(0, 1000, fits) / 1000 if fits(0) else None


def _changes(need: Need, policies: PolicySet, gpu_memory_gb: float) -> Iterator[str]:
    """Those that are enough alone, and a larger card."""

    def fits(**fields: object) -> bool:
        changed = need._replace(**fields)  # type: ignore[arg-type]
        return changed.gpu_bytes <= gpu_memory_gb * GB

    ratio = largest_ratio(need, policies, gpu_memory_gb)
    if ratio is not None:
        yield f"a cache ratio of at most {ratio:g}"
    if need.sequences > 1 and fits(sequences=1, step_tokens=1):
        batch = largest(1, need.sequences, lambda n: fits(sequences=n, step_tokens=n))
        yield f"--batch {batch} or less"
    if need.context and fits(context=0):
        yield f"--context {largest(0, need.context, lambda n: fits(context=n))} or less"
    if need.kv_cache == IN_GPU_MEMORY and fits(kv_cache=READ_OVER_PCIE):
        yield f"--kv-cache {READ_OVER_PCIE}"
    if need.kv_dtype != INT8 and fits(kv_dtype=INT8):
        yield f"--kv-dtype {INT8}"
    for dtype in ("int8", "int4"):
        if need.expert_dtype not in ("int8", dtype) and fits(expert_dtype=dtype):
            yield f"a smaller --expert-dtype ({dtype})"
            break
    yield f"a larger card (--set gpu.memory_gb={_up(need.gpu_bytes):g})"


def _up(size: float) -> float:
    return math.ceil(size / GB * 10) / 10


def _check_main_memory(need: Need, machine: MachineSpec) -> None:
    model = need.model
    expert = model.expert_bytes(need.expert_dtype)
    kv, dimms = need.main_kv_bytes, machine.dimms
    every = expert * model.num_expert_blocks
    fits = every + kv <= machine.host_memory_gb * GB
    if dimms is not None:  # a DIMM holds whole experts, or as many stripes as make some
        blocks = model.num_expert_blocks + -(-kv // expert)
        fits = blocks <= dimms.count * int(dimms.memory_gb * GB / expert)
    if fits:
        return
    field = "cpu.memory_gb" if dimms is None else "dimms.count x dimms.memory_gb"
    beside = f" and the KV cache {kv / GB:.1f} GB" if kv else ""
    raise ImpossibleSetting(
        f"the routed experts of {model.name} take {every / GB:.1f} GB in "
        f"{need.expert_dtype}{beside}; {machine.name} has {machine.host_memory_gb:g} GB of "
        f"main memory ({field}). Use a smaller --expert-dtype, or a machine with more memory"
    )


def _check_unified(need: Need, machine: MachineSpec, whole_gb: float, cache_ratio: float) -> None:
    """Every expert lies where the GPU reads it, once."""
    model = need.model
    if cache_ratio != 1.0:
        raise ImpossibleSetting(
            f"cache ratio is {cache_ratio:g}, but the GPU and the CPU of {machine.name} "
            "have one memory, where the GPU reads every expert: leave the cache ratio out, or use 1"
        )
    needed = need.gpu_bytes + need.main_kv_bytes
    if needed > whole_gb * GB:
        experts = model.expert_bytes(need.expert_dtype) * model.num_expert_blocks
        raise ImpossibleSetting(
            f"{model.name} takes {needed / GB:.1f} GB ({experts / GB:.1f} of them experts in "
            f"{need.expert_dtype}); {machine.name} has {whole_gb:g} GB for GPU and CPU "
            "together (unified.memory_gb). Use a smaller --expert-dtype, or a machine with more "
            "memory"
        )
