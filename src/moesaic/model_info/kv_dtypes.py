"""In which precision the KV cache keeps what layers have seen, and how many bytes a token takes.

int8 is of layers that keep every token: codes, and a scale in fp16 for every token and KV head (of
a latent: for every token). The rotary key of latent attention, layers with a sliding window and
recurrent states stay as they are computed."""

from __future__ import annotations

from moesaic.core.dtypes import weight_bytes
from moesaic.model_info.model_spec import ModelSpec

AS_COMPUTED, INT8 = "auto", "int8"
KV_DTYPES = {
    AS_COMPUTED: "as everything but the experts is computed",
    "bf16": "16 bits a value",
    INT8: "8 bits a value, and a scale for every token and KV head",
}
SCALE_BYTES = 2


def stored_as(kv_dtype: str, dtype: str) -> str:
    """What blocks have where the network is computed in `dtype`."""
    return dtype if kv_dtype == AS_COMPUTED else kv_dtype


def kv_token_bytes(spec: ModelSpec, dtype: str, kv_dtype: str = AS_COMPUTED) -> int:
    """Of a token in a layer that keeps every token, where the network is computed in `dtype`."""
    if kv_dtype != INT8:
        return weight_bytes(spec.kv_values_per_token, stored_as(kv_dtype, dtype))
    latent = spec.latent_attention
    if latent is None:
        return spec.kv_values_per_token + 2 * SCALE_BYTES * spec.num_kv_heads
    return latent.kv_lora_rank + SCALE_BYTES + weight_bytes(latent.qk_rope_head_dim, dtype)
