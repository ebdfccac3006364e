"""The brain's buffer: made for a model's shape, grown when a step brings more tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.promotions import MISSED_LAYERS
from moesaic.policies.cache.base import NUMBERS
from moesaic.policies.prefetch.base import IMPACT_ROWS, MAX_PROPOSED, MOST_READ_AHEAD
from moesaic.policies.schedule.base import SCRATCH_ROWS
from moesaic.policies.timelines import NUM_LANES, Ints

INT, FLOAT, OCTET = np.int64, np.float64, np.uint8


class Sizes(NamedTuple):
    """What the arrays' shapes follow from."""

    layers: int
    experts: int
    lookahead: int
    cache_planes: int  # tables of one number per expert that the cache keeps beside its values
    cache_numbers: int  # that it keeps per layer
    entries: int  # tokens times ranks
    cost_tokens: int
    predicts: bool = True  # later layers are predicted where the body has no forecasts


class Array(NamedTuple):
    field: int
    dtype: type[np.generic]
    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        count = int(np.prod(self.shape))
        return -(-count // 8) if self.dtype is OCTET else count


def arrays(n: Sizes) -> list[Array]:
    layers, experts, ahead, entries = n.layers, n.experts, n.lookahead, n.entries
    moves = experts + MAX_PROPOSED
    pairs = ahead if n.predicts else 0
    return [
        Array(at.EXPERT_IDS, INT, (1, entries)),  # [tokens, used ranks]; -1: not used
        Array(at.RANKED_IDS, INT, (1, entries)),  # [tokens, ranks]
        Array(at.SCORES, FLOAT, (1, entries)),
        Array(at.RESIDENT, OCTET, (layers, experts)),
        Array(at.HELD, INT, (layers,)),
        Array(at.FLIGHTS, INT, (at.FLIGHT_CAPACITY, 3)),  # layer, expert, remaining ns
        Array(at.TABLE, INT, (3, experts)),  # see timelines.py
        Array(at.LANES, INT, (NUM_LANES,)),
        Array(at.LATER_LANES, INT, (NUM_LANES,)),
        Array(at.LOADS, INT, (experts,)),  # zero between uses
        Array(at.ASSIGNED, INT, (SCRATCH_ROWS, experts + 4)),  # see schedule/rules.py
        Array(at.SCRATCH, INT, (IMPACT_ROWS, experts)),
        Array(at.COSTS, INT, (2, n.cost_tokens)),  # of the GPU and the CPU
        Array(at.VALUES, FLOAT, (layers, experts)),
        Array(at.CACHE_MEMORY, FLOAT, (n.cache_planes, layers, experts)),
        Array(at.CACHE_NUMBERS, FLOAT, (NUMBERS + n.cache_numbers * layers,)),
        Array(at.SHIELD, OCTET, (layers, experts)),  # 1: may not be evicted
        Array(at.QUOTA, INT, (layers,)),
        Array(at.SLOTS_HELD, INT, (layers,)),
        Array(at.VICTIMS, INT, (layers,)),  # see slots.py
        Array(at.PLAN, INT, (at.PLAN_HEADER + 2 * experts + at.MOVE_WORDS * moves,)),
        Array(at.BACKGROUND, INT, (MAX_PROPOSED, at.MOVE_WORDS)),
        Array(at.FORECAST_SHAPES, INT, (ahead, 3)),  # layer, tokens, ranks
        Array(at.FORECAST_STEPS, INT, (ahead,)),  # the pass each is about
        Array(at.FORECAST_TRUST, FLOAT, (ahead,)),  # 0: TRUST at its distance
        Array(at.FORECAST_IDS, INT, (ahead, entries)),
        Array(at.FORECAST_SCORES, FLOAT, (ahead, entries)),
        Array(at.PAIRS, FLOAT, (pairs, layers, experts, experts)),  # [distance, layer, before, now]
        Array(at.USES, FLOAT, (pairs, layers, experts)),  # counted with the pairs at that distance
        Array(at.POSTERIOR, FLOAT, (experts,)),
        Array(at.RATIOS, FLOAT, (experts if pairs else 0, experts + 1)),
        Array(at.HISTORY_SHAPES, INT, (ahead + 1, 3)),  # layer or -1, tokens, ranks
        Array(at.HISTORY, INT, (ahead + 1, entries)),
        Array(at.PENDING_SHAPES, INT, (ahead + 1, ahead, 3)),  # address or -1, tokens, ranks
        Array(at.PENDING, INT, (ahead + 1, ahead, entries)),
        Array(at.TRUST, FLOAT, (ahead,)),
        Array(at.MISS_RATE, FLOAT, (1,)),
        Array(at.STARTS, INT, (max(ahead, 1),)),  # by distance
        Array(at.DELAYS, INT, (MAX_PROPOSED + 1,)),
        Array(at.LATER_TABLES, INT, (ahead, 4, experts)),  # these four by forecast
        Array(at.LATER_STARTS, INT, (ahead,)),
        Array(at.LATER_COUNTS, INT, (ahead,)),
        Array(at.LATER_WEIGHTS, FLOAT, (ahead,)),
        Array(at.PICKS, INT, (MAX_PROPOSED, 2)),
        Array(at.MISSED, INT, (MISSED_LAYERS, experts + 2)),  # see promotions.py
        Array(at.BELIEVED_CPU, INT, (n.cost_tokens,)),  # COSTS of the CPU before it was watched
        Array(at.CPU_MEANS, FLOAT, (4,)),  # see cpu_times.py
        Array(at.ASSIGNED_MOVING, INT, (SCRATCH_ROWS, experts + 4)),  # ASSIGNED, with transfers
        Array(at.AHEAD_IDS, INT, (MOST_READ_AHEAD,)),  # see read_ahead.py
        Array(at.ROUTED, INT, (layers, experts)),  # uses of every expert, over all steps
        Array(at.KEPT_VICTIMS, INT, (layers,)),  # these two: see slots.py
        Array(at.RESIDENT_THEN, OCTET, (layers, experts)),
    ]


class State:
    """`words` is the buffer that compiled code gets; `of(field)` is one of its arrays."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._arrays = {array.field: array for array in arrays(sizes)}
        end = at.FIRST_ARRAY_WORD
        offsets = {}
        for array in self._arrays.values():
            offsets[array.field] = end
            end += array.words
        self.words: Ints = np.zeros(end, dtype=np.int64)
        self.words[at.WORDS] = end
        for array in self._arrays.values():
            self.words[array.field : array.field + 2] = offsets[array.field], array.words
        for scalar, value in (
            (at.LAYERS, sizes.layers),
            (at.EXPERTS, sizes.experts),
            (at.LOOKAHEAD, sizes.lookahead),
            (at.ENTRIES, sizes.entries),
            (at.COST_TOKENS, sizes.cost_tokens),
        ):
            self.words[scalar] = value

    def of(self, field: int) -> NDArray[np.generic]:
        array = self._arrays[field]
        start = int(self.words[field])
        part = self.words[start : start + array.words].view(array.dtype)
        return part[: int(np.prod(array.shape))].reshape(array.shape)

    def grown(self, entries: int, cost_tokens: int) -> State:
        """The same state with space for more."""
        larger = State(self.sizes._replace(entries=entries, cost_tokens=cost_tokens))
        kept = [scalar for scalar in range(at.NUM_SCALARS) if scalar not in _SIZES]
        larger.words[kept] = self.words[kept]
        for field in self._arrays:
            old, new = self.of(field), larger.of(field)
            new[..., : old.shape[-1]] = old
        return larger


_SIZES = (at.WORDS, at.ENTRIES, at.COST_TOKENS)
