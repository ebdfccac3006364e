"""Moves a network's weights to a device: the same tree of values, other tensors."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from moesaic.models.decoder import Decoder
from moesaic.models.feed_forward import MoeBlock


def placed_decoder(decoder: Decoder, device: str) -> Decoder:
    """The same network on a device, computed by torch only; what is there already is shared."""
    embedding = decoder.embedding.to(device)
    tied = decoder.head is decoder.embedding
    return Decoder(
        decoder.architecture,
        embedding,
        placed(decoder.layers, device),
        placed(decoder.norm, device),
        embedding if tied else decoder.head.to(device),
    )


def placed(value: Any, device: str) -> Any:
    """A tensor, or a tuple or dataclass that holds some, on a device. What computes natively on
    the CPU is left out."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        parts = (placed(each, device) for each in value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {each.name: placed(getattr(value, each.name), device) for each in fields(value)}
    if isinstance(value, MoeBlock):
        changes["fused"] = None
    return replace(value, **changes)
