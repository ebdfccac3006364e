"""Moves a network's weights to a device: the same tree of values, other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from moesaic.kernels.quantized_linear import QuantizedWeight, stacked
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention, QueryProjection
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import MoeBlock
from moesaic.models.linear import Linear


def placed_decoder(decoder: Decoder, device: str) -> Decoder:
    """The same network on a device, computed by torch only; tensors already there are shared."""
    embedding = decoder.embedding.to(device)
    tied = decoder.head is decoder.embedding
    return Decoder(
        decoder.architecture,
        embedding,
        placed(decoder.layers, device),
        placed(decoder.norm, device),
        embedding if tied else placed(decoder.output, device),
    )


def placed(value: Any, device: str) -> Any:
    """A tensor, or a tuple or dataclass that holds some, on a device. What computes natively on
    the CPU is left out; what has no memory stays without."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to(device)
    if isinstance(value, tuple):
        parts = (placed(each, device) for each in value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {each.name: placed(getattr(value, each.name), device) for each in fields(value)}
    if isinstance(value, MoeBlock):
        changes["fused"] = None
    if isinstance(value, GroupedAttention):
        names = ("query", "key", "value")
        laid = side_by_side([changes[name] for name in names])
        changes |= zip(names, laid, strict=True)
    if isinstance(value, LatentAttention):
        changes |= _beside_queries(changes["query"], changes["compress"])
    return replace(value, **changes)


def _beside_queries(query: QueryProjection, compress: Linear) -> dict[str, Any]:
    """What multiplies the same inputs as latents do, and is like that, in one piece of memory."""
    if query.down is not None or (query.up.bias is None) != (compress.bias is None):
        return {}
    up, laid = side_by_side([query.up, compress])
    return {"query": replace(query, up=up), "compress": laid}


def side_by_side(linears: Sequence[Linear]) -> list[Linear]:
    """The same projections in one piece of memory, so that one product can compute them."""
    rows = [len(each.weight) for each in linears]
    weights = torch.cat([each.weight for each in linears]).split(rows)
    biases: Sequence[torch.Tensor | None] = [None] * len(linears)
    if all(each.bias is not None for each in linears):
        biases = torch.cat([each.bias for each in linears if each.bias is not None]).split(rows)
    return list(map(Linear, weights, biases, _stacked(linears, rows)))


def _stacked(linears: Sequence[Linear], rows: Sequence[int]) -> list[QuantizedWeight | None]:
    """What is quantised, as rows of one matrix; None where nothing is."""
    packed = [each.packed for each in linears if isinstance(each.packed, QuantizedWeight)]
    if not packed:
        return [None] * len(linears)
    assert len(packed) == len(linears), "one precision for all projections"
    whole = stacked(packed)
    ends = [sum(rows[: number + 1]) for number in range(len(rows))]
    return [whole.rows(end - count, end) for end, count in zip(ends, rows, strict=True)]
