"""Running scores at two speeds: what is popular, and what is in fashion right now.

MRS must choose one averaging coefficient: a small one misses the topic of the moment, a large
one forgets which experts are popular throughout. Here the value is the mean of a fast and a slow
average of the same scores; the slow one starts as a plain mean, so it knows something from the
first token on. A profile counts as tokens seen before: without it, the first tokens would push out
what the profile has placed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import Cache
from moesaic.policies.cache.scores import TINY, add_scores
from moesaic.policies.compiled import compiled
from moesaic.policies.records import NUMBERS, Floats
from moesaic.policies.timelines import Ints

DEFAULT_FAST = 0.2
DEFAULT_SLOW = 0.01
FAST, SLOW, TOP_P = 0, 1, 2  # in `numbers`; then, per layer, steps seen; negative: a profile's


@compiled
def observe_two_speed(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    tokens, count = ranked.shape[0], values.shape[1]
    total = np.zeros(count)
    add_scores(ranked, scores, int(numbers[TOP_P]), total)
    if numbers[NUMBERS + layer] < 0.0:  # a profile knows shares of uses: as large as scores, now
        memory[:, layer] *= total.sum() / tokens
        numbers[NUMBERS + layer] *= -1.0
    numbers[NUMBERS + layer] += 1.0
    slow = max(numbers[SLOW], 1.0 / numbers[NUMBERS + layer])
    for expert in range(count):
        mean = total[expert] / tokens
        for speed, newest in ((0, numbers[FAST]), (1, slow)):
            now = memory[speed, layer, expert]
            now += newest * (mean - now)
            memory[speed, layer, expert] = now if abs(now) > TINY else 0.0
        values[layer, expert] = 0.5 * (memory[0, layer, expert] + memory[1, layer, expert])


class TwoSpeed(Cache):
    rule = staticmethod(observe_two_speed)
    planes = 2

    def __init__(
        self,
        layers: int,
        experts: int,
        top_k: int,
        fast: float = DEFAULT_FAST,
        slow: float = DEFAULT_SLOW,
    ) -> None:
        super().__init__(layers, experts, top_k)
        self._top_k = top_k
        self.numbers[FAST], self.numbers[SLOW] = fast, slow
        self.numbers[TOP_P] = min(2 * top_k, experts)

    def start_from(self, counts: NDArray[np.int64]) -> None:
        uses = counts.sum(axis=1)
        profiled = uses > 0
        self.memory[:, profiled] = counts[profiled] / uses[profiled, None]
        self.values[profiled] = self.memory[0, profiled]
        steps = np.maximum(uses // self._top_k, 1)
        self.numbers[NUMBERS:] = np.where(profiled, -steps, 0)
