"""gpt-oss: its published stacks are transposed and have gate and up in turn, GGUF has three stacks
of plain matrices, and biases beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

FAMILIES = ("gpt_oss",)
_STACK = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)(_bias)?")


class StackPart(NamedTuple):
    name: str  # in the GGUF file
    shape: tuple[int, ...]


def pieces(name: str, shape: Sequence[int]) -> list[StackPart] | None:
    """The stacks that a published one consists of: gate and up, or down. None: it is no stack."""
    stack = _STACK.fullmatch(name)
    if stack is None:
        return None
    prefix, both = f"blk.{stack[1]}.ffn_", stack[2] == "gate_up_proj"
    experts, *sizes = shape
    if both:
        sizes[-1] //= 2
    found = (experts, *reversed(sizes))
    end = "_exps.bias" if stack[3] else "_exps.weight"
    names = ("gate", "up") if both else ("down",)
    return [StackPart(f"{prefix}{each}{end}", found) for each in names]


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of one expert: rows of gate and up in turn, then transposed; a bias stays a row."""
    rows = torch.stack(tuple(parts), dim=1).flatten(0, 1) if len(parts) > 1 else parts[0]
    return rows.T if rows.dim() == 2 else rows
