"""What a cache policy is: a value per expert. The lowest goes; a newcomer must be worth more.

The policy sees routing and nothing else; it does not know what is resident. Choosing a victim
among the residents by these values is the brain's work (brain/slots.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadPolicy
from moesaic.core.routing import LayerRouting
from moesaic.policies.compiled import compiled
from moesaic.policies.records import NUMBERS, Floats
from moesaic.policies.rule_calls import Rule, cache_rule, observe
from moesaic.policies.timelines import Ints

if TYPE_CHECKING:
    from moesaic.policies.future import Future


@compiled
def observe_by(
    rule: int, layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats,
    memory: Floats, numbers: Floats,
) -> None:  # fmt: skip
    observe(rule, layer, experts, ranked, scores, values, memory, numbers)


class Cache:
    """`values[l, e]` is what keeping expert e of layer l is worth, up to date after `observe`.

    A compiled cache names its `rule` (rule_calls.py) and keeps what it must remember in `memory`
    (`planes` tables of one number per expert) and `numbers` (`numbers_per_layer` after the first
    ones); one in Python has no `rule` and overrides `observe`. `fixed` caches never change what is
    resident. `needs_future` asks for an oracle. `horizon` is for how many steps values are thought
    to hold once an expert has a slot: what moving it costs is weighed against its uses in these."""

    rule: Rule | None = None
    planes: int = 0
    numbers_per_layer: int = 1
    horizon: int = 3  # chosen for scores that follow the last tokens; see docs/contention.md
    fixed: bool = False
    needs_future: bool = False

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self.values: Floats = np.zeros((layers, experts))
        self.memory: Floats = np.zeros((self.planes, layers, experts))
        self.numbers: Floats = np.zeros(NUMBERS + self.numbers_per_layer * layers)

    def observe(self, routing: LayerRouting) -> None:
        """A layer was routed; called once per layer and step, in order."""
        if self.rule is None:
            raise BadPolicy(f"cache {type(self).__name__} must define observe, or name a `rule`")
        observe_by(
            cache_rule(self.rule),
            routing.layer,
            np.ascontiguousarray(routing.experts),
            np.ascontiguousarray(routing.ranked),
            np.ascontiguousarray(routing.scores, dtype=np.float64),
            self.values,
            self.memory,
            self.numbers,
        )

    def attach(self, values: Floats, memory: Floats, numbers: Floats) -> None:
        """Keep everything in the brain's records from now on."""
        values[:], memory[:], numbers[:] = self.values, self.memory, self.numbers
        self.values, self.memory, self.numbers = values, memory, numbers

    def start_from(self, counts: NDArray[np.int64]) -> None:
        """`counts[l, e]` are the uses in the profile that the initial placement follows; a cache
        that can makes its first values of them."""

    def set_costly_moves(self, costly: bool) -> None:
        """Whether moving an expert is thought to cost anything; a cache may look further then."""

    def set_future(self, future: Future) -> None:
        """Receive the oracle; only caches with `needs_future` are asked."""
        raise NotImplementedError(f"{type(self).__name__} has no use for an oracle")
