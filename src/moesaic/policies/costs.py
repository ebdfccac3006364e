"""What experts and moves cost on any topology: tables per device, placement and token count.

The general form of what a brain believes; the compiled rules of offloading read their part of it
(belief.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from moesaic.core.topology import Topology
from moesaic.policies.timelines import Ints

UNREADABLE = -1  # the device cannot compute from this placement


@dataclass(frozen=True, slots=True)
class Costs:
    """Indices are the topology's; times in nanoseconds, up to the largest batch."""

    topology: Topology
    expert_ns: Ints  # [devices, placements, max tokens + 1]; UNREADABLE
    first_ns: Ints  # [devices] more, for the first expert of a layer
    move_ns: Ints  # [links] for a whole expert

    @classmethod
    def stated(
        cls,
        topology: Topology,
        max_tokens: int,
        points: Callable[[int, int], Mapping[int, int]],
        first_ns: Callable[[int], int],
        move_ns: Callable[[int], int],
    ) -> Costs:
        """`points(device, placement)` are costs at a few token counts; they are asked for before
        `first_ns`."""
        devices, placements = range(len(topology.devices)), len(topology.placements)
        tables = np.full((len(devices), placements, max_tokens + 1), UNREADABLE, dtype=np.int64)
        for device in devices:
            for placement in topology.reads[device]:
                tables[device, placement] = cost_table(points(device, placement), max_tokens)
        first = np.array([first_ns(device) for device in devices], dtype=np.int64)
        moves = [move_ns(link) for link in range(len(topology.links))]
        return cls(topology, tables, first, np.array(moves, dtype=np.int64))

    def off_by(self, errors: Mapping[str, float]) -> Costs:
        """The same costs, times a factor for each device or link named."""
        expert, first, move = self.expert_ns.copy(), self.first_ns.copy(), self.move_ns.copy()
        for name, factor in errors.items():
            lane, devices = self.topology.lane(name), len(self.topology.devices)
            if lane < devices:
                scaled = np.rint(expert[lane] * factor).astype(np.int64)
                expert[lane] = np.where(expert[lane] == UNREADABLE, UNREADABLE, scaled)
                first[lane] = round(first.item(lane) * factor)
            else:
                move[lane - devices] = round(move.item(lane - devices) * factor)
        return replace(self, expert_ns=expert, first_ns=first, move_ns=move)

    def covering(self, tokens: int) -> Costs:
        wider = extended(self.expert_ns, tokens)
        wider[(self.expert_ns[..., 0] == UNREADABLE)] = UNREADABLE
        return replace(self, expert_ns=wider)


def cost_table(points: Mapping[int, int], max_tokens: int) -> Ints:
    """[max tokens + 1] from a few token counts: straight lines between them and beyond."""
    known = sorted(points)
    assert min(points) >= 1, "a cost table starts at one token"
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    costs = np.interp(tokens, known, [points[t] for t in known])
    if len(known) > 1 and max_tokens > known[-1]:
        a, b = known[-2], known[-1]
        slope = (points[b] - points[a]) / (b - a)
        beyond = tokens > b
        costs[beyond] = points[b] + slope * (tokens[beyond] - b)
    costs[0] = 0
    return np.maximum(np.rint(costs), 0).astype(np.int64)


def extended(tables: Ints, tokens: int) -> Ints:
    """Tables whose last axis covers at least so many tokens: beyond the last count, costs go on
    rising as they did before it."""
    known = tables.shape[-1] - 1
    more = np.arange(1, max(tokens, 2 * known) - known + 1)
    slope = tables[..., -1] - tables[..., -2] if known > 1 else tables[..., -1]
    beyond = tables[..., -1:] + slope[..., None] * more
    return np.concatenate([tables, beyond], axis=-1)
