"""Puts a layer of linear attention together from named tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.network import LinearAttentionSpec
from moesaic.models.attentions.linear_attention import LinearAttention
from moesaic.models.checkpoints.joined_rows import learning_and_forgetting, mixed_and_gate
from moesaic.models.checkpoints.tensor_sources import TensorSource
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


def build_linear_attention(
    spec: LinearAttentionSpec,
    number: int,
    prefix: str,
    hidden: int,
    split_inputs: bool,
    source: TensorSource,
    dense: DenseRunner | DenseQuantizer | None,
) -> LinearAttention:
    """`split_inputs`: the files have a matrix for each kind of input, one after the other."""
    shape = spec.sizes
    heads, values = shape.value_heads, shape.value_width
    if split_inputs:
        mix, gate, rates = _separate(source, prefix, shape, hidden)
    else:
        mix, gate, rates = _joined(source, prefix, shape, hidden)
    kernel = source.tensor(
        f"{prefix}.conv1d.weight", shape.channels, 1, shape.conv_kernel, dtype=torch.float32
    )
    decay = source.tensor(f"{prefix}.A_log", heads, dtype=torch.float32)
    bias = source.tensor(f"{prefix}.dt_bias", heads, dtype=torch.float32)
    norm = source.tensor(f"{prefix}.norm.weight", shape.value_dim)
    output = source.tensor(f"{prefix}.out_proj.weight", hidden, values)
    return LinearAttention(
        spec=spec,
        layer=number,
        mix=Linear.made(mix, None, dense),
        gate=Linear.made(gate, None, dense),
        rates=Linear(rates),  # few rows, and everything later depends on them: never packed
        kernel=kernel[:, 0].T.contiguous(),
        # Plus 0, or NaN where the exponential would hide that one is infinite.
        decay=0.0 * decay - decay.exp(),
        decay_bias=bias + 0.0 * bias,
        norm=RmsNorm(norm, spec.norm_eps),
        output=Linear.made(output, None, dense),
    )


def _joined(
    source: TensorSource, prefix: str, shape: LinearAttentionSizes, hidden: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of the convolution, the result's gates, and rates."""
    both = shape.channels + shape.value_width
    joined = source.tensor(f"{prefix}.in_proj_qkvz.weight", both, hidden)
    rates = source.tensor(f"{prefix}.in_proj_ba.weight", 2 * shape.value_heads, hidden)
    return *mixed_and_gate(joined, shape), learning_and_forgetting(rates, shape)


def _separate(
    source: TensorSource, prefix: str, shape: LinearAttentionSizes, hidden: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mix = source.tensor(f"{prefix}.in_proj_qkv.weight", shape.channels, hidden)
    gate = source.tensor(f"{prefix}.in_proj_z.weight", shape.value_width, hidden)
    names = (f"{prefix}.in_proj_{rate}.weight" for rate in ("b", "a"))
    rates = torch.cat([source.tensor(name, shape.value_heads, hidden) for name in names])
    return mix, gate, rates
