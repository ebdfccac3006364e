"""What a policy may know about a machine when it decides: to be read, never to be changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GPU = "gpu"
CPU = "cpu"
PCIE = "pcie"
PLANNER = "planner"  # where deciding shows in a timeline


class Flight(NamedTuple):
    """A transfer that has started and cannot be recalled."""

    layer: int
    expert: int
    remaining_ns: int


@dataclass(slots=True)
class View:
    """The machine at the moment one layer is planned; times are from now.

    `resident[l, e]` is 1 where expert e of layer l is complete in GPU memory. `in_flight` are
    transfers under way: they hold a slot too. The `..._busy_ns` say for how long a lane still
    works on what it was given earlier. The arrays are the machine's own and go on changing:
    whoever keeps a view beyond the plan copies them."""

    resident: NDArray[np.uint8]  # [moe layers, experts]
    slots: int  # how many experts GPU memory holds
    held: NDArray[np.int64]  # [moe layers] slots taken per layer, transfers under way included
    occupied: int  # their sum
    in_flight: tuple[Flight, ...] = ()
    devices: tuple[str, ...] = (GPU, CPU)  # who can compute experts
    gpu_busy_ns: int = 0
    cpu_busy_ns: int = 0
    pcie_busy_ns: int = 0

    def copy(self) -> View:
        """A view to keep. One is made per layer: spelled out, it costs a microsecond or two."""
        return View(
            self.resident.copy(),
            self.slots,
            self.held.copy(),
            self.occupied,
            self.in_flight,
            self.devices,
            self.gpu_busy_ns,
            self.cpu_busy_ns,
            self.pcie_busy_ns,
        )
