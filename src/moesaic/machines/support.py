"""What each executor can compile of a network, in one table, and how large its parts may be.

`layerwise` is PyTorch, layer by layer, and takes everything. `cpu_step` is one native call per
decode step, `captured` a decode step as one CUDA graph: both are faster, and take what their
kernels know. A refusal names each part that an executor lacks, and its layers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from moesaic.model_info.features import Feature, features_of
from moesaic.model_info.kv_dtypes import AS_COMPUTED, INT8
from moesaic.model_info.network import GroupedAttentionSpec, LatentAttentionSpec, NetworkSpec


class ExecutorKind(Enum):
    CAPTURED = "captured"
    CPU_STEP = "cpu_step"
    LAYERWISE = "layerwise"


WHERE = {ExecutorKind.CPU_STEP: "on a CPU", ExecutorKind.CAPTURED: "on a GPU"}


class Row(NamedTuple):
    """Which executors have a kernel for a feature, beside `layerwise`."""

    cpu_step: bool
    captured: bool


_BOTH, _CPU, _NONE = Row(True, True), Row(True, False), Row(False, False)
TABLE: dict[Feature, Row] = {
    Feature.GROUPED: _BOTH,
    Feature.LATENT: _BOTH,
    Feature.LINEAR: _NONE,
    Feature.SEVERAL_ATTENTIONS: _BOTH,
    Feature.INPUT_BIAS: _BOTH,
    Feature.OUTPUT_BIAS: _BOTH,
    Feature.QUERY_RANK: _BOTH,
    Feature.HEAD_NORM: _BOTH,
    Feature.PROJECTION_NORM: _BOTH,
    Feature.CLIP: _BOTH,
    Feature.WINDOW: _NONE,
    Feature.SINKS: _NONE,
    Feature.GATE: _NONE,
    Feature.TURNED_HALVES: _BOTH,
    Feature.TURNED_NEIGHBOURS: _CPU,
    Feature.SEVERAL_ROPES: _BOTH,
    Feature.SOFTMAX: _BOTH,
    Feature.SIGMOID: _BOTH,
    Feature.ROUTER_GROUPS: _BOTH,
    Feature.ROUTER_CORRECTION: _BOTH,
    Feature.ROUTER_BIAS: _NONE,
    Feature.ROUTER_FP32_PRODUCTS: _BOTH,
    Feature.ROUTER_KEPT_IN_FP32: _NONE,
    Feature.SEVERAL_ROUTERS: _NONE,
    Feature.EXPERT_BIAS: _NONE,
    Feature.CLAMPED_EXPERTS: _NONE,
    Feature.SHARED: _BOTH,
    Feature.SHARED_GATE: _BOTH,
    Feature.DENSE: _BOTH,
    Feature.NORM_IN_FP32: _NONE,
    Feature.SCALED_EMBEDDING: _NONE,
    Feature.SCALED_RESIDUAL: _NONE,
    Feature.DIVIDED_LOGITS: _NONE,
}

KV_TABLE: dict[str, Row] = {AS_COMPUTED: _BOTH, "bf16": _BOTH, INT8: _CPU}  # by the KV cache's

_MOST_EXPERTS_USED = 32  # by a token, in both
_LEAST_WIDTH = 32  # of a head on a GPU: a warp's
_MOST_QUERY_HEADS = 16  # that share a KV head on a GPU


class Missing(NamedTuple):
    feature: Feature
    layers: tuple[int, ...]  # (): it is no layer's

    def __str__(self) -> str:
        return self.feature.value + _layers_text(self.layers)


def missing(executor: ExecutorKind, network: NetworkSpec) -> tuple[Missing, ...]:
    """The features of a network that an executor has no kernel for, in the table's order."""
    if executor is ExecutorKind.LAYERWISE:
        return ()
    return tuple(
        Missing(feature, layers)
        for feature, layers in features_of(network).items()
        if not getattr(TABLE[feature], executor.value)
    )


def refusal(
    executor: ExecutorKind, network: NetworkSpec, kv_dtype: str = AS_COMPUTED
) -> str | None:
    """Why an executor cannot compile a network: the features it lacks, or a size that is beyond
    its kernels; None: it can. `kv_dtype` is of the KV cache."""
    lacking = missing(executor, network)
    if lacking:
        return f"{executor.value} lacks {', '.join(map(str, _told(lacking, network)))}"
    if executor is not ExecutorKind.LAYERWISE and not getattr(KV_TABLE[kv_dtype], executor.value):
        return f"{executor.value} lacks a KV cache in {kv_dtype}"
    beyond = next(_beyond(executor, network), None)
    return None if beyond is None else f"{executor.value} takes {beyond}"


def fastest(preferred: ExecutorKind, network: NetworkSpec) -> tuple[ExecutorKind, str | None]:
    """The executor that decodes a network where `preferred` is what a machine has, and why it is
    not that one."""
    why = refusal(preferred, network)
    return (preferred if why is None else ExecutorKind.LAYERWISE), why


def _told(lacking: tuple[Missing, ...], network: NetworkSpec) -> list[Missing]:
    """Layers are not listed where it is all of them."""
    everything = tuple(range(len(network.layers)))
    return [each._replace(layers=()) if each.layers == everything else each for each in lacking]


def _layers_text(layers: tuple[int, ...]) -> str:
    """Text such as " (layers 0 to 3)" or " (layers 0, 2, 4, ...)"; empty for no layers."""
    if not layers:
        return ""
    if len(layers) == 1:
        return f" (layer {layers[0]})"
    if layers == tuple(range(layers[0], layers[-1] + 1)):
        return f" (layers {layers[0]} to {layers[-1]})"
    listed = ", ".join(map(str, layers[:3])) + (", ..." if len(layers) > 3 else "")
    return f" (layers {listed})"


def _beyond(executor: ExecutorKind, network: NetworkSpec) -> Iterator[str]:
    """What an executor does take, of each size that is beyond it."""
    if any(block.router.top_k > _MOST_EXPERTS_USED for block in network.routed):
        yield f"at most {_MOST_EXPERTS_USED} experts per token"
    if executor is ExecutorKind.CAPTURED:
        yield from _beyond_gpu(network)


def _beyond_gpu(network: NetworkSpec) -> Iterator[str]:
    if network.hidden % 8:
        yield "hidden states whose width is a multiple of 8"
    for layer in network.layers:
        attention = layer.attention
        widths: tuple[int, ...] = ()
        if isinstance(attention, GroupedAttentionSpec):
            widths = (attention.head_dim,)
            if attention.heads // attention.kv_heads > _MOST_QUERY_HEADS:
                yield f"at most {_MOST_QUERY_HEADS} query heads that share a KV head"
        elif isinstance(attention, LatentAttentionSpec):
            widths = (attention.rank, attention.rope_dim)
        if any(width & (width - 1) or width < _LEAST_WIDTH for width in widths):
            yield f"heads whose width is a power of two, {_LEAST_WIDTH} or more"
