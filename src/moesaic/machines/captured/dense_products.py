"""One token's products with dense matrices in int8 or int4, fused with what stands around them in a
decode step: norms in front of projections and head, the residual stream behind attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from moesaic.kernels.gpu import dense
from moesaic.kernels.gpu.driver import SHARED_BYTES, Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized_linear import QuantizedNetwork, QuantizedWeight
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import DenseBlock
from moesaic.models.linear import Linear

MOST_SHARED = SHARED_BYTES // 4  # floats of a block's inputs
_PADDING = 4  # floats behind the inputs of a read
_HEAD_OUTPUTS = {"int8": 8, "int4": 16}  # of a warp: as many bytes as it reads in bf16
_OUTPUTS = 2  # of a warp, where there are fewer


class DenseProducts:
    """Kernels for the precisions of a decoder's matrices, compiled when it is made."""

    def __init__(self, decoder: Decoder, attended: Sequence[int]) -> None:
        """`attended`: how many values attention's output projections multiply."""
        network = decoder.architecture.network
        sizes: dict[str, int | float] = {"HIDDEN": network.hidden, "NORM_EPS": network.norm.eps}
        self._kernels: dict[str, Mapping[str, Function]] = {}
        self._adds: dict[tuple[str, int], Function] = {}
        for dtype in sorted(_dtypes(decoder)):
            plain = sizes | {"BITS": FORMATS[dtype].bits}
            fitting = [width for width in attended if staged(dtype, width) <= MOST_SHARED]
            modules = [load_module("dense", plain | {"ATTENDED": width}) for width in fitting]
            for width, module in zip(fitting, modules, strict=True):
                self._adds[dtype, width] = module.function("add_product")
            module = modules[0] if modules else load_module("dense", plain)
            names = ("normed_product", "normed_head")
            self._kernels[dtype] = {name: module.function(name) for name in names}
        for dtype in sorted(self._kernels.keys() | _network_dtypes(decoder)):
            dense.prepare(dtype)

    def normed(
        self, stream: torch.Tensor, norm: torch.Tensor, linear: Linear, head: bool
    ) -> torch.Tensor:
        """norm(stream) @ weight.T + bias; `head`: there are very many outputs."""
        weight = quantized(linear)
        each = _HEAD_OUTPUTS[weight.dtype] if head else _OUTPUTS
        out = torch.empty(1, weight.outputs, dtype=torch.bfloat16, device="cuda")
        grid = (-(-weight.outputs // (dense.WARPS * each)),)
        self._kernels[weight.dtype]["normed_head" if head else "normed_product"](
            grid, dense.THREADS, stream, norm, weight.codes, weight.scales, _address(linear.bias),
            out, weight.outputs, each, early=True,
        )  # fmt: skip
        return out

    def adds(self, linear: Linear) -> bool:
        """Whether `add` can: a block's shared memory holds its inputs."""
        weight = quantized(linear)
        return (weight.dtype, weight.inputs) in self._adds

    def add(self, stream: torch.Tensor, attended: torch.Tensor, linear: Linear) -> None:
        """stream += attended @ weight.T + bias."""
        weight = quantized(linear)
        self._adds[weight.dtype, weight.inputs](
            (-(-weight.outputs // dense.WARPS),), dense.THREADS, attended, weight.codes,
            weight.scales, _address(linear.bias), stream, early=True,
        )  # fmt: skip


def quantized(linear: Linear) -> QuantizedWeight:
    assert isinstance(linear.packed, QuantizedWeight), "what a GPU multiplies packed"
    return linear.packed


def _dtypes(decoder: Decoder) -> set[str]:
    """The dtypes of projections and head."""
    packed = (each.packed for each in _linears(decoder))
    return {each.dtype for each in packed if isinstance(each, QuantizedWeight)}


def _linears(decoder: Decoder) -> Iterator[Linear]:
    yield decoder.output
    for layer in decoder.layers:
        attention = layer.attention
        assert isinstance(attention, GroupedAttention | LatentAttention), "what graphs compute"
        yield attention.output


def _network_dtypes(decoder: Decoder) -> set[str]:
    """The dtypes of dense layers and shared experts."""
    blocks = (layer.feed_forward for layer in decoder.layers)
    networks = (b.network if isinstance(b, DenseBlock) else b.shared for b in blocks)
    packed = (each.packed for each in networks if each is not None)
    return {each.down.dtype for each in packed if isinstance(each, QuantizedNetwork)}


def staged(dtype: str, inputs: int) -> int:
    """Floats of shared memory; int4 has a correction for every read."""
    bits = FORMATS[dtype].bits
    per_read = 128 // bits
    return -(-inputs // per_read) * (per_read + _PADDING + (bits == 4))


def _address(bias: torch.Tensor | None) -> torch.Tensor | int:
    return 0 if bias is None else bias
