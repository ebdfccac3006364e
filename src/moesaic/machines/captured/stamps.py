"""Times that a captured step's kernels leave in GPU memory, by the GPU's own clock; the step's last
kernel copies them to the host. Per layer six words and up to four launches of one thread, per
step two words and one launch: so little that they are always there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class LayerStamps(NamedTuple):
    """Times of one layer, in nanoseconds of the GPU's clock: routing left, shared experts ended,
    plan seen, resident experts ended (0: not distinguished from the others, or none),
    all experts ended, the CPU's sum seen."""

    routed: int
    shared: int
    planned: int
    there: int
    computed: int
    summed: int


class StepStamps(NamedTuple):
    begun: int
    layers: list[LayerStamps]
    ended: int


_MARKS = len(LayerStamps._fields)


class Stamps:
    """Addresses of stamps. Without `on`, every address is 0, which kernels take for "no stamp"."""

    def __init__(self, layers: int, device: str = "cuda", on: bool = True) -> None:
        self.on = on
        self.device = torch.zeros(2 + _MARKS * layers, dtype=torch.int64, device=device)
        self.host = torch.zeros_like(self.device, device="cpu", pin_memory=device != "cpu")
        self._left = self.host.numpy()
        self._kept = self._left.copy()

    @property
    def begun(self) -> int:
        return self._address(0)

    @property
    def ended(self) -> int:
        return self._address(1)

    def at(self, layer: int, mark: str) -> int:
        return self._address(2 + _MARKS * layer + LayerStamps._fields.index(mark))

    def _address(self, word: int) -> int:
        return self.device.data_ptr() + word * self.device.itemsize if self.on else 0

    def keep(self) -> None:
        """Those of a step that has ended, before another launch overwrites them."""
        self._kept[:] = self._left

    def from_routing_to_end(self, layer: int) -> int:
        """Nanoseconds, of the last step that was kept."""
        routed = 2 + _MARKS * layer + LayerStamps._fields.index("routed")
        return int(self._kept[1] - self._kept[routed])

    def busy_ns(self, on_gpu: Sequence[bool]) -> int:
        """How long the GPU worked in the last step that was kept: all of it but the waits for plans
        and for the CPU's sums. `on_gpu`: whether it computed experts, by layer."""
        at = self._kept[2:].reshape(-1, _MARKS)
        routed, shared, planned, _, computed, summed = at.T
        free = np.where((routed < shared) & (shared <= planned), shared, routed)
        idle = np.where(on_gpu, computed, planned)
        return int(self._kept[1] - self._kept[0] - (planned - free).sum() - (summed - idle).sum())

    def read(self) -> StepStamps:
        """The stamps of the last step that was kept."""
        begun, ended, *rest = self._kept.tolist()
        layers = [LayerStamps(*rest[i : i + _MARKS]) for i in range(0, len(rest), _MARKS)]
        return StepStamps(begun, layers, ended)
