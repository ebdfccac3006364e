"""Packing experts into strips, written in numpy from the drawing in docs/kernels.md: what the
native code does, for machines that cannot run it."""

from __future__ import annotations

import numpy as np
import torch

from moesaic.kernels.gpu.experts import MatrixWords
from moesaic.kernels.quantize import int4_tops

_GROUP = {8: 256, 4: 32}


def pack_matrix(weights: torch.Tensor, bits: int) -> tuple[np.ndarray, torch.Tensor]:
    """The strips as words [strips, strip words], and the weights they stand for (fp32)."""
    outputs, inputs = weights.shape
    form = MatrixWords(outputs, inputs, bits)
    padded = torch.zeros(form.strips * 16, form.rows * form.per_word)
    padded[:outputs, :inputs] = weights.float()
    if bits == 16:
        halves = padded.to(torch.bfloat16)
        codes = halves.view(torch.int16).numpy().astype(np.int64) & 0xFFFF
        meant, scales = halves.float(), np.zeros((form.strips, 0), dtype=np.int32)
    else:
        codes, meant, scales = _quantized(padded, bits, form)
    words = np.zeros((form.strips * 16, form.rows), dtype=np.int64)
    for i in range(form.per_word):
        shift = i * bits if bits != 4 else i // 2 * 4 + i % 2 * 16
        words |= codes[:, i :: form.per_word] << shift
    table = words.astype(np.uint32).view(np.int32).reshape(form.strips, 16, form.rows)
    strips = table.transpose(0, 2, 1).reshape(form.strips, -1)
    return np.concatenate([scales, strips], axis=1), meant[:outputs, :inputs]


def _quantized(
    padded: torch.Tensor, bits: int, form: MatrixWords
) -> tuple[np.ndarray, torch.Tensor, np.ndarray]:
    group = _GROUP[bits]
    groups = -(-padded.shape[1] // group)
    wide = torch.zeros(len(padded), groups * group)
    wide[:, : padded.shape[1]] = padded
    parts = wide.view(len(padded), groups, group)
    low, high = parts.aminmax(dim=2, keepdim=True)
    largest = torch.where(high > -low, high, low)
    top = 127.0 if bits == 8 else -int4_tops(parts, largest[..., 0])[..., None]
    scale = (largest / top).to(torch.bfloat16)
    scale[scale == 0] = 0.0  # never -0
    divisor = torch.where(scale == 0, 1.0, scale.float())
    limit = 1 << (bits - 1)
    codes = (parts / divisor).round().clamp(-limit, limit - 1)
    meant = (codes * scale.float()).view(len(padded), -1)[:, : padded.shape[1]]
    flat = codes.view(len(padded), -1)[:, : padded.shape[1]].numpy().astype(np.int64)
    stored = flat + 8 if bits == 4 else flat & 0xFF
    halves = scale[..., 0].view(torch.int16).numpy().reshape(form.strips, 16, groups)
    laid = np.zeros((form.strips, form.scale_words * 2), dtype=np.int16)
    laid[:, : groups * 16] = halves.transpose(0, 2, 1).reshape(form.strips, -1)
    return stored, meant, laid.view(np.int32)


def pack_expert(
    gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bits: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """A block (uint8), and the three matrices it stands for."""
    (gates, gate_meant), (ups, up_meant) = pack_matrix(gate, bits), pack_matrix(up, bits)
    downs, down_meant = pack_matrix(down, bits)
    turns = np.stack([gates, ups], axis=1)
    block = np.concatenate([turns.ravel(), downs.ravel()])
    return torch.from_numpy(block.view(np.uint8).copy()), (gate_meant, up_meant, down_meant)
