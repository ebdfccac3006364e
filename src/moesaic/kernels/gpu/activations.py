"""Activations that the CUDA sources know (`source/activation.h`), by number."""

from __future__ import annotations

from moesaic.model_info.expert_shape import ExpertShape

_NAMES = ("silu", "gelu", "gelu_pytorch_tanh")


def computes(shape: ExpertShape) -> bool:
    """Whether they have what stands between a gated network's products. Reads are of eight
    values."""
    whole = shape.hidden % 8 == 0 and shape.intermediate % 8 == 0
    return shape.activation in _NAMES and shape.unusual is None and whole


def number(shape: ExpertShape) -> int:
    """What the macro ACTIVATION is."""
    return _NAMES.index(shape.activation)
