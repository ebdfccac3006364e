"""Random plans, every one of them legal: what no policy would do, and a machine must do rightly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.brain import Brain


@dataclass
class RandomMoves:
    """Free slots and possible victims, while one plan is made."""

    rng: np.random.Generator
    view: View
    untouchable: set[ExpertId]
    occupied: int = field(init=False)

    def __post_init__(self) -> None:
        self.occupied = self.view.occupied

    def kept(self, target: ExpertId) -> Move | None:
        """Into a free slot or a victim's, whichever is possible."""
        victim = self.victim() if self.rng.random() < 0.5 else None
        if victim is None and self.occupied >= self.view.slots:
            victim = self.victim()
            if victim is None:
                return None
        self.occupied += victim is None
        return Move(*target, victim)

    def staged(self, target: ExpertId) -> Move:
        """Used once; now and then a victim is evicted all the same, which frees a slot."""
        victim = self.victim() if self.rng.random() < 0.2 else None
        self.occupied -= victim is not None
        return Move(*target, victim, keep=False)

    def victim(self) -> ExpertId | None:
        resident = [ExpertId(*map(int, at)) for at in np.argwhere(self.view.resident)]
        others = [at for at in resident if at not in self.untouchable]
        if not others:
            return None
        victim = others[self.rng.integers(len(others))]
        self.untouchable.add(victim)
        return victim


class RandomBrain(Brain):
    """Any device for any expert, transfers kept and staged, and any expert moved in idle time.
    `done` counts what kinds of things it asked for."""

    schedule: Any = None  # a runner may set it; nothing is scheduled by it

    def __init__(self, spec: ModelSpec, slots: int, seed: int = 0) -> None:
        self.done: Counter[str] = Counter()
        self._spec, self._slots = spec, slots
        self._rng = np.random.default_rng(seed)

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        layer, rng = routing.layer, self._rng
        active = rng.permutation(np.unique(routing.experts)).tolist()
        coming = {f.expert for f in view.in_flight if f.layer == layer}
        share = rng.random()
        on_gpu = [e for e in active if rng.random() < share]
        there = [e for e in on_gpu if view.resident[layer, e] or e in coming]
        missing = [e for e in on_gpu if e not in there]
        if view.slots == 0:
            missing = []
        self._loads = routing.loads(self._spec.num_experts)
        self._view = view.copy()
        self._moves = RandomMoves(rng, self._view, {ExpertId(layer, e) for e in there})
        transfers = tuple(self._demanded(ExpertId(layer, e)) for e in missing)
        queue = self._shuffled_in(there, missing)
        on_cpu = tuple(e for e in active if e not in queue)
        self._plan = LayerPlan(layer, {GPU: queue, CPU: on_cpu}, transfers)
        check(self._plan, self._loads, view)
        self._count(coming)
        return self._plan

    def wants_forecasts(self) -> int:
        return 0

    def look_ahead(
        self, forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
    ) -> tuple[Move, ...]:
        view, rng = self._view, self._rng
        assert view is not None, "a decision comes first"
        taken = {ExpertId(f.layer, f.expert) for f in view.in_flight}
        taken |= {ExpertId(t.layer, t.expert) for t in self._plan.transfers}
        absent = [ExpertId(*map(int, at)) for at in np.argwhere(view.resident == 0)]
        wanted = [at for at in absent if at not in taken]
        rng.shuffle(wanted)
        if rng.random() < 0.5:  # an expert that may still be in flight when needed
            wanted.sort(key=lambda at: at.layer != (self._plan.layer + 1) % len(view.resident))
        limit = int(rng.integers(4)) if view.slots else 0
        moves = [self._moves.kept(at) for at in wanted[:limit]]
        background = tuple(move for move in moves if move is not None)
        check(self._plan._replace(background=background), self._loads, view)
        self.done["background"] += len(background)
        return background

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        assert report.active == len(np.unique(routing.experts))

    def _demanded(self, target: ExpertId) -> Move:
        kept = self._moves.kept(target) if self._rng.random() < 0.5 else None
        return kept if kept is not None else self._moves.staged(target)

    def _shuffled_in(self, there: list[int], missing: list[int]) -> tuple[int, ...]:
        """In any order, but for the demanded ones, which keep theirs."""
        queue = list(missing)
        for expert in there:
            queue.insert(int(self._rng.integers(len(queue) + 1)), expert)
        return tuple(queue)

    def _count(self, coming: set[int]) -> None:
        plan = self._plan
        self.done["cpu"] += len(plan.queues[CPU])
        self.done["gpu"] += len(plan.queues[GPU])
        self.done["coming"] += len(coming & set(plan.queues[GPU]))
        for transfer in plan.transfers:
            self.done["kept" if transfer.keep else "staged"] += 1
            if transfer.victim is not None:
                self.done["evicting" if transfer.keep else "staged evicting"] += 1
