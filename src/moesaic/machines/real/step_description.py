"""A decoder as the native decode step reads it: sizes, rules and addresses. Which networks it can
run, and why others are run layer by layer."""

from __future__ import annotations

import torch

from moesaic.kernels import _native
from moesaic.kernels.native import ACTIVATIONS, DTYPES, NativeKernel
from moesaic.kernels.native_linear import DenseRunner, PackedNetwork, PackedWeight
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.models.architecture import Architecture
from moesaic.models.decoder import Decoder, Layer
from moesaic.models.decoder_builder import LATENT_EPS
from moesaic.models.feed_forward import DenseBlock, MoeBlock
from moesaic.models.fused_router import router_config
from moesaic.models.grouped_attention import GroupedAttention
from moesaic.models.latent_attention import LatentAttention
from moesaic.models.linear import Linear

_MOST_EXPERTS_USED = 32  # by a token
_QK_NORM = {"none": 0, "head": 1, "projection": 2}


def why_not(decoder: Decoder, store: ExpertStore) -> str | None:
    """What keeps this network from being run by the native step; None: nothing."""
    dtype, top_k = decoder.dtype, decoder.architecture.spec.top_k
    if dtype is not torch.bfloat16:
        return f"the network is computed in {str(dtype).removeprefix('torch.')}, not bf16"
    unusual = decoder.architecture.unusual
    reasons = {
        f"experts in {store.kernel.dtype} have no native kernel here": not isinstance(
            store.kernel, NativeKernel
        ),
        "dense weights are not packed": decoder.dense is None,
        f"a token uses more than {_MOST_EXPERTS_USED} experts": top_k > _MOST_EXPERTS_USED,
        f"only PyTorch computes {unusual}": unusual is not None,
        "experts are on several NUMA nodes": len(store.nodes) > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def describe(decoder: Decoder, store: ExpertStore) -> _native.StepNetwork:
    """Refers to the memory of both, which must outlive it."""
    assert isinstance(store.kernel, NativeKernel), "checked by `why_not`"
    assert decoder.dense is not None, "checked by `why_not`"
    network = _native.StepNetwork()
    network.sizes = _sizes(decoder.architecture, store.kernel, decoder.dense)
    rule, spec = decoder.architecture.router, decoder.architecture.spec
    network.router = router_config(rule, spec.num_experts)
    network.embedding = _address(decoder.embedding)
    network.norm = _address(decoder.norm.weight)
    network.frequencies = decoder.frequencies.data_ptr()
    network.head = _matrix(decoder.output)
    for layer in decoder.layers:
        network.add_layer(_layer(layer, store))
    return network


def _sizes(
    architecture: Architecture, kernel: NativeKernel, dense: DenseRunner
) -> _native.StepSizes:
    spec, rule, rope = architecture.spec, architecture.attention, architecture.rope
    sizes = _native.StepSizes()
    sizes.hidden, sizes.vocabulary = spec.hidden_size, spec.vocab_size
    sizes.heads, sizes.kv_heads, sizes.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    latent = spec.latent_attention
    if latent is not None:
        sizes.rank, sizes.query_rank = latent.kv_lora_rank, latent.q_lora_rank or 0
        sizes.plain_dim, sizes.rope_key_dim = latent.qk_nope_head_dim, latent.qk_rope_head_dim
        sizes.value_dim = latent.v_head_dim
    sizes.rope_dim, sizes.rope_interleaved = rope.dim, rope.interleaved
    sizes.rope_magnitude = rope.magnitude
    sizes.qk_norm, sizes.clip = _QK_NORM[rule.qk_norm], rule.clip or 0.0
    sizes.scale, sizes.eps, sizes.latent_eps = rule.scale, architecture.norm_eps, LATENT_EPS
    sizes.activation = ACTIVATIONS[architecture.activation]
    sizes.expert_width, sizes.shared_width = spec.expert_intermediate, spec.shared_intermediate
    if len(spec.moe_layers) < spec.num_layers:
        sizes.dense_width = spec.dense_intermediate
    sizes.expert_dtype = DTYPES[kernel.dtype]
    sizes.attention_dtype = DTYPES[dense.precision.attention]
    sizes.network_dtype = DTYPES[dense.precision.feed_forward]
    tiles_from = dense.tiles_from | {kernel.dtype: kernel.tiles_from}
    sizes.tiles_from_bf16, sizes.tiles_from_int8 = tiles_from["bf16"], tiles_from["int8"]
    sizes.tiles_from_int4 = tiles_from["int4"]
    return sizes


def _layer(layer: Layer, store: ExpertStore) -> _native.StepLayer:
    to, block = _native.StepLayer(), layer.feed_forward
    to.attention_norm = _address(layer.attention_norm.weight)
    to.feed_forward_norm = _address(block.norm.weight)
    if isinstance(layer.attention, GroupedAttention):
        _grouped(to, layer.attention)
    else:
        assert isinstance(layer.attention, LatentAttention), "one of two kinds"
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
    """Of bf16 values, row after row."""
    if tensor is None:
        return 0
    assert tensor.device.type == "cpu", "the step reads main memory"
    assert tensor.dtype is torch.bfloat16, "the step reads bf16"
    assert tensor.is_contiguous(), "the step reads rows one after the other"
    return int(tensor.data_ptr())
