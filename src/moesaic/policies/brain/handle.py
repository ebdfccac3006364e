"""One call from Python per stage: inputs into the buffer, then the compiled functions.

Crossing from Python to compiled code costs a fifth of a microsecond per array, so what belongs
together crosses together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import decide as deciding
from moesaic.policies.brain.decide import fill_routing, fill_view, take_up
from moesaic.policies.brain.learn import fill_report
from moesaic.policies.brain.learn import learn as learn_from_report
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


@compiled
def _fill_view(
    s: Ints,
    located: NDArray[np.uint8],
    held: Ints,
    occupied: Ints,
    busy_ns: Ints,
    units: int,
    link: int,
) -> None:
    """A view's arrays as they are: the accelerator's memory comes first, `link` is the lane of its
    link, slots are counted in `units`."""
    slots = held[0] if units == 1 else held[0] // units
    taken = occupied[0] // units
    fill_view(s, located[0], slots, taken, busy_ns[0], busy_ns[1], busy_ns[link])


@compiled
def fill(
    s: Ints,
    step: int,
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float32],
    located: NDArray[np.uint8],
    held: Ints,
    occupied: Ints,
    busy_ns: Ints,
    units: int,
    link: int,
) -> None:
    """Routing and view into the buffer, and the layer as a schedule sees it."""
    fill_routing(s, step, layer, experts, ranked, scores)
    _fill_view(s, located, held, occupied, busy_ns, units, link)
    take_up(s)


@compiled
def decide(
    s: Ints,
    step: int,
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float32],
    located: NDArray[np.uint8],
    held: Ints,
    occupied: Ints,
    busy_ns: Ints,
    units: int,
    link: int,
) -> int:
    """A whole decision from its inputs; returns the plan's length in words."""
    fill_routing(s, step, layer, experts, ranked, scores)
    _fill_view(s, located, held, occupied, busy_ns, units, link)
    return deciding.decide(s)


@compiled
def learn(s: Ints, start_ns: int, end_ns: int, active: int, hits: int, cpu_ns: int) -> None:
    fill_report(s, start_ns, end_ns, active, hits, cpu_ns)
    learn_from_report(s)
