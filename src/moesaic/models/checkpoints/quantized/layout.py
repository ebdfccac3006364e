"""What a quantized form of matrices is to the checkpoint that reads it.

One implementation per form. Names, shapes and values of a file are not trusted: a layout says what
it expects, and raises `Unfit` for what cannot be.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

FLOATS = ("F32", "F16", "BF16")

Parts = Mapping[str, torch.Tensor]  # by role


class Unfit(Exception):
    """A matrix cannot be stored like this; the message lacks its name and file."""


class StoredTensor(NamedTuple):
    """A tensor that a matrix is stored as."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]  # as safetensors calls them


class Layout(Protocol):
    title: str

    def marker(self, name: str) -> str:
        """The tensor whose presence means that this matrix is stored in this form."""

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        """The tensors of a matrix [out, in], or of a stack of them, by role."""

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        """fp32 [out, in]; the parts of one matrix, of a stack those of one in it."""

    def is_harmless(self, name: str) -> bool:
        """Whether a tensor that no code reads describes only how activations are rounded."""


def only_matrices(shape: Sequence[int], stacks: bool = False) -> None:
    if len(shape) != 2 and not (stacks and len(shape) == 3):
        raise Unfit(f"expected a matrix where {list(shape)} is expected: it is quantized")


def stem(name: str) -> str:
    """A matrix's name without `.weight`: what its parts are called by."""
    return name.removesuffix(".weight")


def groups(columns: int, size: int | None) -> int:
    """How many groups a row of so many weights has."""
    if size is None:
        return 1
    if columns % size:
        raise Unfit(f"rows of {columns} weights are no whole groups of {size} (group_size)")
    return columns // size


def multiple(what: str, count: int, of: int) -> None:
    if count % of:
        raise Unfit(f"{count} {what} cannot be packed by {of}")


def checked_index(index: torch.Tensor | None, count: int) -> torch.Tensor | None:
    """The group of every column, int64; None where equal groups follow each other."""
    if index is None:
        return None
    if int(index.min()) < 0 or int(index.max()) >= count:
        raise Unfit(f"g_idx has groups outside 0 to {count - 1}")
    in_order = torch.arange(len(index)) // (len(index) // count)
    return None if torch.equal(index.long(), in_order) else index.long()
