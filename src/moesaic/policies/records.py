"""What the brain remembers: records, by the code that writes them, and the arrays' shapes.

Compiled functions name the records that they read. Those that need most of them take the whole
`State`. The native conductor reads and writes the same memory: `native/conductor/brain_records.h`
is made from these classes (`python -m moesaic.policies.brain.c_header`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.compiling.records import Record, array, copy_record, layout, made
from moesaic.core import view
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import NUM_LANES, Ints

Floats = NDArray[np.float64]
Octets = NDArray[np.uint8]

FLIGHT_CAPACITY = view.FLIGHT_CAPACITY
MOVE_WORDS = 5  # layer, expert, victim's layer or -1, victim's expert, keep
PLAN_HEADER = 4  # GPU experts, CPU experts, moves, estimated nanoseconds; then all of them
NUMBERS = 8  # parameters and counters of a cache; then those of each layer
MAX_PROPOSED = 4  # transfers proposed at once; the next layer proposes again
MOST_READ_AHEAD = 8  # experts
SCRATCH_ROWS = 8  # of an assignment, see schedule/assignment.py
KIND_ROW, CPU_ROW = 4, 6  # of those: what was decided for each expert, and its cost on the CPU
IMPACT_ROWS = 5  # of scratch, one number per expert each, to value the experts of a layer
# What the CPU has just computed lies in its caches, and these answer the link at half its speed
# while they serve the CPU worse (docs/contention.md): such experts wait for so many layers.
MISSED_LAYERS = 2


class Sizes(NamedTuple):
    """What the arrays' shapes follow from."""

    layers: int
    experts: int
    lookahead: int
    cache_planes: int  # tables of one number per expert that the cache keeps beside its values
    numbers_per_layer: int  # that the cache keeps
    entries: int  # tokens times ranks
    cost_tokens: int
    predicts: bool = True  # later layers are predicted where the body has no forecasts

    @property
    def cache_numbers(self) -> int:
        return NUMBERS + self.numbers_per_layer * self.layers

    @property
    def plan_words(self) -> int:
        moves = self.experts + MAX_PROPOSED
        return PLAN_HEADER + 2 * self.experts + MOVE_WORDS * moves

    @property
    def assigned_experts(self) -> int:
        return self.experts + 4

    @property
    def missed_words(self) -> int:
        return self.experts + 2

    @property
    def predicted(self) -> int:
        return self.lookahead if self.predicts else 0

    @property
    def ratio_rows(self) -> int:
        return self.experts if self.predicted else 0

    @property
    def ratio_columns(self) -> int:
        return self.experts + 1

    @property
    def remembered(self) -> int:
        return self.lookahead + 1

    @property
    def distances(self) -> int:
        return max(self.lookahead, 1)


class Setup(Record):
    """Set when the brain is made, and when its policies change. Rules are the addresses of
    compiled functions, see rule_calls.py."""

    layers: int
    experts: int
    top_k: int
    slots: int
    lookahead: int
    global_pool: int  # 1: all layers compete for all slots
    promote: int  # 1: experts that ran on the CPU may take a slot in idle link time
    fixed_cache: int  # 1: what is resident never changes
    admits_always: int  # 1: a missed expert takes a slot whatever it is worth
    values_change: int  # 1: of any expert at any time, as those of a cache in Python may
    cache_horizon: int  # steps for which an expert's value is thought to hold once it has a slot
    predicts: int  # 1: where the body has no forecasts, later layers are predicted
    oracle: int  # 1: forecasts are the truth, and need no judging
    read_ahead: int  # experts of the next layer that an idle CPU reads into its caches
    schedule_rule: int
    expected_rule: int  # by which layers are valued that are only expected
    fills_timelines: int  # 1: that rule is `hybrid`'s, whose end has a bound
    cache_rule: int
    prefetch_rule: int
    quota: Ints = array("layers")  # slots of each layer, where there is no global pool


