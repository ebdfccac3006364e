"""A network as data, layer by layer: what every layer computes, without weights and without a
library. A family's config becomes one `NetworkSpec`, and each executor compiles it; the
parts that an executor must know are its features (`features.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from moesaic.model_info.expert_shape import ExpertShape
from moesaic.model_info.linear_attention import LinearAttentionSizes


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Root-mean-square normalisation."""

    width: int
    eps: float
    fp32_weight: bool = False  # the weight is kept, and multiplied with, in fp32


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first `dim` values of a head."""

    kind: Literal["default", "linear", "yarn"]
    theta: float
    dim: int
    factor: float = 1.0  # how much longer than the original context
    original_context: int = 0  # yarn
    beta_fast: float = 32.0  # yarn: dimensions turning more often than this are left alone
    beta_slow: float = 1.0  # yarn: dimensions turning less often are fully interpolated
    truncate: bool = True  # yarn: round the two bounds outwards to whole dimensions
    magnitude: float = 1.0  # multiplies cosine and sine
    interleaved: bool = False  # pairs are neighbours (DeepSeek) instead of half a head apart


@dataclass(frozen=True, slots=True)
class QkNorm:
    """The norm of queries and of keys: over every head, or over the whole projection (OLMoE)."""

    scope: Literal["head", "projection"]
    eps: float
    fp32_weight: bool = False


@dataclass(frozen=True, slots=True)
class GroupedAttentionSpec:
    """Softmax attention whose query heads share keys and values in groups."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    scale: float  # of the scores, before softmax
    input_bias: bool = False  # on query, key and value
    output_bias: bool = False
    qk_norm: QkNorm | None = None
    clip: float | None = None  # queries, keys and values are limited to this (OLMoE)
    window: int = 0  # tokens that a token sees, itself included; 0: everything before it
    sinks: bool = False  # a learned score of every head that takes part in the softmax
    gate: bool = False  # the result is scaled per value, by a projection as wide

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def mixed_width(self) -> int:
        """The width of what the output projection multiplies."""
        return self.query_width


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Multi-head latent attention (DeepSeek-V2): one compressed vector per token is kept."""

    heads: int
    rank: int  # of keys and values
    query_rank: int | None  # None: queries are projected directly
    plain_dim: int  # of a head's query and key: the part without positions
    rope_dim: int  # the part with positions, which all heads' keys share
    value_dim: int
    rope: Rope
    scale: float
    norm_eps: float  # of the norms inside it
    input_bias: bool = False  # on the down-projections
    output_bias: bool = False
    fp32_norms: bool = False

    @property
    def query_width(self) -> int:
        return self.heads * (self.plain_dim + self.rope_dim)

    @property
    def mixed_width(self) -> int:
        return self.heads * self.value_dim


@dataclass(frozen=True, slots=True)
class LinearAttentionSpec:
    """A gated delta net behind a short convolution over time (Qwen3-Next)."""

    sizes: LinearAttentionSizes
    norm_eps: float  # of a head's result

    @property
    def mixed_width(self) -> int:
        return self.sizes.value_width


AttentionSpec = GroupedAttentionSpec | LatentAttentionSpec | LinearAttentionSpec


@dataclass(frozen=True, slots=True)
class RouterRule:
    """How a router's logits become experts and weights."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"]
    normalized: bool  # weights of the chosen experts add up to 1 (before the factor)
    factor: float = 1.0
    in_fp32: bool = False  # logits from fp32 products; otherwise in the hidden state's dtype
    fp32_weight: bool = False  # its matrix is kept in fp32, whatever the network is in
    round_weights: bool = False  # weights are rounded to the hidden state's dtype
    logit_bias: bool = False  # on the router's product
    correction_bias: bool = False  # added to the scores for choosing, not for weighing
    groups: int = 1
    top_groups: int = 1  # experts come from the best groups only
    group_score: Literal["max", "best-two"] = "max"


@dataclass(frozen=True, slots=True)
class SharedSpec:
    """Experts that every token goes through, as one network."""

    expert: ExpertShape
    gate: bool = False  # a sigmoid of one product scales them (Qwen2-MoE)


@dataclass(frozen=True, slots=True)
class RoutedSpec:
    """A router, its experts, and those that all tokens share."""

    number: int  # counted among the routed layers
    experts: int
    router: RouterRule
    expert: ExpertShape
    shared: SharedSpec | None = None


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """One feed-forward network for all tokens."""

    expert: ExpertShape


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention_norm: NormSpec
    attention: AttentionSpec
    feed_forward_norm: NormSpec
    feed_forward: RoutedSpec | DenseSpec
    residual: float = 1.0  # factor of what attention and feed-forward add (Granite)


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    hidden: int
    vocabulary: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied_head: bool = False
    embedding_scale: float = 1.0
    logit_divisor: float = 1.0

    @property
    def routed(self) -> tuple[RoutedSpec, ...]:
        """The routed feed-forwards, in order."""
        blocks = (layer.feed_forward for layer in self.layers)
        return tuple(block for block in blocks if isinstance(block, RoutedSpec))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """All different rotations, in the order of the first layer that has each."""
        attentions = (layer.attention for layer in self.layers)
        turning = (a.rope for a in attentions if not isinstance(a, LinearAttentionSpec))
        return tuple(dict.fromkeys(turning))

    def first(self, layers: int) -> NetworkSpec:
        return replace(self, layers=self.layers[:layers])

    def with_top_k(self, count: int) -> NetworkSpec:
        """The same network choosing so many experts for every token."""
        return replace(self, layers=tuple(_with_top_k(layer, count) for layer in self.layers))


def _with_top_k(layer: LayerSpec, count: int) -> LayerSpec:
    block = layer.feed_forward
    if isinstance(block, DenseSpec):
        return layer
    router = replace(block.router, top_k=count)
    return replace(layer, feed_forward=replace(block, router=router))
