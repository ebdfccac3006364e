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
from moesaic.policies.brain import fields as at
from moesaic.policies.brain import handle, lookahead
from moesaic.policies.brain.cpu_times import believe_cpu
from moesaic.policies.brain.decide import prefer_valuable, update_cache, write_plan
from moesaic.policies.brain.decide import schedule as apply_schedule
from moesaic.policies.brain.forecasts import fill_forecast
from moesaic.policies.brain.plan_words import read_moves, read_plan
from moesaic.policies.brain.python_policies import assign_in_python, propose_in_python
from moesaic.policies.brain.sources import from_where_they_lie
from moesaic.policies.brain.state import Sizes, State
from moesaic.policies.cache.base import PYTHON as PYTHON_CACHE
from moesaic.policies.cache.base import Cache
from moesaic.policies.future import Future
from moesaic.policies.layout.base import Layout
from moesaic.policies.prefetch.base import NOTHING, Prefetch
from moesaic.policies.prefetch.base import PYTHON as PYTHON_PREFETCH
from moesaic.policies.schedule.base import Assignment, CompiledSchedule, Schedule
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
        self._met: Ints | None = None  # the slots of the machine that was seen last
        self._reads_words = prefetch.rule != PYTHON_PREFETCH and not prefetch.needs_future
        tokens = belief.tables.shape[1]
        predicts = prefetch.rule != NOTHING
        kept = cache.planes, cache.numbers_per_layer
        sizes = Sizes(shape.layers, shape.experts, prefetch.lookahead, *kept, 64, tokens, predicts)
        self._use(State(sizes))
        self._describe(slots, per_layer, promote)
        self._words[at.ADMITS_ALWAYS] = admits_always
        self._schedule = schedule
        self.belief = belief
        self.schedule = schedule
        if cache.needs_future:
            assert future is not None, "an oracle cache needs the future"
            cache.set_future(future)

    def _describe(self, slots: int, per_layer: bool, promote: bool) -> None:
        s, cache, prefetch, layers = self._words, self.cache, self.prefetch, self._shape.layers
        for scalar, value in (
            (at.TOP_K, self._shape.top_k),
            (at.SLOTS, slots),
            (at.GLOBAL_POOL, not per_layer),
            (at.PROMOTE, promote and not cache.fixed),
            (at.FIXED_CACHE, cache.fixed),
            (at.CACHE_RULE, cache.rule),
            (at.CACHE_HORIZON, cache.horizon),
            (at.PREFETCH_RULE, prefetch.rule),
            (at.ORACLE, prefetch.needs_future),
            (at.LAST_END_NS, -1),
            (at.READ_AHEAD, prefetch.read_ahead if prefetch.lookahead else 0),
        ):
            s[scalar] = value
        quota = [slots // layers + (layer < slots % layers) for layer in range(layers)]
        self.state.of(at.QUOTA)[:] = quota
        self.state.of(at.TRUST)[:] = 1.0
        self.state.of(at.HISTORY_SHAPES)[..., 0] = -1
        self.state.of(at.PENDING_SHAPES)[..., 0] = -1

    def _use(self, state: State) -> None:
        self.state, self._words = state, state.words
        arrays = (state.of(f) for f in (at.VALUES, at.CACHE_MEMORY, at.CACHE_NUMBERS))
        self.cache.attach(*arrays)  # type: ignore[arg-type]
        self._entries = state.sizes.entries
        self._plan_words = state.of(at.PLAN)
        self._background_words = state.of(at.BACKGROUND).ravel()
        self._flight_words = state.of(at.FLIGHTS).ravel()

    @property
    def schedule(self) -> Schedule:
        """May be changed between layers."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._words[at.SCHEDULE_RULE] = schedule.rule
        self._count_contention()
        self._compiled = isinstance(schedule, CompiledSchedule) and self.cache.rule != PYTHON_CACHE

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
            self._use(self.state.grown(self.state.sizes.entries, tokens))
        self.state.of(at.COSTS)[:, :tokens] = belief.tables
        self.state.of(at.BELIEVED_CPU)[:tokens] = belief.tables[1]
        self._cost_tokens = tokens
        believe_cpu(self.state, belief.cpu_first_ns)
        self._words[at.TRANSFER_NS] = belief.transfer_ns
        self._words[at.DECISION_NS] = belief.decision_ns
        self._count_contention()

    def _count_contention(self) -> None:
        sees = self._schedule.sees_contention
        self._words[at.CPU_SLOWED_BY] = self._belief.cpu_slowed if sees else 0
        self.cache.set_costly_moves(bool(self._words[at.CPU_SLOWED_BY]))

    @property
    def trust(self) -> tuple[float, ...]:
        """The running share of right forecasts per distance; full before the first."""
        return tuple(self.state.of(at.TRUST).tolist())

    @property
    def forecast_accuracy(self) -> tuple[float, ...]:
        """The same, and empty where no forecast has been judged."""
        return self.trust if self._words[at.JUDGED] else ()

    @property
    def routed(self) -> tuple[int, NDArray[np.int64]]:
        """How many tokens it has decided on, and how often they used each expert, [layer,
        expert]: those that ran again as often as they ran."""
        counts: NDArray[np.int64] = self.state.of(at.ROUTED).astype(np.int64)
        return int(self._words[at.ROUTED_TOKENS]), counts

    @property
    def layer_ns(self) -> int:
        """What a layer with a token takes without waiting for experts, as measured so far: the
        dense part before it, and top-k experts on the GPU."""
        dense = int(self._words[at.GAP_NS])
        return dense + self._shape.top_k * int(self._belief.tables[0, 1])

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
        plan = plan._replace(transfers=from_where_they_lie(plan.transfers, view))
        if self.layout.adapts:
            self.layout.observe(routing.layer, routing.loads(self._shape.experts))
        # The body may start while the look-ahead goes on; that must not change what it sees.
        kept = view.copy() if self._checked else None
        if kept is not None:
            check(plan, routing.loads(self._shape.experts), kept)
        self._decided, self._view = (routing, kept, plan), view
        return plan

    def reserve(self, tokens: int, ranks: int) -> None:
        """Space for steps of so many tokens, for a body that fills the buffer itself: it must not
        move afterwards."""
        self._grow(tokens, tokens * ranks)

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
            self._use(self.state.grown(2 * entries, self.state.sizes.cost_tokens))

    def _decide(self, routing: LayerRouting, view: View) -> int:
        s = self._words
        s[at.NUM_FLIGHTS] = self._fill_flights(view.in_flight) if view.in_flight else 0
        inputs = (
            s, routing.step, routing.layer, routing.experts, routing.ranked, routing.scores,
            view.located, view.memory_held, view.memory_occupied, view.busy_ns,
            self._units, self._link,
        )  # fmt: skip
        if self._compiled:
            return handle.decide(*inputs)
        handle.fill(*inputs)
        if self.cache.rule == PYTHON_CACHE:
            self.cache.observe(routing)
        else:
            update_cache(s)
        if s[at.CPU_SLOWED_BY]:
            prefer_valuable(s)
        if isinstance(self._schedule, CompiledSchedule):
            apply_schedule(s)
        else:
            self._assigned = assign_in_python(
                self._schedule, self.state, routing.layer, self._belief, view
            )
        return write_plan(s)

    def _fill_flights(self, in_flight: tuple[Flight, ...]) -> int:
        """What is under way to the accelerator's memory; returns how many."""
        assert len(in_flight) <= at.FLIGHT_CAPACITY, "too many transfers under way"
        words, end = self._flight_words, 0
        for layer, expert, remaining_ns, destination in in_flight:
            if destination == IN_VRAM:
                words[end], words[end + 1], words[end + 2] = layer, expert, remaining_ns
                end += 3
        return end // 3

    def wants_forecasts(self) -> int:
        """Of how many layers after the one decided forecasts are of use; 0: nothing could be moved
        by them. A body that asks can forecast, so no predictions have to be learned for it."""
        if self._decided is None:
            return 0
        room = self._begin_look_ahead(body_forecasts=True)
        return self.forecasts_used if room > 0 and not self._words[at.RESTING] else 0

    @property
    def forecasts_used(self) -> int:
        """Of how many later layers the prefetch policy uses a body's forecasts, if it can move
        something by them."""
        asks = self.prefetch.rule != NOTHING and not self.prefetch.needs_future
        return self.prefetch.lookahead if asks else 0

    def _begin_look_ahead(self, body_forecasts: bool) -> int:
        self._begun = True
        self._words[at.FORECASTS], self._words[at.BODY_FORECASTS] = 0, body_forecasts
        return lookahead.begin(self._words)

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
            self._words[at.FORECASTS] = self._words[at.BODY_FORECASTS] = 0
            count = lookahead.look_ahead(self._words)
        else:
            count = self._in_stages(routing, forecasts, body_forecasts)
        assert self._view is not None
        background = read_moves(self._background_words.tolist(), count) if count else ()
        background = from_where_they_lie(background, self._view)
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
        if self._words[at.MAX_BACKGROUND] > 0 and self.prefetch.lookahead:
            if self.prefetch.needs_future:
                assert self._future is not None, "an oracle prefetch needs the future"
                forecasts = self._future.forecasts(routing.layer, self.prefetch.lookahead)
            self._fill_forecasts(routing.step, forecasts)
        if self.prefetch.rule != PYTHON_PREFETCH:
            return lookahead.finish(self._words)
        return propose_in_python(self.prefetch, self.state, self._belief)

    def _fill_forecasts(self, step: int, forecasts: Sequence[Forecast]) -> None:
        largest = max((forecast.ranked.size for forecast in forecasts), default=0)
        if largest > self._entries:
            self._use(self.state.grown(2 * largest, self.state.sizes.cost_tokens))
        for forecast in forecasts:
            about = step if forecast.step is None else forecast.step
            trust = 0.0 if forecast.trust is None else max(forecast.trust, LEAST_TRUST)
            ranked, scores = forecast.ranked, forecast.scores
            fill_forecast(self._words, about, forecast.layer, ranked, scores, trust)

    def plan(self, routing: LayerRouting, view: View) -> LayerPlan:
        """Both at once, with the forecasts that came with the routing."""
        plan = self.decide(routing, view)
        return plan._replace(background=self.look_ahead(routing.forecasts))

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        """Remember how long layers and the dense parts between them take."""
        if self._decided is not None:
            start, end = report.start_ns, report.end_ns
            handle.learn(self._words, start, end, report.active, report.hits, report.cpu_ns)
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
