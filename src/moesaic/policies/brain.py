"""The brain: composes a schedule, a cache and a prefetch policy into one plan per layer.

It sees routing, views and reports, and the clock of neither machine. Given the same sequence of
those, it makes the same plans, whichever body sent them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.layer_plan import LayerPlan, Transfer
from moesaic.core.legality import check
from moesaic.core.report import LayerReport
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import CPU, View
from moesaic.policies.belief import Belief
from moesaic.policies.cache.base import Cache
from moesaic.policies.forecasting import Foresight
from moesaic.policies.future import Future
from moesaic.policies.ledger import Ledger
from moesaic.policies.link_price import LinkPrice
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.schedule.base import Assignment, Schedule, Work
from moesaic.policies.shape import Shape
from moesaic.policies.timelines import (
    CPU_FIRST,
    CPU_FREE,
    EXPERT,
    GPU_FREE,
    LINK_FREE,
    NUM_LANES,
    READY,
    TRANSFER,
    Ints,
    gather,
)

_NO_LINK = 1 << 50  # a transfer that nobody would wait for: there are no slots to transfer into

_CHEAP = 20  # a promotion may delay the next layer by one twentieth of its transfer


class _Decided(NamedTuple):
    """What the look-ahead needs to know of the decision it follows."""

    routing: LayerRouting
    view: View
    assignment: Assignment
    plan: LayerPlan


class Brain:
    """`promote` lets experts that had to run on the CPU take a slot in idle link time; `checked`
    proves every plan legal before it is handed out."""

    def __init__(
        self,
        shape: Shape,
        belief: Belief,
        schedule: Schedule,
        cache: Cache,
        prefetch: Prefetch,
        slots: int,
        per_layer: bool = True,
        promote: bool = True,
        future: Future | None = None,
        checked: bool = False,
    ) -> None:
        if cache.fixed and prefetch.lookahead:
            raise ImpossibleSetting(
                "a pinned cache never gives up a slot, so nothing can be prefetched into it: "
                "use prefetch 'none' or another cache"
            )
        self.belief, self.schedule, self.cache, self.prefetch = belief, schedule, cache, prefetch
        self.foresight = Foresight(shape, prefetch.lookahead)
        self._shape, self._future = shape, future
        self._promote, self._checked = promote and not cache.fixed, checked
        self._ledger = Ledger(shape.layers, shape.experts, slots, per_layer)
        self._loads = np.zeros(shape.experts, dtype=np.int64)
        table = np.zeros((3, shape.experts), dtype=np.int64)
        lanes = np.zeros(NUM_LANES, dtype=np.int64)
        self._work = Work(0, 0, table, lanes, belief)
        self._later_lanes = np.zeros(NUM_LANES, dtype=np.int64)
        self._link_price = LinkPrice(shape.experts)
        self._gap_ns = 0  # from the end of one layer to the start of the next one's experts
        self._layer_ns = 0  # from there to that layer's end
        self._miss_rate = 0.0
        self._distance = np.arange(max(prefetch.lookahead, 1), dtype=np.int64)
        self._last_end_ns: int | None = None
        self._decided: _Decided | None = None  # None: nothing to look ahead for
        if cache.needs_future:
            assert future is not None, "an oracle cache needs the future"
            cache.foresee(future)

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        """What the layer has to wait for: who computes what, and which transfers it needs."""
        if routing.layer == 0 and self._future is not None:
            self._future.step += 1
        if view.slots == 0:
            return self._on_cpu(routing, view)
        work = self._take_up(routing, view)
        assignment = self.schedule.assign(work)
        self.cache.observe(routing)
        self._ledger.open(view)
        self._ledger.shield(routing.layer, assignment.gpu)
        transfers = tuple(self._demand(routing.layer, e) for e in assignment.moved)
        plan = LayerPlan(routing.layer, assignment.queues, transfers, (), assignment.believed_ns)
        if self._checked:
            check(plan, routing.loads(self._shape.experts), view)
        # The body may start while the look-ahead goes on; that must not change what it sees.
        self._decided = _Decided(routing, view.copy(), assignment, plan)
        return plan

    def look_ahead(self) -> tuple[Transfer, ...]:
        """What to move in idle link time; follows `decide`, and may be thought out while the
        body executes that decision."""
        if self._decided is None:
            return ()
        routing, view, assignment, plan = self._decided
        self.foresight.observe(routing)
        self._ledger.look_at(view.resident)
        background = self._background(routing, view, assignment, plan.transfers)
        if self._checked:
            loads = routing.loads(self._shape.experts)
            check(plan._replace(background=background), loads, view)
        return background

    def plan(self, routing: LayerRouting, view: View) -> LayerPlan:
        """Both at once."""
        plan = self.decide(routing, view)
        return plan._replace(background=self.look_ahead())

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        """Remember how long layers and the dense parts between them take."""
        if self._decided is None:
            return
        if self._last_end_ns is not None and routing.layer > 0:
            self._gap_ns = _drift(self._gap_ns, report.start_ns - self._last_end_ns)
        self._layer_ns = _drift(self._layer_ns, report.end_ns - report.start_ns)
        self._last_end_ns = report.end_ns
        self._miss_rate += (1.0 - report.hits / report.active - self._miss_rate) / 32

    def _on_cpu(self, routing: LayerRouting, view: View) -> LayerPlan:
        """Without slots there is nothing to decide, to keep or to foresee, and no time is lost
        on it: the layer waits for this."""
        self._decided = None
        chosen = routing.used().tolist()
        queue = tuple(chosen if routing.num_tokens == 1 else sorted(set(chosen)))
        plan = LayerPlan(routing.layer, {CPU: queue})
        if self._checked:
            check(plan, routing.loads(self._shape.experts), view)
        return plan

    def _take_up(self, routing: LayerRouting, view: View) -> Work:
        """The layer as the schedule sees it."""
        work, lanes = self._work, self._work.lanes
        work.belief = self.belief = self.belief.covering(routing.num_tokens)
        passed = self.belief.decision_ns  # by the time the plan starts
        work.layer = routing.layer
        work.n = gather(routing.experts, view.resident[routing.layer], work.table, self._loads)
        for flight in view.in_flight:
            if flight.layer == routing.layer:
                columns = work.table[EXPERT, : work.n] == flight.expert
                work.table[READY, : work.n][columns] = max(flight.remaining_ns - passed, 1)
        lanes[GPU_FREE] = max(view.gpu_busy_ns - passed, 0)
        lanes[CPU_FREE] = max(view.cpu_busy_ns - passed, 0)
        lanes[LINK_FREE] = max(view.pcie_busy_ns - passed, 0)
        lanes[CPU_FIRST] = self.belief.cpu_first_ns
        lanes[TRANSFER] = self.belief.transfer_ns if view.slots else _NO_LINK
        return work

    def _demand(self, layer: int, expert: int) -> Transfer:
        """A transfer the layer waits for: kept if worth a slot, else staged for this layer."""
        kept = None
        if not self.cache.fixed:
            values = self.cache.values
            kept = self._ledger.admit(layer, expert, values, float(values[layer, expert]))
        return kept if kept is not None else Transfer(layer, expert, None, keep=False)

    def _background(
        self,
        routing: LayerRouting,
        view: View,
        assignment: Assignment,
        transfers: tuple[Transfer, ...],
    ) -> tuple[Transfer, ...]:
        """What to move while the link idles: as much as could start before the next layer's
        experts do. What would keep that layer waiting for the link must be worth it."""
        if view.slots == 0 or self.cache.fixed or not (self._promote or self.prefetch.lookahead):
            return ()
        lanes, transfer = self._later_lanes, self.belief.transfer_ns
        lanes[:] = self._work.lanes
        lanes[CPU_FREE] = lanes[LINK_FREE] = 0
        self._link_price.observe(self.schedule.rule, self._work, lanes)
        link_free = int(self._work.lanes[LINK_FREE]) + len(transfers) * transfer
        starts = self._starts(assignment.believed_ns)
        delays = self._link_price.delays(link_free, transfer, int(starts[0]))
        most = len(delays) - 1
        found: list[Transfer] = []
        if self.prefetch.lookahead and most:
            found = self._prefetches(routing, view, link_free, starts, delays)
        if self._promote:
            costs = delays[len(found) :].tolist()
            cheap = sum(b - a <= transfer // _CHEAP for a, b in pairwise(costs))
            found += self._promotions(routing.layer, view, assignment.cpu, cheap)
        return tuple(found)

    def _prefetches(
        self,
        routing: LayerRouting,
        view: View,
        link_free_ns: int,
        starts: Ints,
        delays: Ints,
    ) -> list[Transfer]:
        forecasts, trust = self._foresee(routing)
        outlook = Outlook(
            layer=routing.layer,
            forecasts=forecasts,
            resident=view.resident,
            coming=tuple(ExpertId(f.layer, f.expert) for f in view.in_flight),
            rule=self.schedule.rule,
            belief=self.belief,
            lanes=self._later_lanes,
            link_free_ns=link_free_ns,
            starts=starts,
            delays=delays,
            trust=trust,
            miss_rate=self._miss_rate,
        )
        for forecast in forecasts:  # nothing predicted to be needed soon may go for a prefetch
            self._ledger.shield(forecast.layer, forecast.ranked.ravel())
        wishes = self.prefetch.propose(outlook)[: len(delays) - 1]
        values, infinite = self.cache.values, float("inf")
        found = [self._ledger.admit(layer, e, values, infinite) for layer, e in wishes]
        return [transfer for transfer in found if transfer is not None]

    def _foresee(self, routing: LayerRouting) -> tuple[tuple[Forecast, ...], tuple[float, ...]]:
        """What later layers will want, and how far to trust it per distance."""
        if not self.prefetch.needs_future:
            return self.foresight.forecast(routing), self.foresight.trust
        assert self._future is not None, "an oracle prefetch needs the future"
        ahead = self._future.forecasts(routing.layer, self.prefetch.lookahead)
        return ahead, (1.0,) * self.prefetch.lookahead

    def _starts(self, believed_ns: int) -> Ints:
        """When the experts of the next layers start, if they take as long as layers did so far."""
        return believed_ns + self._gap_ns + self._distance * (self._gap_ns + self._layer_ns)

    def _promotions(
        self, layer: int, view: View, on_cpu: tuple[int, ...], most: int
    ) -> list[Transfer]:
        """Missed experts that are worth more than somebody resident, best first."""
        values = self.cache.values
        row = values[layer]
        coming = {f.expert for f in view.in_flight if f.layer == layer}
        missed = [e for e in on_cpu if not view.resident[layer, e] and e not in coming]
        missed.sort(key=lambda e: -row[e])
        found = []
        for expert in missed[:most]:
            transfer = self._ledger.admit(layer, expert, values, float(row[expert]))
            if transfer is None:
                break
            found.append(transfer)
        return found


def _drift(average: int, newest: int) -> int:
    """A running average with a memory of about eight."""
    return newest if average == 0 else (7 * average + newest) // 8
