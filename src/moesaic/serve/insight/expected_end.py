"""When a layer was expected to end if its experts were served in some way: the planner's own sum
(`finish_time` in policies/timelines.py) for one assignment, without compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moesaic.engine.insight.facts import ExpertFacts, LayerFacts, PlannedLanes, Ran

_ALONE = 1000  # thousandths


def expected_end_ns(layer: LayerFacts, instead: Mapping[int, Ran] | None = None) -> int | None:
    """As it was planned, or with some experts served otherwise. None: costs are not known."""
    lanes = layer.lanes
    if lanes is None:
        return None
    instead = instead or {}
    served = [each._replace(ran=instead.get(each.expert, each.ran)) for each in layer.experts]
    moved = sum(each.ran == "link" for each in served)
    on_cpu = [each.cpu_ns or 0 for each in served if each.ran == "cpu"]
    end = _gpu_end(served, lanes)
    if on_cpu:
        work = lanes.cpu_first + sum(on_cpu)
        end = max(end, _cpu_end(lanes, work, lanes.link_free + moved * lanes.transfer))
    return end


def _gpu_end(served: Sequence[ExpertFacts], lanes: PlannedLanes) -> int:
    """What is there comes first, then what arrives, in order of arrival."""
    end, link_end = lanes.gpu_free, lanes.link_free
    arrivals: list[tuple[int, int]] = []
    for each in served:
        cost = each.gpu_ns or 0
        if each.ran == "link":
            link_end += lanes.transfer
            arrivals.append((link_end, cost))
        elif each.ran == "gpu" and each.place == "coming":
            arrivals.append((each.arrives_ns, cost))
        elif each.ran == "gpu":
            end += cost
    for arrival, cost in sorted(arrivals):
        end = max(end, arrival) + cost
    return end


def _cpu_end(lanes: PlannedLanes, work: int, link_end: int) -> int:
    start, slowed = lanes.cpu_free, lanes.cpu_slowed
    if not slowed or link_end <= start:
        return start + work
    done = (link_end - start) * _ALONE // (_ALONE + slowed)  # when the link falls idle
    if done >= work:
        return start + work + work * slowed // _ALONE
    return link_end + work - done
