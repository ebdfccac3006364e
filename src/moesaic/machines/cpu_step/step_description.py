"""A decoder as the native decode step reads it: sizes, rules and addresses. Which networks it can
run, and why others are run layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.kernels import _native
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_format import ACTIVATIONS, DTYPES
from moesaic.kernels.native_linear import DenseRunner, PackedNetwork, PackedWeight
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.support import ExecutorKind, refusal
from moesaic.model_info.kv_dtypes import AS_COMPUTED
from moesaic.model_info.network import (
    DenseSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
    NetworkSpec,
    Rope,
)
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.decoder import Decoder, Layer
from moesaic.models.experts.feed_forward import DenseBlock, MoeBlock
from moesaic.models.experts.fused_router import router_config
from moesaic.models.linear import Linear

_QK_NORM = {"head": 1, "projection": 2}


def why_layerwise(decoder: Decoder, store: ExpertStore, kv_dtype: str = AS_COMPUTED) -> str | None:
    """What keeps this network from being run by the native step; None: nothing."""
    lacking = refusal(ExecutorKind.CPU_STEP, decoder.architecture.network, kv_dtype)
    if lacking is not None:
        return lacking
    dtype = decoder.dtype
    if dtype is not torch.bfloat16:
        return f"the network is computed in {str(dtype).removeprefix('torch.')}, not bf16"
    reasons = {
        f"experts in {store.kernel.dtype} have no native kernel here": not isinstance(
            store.kernel, NativeKernel
        ),
        "dense weights are not packed": decoder.dense is None,
        "experts are on several NUMA nodes": len(store.nodes) > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def describe(decoder: Decoder, store: ExpertStore) -> _native.StepNetwork:
    """Refers to the memory of both, which must outlive it."""
    assert isinstance(store.kernel, NativeKernel), "checked by `why_layerwise`"
    assert decoder.dense is not None, "checked by `why_layerwise`"
    network = _native.StepNetwork()
    network.sizes = _sizes(decoder.architecture.network, store.kernel, decoder.dense)
    routed = decoder.architecture.network.routed[0]
    network.router = router_config(routed.router, routed.experts)
    network.embedding = _address(decoder.embedding)
    network.norm = _address(decoder.norm.weight)
    network.head = _matrix(decoder.output)
    for rope, frequencies in decoder.frequencies.items():
        network.add_rope(_rope(rope, frequencies))
    ropes = decoder.architecture.network.ropes
    for layer in decoder.layers:
        network.add_layer(_layer(layer, ropes, store))
    return network


def _rope(rope: Rope, frequencies: torch.Tensor) -> _native.StepRope:
    to = _native.StepRope()
    to.dim, to.interleaved, to.magnitude = rope.dim, rope.interleaved, rope.magnitude
    to.frequencies = frequencies.data_ptr()
    return to


def _sizes(network: NetworkSpec, kernel: NativeKernel, dense: DenseRunner) -> _native.StepSizes:
    sizes = _native.StepSizes()
    sizes.hidden, sizes.vocabulary, sizes.eps = network.hidden, network.vocabulary, network.norm.eps
    for layer in network.layers:
        block = layer.feed_forward
        if isinstance(block, DenseSpec):
            sizes.dense_width = block.expert.intermediate
            continue
        sizes.activation = ACTIVATIONS[block.expert.activation]
        sizes.expert_width = block.expert.intermediate
        sizes.shared_width = 0 if block.shared is None else block.shared.expert.intermediate
    sizes.expert_dtype = DTYPES[kernel.dtype]
    sizes.attention_dtype = DTYPES[dense.precision.attention]
    sizes.network_dtype = DTYPES[dense.precision.feed_forward]
    tiles_from = dense.tiles_from | {kernel.dtype: kernel.tiles_from}
    sizes.tiles_from_bf16, sizes.tiles_from_int8 = tiles_from["bf16"], tiles_from["int8"]
    sizes.tiles_from_int4 = tiles_from["int4"]
    return sizes


def _grouped_shape(spec: GroupedAttentionSpec, ropes: Sequence[Rope]) -> _native.StepAttention:
    shape = _native.StepAttention()
    shape.heads, shape.kv_heads, shape.head_dim = spec.heads, spec.kv_heads, spec.head_dim
    shape.rope, shape.scale, shape.clip = ropes.index(spec.rope), spec.scale, spec.clip or 0.0
    if spec.qk_norm is not None:
        shape.qk_norm, shape.eps = _QK_NORM[spec.qk_norm.scope], spec.qk_norm.eps
    return shape


def _latent_shape(spec: LatentAttentionSpec, ropes: Sequence[Rope]) -> _native.StepAttention:
    shape = _native.StepAttention()
    shape.heads, shape.head_dim = spec.heads, spec.plain_dim + spec.rope_dim
    shape.rank, shape.query_rank = spec.rank, spec.query_rank or 0
    shape.plain_dim, shape.rope_key_dim = spec.plain_dim, spec.rope_dim
    shape.value_dim, shape.eps = spec.value_dim, spec.norm_eps
    shape.rope, shape.scale = ropes.index(spec.rope), spec.scale
    return shape


def _layer(layer: Layer, ropes: Sequence[Rope], store: ExpertStore) -> _native.StepLayer:
    to, block = _native.StepLayer(), layer.feed_forward
    to.attention_norm = _address(layer.attention_norm.weight)
    to.feed_forward_norm = _address(block.norm.weight)
    if isinstance(layer.attention, GroupedAttention):
        to.attention = _grouped_shape(layer.attention.spec, ropes)
        _grouped(to, layer.attention)
    else:
        assert isinstance(layer.attention, LatentAttention), "one of two kinds"
        to.attention = _latent_shape(layer.attention.spec, ropes)
        _latent(to, layer.attention)
    to.output = _matrix(layer.attention.output)
    to.output_bias = _address(layer.attention.output.bias)
    if isinstance(block, DenseBlock):
        assert isinstance(block.network.packed, PackedNetwork), "packed like all others"
        to.network = block.network.packed.block.data_ptr()
    else:
        _routed(to, block, store)
    return to


def _grouped(to: _native.StepLayer, attention: GroupedAttention) -> None:
    to.query, to.query_bias = _matrix(attention.query), _address(attention.query.bias)
    to.key, to.key_bias = _matrix(attention.key), _address(attention.key.bias)
    to.value, to.value_bias = _matrix(attention.value), _address(attention.value.bias)
    if attention.query_norm is not None and attention.key_norm is not None:
        to.query_norm = _address(attention.query_norm.weight)
        to.key_norm = _address(attention.key_norm.weight)


def _latent(to: _native.StepLayer, attention: LatentAttention) -> None:
    query = attention.query
    to.query, to.query_bias = _matrix(query.up), _address(query.up.bias)
    if query.down is not None and query.norm is not None:
        to.query_down, to.query_down_bias = _matrix(query.down), _address(query.down.bias)
        to.query_norm = _address(query.norm.weight)
    to.key, to.key_bias = _matrix(attention.compress), _address(attention.compress.bias)
    to.key_norm = _address(attention.latent_norm.weight)
    to.expand = _address(attention.expand)


def _routed(to: _native.StepLayer, block: MoeBlock, store: ExpertStore) -> None:
    to.gate = _address(block.router.weight)
    if block.router.bias is not None:
        assert block.router.bias.dtype is torch.float32, "as in the stock models"
        to.gate_bias = block.router.bias.data_ptr()
    to.experts = store.layer(block.layer).address
    if block.shared is not None:
        assert isinstance(block.shared.packed, PackedNetwork), "packed like all others"
        to.network = block.shared.packed.block.data_ptr()
    if block.shared_gate is not None:
        to.shared_gate = _address(block.shared_gate.weight)


def _matrix(linear: Linear) -> _native.PackedMatrix:
    assert isinstance(linear.packed, PackedWeight), "packed like all others"
    return linear.packed.matrix


def _address(tensor: torch.Tensor | None) -> int:
    """The address of bf16 values, row after row."""
    if tensor is None:
        return 0
    assert tensor.device.type == "cpu", "the step reads main memory"
    assert tensor.dtype is torch.bfloat16, "the step reads bf16"
    assert tensor.is_contiguous(), "the step reads rows one after the other"
    return int(tensor.data_ptr())