class Costs(Record):
    """What things are thought to cost: a belief, and what layers on the CPU have taught about it
    (cpu_times.py)."""

    cpu_first_ns: int
    cpu_slowed_by: int  # thousandths, while the link is busy; 0 where the schedule does not ask
    transfer_ns: int
    decision_ns: int
    believed_first_ns: int  # cpu_first_ns as it was before anything was learned
    cpu_slope: int  # thousandths of believed_cpu that stand in the tables
    cpu_seen: int  # layers in cpu_means
    cpu_class: int  # of steps of about as many tokens
    tables: Ints = array(2, "cost_tokens")  # of the GPU and the CPU
    believed_cpu: Ints = array("cost_tokens")  # the CPU's table before it was watched
    cpu_means: Floats = array(4)


class Inputs(Record):
    """What the body fills in before a decision."""

    step: int
    layer: int
    tokens: int
    used_ranks: int  # columns of expert_ids
    ranks: int  # columns of ranked_ids and scores
    occupied: int
    num_flights: int
    gpu_busy_ns: int
    cpu_busy_ns: int
    link_busy_ns: int
    expert_ids: Ints = array("entries")  # [tokens, used ranks]; -1: not used
    ranked_ids: Ints = array("entries")  # [tokens, ranks]
    scores: Floats = array("entries")
    resident: Octets = array("layers", "experts")
    held: Ints = array("layers")
    flights: Ints = array(FLIGHT_CAPACITY, 3)  # layer, expert, remaining ns


class Forecasts(Record):
    """What the next layers will want, nearest first: filled in by the body before a look-ahead, or
    predicted (forecasts.py)."""

    count: int
    from_body: int  # 1: the body can forecast, so nothing has to be learned for it
    shapes: Ints = array("lookahead", 3)  # layer, tokens, ranks
    steps: Ints = array("lookahead")  # the pass each is about
    trust: Floats = array("lookahead")  # 0: the predictor's at its distance
    ids: Ints = array("lookahead", "entries")
    scores: Floats = array("lookahead", "entries")


class Report(Record):
    """What the body fills in after a layer."""

    start_ns: int
    end_ns: int
    active: int
    hits: int
    cpu_ns: int  # that the CPU took for its experts; 0: it had none, or that is not known


class Decision(Record):
    """The layer as its schedule sees it, and the plan."""

    active: int  # experts of the layer that have tokens
    num_transfers: int
    routed_tokens: int  # all that were decided on
    table: Ints = array(3, "experts")  # see timelines.py
    lanes: Ints = array(NUM_LANES)
    loads: Ints = array("experts")  # zero between uses
    assigned: Ints = array(SCRATCH_ROWS, "assigned_experts")  # see schedule/assignment.py
    assigned_moving: Ints = array(SCRATCH_ROWS, "assigned_experts")  # the same with transfers
    plan: Ints = array("plan_words")
    routed: Ints = array("layers", "experts")  # uses of every expert, over all steps


class SlotState(Record):
    """Slot accounting of the plan that is made, and victims kept from plan to plan (slots.py)."""

    taken: int  # inputs.occupied and what the plan adds
    held: Ints = array("layers")
    shield: Octets = array("layers", "experts")  # 1: may not be evicted
    victims: Ints = array("layers")
    kept_victims: Ints = array("layers")
    resident_then: Octets = array("layers", "experts")


class CacheState(Record):
    """The cache's: its rule writes here."""

    values: Floats = array("layers", "experts")
    memory: Floats = array("cache_planes", "layers", "experts")
    numbers: Floats = array("cache_numbers")


