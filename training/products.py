"""One matrix per expert times that expert's slots: a plain loop, and torch's grouped product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

# (slots [rows, in], weights [experts, out, in], ends [experts]) -> [rows, out]
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def looped(slots: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The reference; asks the device where groups end."""
    sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    parts = zip(slots.split(sizes), weights, strict=True)
    return torch.cat([functional.linear(rows, weight) for rows, weight in parts])


def grouped(slots: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """One launch for all experts."""
    multiply = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    return multiply(slots, weights.transpose(-2, -1), offs=ends)
