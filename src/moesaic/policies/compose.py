"""The one place where policies become a brain, for every body: simulated, emulated, real, tests.

A composition is policies on a model with so many slots. It says what is in GPU memory before
the first step (the initial placement), where the dense parts run, and makes the brain once costs
are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import UnknownName
from moesaic.core.offloading import CPU, GPU
from moesaic.core.routing import ExpertId
from moesaic.policies import policy_checks
from moesaic.policies.belief import Belief
from moesaic.policies.brain import Brain
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import MAX_DISTANCE, Gate
from moesaic.policies.layout import layouts
from moesaic.policies.layout.base import Layout
from moesaic.policies.policy_set import AUTO_FILL, FILLS, PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.prefetch.base import Prefetch
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Schedule
from moesaic.policies.shape import Shape


@dataclass(frozen=True, slots=True)
class Composition:
    """`checked`: the brain proves every plan legal before it is handed out."""

    policies: PolicySet
    shape: Shape
    slots: int
    checked: bool = False

    @property
    def lookahead(self) -> int:
        """How many layers ahead forecasts are wanted."""
        return policy_checks.lookahead(self.policies)

    @property
    def ranks(self) -> int:
        """How many experts of a token's ranking the policies look at: twice the chosen ones, or as
        many as a cache was asked to count."""
        asked = self.policies.cache.parameters.get("top_p") or 0
        return min(max(2 * self.shape.top_k, int(asked)), self.shape.experts)

    def placement(self, counts: NDArray[np.int64] | None = None) -> list[ExpertId]:
        """What is in GPU memory before the first step; `counts[layer, expert]` are uses in a
        profile."""
        if counts is None:
            counts = np.zeros((self.shape.layers, self.shape.experts), dtype=np.int64)
        fill = self.policies.fill
        if fill == AUTO_FILL:
            fill = schedules.load(self.policies.schedule.name).fill
        return initial_placement(fill, counts, self.slots, self.policies.per_layer)

    def dense_on(self, placed: Iterable[ExpertId]) -> list[str] | None:
        """Per layer, the device of attention and shared experts where they follow the experts;
        None: always the GPU."""
        if not schedules.load(self.policies.schedule.name).dense_follows:
            return None
        filled = {expert.layer for expert in placed}
        return [GPU if layer in filled else CPU for layer in range(self.shape.layers)]

    @property
    def decides(self) -> bool:
        """Whether a layer waits for a decision: a schedule that weighs, or a cache that changes."""
        return schedules.load(self.policies.schedule.name).decides or not self._fixed

    @property
    def looks_ahead(self) -> bool:
        """Whether anything is moved in idle link time."""
        adapts = layouts.load(self.policies.layout.name).adapts
        return adapts or (
            not self._fixed and (self.policies.promote or self.prefetch().lookahead > 0)
        )

    @property
    def _fixed(self) -> bool:
        return caches.load(self.policies.cache.name).fixed

    def schedule_for(self, phase: str) -> Schedule:
        return self.policies.schedule_for(phase).create(schedules)

    def gate(self) -> Gate:
        return self.policies.gate.create(gates, self.shape.top_k)

    def prefetch(self) -> Prefetch:
        """Where tokens may run again, what they wanted is prefetched under any policy: a policy
        that moves nothing by itself is then given as many layers of forecasts as it may get."""
        policy = self.policies.prefetch.create(prefetches)
        if not policy.predicts and self.slots and not self._fixed and self.gate().reruns:
            policy.lookahead = MAX_DISTANCE
        return policy

    def layout(self) -> Layout:
        return self.policies.layout.create(layouts, self.shape.layers, self.shape.experts)

    def brain(
        self,
        belief: Belief,
        future: Future | None = None,
        layout: Layout | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> Brain:
        """`future`: what the oracles among the policies know; `layout`: the one that has placed
        the experts; `counts` as for the placement."""
        policies, shape = self.policies, self.shape
        cache = policies.cache.create(caches, shape.layers, shape.experts, shape.top_k)
        if counts is not None:
            cache.start_from(counts)
        return Brain(
            shape=shape,
            belief=belief,
            schedule=self.schedule_for("decode"),
            cache=cache,
            prefetch=self.prefetch(),
            slots=self.slots,
            per_layer=policies.per_layer,
            admits_always=policies.admits_always,
            promote=policies.promote,
            future=future,
            checked=self.checked,
            layout=layout or self.layout(),
        )


def initial_placement(
    fill: str, counts: NDArray[np.int64], slots: int, per_layer: bool
) -> list[ExpertId]:
    """`counts[l, e]` are the uses in the profile."""
    layers, experts = counts.shape
    if fill == "empty":
        return []
    if fill == "layers":
        whole = slots // experts
        return [ExpertId(layer, e) for layer in range(whole) for e in range(experts)]
    if fill == "last-layers":
        first = layers - slots // experts
        return [ExpertId(layer, e) for layer in range(first, layers) for e in range(experts)]
    if fill != "popular":
        raise UnknownName("fill", fill, FILLS.keys() - {AUTO_FILL})
    if not per_layer:
        order = np.argsort(-counts.ravel(), kind="stable")[:slots]
        return [ExpertId(*divmod(int(i), experts)) for i in order]
    placed = []
    for layer in range(layers):
        quota = slots // layers + (layer < slots % layers)
        order = np.argsort(-counts[layer], kind="stable")[:quota]
        placed += [ExpertId(layer, int(e)) for e in order]
    return placed
