"""Does the table of executors know every part that a network can have?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from moesaic.machines.support import KV_TABLE, TABLE, ExecutorKind, fastest, missing, refusal
from moesaic.model_info.expert_shape import ClampedSwiglu, ExpertShape
from moesaic.model_info.features import Feature, features_of
from moesaic.model_info.kv_dtypes import KV_DTYPES
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.model_info.network import (
    DenseSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    NetworkSpec,
    NormSpec,
    QkNorm,
    Rope,
    RoutedSpec,
    RouterRule,
    SharedSpec,
)
from moesaic.models.configs.families import RUNNABLE
from moesaic.models.configs.synthetic_architecture import plain_architecture

ROPE = Rope("default", 1e4, 32)
NORM = NormSpec(64, 1e-6)
GROUPED = GroupedAttentionSpec(4, 2, 32, ROPE, 0.2)
LATENT = LatentAttentionSpec(4, 64, None, 32, 32, 32, ROPE, 0.2, 1e-6)
LINEAR = LinearAttentionSpec(LinearAttentionSizes(2, 4, 16, 16, 4), 1e-6)
RULE = RouterRule(2, "softmax", True)
EXPERT = ExpertShape(64, 32)
ROUTED = RoutedSpec(0, 8, RULE, EXPERT, SharedSpec(EXPERT))
LAYER = LayerSpec(NORM, GROUPED, NORM, ROUTED)
NETWORK = NetworkSpec(64, 100, (LAYER, LAYER), NORM)

# Spec -> its fields that are sizes, numbers or places, which every kernel takes as they are (within
# the limits of its executor). All others are features: another value gives other features.
SIZES: dict[type, set[str]] = {
    GroupedAttentionSpec: {"heads", "kv_heads", "head_dim", "scale"},
    LatentAttentionSpec: {
        *("heads", "rank", "plain_dim", "rope_dim", "value_dim", "rope", "scale", "norm_eps")
    },
    LinearAttentionSpec: {"sizes", "norm_eps"},
    QkNorm: {"eps"},
    NormSpec: {"width", "eps"},
    Rope: {
        *("kind", "theta", "dim", "factor", "original_context", "beta_fast", "beta_slow"),
        *("truncate", "magnitude"),
    },
    RouterRule: {*("top_k", "normalized", "factor", "round_weights", "top_groups", "group_score")},
    RoutedSpec: {"number", "experts"},
    SharedSpec: {"expert"},
    DenseSpec: {"expert"},
    ExpertShape: {"hidden", "intermediate", "activation"},
    LayerSpec: set(),
    NetworkSpec: {"hidden", "vocabulary", "layers", "tied_head"},
}
# Spec -> another value for each field that is a feature.
OTHER: dict[type, dict[str, Any]] = {
    GroupedAttentionSpec: {
        "rope": replace(ROPE, interleaved=True),
        "input_bias": True,
        "output_bias": True,
        "qk_norm": QkNorm("head", 1e-6),
        "clip": 1.0,
        "window": 8,
        "sinks": True,
        "gate": True,
    },
    LatentAttentionSpec: {
        "query_rank": 32, "input_bias": True, "output_bias": True, "fp32_norms": True,
    },
    LinearAttentionSpec: {},
    QkNorm: {"scope": "projection", "fp32_weight": True},
    NormSpec: {"fp32_weight": True},
    Rope: {"interleaved": True},
    RouterRule: {
        "scoring": "sigmoid", "in_fp32": True, "fp32_weight": True, "logit_bias": True,
        "correction_bias": True, "groups": 4,
    },
    RoutedSpec: {
        "router": replace(RULE, scoring="sigmoid"),
        "expert": replace(EXPERT, bias=True),
        "shared": None,
    },
    SharedSpec: {"gate": True},
    DenseSpec: {},
    ExpertShape: {"bias": True, "clamped": ClampedSwiglu(1.7, 7.0)},
    LayerSpec: {
        "attention_norm": replace(NORM, fp32_weight=True),
        "attention": LATENT,
        "feed_forward_norm": replace(NORM, fp32_weight=True),
        "feed_forward": DenseSpec(EXPERT),
        "residual": 0.5,
    },
    NetworkSpec: {
        "norm": replace(NORM, fp32_weight=True), "embedding_scale": 2.0, "logit_divisor": 2.0,
    },
}  # fmt: skip


def around(part: Any) -> NetworkSpec:
    """A network of two equal layers that have this part."""
    normed = replace(GROUPED, qk_norm=QkNorm("head", 1e-6))
    layers: dict[type, Callable[[], LayerSpec]] = {
        GroupedAttentionSpec: lambda: replace(LAYER, attention=part),
        LatentAttentionSpec: lambda: replace(LAYER, attention=part),
        LinearAttentionSpec: lambda: replace(LAYER, attention=part),
        QkNorm: lambda: replace(LAYER, attention=replace(normed, qk_norm=part)),
        NormSpec: lambda: replace(LAYER, attention_norm=part),
        Rope: lambda: replace(LAYER, attention=replace(GROUPED, rope=part)),
        RouterRule: lambda: replace(LAYER, feed_forward=replace(ROUTED, router=part)),
        RoutedSpec: lambda: replace(LAYER, feed_forward=part),
        SharedSpec: lambda: replace(LAYER, feed_forward=replace(ROUTED, shared=part)),
        DenseSpec: lambda: replace(LAYER, feed_forward=part),
        ExpertShape: lambda: replace(LAYER, feed_forward=replace(ROUTED, expert=part)),
        LayerSpec: lambda: part,
    }
    if isinstance(part, NetworkSpec):
        return part
    layer = layers[type(part)]()
    return replace(NETWORK, layers=(layer, layer))


PARTS = (
    *(GROUPED, LATENT, LINEAR, QkNorm("head", 1e-6), NORM, ROPE, RULE, ROUTED),
    *(SharedSpec(EXPERT), DenseSpec(EXPERT), EXPERT, LAYER, NETWORK),
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_every_field_is_a_size_or_a_feature(part: Any) -> None:
    kind = type(part)
    assert SIZES[kind] | OTHER[kind].keys() == {field.name for field in fields(kind)}
    plain = features_of(around(part))
    for name, value in OTHER[kind].items():
        assert features_of(around(replace(part, **{name: value}))) != plain, name


def test_the_table_is_of_all_features() -> None:
    assert set(TABLE) == set(Feature)
    assert list(TABLE) == list(Feature), "rows stand in the order of the features"


def test_layers_that_differ_are_named() -> None:
    windowed = replace(LAYER, attention=replace(GROUPED, window=8))
    network = replace(NETWORK, layers=(windowed, LAYER, windowed, LAYER))
    assert features_of(network)[Feature.WINDOW] == (0, 2)
    assert Feature.SEVERAL_ATTENTIONS not in features_of(network)
    (lacking,) = missing(ExecutorKind.CAPTURED, network)
    assert str(lacking) == "a sliding window (layers 0, 2)"
    mixed = replace(NETWORK, layers=(LAYER, replace(LAYER, attention=LATENT)))
    assert features_of(mixed)[Feature.SEVERAL_ATTENTIONS] == (0, 1)


def test_sizes_beyond_the_kernels_are_refused() -> None:
    many = replace(LAYER, feed_forward=replace(ROUTED, router=replace(RULE, top_k=33)))
    network = replace(NETWORK, layers=(many,))
    assert refusal(ExecutorKind.CPU_STEP, network) == "cpu_step takes at most 32 experts per token"
    narrow = replace(NETWORK, layers=(replace(LAYER, attention=replace(GROUPED, head_dim=48)),))
    assert refusal(ExecutorKind.CPU_STEP, narrow) is None
    assert "power of two" in (refusal(ExecutorKind.CAPTURED, narrow) or "")
    wide = replace(NETWORK, layers=(replace(LAYER, attention=replace(GROUPED, heads=64)),))
    assert "16 query heads" in (refusal(ExecutorKind.CAPTURED, wide) or "")
    assert refusal(ExecutorKind.LAYERWISE, narrow) is None


# The known models that no executor but PyTorch decodes: one that is added here decodes many times
# slower than before, and one that leaves decodes many times faster.
LAYERWISE = {"gpt-oss-20b", "gpt-oss-120b", "granite-3.0-1b-a400m", "qwen3-next-80b-a3b"}


@pytest.mark.parametrize("executor", [ExecutorKind.CPU_STEP, ExecutorKind.CAPTURED])
def test_who_decodes_the_known_models(executor: ExecutorKind) -> None:
    specs = [load_model(name) for name in known_models()]
    networks = {s.name: plain_architecture(s).network for s in specs if s.family in RUNNABLE}
    found = {name for name, each in networks.items() if fastest(executor, each)[0] is not executor}
    assert found == LAYERWISE


def test_the_precision_of_the_kv_cache_is_refused_by_name() -> None:
    assert KV_TABLE.keys() == KV_DTYPES.keys()
    for executor in ExecutorKind:
        assert refusal(executor, NETWORK, "bf16") is None
    assert refusal(ExecutorKind.CPU_STEP, NETWORK, "int8") is None
    assert refusal(ExecutorKind.LAYERWISE, NETWORK, "int8") is None
    assert refusal(ExecutorKind.CAPTURED, NETWORK, "int8") == "captured lacks a KV cache in int8"