class Ahead(Record):
    """The look-ahead's: what may be moved in the background, and what is (lookahead.py)."""

    max_background: int  # moves that can start before the next layer's experts do
    link_free_ns: int  # when the link has done what the layer demands
    link_price: int
    link_price_seen: int
    moves: int  # in the background, as the last look-ahead had it
    moves_cost_ns: int  # what they are expected to cost this layer
    looked: int  # 1: this step, or the last one, looked ahead; see resting.py
    prefetched: int  # in the same step
    rest: int  # steps that do not look ahead, when the last such rest began
    resting: int  # those that are left, with this one
    cpu_idle_layers: int  # since the CPU was given an expert; see read_ahead.py
    lanes: Ints = array(NUM_LANES)  # of a later layer
    scratch: Ints = array(IMPACT_ROWS, "experts")
    starts: Ints = array("distances")
    delays: Ints = array(MAX_PROPOSED + 1)
    background: Ints = array(MAX_PROPOSED, MOVE_WORDS)
    picks: Ints = array(MAX_PROPOSED, 2)
    tables: Ints = array("lookahead", 4, "experts")  # these four by forecast
    forecast_starts: Ints = array("lookahead")
    counts: Ints = array("lookahead")
    weights: Floats = array("lookahead")
    missed: Ints = array(MISSED_LAYERS, "missed_words")  # see promotions.py
    candidates: Ints = array("missed_words")
    read_ahead_ids: Ints = array(MOST_READ_AHEAD)  # see read_ahead.py


class Predictor(Record):
    """What routing has taught about later layers (forecasts.py)."""

    judged: int  # 1: some forecast has been compared with what came true
    trust: Floats = array("lookahead")  # by distance
    pairs: Floats = array("predicted", "layers", "experts", "experts")  # [., ., before, now]
    uses: Floats = array("predicted", "layers", "experts")  # counted with the pairs
    posterior: Floats = array("experts")
    ratios: Floats = array("ratio_rows", "ratio_columns")
    history_shapes: Ints = array("remembered", 3)  # layer or -1, tokens, ranks
    history: Ints = array("remembered", "entries")
    pending_shapes: Ints = array("remembered", "lookahead", 3)  # address or -1, tokens, ranks
    pending: Ints = array("remembered", "lookahead", "entries")


class Learned(Record):
    """What finished layers have taught (learn.py)."""

    miss_rate: float
    gap_ns: int  # from the end of one layer to the start of the next one's experts
    layer_ns: int  # from there to that layer's end
    last_end_ns: int  # -1: no layer has ended yet
    extra_ns: int  # what the layer took beyond its estimate and what moves were expected to cost
    moves_before: int  # ahead.moves of the layer before
    demanded_before: int  # decision.num_transfers of the layer before
    still_tokens: int  # the rest: of steps of so many tokens
    still_ns: int  # extra_ns and the gap after it, averaged over layers beside which nothing moved,
    stills: int  # ... how many they were
    moving_ns: int  # ... and the same beside moves
    movings: int
    moving_more_ns: int  # what moves cost, as these tell
    demand_ns: int  # as still_ns, of layers that waited for such, ...
    demands: int
    demand_more_ns: int  # ... and what that costs beyond the transfers


class State(Record):
    """All of it."""

    layout: int  # LAYOUT
    setup: Setup
    costs: Costs
    inputs: Inputs
    forecasts: Forecasts
    report: Report
    decision: Decision
    slots: SlotState
    cache: CacheState
    ahead: Ahead
    predictor: Predictor
    learned: Learned


LAYOUT = layout(State, FLIGHT_CAPACITY, MOVE_WORDS, PLAN_HEADER)


def state_of(sizes: Sizes) -> State:
    """Made for a model's shape; grown when a step brings more tokens."""
    state: State = made(State, sizes)
    state.layout = LAYOUT
    state.setup.layers, state.setup.experts = sizes.layers, sizes.experts
    state.setup.lookahead = sizes.lookahead
    return state


def grown(state: State, entries: int, cost_tokens: int) -> State:
    """The same state with space for more."""
    larger = state_of(state.sizes._replace(entries=entries, cost_tokens=cost_tokens))
    copy_record(state, larger)
    return larger


@compiled
def distance_to(setup: Setup, inputs: Inputs, step: int, layer: int) -> int:
    """How many layers lie between the one decided and another, of this pass or another."""
    return int((step - inputs.step) * setup.layers + layer - inputs.layer - 1)
