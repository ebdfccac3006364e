"""Shared experts of one token: two kernels, which read weights while the router's still runs."""

from __future__ import annotations

import torch

from moesaic.kernels.gpu import activations, dense
from moesaic.kernels.gpu.driver import Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized_linear import QuantizedNetwork
from moesaic.kernels.reference import block_views
from moesaic.machines.captured.dense_products import MOST_SHARED, staged
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import GatedMlp, MoeBlock

_PLAIN = "bf16"
_SUMS = 32  # floats beside the inputs, where a block adds up


class SharedProducts:
    """Kernels for the precisions of a decoder's shared experts, compiled when it is made."""

    def __init__(self, decoder: Decoder) -> None:
        shared = _networks(decoder)
        self._kernels: dict[str, tuple[Function, Function]] = {}
        if not shared:
            return
        shape = shared[0].shape
        assert all(each.shape == shape for each in shared), "one shape in a model"
        network, device = decoder.architecture.network, decoder.embedding.device
        eps = network.norm.eps
        self._inner = torch.zeros(1, shape.intermediate, dtype=torch.bfloat16, device=device)
        self._out = torch.zeros(1, network.hidden, dtype=torch.bfloat16, device=device)
        for dtype in sorted({_dtype(each) for each in shared}):
            if activations.computes(shape) and _fits(dtype, shape):
                self._kernels[dtype] = _compiled(dtype, shape, eps)

    def takes(self, network: GatedMlp) -> bool:
        return _dtype(network) in self._kernels

    def launch(self, network: GatedMlp, x: torch.Tensor, early: bool) -> torch.Tensor:
        """Launch for x [1, hidden]; the result stays until the next launch. `early`: a kernel
        stands in front of it."""
        up, down = self._kernels[_dtype(network)]
        first, second = _weights(network)
        grid = -(-network.shape.intermediate // dense.WARPS)
        up((grid,), dense.THREADS, x, *first, self._inner, early=early)
        grid = -(-network.shape.hidden // dense.WARPS)
        down((grid,), dense.THREADS, self._inner, *second, self._out, early=True)
        return self._out


def _fits(dtype: str, shape: ExpertShape) -> bool:
    """Whether a block's shared memory has room for the inputs of either product."""
    widest = max(shape.hidden, shape.intermediate)
    return (widest if dtype == _PLAIN else staged(dtype, widest)) <= MOST_SHARED - _SUMS


def _compiled(dtype: str, shape: ExpertShape, norm_eps: float) -> tuple[Function, Function]:
    macros: dict[str, int | float] = {
        "HIDDEN": shape.hidden, "INNER": shape.intermediate,
        "ACTIVATION": activations.number(shape),
    }  # fmt: skip
    if dtype == _PLAIN:
        module = load_module("shared", macros)
    else:
        macros |= {"BITS": FORMATS[dtype].bits, "NORM_EPS": norm_eps}
        module = load_module("dense", macros)
    return module.function("gated_product"), module.function("down_product")


def _networks(decoder: Decoder) -> list[GatedMlp]:
    blocks = (layer.feed_forward for layer in decoder.layers)
    return [b.shared for b in blocks if isinstance(b, MoeBlock) and b.shared is not None]


def _weights(network: GatedMlp) -> list[tuple[torch.Tensor, ...]]:
    """What the two kernels read."""
    packed = network.packed
    if isinstance(packed, QuantizedNetwork):
        return [(each.codes, each.scales) for each in (packed.gate_up, packed.down)]
    return [(matrix,) for matrix in block_views(network.shape, network.block)]


def _dtype(network: GatedMlp) -> str:
    packed = network.packed
    return packed.down.dtype if isinstance(packed, QuantizedNetwork) else _PLAIN
