"""What a brain must know of a model."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    layers: int  # MoE layers
    experts: int
    top_k: int
