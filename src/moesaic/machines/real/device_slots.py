"""Expert slots in device memory: one slab, so that kernels and copies address any of them."""

from __future__ import annotations

import torch

from moesaic.machines.real.slot_table import Slot, SlotTable


class DeviceSlots(SlotTable[Slot]):
    """`count` slots for resident experts, and `staging` more for experts used once. What a slot
    `holds` is true once what was submitted has ended."""

    def __init__(self, count: int, staging: int, block_bytes: int, device: str) -> None:
        self.slab = torch.zeros((count + staging, block_bytes), dtype=torch.uint8, device=device)
        every = [Slot(block) for block in self.slab]
        super().__init__(every[:count], every[count:])
