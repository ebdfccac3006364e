"""The parts of networks that an executor must know to compile one, and the layers that have them.
Sizes are no features: what a kernel can take of them is its executor's limit
(`machines/support.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from moesaic.model_info.network import (
    GroupedAttentionSpec,
    LatentAttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    NetworkSpec,
    NormSpec,
    RoutedSpec,
    RouterRule,
)


class Feature(Enum):
    """Named as messages name it: "captured lacks attention sinks"."""

    GROUPED = "grouped attention"
    LATENT = "latent attention"
    LINEAR = "linear attention"
    SEVERAL_ATTENTIONS = "several kinds of attention"
    INPUT_BIAS = "biases of attention's inputs"
    OUTPUT_BIAS = "biases of attention's output"
    QUERY_RANK = "compressed queries"
    HEAD_NORM = "normed heads"
    PROJECTION_NORM = "normed projections"
    CLIP = "clipped queries, keys and values"
    WINDOW = "a sliding window"
    SINKS = "attention sinks"
    GATE = "gated attention"
    TURNED_HALVES = "rotated halves of heads"
    TURNED_NEIGHBOURS = "rotated neighbours"
    SEVERAL_ROPES = "several rotations"
    SOFTMAX = "a softmax router"
    SIGMOID = "a sigmoid router"
    ROUTER_GROUPS = "a router with groups of experts"
    ROUTER_CORRECTION = "a router with corrected scores"
    ROUTER_BIAS = "a router with a bias"
    ROUTER_FP32_PRODUCTS = "a router with products in fp32"
    ROUTER_KEPT_IN_FP32 = "a router kept in fp32"
    SEVERAL_ROUTERS = "several kinds of routers"
    EXPERT_BIAS = "experts with biases"
    CLAMPED_EXPERTS = "experts with a clamped activation"
    SHARED = "shared experts"
    SHARED_GATE = "gated shared experts"
    DENSE = "dense layers"
    NORM_IN_FP32 = "norms with weights in fp32"
    SCALED_EMBEDDING = "a scaled embedding"
    SCALED_RESIDUAL = "scaled residuals"
    DIVIDED_LOGITS = "divided logits"


Features = dict[Feature, tuple[int, ...]]  # with the decoder layers that have it; (): the ends


def features_of(network: NetworkSpec) -> Features:
    found: dict[Feature, set[int]] = {}
    for number, layer in enumerate(network.layers):
        for feature in _of_layer(layer):
            found.setdefault(feature, set()).add(number)
    for feature in _of_ends(network):
        found.setdefault(feature, set())
    for feature in _of_differences(network):
        found[feature] = set(range(len(network.layers)))
    return {feature: tuple(sorted(found[feature])) for feature in Feature if feature in found}


def _of_layer(layer: LayerSpec) -> Iterator[Feature]:
    attention = layer.attention
    if isinstance(attention, GroupedAttentionSpec):
        yield from _of_grouped(attention)
    elif isinstance(attention, LatentAttentionSpec):
        yield from _of_latent(attention)
    else:
        yield Feature.LINEAR
    if _in_fp32(layer.attention_norm) or _in_fp32(layer.feed_forward_norm):
        yield Feature.NORM_IN_FP32
    if layer.residual != 1.0:
        yield Feature.SCALED_RESIDUAL
    if isinstance(layer.feed_forward, RoutedSpec):
        yield from _of_routed(layer.feed_forward)
    else:
        yield Feature.DENSE


def _of_grouped(attention: GroupedAttentionSpec) -> Iterator[Feature]:
    yield Feature.GROUPED
    norm = attention.qk_norm
    if norm is not None:
        yield Feature.HEAD_NORM if norm.scope == "head" else Feature.PROJECTION_NORM
        if norm.fp32_weight:
            yield Feature.NORM_IN_FP32
    interleaved = attention.rope.interleaved
    yield Feature.TURNED_NEIGHBOURS if interleaved else Feature.TURNED_HALVES
    there = {
        Feature.INPUT_BIAS: attention.input_bias,
        Feature.OUTPUT_BIAS: attention.output_bias,
        Feature.CLIP: attention.clip is not None,
        Feature.WINDOW: attention.window > 0,
        Feature.SINKS: attention.sinks,
        Feature.GATE: attention.gate,
    }
    yield from (feature for feature, has in there.items() if has)


def _of_latent(attention: LatentAttentionSpec) -> Iterator[Feature]:
    """Its kernels turn halves and neighbours alike, so that this is no feature of it."""
    yield Feature.LATENT
    there = {
        Feature.INPUT_BIAS: attention.input_bias,
        Feature.OUTPUT_BIAS: attention.output_bias,
        Feature.QUERY_RANK: attention.query_rank is not None,
        Feature.NORM_IN_FP32: attention.fp32_norms,
    }
    yield from (feature for feature, has in there.items() if has)


def _of_routed(block: RoutedSpec) -> Iterator[Feature]:
    yield from _of_router(block.router)
    if block.expert.bias:
        yield Feature.EXPERT_BIAS
    if block.expert.clamped is not None:
        yield Feature.CLAMPED_EXPERTS
    if block.shared is not None:
        yield Feature.SHARED
        if block.shared.gate:
            yield Feature.SHARED_GATE


def _of_router(rule: RouterRule) -> Iterator[Feature]:
    yield Feature.SIGMOID if rule.scoring == "sigmoid" else Feature.SOFTMAX
    there = {
        Feature.ROUTER_GROUPS: rule.groups > 1,
        Feature.ROUTER_CORRECTION: rule.correction_bias,
        Feature.ROUTER_BIAS: rule.logit_bias,
        Feature.ROUTER_FP32_PRODUCTS: rule.in_fp32,
        Feature.ROUTER_KEPT_IN_FP32: rule.fp32_weight,
    }
    yield from (feature for feature, has in there.items() if has)


def _of_ends(network: NetworkSpec) -> Iterator[Feature]:
    there = {
        Feature.NORM_IN_FP32: _in_fp32(network.norm),
        Feature.SCALED_EMBEDDING: network.embedding_scale != 1.0,
        Feature.DIVIDED_LOGITS: network.logit_divisor != 1.0,
    }
    yield from (feature for feature, has in there.items() if has)


def _of_differences(network: NetworkSpec) -> Iterator[Feature]:
    """What one layer has and another has differently. Windows are not counted: a layer's kernel
    is given its window."""
    if len(network.ropes) > 1:
        yield Feature.SEVERAL_ROPES
    if len({_without_window(layer) for layer in network.layers}) > 1:
        yield Feature.SEVERAL_ATTENTIONS
    routed = network.routed
    if len({(block.router, block.expert, block.shared) for block in routed}) > 1:
        yield Feature.SEVERAL_ROUTERS


def _without_window(layer: LayerSpec) -> tuple[object, ...]:
    """A layer's attention but for its window and its rotation."""
    attention = layer.attention
    if isinstance(attention, GroupedAttentionSpec):
        norm, rope = attention.qk_norm, attention.rope
        return (
            *(attention.heads, attention.kv_heads, attention.head_dim, attention.scale),
            *(attention.input_bias, attention.output_bias, attention.clip, norm),
            *(attention.sinks, attention.gate, rope.interleaved),
        )
    if isinstance(attention, LinearAttentionSpec):
        return (attention,)
    sizes = (attention.rank, attention.query_rank, attention.plain_dim, attention.rope_dim)
    return (
        *(attention.heads, *sizes, attention.value_dim, attention.scale, attention.norm_eps),
        *(attention.input_bias, attention.output_bias, attention.fp32_norms),
    )


def _in_fp32(norm: NormSpec) -> bool:
    return norm.fp32_weight
