"""Vectors of the KV cache in int8: codes in [-127, 127], and a scale in fp16 for each part of a
vector (a KV head's, or all of a latent): the smallest with which no code is beyond 127, so that
every value is off by half a step at most.

Native kernels (`native/products/kv_codes.h`) write the same bits. They multiply scores and shares
by the scales, so that they compute with what `widened` returns in fp32. PyTorch's attention reads
it in the dtype that the network is computed in."""

from __future__ import annotations

import torch

TOP_CODE = 127


def rounded(vectors: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [tokens, width] and scales [tokens, heads] of vectors [tokens, width]. Where a value is
    not finite, or a scale too large for fp16, codes are 0 and the scale is not finite, so that what
    is read is NaN."""
    parts = vectors.float().unflatten(-1, (heads, -1))
    poison = (0.0 * parts).sum(-1)
    scales = torch.where(poison == 0.0, _at_least(parts.abs().amax(-1) / TOP_CODE), torch.nan)
    usable = (scales.isfinite() & (scales > 0))[..., None]
    quotients = parts / torch.where(usable, scales[..., None].float(), 1.0)
    codes = torch.where(usable, quotients.round(), 0.0).to(torch.int8)
    return codes.flatten(-2), scales


def widened(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The vectors [tokens, width] that codes and scales stand for."""
    parts = codes.float().unflatten(-1, (scales.shape[-1], -1))
    return parts.mul_(scales[..., None].float()).flatten(-2).to(dtype)


def _at_least(wanted: torch.Tensor) -> torch.Tensor:
    """The next number in fp16 that is not below, of such as are not negative."""
    nearest = wanted.half()
    above = (nearest.float() < wanted).to(torch.int16)
    return (nearest.view(torch.int16) + above).view(torch.float16)
