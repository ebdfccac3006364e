"""Invented models, machines and routings for the tests: round numbers, nothing measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import TypeVar

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from moesaic.core.offloading import CPU, GPU
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.step import Step
from moesaic.core.view import Flight, View, offloading_view
from moesaic.hardware.machine_spec import CpuSpec, GpuSpec, LinkSpec, MachineSpec, PlannerSpec
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.belief import Belief
from moesaic.policies.brain import Brain
from moesaic.policies.cache import caches
from moesaic.policies.compose import Composition
from moesaic.policies.future import Future
from moesaic.policies.policy_choice import policy
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.shape import Shape

T = TypeVar("T")
U = TypeVar("U")

MAX_TOKENS = 64


def small_model(layers: int = 3, experts: int = 6, top_k: int = 2, dense: int = 0) -> ModelSpec:
    """`dense` layers without experts come first; 30,000 parameters per expert."""
    return ModelSpec(
        name="small",
        family="invented",
        num_layers=dense + layers,
        moe_layers=tuple(range(dense, dense + layers)),
        hidden_size=100,
        vocab_size=1000,
        num_experts=experts,
        top_k=top_k,
        expert_intermediate=100,
        shared_intermediate=50,
        dense_intermediate=200 if dense else 0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=25,
    )


def small_machine() -> MachineSpec:
    """An expert of `small_model` in bf16 (60 kB) takes 1 us of GPU memory time, 10 us of CPU
    memory time and 30 us of link time; a token of it 0.06 us and 3 us of multiplying."""
    return MachineSpec(
        name="small",
        title="small",
        description="invented",
        notes=(),
        gpu=GpuSpec("gpu", 1.0, 120.0, 0.5, {"bf16": 2.0}, 0.5, 2.0, 5.0),
        cpu=CpuSpec("cpu", 4, 1.0, 12.0, 0.5, {"bf16": 0.04}, 0.5, 1.0, 7.0),
        pcie=LinkSpec(2.0, 4.0),
        planner=PlannerSpec(1.0, 0.1, 2.0, 0.0),
        sources={},
    )


@dataclass(frozen=True)
class StatedPhysics(Physics):
    """A machine whose costs are stated, not derived: `gpu[t]` and `cpu[t]` per expert."""

    gpu: tuple[int, ...] = ()
    cpu: tuple[int, ...] = ()
    first: int = 0
    transfer: int = 0
    attention: int = 0
    shared: int = 0

    def expert_ns(
        self, device: str, tokens: int, placement: str | None = None, parts: int = 1000
    ) -> int:
        return (self.gpu if device == GPU else self.cpu)[tokens] * parts // 1000

    def first_ns(self, device: str) -> int:
        return self.first if device == CPU else 0

    def move_ns(self, link: str, share: Fraction = Fraction(1)) -> int:
        return ceil(self.transfer * share)

    def attention_ns(self, device: str, step: Step) -> int:
        return self.attention

    def shared_ns(self, device: str, tokens: int) -> int:
        return self.shared

    def head_ns(self, sequences: int) -> int:
        return 0


def stated_physics(
    gpu: Callable[[int], int],
    cpu: Callable[[int], int],
    first: int = 0,
    transfer: int = 0,
    attention: int = 0,
    shared: int = 0,
    model: ModelSpec | None = None,
) -> StatedPhysics:
    return StatedPhysics(
        machine=small_machine(),
        model=small_model() if model is None else model,
        gpu=tuple(gpu(t) for t in range(MAX_TOKENS + 1)),
        cpu=tuple(cpu(t) for t in range(MAX_TOKENS + 1)),
        first=first,
        transfer=transfer,
        attention=attention,
        shared=shared,
    )


def exact_belief(physics: Physics, max_tokens: int = MAX_TOKENS) -> Belief:
    """What a brain believes that knows the physics."""
    counts = range(1, max_tokens + 1)
    return Belief.from_points(
        gpu={t: physics.expert_ns(GPU, t) for t in counts},
        cpu={t: physics.expert_ns(CPU, t) for t in counts},
        cpu_first_ns=physics.cpu_first_ns,
        transfer_ns=physics.transfer_ns,
        max_tokens=max_tokens,
    )


def routing_of(
    layer: int,
    rows: Sequence[Sequence[int]],
    scores: Sequence[Sequence[float]] | None = None,
    k: int | None = None,
    forecasts: tuple[Forecast, ...] = (),
) -> LayerRouting:
    """One row of ranked experts per token, the first `k` (all unless given) of them chosen."""
    ranked = np.asarray(rows, dtype=np.int64)
    if scores is None:
        given = np.broadcast_to(np.linspace(0.5, 0.1, ranked.shape[1]), ranked.shape)
    else:
        given = np.asarray(scores)
    values, chosen = given.astype(np.float32), ranked.shape[1] if k is None else k
    return LayerRouting(
        layer, ranked[:, :chosen], values[:, :chosen], ranked, values, tuple(forecasts)
    )


def routing_of_loads(layer: int, loads: Sequence[int]) -> LayerRouting:
    """Tokens with one expert each, so that expert e gets `loads[e]` of them."""
    return routing_of(layer, [[e] for e, load in enumerate(loads) for _ in range(load)])


def random_routing(
    rng: np.random.Generator, layer: int, tokens: int, experts: int, top_k: int, ranks: int
) -> LayerRouting:
    order = rng.random((tokens, experts)).argsort(axis=1)[:, :ranks]
    scores = -np.sort(-rng.dirichlet(np.ones(ranks), size=tokens), axis=1)
    return routing_of(layer, order.tolist(), scores.tolist(), k=top_k)


@dataclass(frozen=True)
class RandomStep:
    """A step of random routing, in the shape the loop and the replay take."""

    routings: tuple[LayerRouting, ...]
    step: Step = field(default=Step.decode(1))

    def layer(self, layer: int) -> LayerRouting:
        return self.routings[layer]


def random_steps(
    seed: int, steps: int, model: ModelSpec, tokens: int = 1, ranks: int | None = None
) -> list[RandomStep]:
    rng = np.random.default_rng(seed)
    e, k = model.num_experts, model.top_k
    depth = min(2 * k, e) if ranks is None else ranks
    step = Step.decode(tokens, 10)
    return [
        RandomStep(
            tuple(
                random_routing(rng, layer, tokens, e, k, depth)
                for layer in range(model.num_moe_layers)
            ),
            step,
        )
        for _ in range(steps)
    ]


def future_of(steps: Sequence[RandomStep], model: ModelSpec) -> Future:
    layers = range(model.num_moe_layers)
    loads = [[s.layer(at).loads(model.num_experts) for at in layers] for s in steps]
    return Future(np.asarray(loads, dtype=np.uint32))


def view_of(
    resident: Sequence[ExpertId] | Sequence[tuple[int, int]],
    slots: int,
    layers: int = 3,
    experts: int = 6,
    flight: Flight | None = None,
    gpu_busy_ns: int = 0,
    cpu_busy_ns: int = 0,
) -> View:
    table = np.zeros((layers, experts), dtype=np.uint8)
    for at in resident:
        table[at] = 1
    flights, link_ns = ((), 0) if flight is None else ((flight,), flight.remaining_ns)
    return offloading_view(table, slots, flights, gpu_busy_ns, cpu_busy_ns, link_ns)


def make_brain(
    model: ModelSpec,
    belief: Belief,
    slots: int,
    schedule: str = "hybrid",
    cache: str = "lru",
    prefetch: str = "none",
    per_layer: bool = True,
    promote: bool = True,
    future: Future | None = None,
    checked: bool = True,
    gate: str = "full",
) -> Brain:
    pooled = policy(cache, pool="per-layer" if per_layer else "global")
    policies = PolicySet.of(
        schedule=schedule, cache=pooled, prefetch=prefetch, promote=promote, gate=gate
    )
    shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
    return Composition(policies, shape, slots, checked).brain(belief, future)


def every_nth(items: Sequence[T], first: int, n: int) -> list[T]:
    """A part of what is too much to try with everything else: the parts `first` = 0 to n - 1 are
    all of it. n = 3 and 5 leave every policy in every part of `policy_combinations`."""
    return list(items[first % n :: n])


def long(*values: object) -> ParameterSet:
    """A case that `make test-all` runs and `make test` does not."""
    return pytest.param(*values, marks=pytest.mark.long)


def in_turns(names: Sequence[T], others: Sequence[U], *also: object) -> list[ParameterSet]:
    """Every name with every other value, and what all have also. `make test` runs every name with
    one of the values, which take turns; the rest is for `make test-all`."""
    return [
        pytest.param(name, other, *also) if place % len(others) == at else long(name, other, *also)
        for place, name in enumerate(names)
        for at, other in enumerate(others)
    ]


def pairs_first(cases: Sequence[Sequence[Hashable]]) -> list[ParameterSet]:
    """The cases for a test of them all. `make test` runs a part in which every two values that
    occur together (a schedule and a cache, a cache and a prefetch) still do; the others are marked
    `long`, for `make test-all`."""
    return _covering_first(cases, 2)


def values_first(cases: Sequence[Sequence[Hashable]]) -> list[ParameterSet]:
    """As `pairs_first`, for a test that takes long and whose answer a pair does not change:
    `make test` runs a part in which every single value occurs."""
    return _covering_first(cases, 1)


def _covering_first(cases: Sequence[Sequence[Hashable]], together: int) -> list[ParameterSet]:
    of_case = [set(combinations(enumerate(case), together)) for case in cases]
    missing, chosen = set().union(*of_case), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(of_case[number] & missing))
        chosen.add(best)
        missing -= of_case[best]
    return [
        pytest.param(*case) if number in chosen else long(*case)
        for number, case in enumerate(cases)
    ]


def policy_combinations() -> list[tuple[str, str, str]]:
    """Every schedule, cache and prefetch that may be combined: a pinned cache prefetches not."""
    return [
        (schedule, cache, prefetch)
        for schedule in schedules
        for cache in caches
        for prefetch in prefetches
        if prefetch == "none" or not caches.load(cache).fixed
    ]
