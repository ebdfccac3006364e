"""The handle on a compiled brain that Python uses: values in, plans out.

It sees routing, views and reports, and the clock of neither machine. Given the same sequence of
those, it makes the same plans, whichever body sent them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check
from moesaic.core.offloading import CPU, IN_VRAM
from moesaic.core.report import LayerReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import Flight, View
from moesaic.policies.belief import Belief
from moesaic.policies.brain import handle
from moesaic.policies.brain.cpu_times import believe_cpu
from moesaic.policies.brain.decide import prefer_valuable, take_up, update_cache, write_plan
from moesaic.policies.brain.decide import schedule as apply_schedule
from moesaic.policies.brain.forecasts import fill_forecast
from moesaic.policies.brain.plan_words import read_moves, read_plan, with_sources
from moesaic.policies.brain.python_policies import assign_in_python, propose_in_python
from moesaic.policies.brain.stages import (
    BEGIN_LOOK_AHEAD,
    DECIDE,
    FINISH_LOOK_AHEAD,
    LEARN,
    LOOK_AHEAD,
    address,
)
from moesaic.policies.cache.base import Cache
from moesaic.policies.future import Future
from moesaic.policies.layout.base import Layout
from moesaic.policies.prefetch.base import Prefetch
from moesaic.policies.records import FLIGHT_CAPACITY, Setup, Sizes, State, grown, state_of
from moesaic.policies.rule_calls import Rule, cache_rule, prefetch_rule, schedule_rule
from moesaic.policies.schedule.base import Assignment, CompiledSchedule, Schedule
from moesaic.policies.schedule.hybrid import hybrid
from moesaic.policies.shape import Shape
from moesaic.policies.timelines import Ints

LEAST_TRUST = 1e-3  # of forecasts that have never been right; 0 stands for none known


class Brain:
    """`promote` lets experts that had to run on the CPU take a slot in idle link time, and
    `admits_always` lets missed ones do so whatever they are worth; `checked` proves every plan
    legal before it is handed out."""

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
        admits_always: bool = False,
        future: Future | None = None,
        checked: bool = False,
        layout: Layout | None = None,
    ) -> None:
        if cache.fixed and prefetch.lookahead:
            raise ImpossibleSetting(
                "a pinned cache never gives up a slot, so nothing can be prefetched into it: "
                "use prefetch 'none' or another cache"
            )
        self.cache, self.prefetch = cache, prefetch
        self.layout = layout or Layout(shape.layers, shape.experts)
        self._shape, self._future, self._checked = shape, future, checked
        self._assigned: Assignment | None = None  # by a schedule in Python, until its plan is made
        self._decided: tuple[LayerRouting, View | None, LayerPlan] | None = None
        self._view: View | None = None  # the body's own, for the layout
        self._begun = False  # the look-ahead of what was decided
        self._linked = False  # to its policies' rules
        self._met: Ints | None = None  # the slots of the machine that was seen last
        self._reads_words = prefetch.rule is not None and not prefetch.needs_future
        tokens = belief.tables.shape[1]
        ahead, planes, numbers = prefetch.lookahead, cache.planes, cache.numbers_per_layer
        sizes = Sizes(shape.layers, shape.experts, ahead, planes, numbers, 64, tokens)
        self._use(state_of(sizes._replace(predicts=prefetch.predicts)))
        self._describe(self.state.setup, slots, per_layer, promote)
        self.state.setup.admits_always = admits_always
        self._schedule = schedule
        self.belief = belief
        self.schedule = schedule
        if cache.needs_future:
            assert future is not None, "an oracle cache needs the future"
            cache.set_future(future)

    def _describe(self, setup: Setup, slots: int, per_layer: bool, promote: bool) -> None:
        cache, prefetch, layers = self.cache, self.prefetch, self._shape.layers
        setup.top_k, setup.slots, setup.global_pool = self._shape.top_k, slots, not per_layer
        setup.promote, setup.fixed_cache = promote and not cache.fixed, cache.fixed
        setup.values_change, setup.cache_horizon = cache.rule is None, cache.horizon
        setup.predicts, setup.oracle = prefetch.predicts, prefetch.needs_future
        setup.read_ahead = prefetch.read_ahead if prefetch.lookahead else 0
        setup.quota[:] = [slots // layers + (layer < slots % layers) for layer in range(layers)]
        self.state.learned.last_end_ns = -1
        self.state.predictor.trust[:] = 1.0
        self.state.predictor.history_shapes[..., 0] = -1
        self.state.predictor.pending_shapes[..., 0] = -1

    def _use(self, state: State) -> None:
        self.state = state
        self.cache.attach(state.cache.values, state.cache.memory, state.cache.numbers)
        self._entries = state.sizes.entries
        self._plan_words = state.decision.plan
        self._background_words = state.ahead.background.ravel()
        self._flight_words = state.inputs.flights.ravel()

    @property
    def schedule(self) -> Schedule:
        """May be changed between layers."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._schedule = schedule
        if self._linked:
            self.link_rules()
        self._count_contention()
        self._compiled = isinstance(schedule, CompiledSchedule) and self.cache.rule is not None

    def link_rules(self) -> None:
        """The addresses of its policies' rules into the state, before any stage runs: compiles
        them. A model that runs on the CPU alone needs none."""
        setup, schedule = self.state.setup, self._schedule
        if isinstance(schedule, CompiledSchedule):
            setup.schedule_rule = schedule_rule(schedule.rule)
        expected = _expected_rule(schedule)
        setup.expected_rule, setup.fills_timelines = schedule_rule(expected), expected is hybrid
        if self.cache.rule is not None:
            setup.cache_rule = cache_rule(self.cache.rule)
        if self.prefetch.rule is not None:
            setup.prefetch_rule = prefetch_rule(self.prefetch.rule)
        self._linked = True

    @property
    def runs_natively(self) -> bool:
        """Whether the compiled functions alone make its plans, so that a thread without Python can
        call them instead of this handle."""
        ready = self._compiled and self._reads_words and not self.layout.adapts
        return ready and not self._checked and self._future is None

    @property
    def belief(self) -> Belief:
        """What things are thought to cost."""
        return self._belief

    @belief.setter
    def belief(self, belief: Belief) -> None:
        self._belief = belief
        tokens = belief.tables.shape[1]
        if tokens > self.state.sizes.cost_tokens:
            self._use(grown(self.state, self.state.sizes.entries, tokens))
        self.state.costs.tables[:, :tokens] = belief.tables
        self.state.costs.believed_cpu[:tokens] = belief.tables[1]
        self._cost_tokens = tokens
        believe_cpu(self.state.costs, belief.cpu_first_ns)
        self.state.costs.transfer_ns = belief.transfer_ns
        self.state.costs.decision_ns = belief.decision_ns
        self._count_contention()

    def _count_contention(self) -> None:
        sees = self._schedule.sees_contention
        self.state.costs.cpu_slowed_by = self._belief.cpu_slowed if sees else 0
        self.cache.set_costly_moves(bool(self.state.costs.cpu_slowed_by))

    @property
    def trust(self) -> tuple[float, ...]:
        """The running share of right forecasts per distance; full before the first."""
        return tuple(self.state.predictor.trust.tolist())

    @property
    def forecast_accuracy(self) -> tuple[float, ...]:
        """The same, and empty where no forecast has been judged."""
        return self.trust if self.state.predictor.judged else ()

    @property
    def routed(self) -> tuple[int, NDArray[np.int64]]:
        """How many tokens it has decided on, and how often they used each expert, [layer,
        expert]: those that ran again as often as they ran."""
        counts: NDArray[np.int64] = self.state.decision.routed.astype(np.int64)
        return self.state.decision.routed_tokens, counts

    @property
    def layer_ns(self) -> int:
        """What a layer with a token takes without waiting for experts, as measured so far: the
        dense part before it, and top-k experts on the GPU."""
        return self.state.learned.gap_ns + self._shape.top_k * int(self._belief.tables[0, 1])

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        """What the layer has to wait for: who computes what, and which transfers it needs."""
        self._begun = False
        if self._future is not None:
            self._future.step = routing.step
        if view.memory_slots is not self._met:
            self._meet(view)
        if not self._met_slots:
            return self._on_cpu(routing, view)
        self._make_space(routing)
        length = self._decide(routing, view)
        plan = read_plan(routing.layer, self._plan_words[:length].tolist())
        if self._assigned is not None:
            queues, parts = {**plan.queues, **self._assigned.others}, self._assigned.parts
            plan, self._assigned = plan._replace(queues=queues, parts=parts), None
        plan = plan._replace(transfers=with_sources(plan.transfers, view))
        if self.layout.adapts:
            self.layout.observe(routing.layer, routing.loads(self._shape.experts))
        # The body may start while the look-ahead goes on; that must not change what it sees.
        kept = view.copy() if self._checked else None
        if kept is not None:
            check(plan, routing.loads(self._shape.experts), kept)
        self._decided, self._view = (routing, kept, plan), view
        return plan

    def reserve(self, tokens: int, ranks: int) -> None:
        """Space for steps of so many tokens, for a body that fills in the records itself: they must
        not move afterwards."""
        self._grow(tokens, tokens * ranks)
        self.link_rules()

    def _meet(self, view: View) -> None:
        """What stays as it is as long as the machine does."""
        self._met, self._met_slots = view.memory_slots, view.slots
        self._units, self._link = view.topology.units, len(view.topology.devices)

    def _make_space(self, routing: LayerRouting) -> None:
        self._grow(len(routing.experts), max(routing.ranked.size, routing.experts.size))

    def _grow(self, tokens: int, entries: int) -> None:
        if tokens >= self._cost_tokens:
            self.belief = self._belief.covering(tokens)
        if entries > self._entries:
            self._use(grown(self.state, 2 * entries, self.state.sizes.cost_tokens))

    def _decide(self, routing: LayerRouting, view: View) -> int:
        if not self._linked:
            self.link_rules()
        s = self.state
        s.inputs.num_flights = self._fill_flights(view.in_flight) if view.in_flight else 0
        inputs = (
            s.address, routing.step, routing.layer, routing.experts, routing.ranked, routing.scores,
            view.located, view.memory_held, view.memory_occupied, view.busy_ns,
            self._units, self._link,
        )  # fmt: skip
        if self._compiled:
            return handle.fill_and_call(address(DECIDE), *inputs)
        handle.fill(*inputs)
        take_up(s)
        if self.cache.rule is None:
            self.cache.observe(routing)
        else:
            update_cache(s.setup, s.inputs, s.cache)
        if s.costs.cpu_slowed_by:
            prefer_valuable(s.inputs, s.decision, s.cache)
        if isinstance(self._schedule, CompiledSchedule):
            apply_schedule(s.setup, s.costs, s.decision, s.learned)
        else:
            self._assigned = assign_in_python(
                self._schedule, self.state, routing.layer, self._belief, view
            )
        return write_plan(s)

    def _fill_flights(self, in_flight: tuple[Flight, ...]) -> int:
        """What is under way to the accelerator's memory; returns how many."""
        assert len(in_flight) <= FLIGHT_CAPACITY, "too many transfers under way"
        words, end = self._flight_words, 0
        for layer, expert, remaining_ns, destination in in_flight:
            if destination == IN_VRAM:
                words[end], words[end + 1], words[end + 2] = layer, expert, remaining_ns
                end += 3
        return end // 3

    def wants_forecasts(self) -> int:
        """The number of layers after the one decided whose forecasts are of use; 0: nothing could
        be moved by them. A body that asks can forecast, so no predictions have to be learned for
        it."""
        if self._decided is None:
            return 0
        room = self._begin_look_ahead(body_forecasts=True)
        return self.forecasts_used if room > 0 and not self.state.ahead.resting else 0

    @property
    def forecasts_used(self) -> int:
        """The number of later layers for which the prefetch policy uses a body's forecasts, if it
        can move something by them."""
        asks = self.prefetch.predicts and not self.prefetch.needs_future
        return self.prefetch.lookahead if asks else 0

    def _begin_look_ahead(self, body_forecasts: bool) -> int:
        self._begun = True
        self.state.forecasts.count, self.state.forecasts.from_body = 0, body_forecasts
        return handle.run(address(BEGIN_LOOK_AHEAD), self.state.address)

    def look_ahead(
        self, forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
    ) -> tuple[Move, ...]:
        """What to move in idle link time; follows `decide`, and may be thought out while the
        body executes that decision. `forecasts` are what the body knows of later layers, where
        they were wanted. Not `body_forecasts`: they do not come from the body and are about this
        pass only, so that predicting goes on being learned."""
        if self._decided is None:
            return ()
        routing, view, plan = self._decided
        if self._reads_words and not self._begun and not forecasts:
            self.state.forecasts.count = self.state.forecasts.from_body = 0
            count = handle.run(address(LOOK_AHEAD), self.state.address)
        else:
            count = self._in_stages(routing, forecasts, body_forecasts)
        assert self._view is not None
        background = read_moves(self._background_words.tolist(), count) if count else ()
        background = with_sources(background, self._view)
        if self.layout.adapts:
            background += self.layout.propose(routing.layer, self._view, self._belief)
        if background and view is not None:
            loads = routing.loads(self._shape.experts)
            check(plan._replace(background=background), loads, view)
        return background

    def _in_stages(
        self, routing: LayerRouting, forecasts: Sequence[Forecast], body_forecasts: bool
    ) -> int:
        """The same, with what the body or an oracle knows, or with a prefetch policy in Python."""
        if not self._begun:
            self._begin_look_ahead(body_forecasts=body_forecasts and bool(forecasts))
        if self.state.ahead.max_background > 0 and self.prefetch.lookahead:
            if self.prefetch.needs_future:
                assert self._future is not None, "an oracle prefetch needs the future"
                forecasts = self._future.forecasts(routing.layer, self.prefetch.lookahead)
            self._fill_forecasts(routing.step, forecasts)
        if self.prefetch.rule is not None:
            return handle.run(address(FINISH_LOOK_AHEAD), self.state.address)
        return propose_in_python(self.prefetch, self.state, self._belief)

    def _fill_forecasts(self, step: int, forecasts: Sequence[Forecast]) -> None:
        largest = max((forecast.ranked.size for forecast in forecasts), default=0)
        if largest > self._entries:
            self._use(grown(self.state, 2 * largest, self.state.sizes.cost_tokens))
        records = self.state.setup, self.state.inputs, self.state.forecasts
        for forecast in forecasts:
            about = step if forecast.step is None else forecast.step
            trust = 0.0 if forecast.trust is None else max(forecast.trust, LEAST_TRUST)
            ranked, scores = forecast.ranked, forecast.scores
            fill_forecast(*records, about, forecast.layer, ranked, scores, trust)

    def plan(self, routing: LayerRouting, view: View) -> LayerPlan:
        """Both at once, with the forecasts that came with the routing."""
        plan = self.decide(routing, view)
        return plan._replace(background=self.look_ahead(routing.forecasts))

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        """Remember how long layers and the dense parts between them take."""
        if self._decided is not None:
            start, end = report.start_ns, report.end_ns
            handle.report(
                address(LEARN), self.state.address, start, end, report.active, report.hits,
                report.cpu_ns,
            )  # fmt: skip
            self.layout.learn(routing.layer, start, end)

    def _on_cpu(self, routing: LayerRouting, view: View) -> LayerPlan:
        """Without slots there is nothing to decide, to keep or to predict, and no time is lost
        on it: the layer waits for this."""
        self._decided = None
        chosen = routing.used().tolist()
        queue = tuple(chosen if routing.num_tokens == 1 else sorted(set(chosen)))
        plan = LayerPlan(routing.layer, {CPU: queue})
        if self._checked:
            check(plan, routing.loads(self._shape.experts), view)
        return plan


def _expected_rule(schedule: Schedule) -> Rule:
    """The rule that values layers that are only expected."""
    if schedule.expected_rule is not None:
        return schedule.expected_rule
    return schedule.rule if isinstance(schedule, CompiledSchedule) else hybrid
