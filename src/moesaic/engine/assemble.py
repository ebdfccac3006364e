"""Builds a runner: loads the network and the experts, places some of them in the accelerator, and
measures the machine for the brain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.native_brain import NativeBrain
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import offloading_view
from moesaic.engine.belief_source import belief_source
from moesaic.engine.described_belief import described_belief
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import expert_kernel, kernel_for
from moesaic.engine.make_machine import GPU_DEVICE, Parts, add_captured, make_machine
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.memory.plan_parts import checkpoint_bytes
from moesaic.engine.memory.sizes import Sizes
from moesaic.engine.packed_store import packed_store, why_copied
from moesaic.engine.runner import Runner
from moesaic.hardware.host import usable_nodes
from moesaic.hardware.machine_reader import load_machine
from moesaic.kernels.base import ExpertWeights
from moesaic.machines.accelerators import ACCELERATORS
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.gpu_faults import loading_explained
from moesaic.machines.real.host_blocks import HostBlocks
from moesaic.machines.real.machine import Machine
from moesaic.machines.real.pinned import pinned
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.checkpoints.packed_experts import PackedExperts
from moesaic.models.decoder import Decoder
from moesaic.models.placed import placed_decoder
from moesaic.models.synthetic_model import random_expert
from moesaic.policies.belief import Belief, warm_up
from moesaic.policies.brain import Brain
from moesaic.policies.brain.c_functions import native_brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PHASES
from moesaic.policies.shape import Shape

Experts = Iterable[tuple[ExpertId, ExpertWeights]] | PackedExperts


def assemble(
    decoder: Decoder,
    experts: Experts,
    expert_dtype: str,
    settings: EngineSettings,
    capacity: Capacity,
    counts: NDArray[np.int64] | None = None,
    timeline: Timeline | None = None,
    advance: Callable[[int], None] = lambda experts: None,
    scores: bool = False,
    device: str = GPU_DEVICE,
) -> Runner:
    """`counts[layer, expert]` are uses in a profile, for the initial placement; `advance(1)` is
    called for every expert loaded; `scores` adds the ranks beyond top-k to the routing even
    where no policy needs them; `device`: see `on_store`."""
    shape, dtype = decoder.architecture.expert_shape, decoder.dtype
    kernel = kernel_for(shape, expert_dtype, dtype, settings)
    decoder = placed_for(decoder, settings, device)
    mapped = why_copied(settings) is None
    store = load_store(decoder, experts, expert_dtype, advance, kernel, mapped)
    return on_store(decoder, store, settings, capacity, counts, timeline, scores, device)


def placed_for(decoder: Decoder, settings: EngineSettings, device: str = GPU_DEVICE) -> Decoder:
    """The network where a machine with these settings computes it."""
    if not settings.capabilities.own_memory:
        return decoder
    with loading_explained():
        return placed_decoder(decoder, device)


def load_store(
    decoder: Decoder,
    experts: Experts,
    dtype: str,
    advance: Callable[[int], None] = lambda experts: None,
    kernel_name: str = "auto",
    mapped: bool = True,
) -> ExpertStore:
    """`mapped`: a packed model's file is, where it lies."""
    spec = decoder.architecture.spec
    kernel = expert_kernel(decoder.architecture.expert_shape, dtype, kernel_name)
    if isinstance(experts, PackedExperts):
        return packed_store(experts, kernel, advance, mapped)
    store = ExpertStore(kernel, spec.num_moe_layers, spec.num_experts, usable_nodes())
    for which, weights in experts:
        store.put(which, weights)
        advance(1)
    return store


def synthetic_store(
    decoder: Decoder,
    dtype: str,
    advance: Callable[[int], None] = lambda experts: None,
    kernel_name: str = "auto",
) -> ExpertStore:
    """Random experts: one is made and packed, the others are copies of it in memory of their own:
    speed depends on the bytes read, not on their values."""
    spec = decoder.architecture.spec
    kernel = expert_kernel(decoder.architecture.expert_shape, dtype, kernel_name)
    store = ExpertStore(kernel, spec.num_moe_layers, spec.num_experts, usable_nodes())
    first = store.block(0, 0)
    store.put(ExpertId(0, 0), random_expert(kernel.shape))
    for number in range(1, spec.num_expert_blocks):
        store.block(*divmod(number, spec.num_experts)).copy_(first)
        advance(1)
    return store


def on_store(
    decoder: Decoder,
    store: ExpertStore,
    settings: EngineSettings,
    capacity: Capacity,
    counts: NDArray[np.int64] | None = None,
    timeline: Timeline | None = None,
    scores: bool = False,
    device: str = GPU_DEVICE,
    belief: Belief | None = None,
) -> Runner:
    """A runner on experts that are loaded already: several may share a store, one after another.
    `device` is PyTorch's name of the accelerator `cuda`; tests without a GPU name the CPU.
    `belief`: costs for the brain, instead of where the settings would have them from."""
    with loading_explained():
        return _on_store(
            decoder, store, settings, capacity, counts, timeline, scores, device, belief
        )


