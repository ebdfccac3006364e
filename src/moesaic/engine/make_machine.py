"""Builds the machine that settings name. The only place where an accelerator's name decides."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moesaic.core.report import Timeline
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.hardware.host import usable_cores
from moesaic.machines.accelerators import check_usable
from moesaic.machines.cuda.cuda_machine import CudaMachine
from moesaic.machines.cuda.cuda_streams import make_streams
from moesaic.machines.cuda.packed_routing import PackedRoutingAdapter
from moesaic.machines.real.accelerated import AcceleratedMachine
from moesaic.machines.real.accelerator import EmulatedAccelerator
from moesaic.machines.real.copy_engine import LinkSpeed
from moesaic.machines.real.cpu_machine import CpuMachine
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.real_machine import RealMachine
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.models.decoder import Decoder
from moesaic.models.gate_bank import GateBank

GPU_DEVICE = "cuda"  # PyTorch's name of the GPU that is used


@dataclass(frozen=True, slots=True)
class Parts:
    """What a machine is built of; `ranks` and `lookahead` are what the policies need."""

    decoder: Decoder
    store: ExpertStore
    settings: EngineSettings
    capacity: Capacity
    ranks: int
    lookahead: int
    timeline: Timeline | None

    @property
    def cores(self) -> int:
        return self.settings.threads or usable_cores()

    @property
    def gates(self) -> GateBank | None:
        wanted = self.lookahead and self.settings.capabilities.true_gates
        return self.decoder.gate_bank() if wanted else None


def make_machine(parts: Parts, device: str = GPU_DEVICE) -> RealMachine:
    if parts.settings.accelerator == "cuda":
        return _cuda(parts, device)
    if parts.settings.accelerator == "emulated":
        return _emulated(parts)
    assert parts.settings.accelerator == "none", f"no machine {parts.settings.accelerator!r}"
    torch.set_num_threads(parts.cores)  # every operation may use all of them
    adapter = RoutingAdapter(parts.ranks, parts.gates)
    return CpuMachine(parts.store, adapter, parts.decoder.dtype, parts.cores, parts.timeline)


def _emulated(parts: Parts) -> AcceleratedMachine:
    torch.set_num_threads(1)  # the accelerator works on one core, the CPU's experts on the others
    settings, store = parts.settings, parts.store
    link = LinkSpeed(settings.link_gb_s, settings.link_latency_us)
    accelerator = EmulatedAccelerator(parts.capacity.slots, store.kernel.block_bytes, link)
    adapter, threads = RoutingAdapter(parts.ranks, parts.gates), max(parts.cores - 1, 1)
    return AcceleratedMachine(
        store, adapter, parts.decoder.dtype, accelerator, threads, parts.timeline
    )


def _cuda(parts: Parts, device: str) -> CudaMachine:
    if device == GPU_DEVICE:
        check_usable(parts.settings.accelerator)
    torch.set_num_threads(1)  # of the thread that drives the GPU; the CPU's experts use all cores
    streams, settings = make_streams(device), parts.settings
    return CudaMachine(
        parts.store,
        PackedRoutingAdapter(parts.ranks, streams, parts.gates),
        parts.decoder.dtype,
        streams,
        slots=parts.capacity.slots,
        tokens=max(settings.step_tokens, settings.max_sequences),
        top_k=parts.decoder.architecture.spec.top_k,
        threads=parts.cores,
        timeline=parts.timeline,
    )
