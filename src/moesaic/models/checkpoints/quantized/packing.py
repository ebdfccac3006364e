"""Integers packed into 32-bit words, and scaled numbers."""

from __future__ import annotations

import torch

_AT_ONCE = 1 << 20  # weights: what the steps in between may take


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] to uint8 [..., n * 32 / bits]; the lowest bits of a word come first."""
    # A column of words is contiguous whatever its strides are, and cannot be viewed as bytes then.
    data = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return data
    assert bits == 4, "nothing else is read"
    return torch.stack((data & 0x0F, data >> 4), dim=-1).flatten(-2)


def scaled(
    numbers: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | int = 0,
    group_of: torch.Tensor | None = None,
) -> torch.Tensor:
    """(number - zero) * scale, fp32 [rows, columns]. Scales, and zeros where they are many, are
    [rows, groups]; `group_of` has the group of every column, None where groups are equally wide and
    follow each other."""
    found = torch.empty(numbers.shape).copy_(numbers)
    if isinstance(zeros, int):
        found -= zeros
    if group_of is None:
        grouped = found.unflatten(1, (scales.shape[1], -1))
        if isinstance(zeros, torch.Tensor):
            grouped -= zeros[..., None]
        grouped *= scales[..., None]
        return found
    for rows in torch.arange(len(found)).split(max(1, _AT_ONCE // found.shape[1])):
        here = slice(int(rows[0]), int(rows[-1]) + 1)
        if isinstance(zeros, torch.Tensor):
            found[here] -= zeros[here].float().index_select(1, group_of)
        found[here] *= scales[here].float().index_select(1, group_of)
    return found
