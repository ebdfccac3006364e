"""One call from Python per stage: inputs into the records, then the stage.

Crossing from Python to compiled code costs a fifth of a microsecond per array, so what belongs
together crosses together. Records would cost more: their address crosses instead. Stages are called
by address as well, as a native thread calls them, and so are compiled once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.learn import fill_report
from moesaic.policies.compiled import compiled
from moesaic.policies.records import Inputs
from moesaic.policies.rule_calls import call_stage, state_at
from moesaic.policies.timelines import Ints


@compiled
def _fill_view(
    inputs: Inputs,
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
    fill_view(inputs, located[0], slots, taken, busy_ns[0], busy_ns[1], busy_ns[link])


@compiled
def fill(
    state: int, step: int, layer: int, experts: Ints, ranked: Ints, scores: NDArray[np.float32],
    located: NDArray[np.uint8], held: Ints, occupied: Ints, busy_ns: Ints, units: int, link: int,
) -> None:  # fmt: skip
    """Routing and view into the inputs."""
    inputs = state_at(state).inputs
    fill_routing(inputs, step, layer, experts, ranked, scores)
    _fill_view(inputs, located, held, occupied, busy_ns, units, link)


@compiled
def fill_and_call(
    stage: int, state: int, step: int, layer: int, experts: Ints, ranked: Ints,
    scores: NDArray[np.float32], located: NDArray[np.uint8], held: Ints, occupied: Ints,
    busy_ns: Ints, units: int, link: int,
) -> int:  # fmt: skip
    """The same, then a stage; returns what that returns."""
    fill(state, step, layer, experts, ranked, scores, located, held, occupied, busy_ns, units, link)
    return int(call_stage(stage, state_at(state)))


@compiled
def run(stage: int, state: int) -> int:
    return int(call_stage(stage, state_at(state)))


@compiled
def report(
    stage: int, state: int, start_ns: int, end_ns: int, active: int, hits: int, cpu_ns: int
) -> None:
    s = state_at(state)
    fill_report(s.report, start_ns, end_ns, active, hits, cpu_ns)
    call_stage(stage, s)
