"""What a policy may know about a machine when it decides: to be read, never to be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.offloading import (
    CPU,
    GPU,
    IN_DRAM,
    IN_VRAM,
    OFFLOADING,
    PCIE,
    AcceleratorMemory,
)
from moesaic.core.residency import Residency
from moesaic.core.topology import Topology

PLANNER = "planner"  # where deciding shows in a timeline
FLIGHT_CAPACITY = 64  # moves under way that a view may name


class Flight(NamedTuple):
    """A move that has started and cannot be recalled."""

    layer: int
    expert: int
    remaining_ns: int
    destination: int = IN_VRAM  # placement


@dataclass(slots=True)
class View(AcceleratorMemory):
    """The machine at the moment one layer is planned; times are from now.

    `located[p, l, e]` is 1 where expert e of layer l lies complete in placement p. `in_flight` are
    moves under way: they hold slots too. `busy_ns` says for how long a lane still works on what it
    was given earlier. The arrays are the machine's own and go on changing: copy a view to
    keep it beyond the plan. What policies of offloading ask for has short names: `resident`,
    `slots`, `held` and `occupied` of the accelerator's memory, and `gpu_busy_ns` and its like."""

    topology: Topology
    located: NDArray[np.uint8]  # [placements, moe layers, experts]
    memory_slots: NDArray[np.int64]  # [memories], see Topology.units
    memory_held: NDArray[np.int64]  # [memories, moe layers] taken, moves under way included
    memory_occupied: NDArray[np.int64]  # [memories] their sum
    in_flight: tuple[Flight, ...]
    busy_ns: NDArray[np.int64]  # [lanes]: devices, then links

    @classmethod
    def of(
        cls, residency: Residency, in_flight: tuple[Flight, ...], busy_ns: Sequence[int]
    ) -> View:
        """One is made per layer, and copies nothing."""
        return cls(
            residency.topology,
            residency.located,
            residency.memory_slots,
            residency.memory_held,
            residency.memory_occupied,
            in_flight,
            np.array(busy_ns, dtype=np.int64),
        )

    def copy(self) -> View:
        """A view to keep. One is made per layer: spelled out, it costs a microsecond or two."""
        return View(
            self.topology,
            self.located.copy(),
            self.memory_slots,
            self.memory_held.copy(),
            self.memory_occupied.copy(),
            self.in_flight,
            self.busy_ns,
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that can compute experts."""
        return tuple(self.topology.device_index)

    @property
    def arriving(self) -> tuple[Flight, ...]:
        """What is under way to the accelerator's memory."""
        return tuple(flight for flight in self.in_flight if flight.destination == IN_VRAM)

    @property
    def gpu_busy_ns(self) -> int:
        return self.lane_busy_ns(GPU)

    @property
    def cpu_busy_ns(self) -> int:
        return self.lane_busy_ns(CPU)

    @property
    def pcie_busy_ns(self) -> int:
        return self.lane_busy_ns(PCIE)

    def lane_busy_ns(self, name: str) -> int:
        """0 of a lane that the machine has not got."""
        at = self.topology.lane_index.get(name)
        return 0 if at is None else self.busy_ns.item(at)


def offloading_view(
    resident: NDArray[np.uint8],
    slots: int,
    in_flight: tuple[Flight, ...] = (),
    gpu_busy_ns: int = 0,
    cpu_busy_ns: int = 0,
    pcie_busy_ns: int = 0,
) -> View:
    """The view of a machine with one accelerator, by its memory's content: `resident[layer,
    expert]`."""
    layers, experts = resident.shape
    memory = Residency(OFFLOADING, layers, experts, (slots, None))
    memory.located[IN_VRAM] = resident
    assert memory.located[IN_DRAM].all(), "the host's memory holds every expert"
    held = memory.memory_held[0]
    held[:] = resident.sum(axis=1)
    for flight in in_flight:
        held[flight.layer] += 1
    memory.memory_occupied[0] = held.sum()
    return View.of(memory, in_flight, (gpu_busy_ns, cpu_busy_ns, pcie_busy_ns))
