"""Projections of the same inputs as one matrix, where their weights lie one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from moesaic.kernels.quantized_linear import QuantizedWeight
from moesaic.machines.captured.dense_products import quantized
from moesaic.models.linear import Linear


def one_matrix(linears: Sequence[Linear]) -> Linear:
    """One product for all: `models/placed.py` has laid them side by side."""
    assert is_one_matrix(linears), "one behind the other in memory"
    biases = [each.bias for each in linears if each.bias is not None]
    bias = _joined(biases) if biases else None
    if linears[0].packed is None:
        return Linear(_joined([each.weight for each in linears]), bias)
    packed = [quantized(each) for each in linears]
    whole = replace(
        packed[0],
        codes=_joined([each.codes for each in packed]),
        scales=_joined([each.scales for each in packed]),
    )
    return Linear(linears[0].weight, bias, whole)


def is_one_matrix(linears: Sequence[Linear]) -> bool:
    """Whether their values are one behind the other in memory."""
    biases = [each.bias for each in linears if each.bias is not None]
    if len(biases) not in (0, len(linears)):
        return False
    if all(each.packed is None for each in linears):
        parts = [[each.weight for each in linears]]
    elif all(isinstance(each.packed, QuantizedWeight) for each in linears):
        packed = [quantized(each) for each in linears]
        if len({each.dtype for each in packed}) > 1:
            return False
        parts = [[each.codes for each in packed], [each.scales for each in packed]]
    else:
        return False
    return all(_follow(each) for each in (*parts, biases))


def _follow(parts: Sequence[torch.Tensor]) -> bool:
    """Whether each begins where the one before it ends."""
    ends = [each.data_ptr() + each.nbytes for each in parts]
    starts = [each.data_ptr() for each in parts[1:]]
    return ends[: len(starts)] == starts and all(each.is_contiguous() for each in parts)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A view: kernels read it before what is in front of them has ended."""
    rows = sum(len(part) for part in parts)
    return parts[0].as_strided((rows, *parts[0].shape[1:]), parts[0].stride())
