"""A whole assignment under a schedule's rule, and what layers are worth under it. Rules are
addresses, see rule_calls.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.rule_calls import decide_kinds
from moesaic.policies.timelines import (
    EXPERT,
    LINK_FREE,
    LOAD,
    MOVED,
    ON_CPU,
    READY,
    Ints,
    gpu_order,
)


@compiled
def layer_finish(
    rule: int, n: int, table: Ints, tables: Ints, lanes: Ints, scratch: NDArray[np.int64]
) -> int:
    """When a layer would end under a rule; `scratch` has four rows."""
    for i in range(n):
        scratch[1, i] = tables[0, table[LOAD, i]]
        scratch[2, i] = tables[1, table[LOAD, i]]
    return int(
        decide_kinds(rule, scratch[0], table[READY], scratch[1], scratch[2], lanes, n, scratch[3])
    )


@compiled
def delay_by_link(
    rule: int,
    n: int,
    table: Ints,
    tables: Ints,
    lanes: Ints,
    late: int,
    scratch: NDArray[np.int64],
) -> int:
    """How much later the layer would end if the link came free for it so much later."""
    before = lanes[LINK_FREE]
    lanes[LINK_FREE] = 0
    in_time = layer_finish(rule, n, table, tables, lanes, scratch)
    lanes[LINK_FREE] = late
    delayed = layer_finish(rule, n, table, tables, lanes, scratch)
    lanes[LINK_FREE] = before
    return delayed - in_time


@compiled
def assign(
    rule: int, n: int, table: Ints, tables: Ints, lanes: Ints, scratch: NDArray[np.int64]
) -> None:
    """A whole assignment: the GPU, CPU and link queues into rows 0 to 2 of `scratch`, their
    lengths and the believed finish time into row 3."""
    experts, loads, ready = table[EXPERT], table[LOAD], table[READY]
    counts, kind, gpu, cpu = scratch[3], scratch[4], scratch[5], scratch[6]
    for i in range(n):
        gpu[i] = tables[0, loads[i]]
        cpu[i] = tables[1, loads[i]]
    counts[3] = decide_kinds(rule, kind, ready, gpu, cpu, lanes, n, scratch[7])
    counts[0] = gpu_order(kind, ready, gpu, lanes, n, scratch[0], scratch[7])
    counts[1] = 0
    counts[2] = 0
    for i in range(counts[0]):
        scratch[0, i] = experts[scratch[0, i]]
    for i in range(n - 1, -1, -1):  # the CPU takes low loads first
        if kind[i] == ON_CPU:
            scratch[1, counts[1]] = experts[i]
            counts[1] += 1
    for i in range(n):
        if kind[i] == MOVED:
            scratch[2, counts[2]] = experts[i]
            counts[2] += 1
