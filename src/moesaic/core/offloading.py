"""The topology of offloading: one accelerator, one host, one link. Its names stand here.

Policies made for it look at these names only, so they can drive any topology that has them; they
leave other devices alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.topology import WHOLE, Device, Link, Memory, Placement, Topology

GPU, CPU, PCIE = "gpu", "cpu", "pcie"
VRAM, DRAM = "vram", "dram"

OFFLOADING = Topology(
    devices=(Device(GPU, VRAM), Device(CPU, DRAM)),
    memories=(Memory(VRAM, GPU, 0), Memory(DRAM, CPU)),
    links=(Link(PCIE, (DRAM,), (VRAM,)),),
    placements=(Placement(WHOLE, (VRAM,)), Placement(WHOLE, (DRAM,))),
)
IN_VRAM, IN_DRAM = 0, 1  # its placements, and the first two of every described machine

# The same without an accelerator: nothing to decide, nothing to move.
HOST_ONLY = Topology((Device(CPU, DRAM),), (Memory(DRAM, CPU),), (), (Placement(WHOLE, (DRAM,)),))

_CACHE = f"{WHOLE}@{VRAM}"


class AcceleratorMemory:
    """What lies in the accelerator's memory, by short names, of anything that knows where experts
    are. Without an accelerator: no slots, nothing there."""

    __slots__ = ()
    topology: Topology
    located: NDArray[np.uint8]  # [placements, moe layers, experts]
    memory_slots: NDArray[np.int64]  # [memories]
    memory_held: NDArray[np.int64]  # [memories, moe layers]
    memory_occupied: NDArray[np.int64]  # [memories]

    @property
    def resident(self) -> NDArray[np.uint8]:
        """[moe layers, experts]: 1 where the expert is complete there."""
        at = self.topology.placement_index.get(_CACHE)
        return self.located[at] if at is not None else np.zeros_like(self.located[0])

    @property
    def slots(self) -> int:
        """How many experts it holds."""
        at = self.topology.memory_index.get(VRAM)
        return 0 if at is None else self.memory_slots.item(at) // self.topology.units

    @property
    def held(self) -> NDArray[np.int64]:
        """[moe layers]: slots taken per layer, moves under way included."""
        at = self.topology.memory_index.get(VRAM)
        if at is None:
            return np.zeros_like(self.memory_held[0])
        held: NDArray[np.int64] = self.memory_held[at]
        return held if self.topology.units == 1 else held // self.topology.units

    @property
    def occupied(self) -> int:
        """Their sum."""
        at = self.topology.memory_index.get(VRAM)
        return 0 if at is None else self.memory_occupied.item(at) // self.topology.units
