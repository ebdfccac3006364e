"""What a decoder computes, beyond the shapes a `ModelSpec` has: plain values, no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moesaic.kernels.base import ClampedSwiglu, ExpertShape
from moesaic.model_info.model_spec import ModelSpec


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
class AttentionRule:
    """Of both kinds of attention; which kind it is, `ModelSpec.latent_attention` says."""

    scale: float  # of the scores, before softmax
    input_bias: bool  # on query, key and value (latent attention: on the down-projections)
    output_bias: bool
    qk_norm: Literal["none", "head", "projection"] = "none"  # OLMoE norms the whole projection
    clip: float | None = None  # queries, keys and values are limited to this (OLMoE)


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
class Multipliers:
    """Granite: constants beside the weights."""

    embedding: float = 1.0
    residual: float = 1.0  # of what attention and experts add
    logits: float = 1.0  # they are divided by it


@dataclass(frozen=True, slots=True)
class Architecture:
    spec: ModelSpec
    norm_eps: float
    activation: str
    rope: Rope
    attention: AttentionRule
    router: RouterRule
    multipliers: Multipliers = Multipliers()
    clamped: ClampedSwiglu | None = None  # of the routed experts, in place of the activation
    shared_gate: bool = False  # a sigmoid gate scales the shared experts (Qwen2-MoE)
    unused_layers: int = 0  # in the files after the last layer: they predict further tokens (GLM)
    centred_norms: bool = False  # files have what norms' weights differ from 1 by (Qwen3-Next)

    @property
    def unusual(self) -> str | None:
        """What only PyTorch computes, of everything but the routed experts; None: the GPU's own
        decoding kernels compute all of it."""
        spec = self.spec
        what = {
            "a sliding window": bool(spec.window_layers),
            "linear attention": spec.linear_attention is not None,
            "gated attention": spec.output_gate,
            "norms with weights around 0": self.centred_norms,
            "attention sinks": spec.attention_sinks,
            "a router with a bias": self.router.logit_bias,
            "a router kept in fp32": self.router.fp32_weight,
            "scaled residuals": self.multipliers != Multipliers(),
        }
        return ", ".join(name for name, there in what.items() if there) or None

    @property
    def expert_shape(self) -> ExpertShape:
        spec = self.spec
        sizes = (spec.hidden_size, spec.expert_intermediate)
        return ExpertShape(*sizes, self.activation, spec.expert_bias, self.clamped)

    @property
    def shared_shape(self) -> ExpertShape:
        return ExpertShape(self.spec.hidden_size, self.spec.shared_intermediate, self.activation)

    @property
    def dense_shape(self) -> ExpertShape:
        return ExpertShape(self.spec.hidden_size, self.spec.dense_intermediate, self.activation)
