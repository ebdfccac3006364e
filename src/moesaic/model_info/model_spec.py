"""What a Mixture-of-Experts model looks like: shapes, counts and sizes, no weights."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.dtypes import weight_bytes
from moesaic.model_info.linear_attention import LinearAttentionSizes


@dataclass(frozen=True, slots=True)
class LatentAttentionSizes:
    """Multi-head latent attention (DeepSeek-V2/V3): keys and values from one compressed vector."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None  # None: queries are projected directly


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. `moe_layers` are the decoder layers that route; plans and traces count only
    those, from 0: "layer 3" of a trace is the fourth routed layer."""

    name: str
    family: str  # Hugging Face model_type
    num_layers: int  # decoder layers, dense ones included
    moe_layers: tuple[int, ...]  # indices of the decoder layers with routed experts
    hidden_size: int
    vocab_size: int
    num_experts: int  # routed experts per MoE layer
    top_k: int
    expert_intermediate: int
    shared_intermediate: int  # total width of the shared experts, 0 when there are none
    dense_intermediate: int  # width of the feed-forward of non-MoE layers, 0 when all layers route
    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent_attention: LatentAttentionSizes | None = None
    scoring: str = "softmax"  # "softmax" | "sigmoid" | "softmax-after-topk"
    normalized_topk: bool = False
    tied_embeddings: bool = False
    max_context: int = 0
    sliding_window: int = 0  # tokens seen in `window_layers`, the own one included; 0: everything
    window_layers: tuple[int, ...] = ()  # decoder layers with the window
    linear_attention: LinearAttentionSizes | None = None  # of `linear_layers`
    linear_layers: tuple[int, ...] = ()  # decoder layers with a state instead of a KV cache
    output_gate: bool = False  # what attention says is scaled per value, by a projection as wide
    attention_sinks: bool = False  # a learned score of every head that takes part in the softmax
    expert_bias: bool = False  # on all three projections of a routed expert
    native_dtype: str = "bf16"
    source: str = ""

    @property
    def num_moe_layers(self) -> int:
        return len(self.moe_layers)

    @property
    def num_expert_blocks(self) -> int:
        """Routed experts in the whole model."""
        return self.num_moe_layers * self.num_experts

    @property
    def expert_params(self) -> int:
        """Gate, up and down projections of one routed expert."""
        return 3 * self.hidden_size * self.expert_intermediate

    @property
    def shared_params(self) -> int:
        """Shared experts of one MoE layer."""
        return 3 * self.hidden_size * self.shared_intermediate

    @property
    def dense_ffn_params(self) -> int:
        """The feed-forward block of one non-MoE layer."""
        return 3 * self.hidden_size * self.dense_intermediate

    @property
    def router_params(self) -> int:
        return self.hidden_size * self.num_experts

    @property
    def attention_params(self) -> int:
        """The projections of one layer's attention; where layers differ, in the mean."""
        return self.all_attention_params // self.num_layers

    @property
    def all_attention_params(self) -> int:
        total = self.kv_layers * self._softmax_attention_params
        if self.linear_attention is not None:
            total += len(self.linear_layers) * self.linear_attention.params(self.hidden_size)
        return total

    @property
    def kv_layers(self) -> int:
        """Layers with keys and values of earlier tokens."""
        return self.num_layers - len(self.linear_layers)

    @property
    def _softmax_attention_params(self) -> int:
        h, mla = self.hidden_size, self.latent_attention
        if mla is None:
            queries = (3 if self.output_gate else 2) * self.num_heads
            return h * self.head_dim * (queries + 2 * self.num_kv_heads)
        q_dim = self.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        q = h * q_dim if mla.q_lora_rank is None else mla.q_lora_rank * (h + q_dim)
        kv_down = h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        kv_up = mla.kv_lora_rank * self.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return q + kv_down + kv_up + self.num_heads * mla.v_head_dim * h

    @property
    def kv_values_per_token(self) -> int:
        """Numbers one layer's KV cache keeps per token, of those that have one."""
        mla = self.latent_attention
        if mla is None:
            return 2 * self.num_kv_heads * self.head_dim
        return mla.kv_lora_rank + mla.qk_rope_head_dim

    @property
    def state_bytes(self) -> int:
        """The state of one sequence in all layers with linear attention."""
        linear = self.linear_attention
        return 0 if linear is None else len(self.linear_layers) * linear.state_bytes

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of score and value products for one (query token, key token) pair, one layer."""
        mla = self.latent_attention
        if mla is None:
            return 4 * self.num_heads * self.head_dim
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        return 2 * self.num_heads * (qk + mla.v_head_dim)

    @property
    def head_params(self) -> int:
        """The output projection onto the vocabulary."""
        return self.vocab_size * self.hidden_size

    @property
    def resident_params(self) -> int:
        """Everything but the routed experts: what always stays on the GPU."""
        moe = self.num_moe_layers
        embeddings = self.head_params * (1 if self.tied_embeddings else 2)
        return (
            embeddings
            + self.all_attention_params
            + moe * (self.shared_params + self.router_params)
            + (self.num_layers - moe) * self.dense_ffn_params
        )

    @property
    def total_params(self) -> int:
        return self.resident_params + self.num_expert_blocks * self.expert_params

    def expert_bytes(self, dtype: str) -> int:
        """Bytes of one packed routed expert."""
        return weight_bytes(self.expert_params, dtype)
