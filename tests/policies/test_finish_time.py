"""Does a layer end when its lanes do? The believed end of any assignment, against lanes worked off
one task after the other, in order of arrival and in the order of the GPU's queue."""

from __future__ import annotations

from collections.abc import Iterable

from drawn_work import costs, works
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.schedule.base import Work, served_as
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    GPU_FREE,
    LINK_FREE,
    MOVED,
    ON_CPU,
    ON_GPU,
    TRANSFER,
)


def _arrivals(work: Work, kind: list[int]) -> dict[int, int]:
    """When what the GPU computes is there."""
    link = int(work.lanes[LINK_FREE])
    found = {}
    for i, ready in enumerate(work.table[2, : work.n].tolist()):
        if kind[i] == MOVED:
            link += int(work.lanes[TRANSFER])
            found[i] = link
        elif kind[i] == ON_GPU:
            found[i] = ready
    return found


def _gpu_end(work: Work, order: Iterable[int], arrivals: dict[int, int]) -> int:
    gpu, now = costs(work)[0].tolist(), int(work.lanes[GPU_FREE])
    for i in order:
        now = max(now, arrivals[i]) + gpu[i]
    return now


def _cpu_end(work: Work, kind: list[int]) -> int:
    mine = [cost for cost, how in zip(costs(work)[1].tolist(), kind, strict=True) if how == ON_CPU]
    return sum(mine, int(work.lanes[CPU_FREE] + work.lanes[CPU_FIRST])) if mine else 0


@settings(max_examples=200)
@given(works(most=7), st.data())
def test_a_layer_ends_when_its_last_lane_does(work: Work, data: st.DataObject) -> None:
    kind = [
        data.draw(st.sampled_from([ON_CPU, MOVED if ready == ABSENT else ON_GPU]))
        for ready in work.table[2, : work.n].tolist()
    ]
    found, arrivals = served_as(work, kind), _arrivals(work, kind)
    in_order = sorted(arrivals, key=lambda i: (arrivals[i], i))
    end = max(_gpu_end(work, in_order, arrivals), _cpu_end(work, kind))
    assert found.believed_ns == end
    assert sorted(found.gpu) == sorted(arrivals)
    assert max(_gpu_end(work, found.gpu, arrivals), _cpu_end(work, kind)) == end
