"""What stands where in the brain's buffer of 64-bit words.

The first words are scalars, by the numbers below. Then every array has two words, its offset and
its length in words; then come the arrays themselves. Compiled code finds an array by its number
(`ints`, `floats`, `octets`), so sizes may differ from model to model without compiling again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core import view
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

# Scalars: set when the brain is made, ...
(
    WORDS,  # length of the buffer
    LAYERS,
    EXPERTS,
    TOP_K,
    SLOTS,
    GLOBAL_POOL,  # 1: all layers compete for all slots
    PROMOTE,  # 1: experts that ran on the CPU may take a slot in idle link time
    FIXED_CACHE,  # 1: what is resident never changes
    ADMITS_ALWAYS,  # 1: a missed expert takes a slot whatever it is worth
    SCHEDULE_RULE,
    CACHE_RULE,
    CACHE_HORIZON,  # steps for which an expert's value is thought to hold once it has a slot
    PREFETCH_RULE,
    LOOKAHEAD,
    ORACLE,  # 1: forecasts are the truth, and need no judging
    ENTRIES,  # tokens times ranks there is space for
    READ_AHEAD,  # experts of the next layer that an idle CPU reads into its caches
    COST_TOKENS,  # columns of the cost tables
    CPU_FIRST_NS,
    CPU_SLOWED_BY,  # thousandths, while the link is busy; 0 where the schedule does not ask
    TRANSFER_NS,
    DECISION_NS,
    # ... filled by the body before a decision, ...
    STEP,
    LAYER,
    TOKENS,
    USED_RANKS,  # columns of EXPERT_IDS
    RANKS,  # columns of RANKED_IDS and SCORES
    FORECASTS,  # how many forecasts the body has filled in, see forecasts.py
    BODY_FORECASTS,  # 1: the body can forecast, so nothing has to be learned for it
    OCCUPIED,
    NUM_FLIGHTS,
    GPU_BUSY_NS,
    CPU_BUSY_NS,
    LINK_BUSY_NS,
    # ... and after the layer, ...
    REPORT_START_NS,
    REPORT_END_NS,
    REPORT_ACTIVE,
    REPORT_HITS,
    REPORT_CPU_NS,  # that the CPU took for its experts; 0: it had none, or that is not known
    # ... and kept by the brain.
    ACTIVE,  # experts of the layer that have tokens
    NUM_TRANSFERS,
    MAX_BACKGROUND,  # moves that can start before the next layer's experts do
    LINK_FREE_NS,  # when the link has done what the layer demands
    LINK_PRICE,
    LINK_PRICE_SEEN,
    GAP_NS,  # from the end of one layer to the start of the next one's experts
    LAYER_NS,  # from there to that layer's end
    LAST_END_NS,  # -1: no layer has ended yet
    JUDGED,  # 1: some forecast has been compared with what came true
    SLOTS_TAKEN,  # while a plan is made: OCCUPIED and what the plan adds
    MOVES,  # in the background, as the last look-ahead had it
    MOVES_BEFORE,  # the same of the layer before
    MOVES_COST_NS,  # what they are expected to cost this layer
    EXTRA_NS,  # what the layer took beyond its estimate and that
    STILL_TOKENS,  # the next four: of steps of so many tokens
    STILL_NS,  # EXTRA_NS and the gap after it, averaged over layers beside which nothing moved, ...
    STILLS,  # ... how many they were
    MOVING_NS,  # ... and the same beside moves
    MOVINGS,
    MOVING_MORE_NS,  # what moves cost, as these tell
    DEMANDED_BEFORE,  # NUM_TRANSFERS of the layer before
    DEMAND_NS,  # as STILL_NS, of layers that waited for such, ...
    DEMANDS,
    DEMAND_MORE_NS,  # ... and what that costs beyond the transfers
    BELIEVED_FIRST_NS,  # CPU_FIRST_NS as it was before anything was learned; see cpu_times.py
    CPU_SLOPE,  # thousandths of BELIEVED_CPU that stand in COSTS
    CPU_SEEN,  # layers in CPU_MEANS
    CPU_CLASS,  # of steps of about as many tokens
    LOOKED,  # 1: this step, or the last one, looked ahead; see resting.py
    PREFETCHED,  # in the same step
    REST,  # steps that do not look ahead, when the last such rest began
    RESTING,  # those that are left, with this one
    CPU_IDLE_LAYERS,  # since the CPU was given an expert; see read_ahead.py
    ROUTED_TOKENS,  # all that were decided on, see ROUTED
) = range(74)

NUM_SCALARS = 80
FLIGHT_CAPACITY = view.FLIGHT_CAPACITY
MOVE_WORDS = 5  # layer, expert, victim's layer or -1, victim's expert, keep
PLAN_HEADER = 4  # GPU experts, CPU experts, moves, estimated nanoseconds; then all of them

# Arrays: the word with the offset; the next one has the length. Shapes in state.py.
(
    EXPERT_IDS,
    RANKED_IDS,
    SCORES,
    RESIDENT,
    HELD,
    FLIGHTS,
    TABLE,
    LANES,
    LATER_LANES,
    LOADS,
    ASSIGNED,
    SCRATCH,
    COSTS,
    VALUES,
    CACHE_MEMORY,
    CACHE_NUMBERS,
    SHIELD,
    QUOTA,
    SLOTS_HELD,
    VICTIMS,
    PLAN,
    BACKGROUND,
    FORECAST_SHAPES,
    FORECAST_STEPS,
    FORECAST_TRUST,
    FORECAST_IDS,
    FORECAST_SCORES,
    PAIRS,
    USES,
    POSTERIOR,
    RATIOS,
    HISTORY_SHAPES,
    HISTORY,
    PENDING_SHAPES,
    PENDING,
    TRUST,
    MISS_RATE,
    STARTS,
    DELAYS,
    LATER_TABLES,
    LATER_STARTS,
    LATER_COUNTS,
    LATER_WEIGHTS,
    PICKS,
    MISSED,
    BELIEVED_CPU,
    CPU_MEANS,
    ASSIGNED_MOVING,
    AHEAD_IDS,
    ROUTED,
    KEPT_VICTIMS,
    RESIDENT_THEN,
) = range(NUM_SCALARS, NUM_SCALARS + 2 * 52, 2)
FIRST_ARRAY_WORD = NUM_SCALARS + 2 * 52


@compiled
def ints(s: Ints, field: int) -> Ints:
    return s[s[field] : s[field] + s[field + 1]]


@compiled
def floats(s: Ints, field: int) -> NDArray[np.float64]:
    return s.view(np.float64)[s[field] : s[field] + s[field + 1]]


@compiled
def octets(s: Ints, field: int) -> NDArray[np.uint8]:
    return s.view(np.uint8)[8 * s[field] : 8 * (s[field] + s[field + 1])]
