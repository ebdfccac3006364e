"""Every tensor of a loaded model by name, and damage to one of its values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from moesaic import LLM
from moesaic.models.decoder import Decoder


def named_tensors(decoder: Decoder) -> dict[str, torch.Tensor]:
    """Weights of the network without the routed experts; layers by number."""
    found = {"embedding": decoder.embedding, "head": decoder.head}
    found["norm"] = decoder.norm.weight
    for number, layer in enumerate(decoder.layers):
        found |= dict(_tensors(layer, f"{number}"))
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}


def _tensors(part: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(part, torch.Tensor):
        yield name, part
    elif is_dataclass(part):
        for field in fields(part):
            if field.name not in ("architecture", "rule", "shape", "fused"):
                yield from _tensors(getattr(part, field.name), f"{name}.{field.name}")
    elif isinstance(part, tuple) and hasattr(part, "_fields"):
        for field_name in part._fields:
            yield from _tensors(getattr(part, field_name), f"{name}.{field_name}")


@contextmanager
def damaged(tensor: torch.Tensor, value: float, at: int = 0) -> Iterator[None]:
    """One value is replaced for a while; `at` counts from the beginning."""
    with torch.inference_mode():
        flat = tensor.view(-1)
        before = flat[at].clone()
        flat[at] = value
    try:
        yield
    finally:
        with torch.inference_mode():
            flat[at] = before


def expert_values(model: LLM, layer: int) -> list[torch.Tensor]:
    """The blocks of a layer's routed experts, as fp32 numbers."""
    store = model.model.runner.machine.store
    return [block.view(torch.float32) for block in store.layer(layer).tensors]
