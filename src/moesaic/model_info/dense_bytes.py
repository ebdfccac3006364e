"""In which precision a network's dense weights are packed for the native kernels, and how many
bytes they take: all matrices that a token is multiplied with, but not the embedding, which is
looked up by rows, nor routers, nor latent attention's expansion, which is read from both sides, nor
the small matrices of linear attention."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.core.dtypes import weight_bytes
from moesaic.core.errors import UnknownName
from moesaic.model_info.expert_block import block_bytes, matrix_bytes
from moesaic.model_info.model_spec import ModelSpec

DENSE_DTYPES = ("bf16", "int8", "int4")
FORM = "DTYPE, or PART=DTYPE+PART=DTYPE"


class DensePrecision(NamedTuple):
    attention: str  # its projections
    feed_forward: str  # shared experts and dense layers
    head: str

    @classmethod
    def of(cls, text: str) -> DensePrecision:
        """One precision for all, or `head=int8+attention=int4`: parts that are not named stay in
        bf16. Raises `UnknownName`."""
        if "=" not in text:
            return cls(*(_known(text),) * 3)
        parts = dict.fromkeys(cls._fields, "bf16")
        for each in text.split("+"):
            part, _, dtype = each.partition("=")
            if part not in parts:
                raise UnknownName("part of the dense weights", part, parts)
            parts[part] = _known(dtype)
        return cls(**parts)

    @property
    def quantizes(self) -> bool:
        """Whether any part is in integers."""
        return set(self) != {"bf16"}

    def __str__(self) -> str:
        if len(set(self)) == 1:
            return self.head
        named = zip(self._fields, self, strict=True)
        return "+".join(f"{part}={dtype}" for part, dtype in named if dtype != "bf16")


def _known(dtype: str) -> str:
    if dtype not in DENSE_DTYPES:
        raise UnknownName("dense dtype", dtype, ("auto", *DENSE_DTYPES))
    return dtype


def packed_dense_bytes(spec: ModelSpec, dtype: str, packed: DensePrecision) -> int:
    """Everything but the routed experts, up to norms and biases; `dtype` is of what is not
    packed."""
    hidden, moe = spec.hidden_size, spec.num_moe_layers
    kept = spec.head_params + moe * spec.router_params
    size = matrix_bytes(packed.head, spec.vocab_size, hidden)
    for outputs, inputs in projections(spec):
        size += spec.kv_layers * matrix_bytes(packed.attention, outputs, inputs)
    linear, states = spec.linear_attention, len(spec.linear_layers)
    if linear is not None:
        kept += states * linear.small_params(hidden)
        for outputs, inputs in linear.projections(hidden):
            size += states * matrix_bytes(packed.attention, outputs, inputs)
    if spec.latent_attention is not None:
        latent = spec.latent_attention
        widths = latent.qk_nope_head_dim + latent.v_head_dim
        kept += spec.num_layers * spec.num_heads * widths * latent.kv_lora_rank
    if spec.shared_intermediate:
        size += moe * block_bytes(packed.feed_forward, hidden, spec.shared_intermediate)
    if moe < spec.num_layers:
        block = block_bytes(packed.feed_forward, hidden, spec.dense_intermediate)
        size += (spec.num_layers - moe) * block
    return size + weight_bytes(kept, dtype)


def projections(spec: ModelSpec) -> list[tuple[int, int]]:
    """Outputs and inputs of one layer's, with keys and values."""
    hidden, latent = spec.hidden_size, spec.latent_attention
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    if latent is None:
        gate = [(queries, hidden)] if spec.output_gate else []
        return [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries), *gate]
    compressed = latent.kv_lora_rank + latent.qk_rope_head_dim
    others = [(compressed, hidden), (hidden, spec.num_heads * latent.v_head_dim)]
    if latent.q_lora_rank is None:
        return [(queries, hidden), *others]
    return [(latent.q_lora_rank, hidden), (queries, latent.q_lora_rank), *others]
