"""The engine's capacity, decided before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """How many experts the accelerator holds, and how many sequences of which length the KV cache
    holds."""

    slots: int
    sequences: int
    length: int
