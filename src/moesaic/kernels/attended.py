"""What a sequence with new tokens attends to, and how scores are made."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Attended(NamedTuple):
    """Keys and values [all, kv heads, width] of a sequence whose last tokens are the rows `rows` of
    a step's queries; `first` is the position of the first key."""

    rows: slice
    keys: torch.Tensor
    values: torch.Tensor
    first: int = 0


class Scores(NamedTuple):
    """Products of queries and keys times `scale`. With a window a token sees the last so many,
    itself included; sinks [heads] are one score more per head, which takes its share of the
    softmax and adds nothing (gpt-oss)."""

    scale: float
    window: int = 0
    sinks: torch.Tensor | None = None