def _on_store(
    decoder: Decoder,
    store: ExpertStore,
    settings: EngineSettings,
    capacity: Capacity,
    counts: NDArray[np.int64] | None,
    timeline: Timeline | None,
    scores: bool,
    device: str,
    belief: Belief | None,
) -> Runner:
    decoder = placed_for(decoder, settings, device)
    spec = decoder.architecture.spec
    shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
    policies = settings.policies.given_slots(capacity.slots)
    composition = Composition(policies, shape, capacity.slots, settings.checked)
    ranks = composition.ranks if capacity.slots or scores else 0
    cache = _cache(decoder, settings, capacity)
    lookahead = composition.lookahead
    machine = make_machine(
        Parts(decoder, cache, store, settings, capacity, ranks, lookahead, timeline), device
    )
    try:
        return _on_machine(machine, decoder, cache, settings, capacity, composition, counts, belief)
    except BaseException:  # its threads must not outlive this call
        machine.close()
        raise


def _on_machine(
    machine: Machine,
    decoder: Decoder,
    cache: BlockCache,
    settings: EngineSettings,
    capacity: Capacity,
    composition: Composition,
    counts: NDArray[np.int64] | None,
    belief: Belief | None,
) -> Runner:
    machine.place(composition.placement(counts))
    if belief is None:
        belief = _belief(machine, decoder, settings)
    decision_ns = _time_decisions(composition.brain(belief), composition.shape, capacity.slots)
    brain = composition.brain(replace(belief, decision_ns=decision_ns), counts=counts)
    tokens, spec = max(settings.step_tokens, settings.sequences), decoder.architecture.spec
    add_captured(machine, brain, NativeSource(brain, tokens, composition.ranks))
    return Runner(
        decoder,
        machine,
        brain,
        cache,
        {phase: composition.schedule_for(phase) for phase in PHASES},
        composition.gate(),
        composition.policies.gate.name,
        checkpoint_bytes=checkpoint_bytes(Sizes.of(spec, settings), settings),
        copies=_copies(cache, capacity),
    )


def _cache(decoder: Decoder, settings: EngineSettings, capacity: Capacity) -> BlockCache:
    length = capacity.length
    tokens = max(settings.step_tokens, settings.sequences)
    spec, device = decoder.architecture.spec, str(decoder.device)
    return BlockCache(
        spec, capacity.sequences, length, decoder.dtype, device, tokens, capacity.kv_blocks,
        settings.kv_dtype,
    )  # fmt: skip


def _copies(cache: BlockCache, capacity: Capacity) -> HostBlocks | None:
    if not capacity.copies:
        return None
    return HostBlocks(cache.parts, capacity.copies)


@contextmanager
def locked_store(
    store: ExpertStore, settings: EngineSettings, device: str = GPU_DEVICE
) -> Iterator[None]:
    """The store stays locked for a GPU over several runners, each of which would lock it again."""
    held = None
    if settings.capabilities.own_memory:
        held = pinned(store.block(0, 0).data_ptr(), store.bytes, device)
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _belief(machine: Machine, decoder: Decoder, settings: EngineSettings) -> Belief:
    if belief_source(settings, machine.store.kernel.dtype).described:
        return _described(decoder, machine.store, settings)
    with torch.inference_mode():
        return warm_up(machine, settings.step_tokens)


def _described(decoder: Decoder, store: ExpertStore, settings: EngineSettings) -> Belief:
    here = load_machine(ACCELERATORS[settings.accelerator].described_as)
    spec, dtype = decoder.architecture.spec, store.kernel.dtype
    return described_belief(here, spec, dtype, settings.step_tokens)


def _time_decisions(brain: Brain, shape: Shape, slots: int) -> int:
    """How long one decision takes here. The look-ahead is called as well, so that everything is
    compiled before the first request."""
    random = np.random.default_rng(0)
    empty = np.zeros((shape.layers, shape.experts), dtype=np.uint8)
    view = offloading_view(empty, slots)
    taken = []
    for number in range(9):
        layer, k = number % shape.layers, shape.top_k
        ranked = random.permutation(shape.experts)[None, :]
        scores = np.full(ranked.shape, 1 / shape.experts, dtype=np.float32)
        ahead = [Forecast(layer + 1, ranked, scores)] if layer + 1 < shape.layers else []
        chosen, weights = ranked[:, :k].copy(), scores[:, :k].copy()  # laid out as routers do it
        step = number // shape.layers
        routing = LayerRouting(layer, chosen, weights, ranked, scores, step=step)
        started = perf_counter_ns()
        brain.decide(routing, view)
        taken.append(perf_counter_ns() - started)
        brain.look_ahead(ahead if brain.wants_forecasts() else ())
    return sorted(taken)[len(taken) // 2]


# The compiled brain for a machine with a native conductor, as long as its state stays there.


class NativeSource:
    """Gives the same value until the state moves; steps have at most so many tokens."""

    def __init__(self, brain: Brain, tokens: int, ranks: int) -> None:
        self._brain, self._tokens, self._ranks = brain, tokens, ranks
        self._made: NativeBrain | None = None

    def __call__(self) -> NativeBrain | None:
        brain = self._brain
        if not brain.runs_natively:
            return None
        if self._made is None or self._made.state != brain.state.address:
            self._made = native_brain(brain, self._tokens, self._ranks)
        return self._made
