"""What was decided about memory before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """What was decided about memory: how many experts the accelerator holds, how many sequences
    of which length the KV cache has room for."""

    slots: int
    sequences: int
    length: int
