"""Is the best split the best of all splits, and is it improved as far as it says?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.schedule.improve import EXACT, EXCHANGED, exchange, improve, try_every
from moesaic.policies.schedule.splits import EITHER_ORDER, IN_ORDER, best_split
from moesaic.policies.timelines import ABSENT, MOVED, ON_CPU, ON_GPU, Ints, finish_time


class Drawn(NamedTuple):
    """A layer's experts and lanes, as the compiled rules take them."""

    ready: Ints
    gpu: Ints
    cpu: Ints
    lanes: Ints
    n: int

    def scratch(self) -> Ints:
        return np.full(self.n, 99, dtype=np.int64)  # what is left from others must not matter

    def ends(self, kind: Ints) -> int:
        return finish_time(kind, *self)

    def split(self, orders: int) -> tuple[int, Ints]:
        kind = np.full(self.n, -7, dtype=np.int64)
        return best_split(kind, *self, orders, self.scratch()), kind

    def improved(self) -> tuple[int, Ints, int]:
        first, kind = self.split(IN_ORDER)
        best = improve(kind, *self, first, self.scratch())
        return best, kind, first


def layer_of(
    ready: list[int], gpu: list[int], cpu: list[int], transfer: int, *busy: int, slowed: int = 0
) -> Drawn:
    """`busy`: until when the GPU, the CPU and the link are, and what the CPU does first."""
    gpu_free, cpu_free, link_free, first = busy or (0, 0, max(0, *ready), 0)
    lanes = np.array([gpu_free, cpu_free, link_free, first, transfer, slowed], dtype=np.int64)
    return Drawn(np.array(ready), np.array(gpu), np.array(cpu), lanes, len(ready))


@st.composite
def layers(draw: st.DrawFn, least: int = 1, most: int = 8) -> Drawn:
    """Costs of any kind: not only such as rise with the load."""
    n = draw(st.integers(least, most))

    def each(numbers: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(numbers, min_size=n, max_size=n))

    ready = each(st.sampled_from([0, 0, ABSENT, ABSENT, ABSENT, 30, 70, draw(st.integers(1, 90))]))
    busy = [draw(st.sampled_from([0, 0, more])) for more in (25, 35, 15, 20)]
    if draw(st.booleans()):  # else as in layers that the look-ahead values
        busy[2] = max(busy[2], *ready)
    gpu, cpu = each(st.integers(1, 40)), each(st.integers(1, 80))
    slowed = draw(st.sampled_from([0, 0, 405, 3000]))
    return layer_of(ready, gpu, cpu, draw(st.integers(1, 60)), *busy, slowed=slowed)


def every_split(ready: list[int], orders: int) -> Iterator[Ints]:
    """Experts are sorted by load: moving takes missing ones from the front, the CPU takes cached
    ones from the back; in other orders the ends change."""
    missing = [i for i, at in enumerate(ready) if at == ABSENT]
    cached = [i for i, at in enumerate(ready) if at == 0]
    late = [i for i, at in enumerate(ready) if at > 0]
    ends = [(False, True)] if orders == IN_ORDER else product((False, True), repeat=2)
    for lowest, from_back in ends:
        for moves, takeovers in product(range(len(missing) + 1), range(len(cached) + 1)):
            moved = missing[len(missing) - moves :] if lowest else missing[:moves]
            taken = cached[len(cached) - takeovers :] if from_back else cached[:takeovers]
            for wait in (False, True) if late else (True,):
                kind = np.array([ON_CPU if at == ABSENT else ON_GPU for at in ready])
                kind[moved], kind[taken] = MOVED, ON_CPU
                kind[late] = ON_GPU if wait else ON_CPU
                yield kind


@pytest.mark.parametrize("orders", [IN_ORDER, EITHER_ORDER])
@settings(max_examples=120)
@given(layer=layers(most=7))
def test_no_split_ends_earlier_than_the_best(orders: int, layer: Drawn) -> None:
    best, kind = layer.split(orders)
    assert best == min(layer.ends(each) for each in every_split(layer.ready.tolist(), orders))
    assert layer.ends(kind) == best, "what it believes is when its assignment ends"


def test_of_splits_that_end_together_the_one_with_fewest_moves_is_taken() -> None:
    """Both missing experts on the CPU end at 20; so do one there and one moved by then."""
    layer = layer_of([ABSENT, ABSENT], [5, 5], [10, 10], 15)
    assert layer.split(IN_ORDER)[0] == 20
    assert layer.split(IN_ORDER)[1].tolist() == [ON_CPU, ON_CPU]


def test_of_splits_that_end_together_the_one_with_fewest_takeovers_is_taken() -> None:
    """The expert under way ends at 50 whatever the CPU takes over."""
    layer = layer_of([40, 0, 0], [10, 10, 10], [99, 10, 10], 9)
    assert layer.split(IN_ORDER)[0] == 50
    assert layer.split(IN_ORDER)[1].tolist() == [ON_GPU] * 3


