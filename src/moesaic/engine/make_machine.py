"""Builds the machine that settings name. The only place where an accelerator's name decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from moesaic.core.body import Decider
from moesaic.core.native_brain import NativeBrain
from moesaic.core.report import Timeline
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.hardware.host import usable_cores
from moesaic.kernels.freed_memory import keep_freed_memory
from moesaic.machines.accelerators import check_usable
from moesaic.machines.layerwise.cpu_layers import CpuLayers
from moesaic.machines.layerwise.gpu_layers import GpuLayers
from moesaic.machines.layerwise.lane_layers import LaneLayers
from moesaic.machines.layerwise.packed_routing import PackedRoutingAdapter
from moesaic.machines.layerwise.single_token import pool_of
from moesaic.machines.real.copy_engine import LinkSpeed
from moesaic.machines.real.cuda_streams import make_streams
from moesaic.machines.real.emulated_accelerator import EmulatedAccelerator
from moesaic.machines.real.executor import Network
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.machine import Machine
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.gate_bank import GateBank

Native = Callable[[], NativeBrain | None]
GPU_DEVICE = "cuda"  # PyTorch's name of the GPU that is used


@dataclass(frozen=True, slots=True)
class Parts:
    """What a machine is built of; `ranks` and `lookahead` are what the policies need."""

    decoder: Decoder
    cache: BlockCache
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

    @property
    def network(self) -> Network:
        adapter = RoutingAdapter(self.ranks, self.gates)
        return Network(self.decoder, self.cache, self.store, adapter)


def make_machine(parts: Parts, device: str = GPU_DEVICE) -> Machine:
    """Make a machine without the executor that needs a brain (see `add_captured`)."""
    if parts.settings.accelerator == "cuda":
        return _cuda(parts, device)
    if parts.settings.accelerator == "emulated":
        return _emulated(parts)
    assert parts.settings.accelerator == "none", f"no machine {parts.settings.accelerator!r}"
    return _cpu(parts)


def _cpu(parts: Parts) -> Machine:
    torch.set_num_threads(parts.cores)  # every operation may use all of them
    network = parts.network
    layers = CpuLayers(network, parts.cores, parts.timeline)
    pool = pool_of(layers.executor)
    if pool is None:
        several = len(parts.store.nodes) > 1
        nodes = "experts are on several NUMA nodes"
        return Machine(layers, nodes if several else "experts have no native kernel here")
    from moesaic.machines.cpu_step.cpu_step import cpu_step

    step = cpu_step(network, pool, layers.view(0), layers.timeline)
    if isinstance(step, str):
        return Machine(layers, step)
    machine = Machine(layers, "")
    machine.add(step)
    return machine


def _emulated(parts: Parts) -> Machine:
    torch.set_num_threads(1)  # the accelerator works on one core, the CPU's experts on the others
    settings = parts.settings
    link = LinkSpeed(settings.link_gb_s, settings.link_latency_us)
    accelerator = EmulatedAccelerator(parts.store, parts.capacity.slots, link)
    threads = max(parts.cores - 1, 1)
    layers = LaneLayers(parts.network, accelerator, threads, parts.timeline)
    return Machine(layers, "an emulated accelerator is driven from Python")


def _cuda(parts: Parts, device: str) -> Machine:
    if device == GPU_DEVICE:
        check_usable(parts.settings.accelerator)
    torch.set_num_threads(1)  # of the thread that drives the GPU; the CPU's experts use all cores
    streams, settings = make_streams(device), parts.settings
    layers = GpuLayers(
        parts.network,
        PackedRoutingAdapter(parts.ranks, streams, parts.gates),
        streams,
        slots=parts.capacity.slots,
        tokens=max(settings.step_tokens, settings.sequences),
        top_k=parts.decoder.architecture.spec.top_k,
        threads=parts.cores,
        timeline=parts.timeline,
    )
    return Machine(layers, "there is no brain yet", layers.guard)


def add_captured(machine: Machine, brain: Decider, native: Native) -> None:
    """The executor of CUDA graphs, where this machine has a GPU and it takes the network."""
    layers = machine.layerwise
    if not isinstance(layers, GpuLayers):
        return
    machine.why_layerwise = "there are no slots in a GPU"
    if layers.streams.device == "cpu" or not layers.slots.count:
        return
    from moesaic.machines.captured.captured import Captured
    from moesaic.machines.captured.graph_steps import GraphMemory
    from moesaic.machines.captured.graph_support import why_layerwise

    machine.why_layerwise = why_layerwise(
        layers.decoder, layers.store.kernel, layers.network.cache.kv_dtype
    )
    if machine.why_layerwise is None:
        keep_freed_memory()  # logits come back in every step
        memory = GraphMemory(
            layers.store, layers.slots.slab, layers.slots.count, layers.threads, layers.tokens,
            layers.experts.buffers,
        )  # fmt: skip
        machine.add(Captured(layers.network, memory, layers.ledger, brain, native, layers.timeline))