def test_each_end_of_each_order_may_be_the_one_that_counts() -> None:
    """Moving takes 10. Of the missing the last is slow on the CPU, so it is moved; of the cached
    the first is slow on the GPU, so it is taken over."""
    moved_last = layer_of([ABSENT, ABSENT], [5, 5], [10, 90], 10)
    assert moved_last.split(IN_ORDER)[0] == 25
    assert moved_last.split(EITHER_ORDER)[0] == 15
    assert moved_last.split(EITHER_ORDER)[1].tolist() == [ON_CPU, MOVED]
    taken_first = layer_of([0, 0, 0], [50, 9, 9], [20, 60, 60], 10)
    assert taken_first.split(IN_ORDER)[0] == 60
    assert taken_first.split(EITHER_ORDER)[0] == 20
    assert taken_first.split(EITHER_ORDER)[1].tolist() == [ON_CPU, ON_GPU, ON_GPU]


def every_assignment(ready: list[int]) -> Iterator[Ints]:
    ways = [(ON_CPU, MOVED if at == ABSENT else ON_GPU) for at in ready]
    return (np.array(kinds) for kinds in product(*ways))


@settings(max_examples=80)
@given(layers(most=6))
def test_trying_every_assignment_finds_the_earliest_end(layer: Drawn) -> None:
    """From any start: also where the split would have been the optimum already."""
    kind = np.full(layer.n, -7, dtype=np.int64)
    best = try_every(kind, *layer, 10**9, layer.scratch())
    assert best == min(layer.ends(each) for each in every_assignment(layer.ready.tolist()))
    assert layer.ends(kind) == best
    again = kind.copy()
    assert try_every(again, *layer, best, layer.scratch()) == best
    assert again.tolist() == kind.tolist(), "what ends no earlier changes nothing"


@settings(max_examples=60)
@given(layers(most=6), st.booleans(), st.booleans())
def test_of_few_experts_the_improved_split_is_the_optimum(
    layer: Drawn, same_gpu: bool, same_cpu: bool
) -> None:
    """Also where experts cost the same on one device or on both, and several are under way."""
    if same_gpu:
        layer.gpu[:] = layer.gpu[0]
    if same_cpu:
        layer.cpu[:] = layer.cpu[0]
    best, kind, _ = layer.improved()
    assert best == min(layer.ends(each) for each in every_assignment(layer.ready.tolist()))
    assert layer.ends(kind) == best


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_ten_experts_are_few(seed: int) -> None:
    """Exchanging pairs would stop before the optimum here."""
    rng = np.random.default_rng(seed)
    ready = rng.choice([0, ABSENT, ABSENT, 40], EXACT).tolist()
    gpu, cpu = rng.integers(5, 40, EXACT).tolist(), rng.integers(9, 90, EXACT).tolist()
    layer = layer_of(ready, gpu, cpu, int(rng.integers(5, 40)))
    split, kind = layer.split(EITHER_ORDER)
    best, _, _ = layer.improved()
    assert best < exchange(kind, *layer, split, layer.scratch())
    assert best == try_every(kind, *layer, split, layer.scratch())


def changed(layer: Drawn, kind: Ints, which: tuple[int, ...]) -> Ints:
    other = kind.copy()
    for i in which:
        back = MOVED if layer.ready[i] == ABSENT else ON_GPU
        other[i] = back if kind[i] == ON_CPU else ON_CPU
    return other


@settings(max_examples=80)
@given(layers(most=7), st.integers(0, 2**7 - 1))
def test_exchanging_stops_where_no_one_or_two_experts_help(layer: Drawn, start: int) -> None:
    """From any assignment; few enough for the passes to come to an end."""
    on_gpu = [MOVED if at == ABSENT else ON_GPU for at in layer.ready.tolist()]
    kind = np.array([ON_CPU if start >> i & 1 else way for i, way in enumerate(on_gpu)])
    before = layer.ends(kind)
    best = exchange(kind, *layer, before, layer.scratch())
    assert best == layer.ends(kind) <= before
    for count in (1, 2):
        for which in combinations(range(layer.n), count):
            assert layer.ends(changed(layer, kind, which)) >= best, which


@settings(max_examples=15)
@given(layers(least=EXACT + 1, most=EXACT + 4))
def test_more_experts_start_from_splits_in_any_order(layer: Drawn) -> None:
    best, kind, first = layer.improved()
    assert best == layer.ends(kind)
    assert best <= min(first, layer.split(EITHER_ORDER)[0])


def many(n: int) -> Drawn:
    """A layer in which exchanging helps: half of it missing, costs without any order."""
    rng = np.random.default_rng(5)
    ready = rng.choice([0, ABSENT], n).tolist()
    return layer_of(ready, rng.integers(5, 12, n).tolist(), rng.integers(9, 50, n).tolist(), 23)


def test_only_so_many_experts_are_exchanged() -> None:
    """The layer waits for this: of more experts the split is left as it is."""
    best, _, first = many(EXCHANGED).improved()
    assert best < first
    best, kind, first = many(EXCHANGED + 1).improved()
    assert best == first
    assert kind.tolist() == many(EXCHANGED + 1).split(IN_ORDER)[1].tolist()
