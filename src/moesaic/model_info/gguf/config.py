"""A GGUF file's metadata as the config.json of the same model, so that one reader serves both.

Every key of the architecture is read, is known not to matter, or is refused: one that llama.cpp
heeds and we do not would give another model's answers without a word.

Rotary positions become the `rope_parameters` of a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moesaic.core.errors import BadConfig
from moesaic.model_info.dense_models import DENSE
from moesaic.model_info.gguf.families import GGUF_FAMILIES, ONLY_SAFETENSORS, GgufFamily
from moesaic.model_info.gguf.fields import Fields, GgufConfig
from moesaic.model_info.gguf.files import read_gguf
from moesaic.model_info.gguf.header import Header, is_expert

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
# Said for the reader's information, or read only where it matters.
_HARMLESS = {
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
_QUANTIZATION = 2  # the version of the block formats
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_THETA = 10000.0  # llama.cpp's, where a file says nothing
_KINDS = ("none", "linear", "yarn")
_SCALING = "rope.scaling"
_LEGACY_FACTOR = "rope.scale_linear"


def read_gguf_config(path: Path) -> GgufConfig:
    return gguf_config(read_gguf(path))


def gguf_config(header: Header) -> GgufConfig:
    family, fields = _family(header)
    fields.put("model_type", family.model_type, None)
    _put_shapes(fields, family)
    for field, value in family.fixed.items():
        fields.put(field, value)
    family.put_rest(fields)
    if family.latent:
        _put_latent(fields)
    else:
        _put_heads(fields, family)
    _put_precision(fields)
    _refuse_unread(fields)
    return fields.config()


def _family(header: Header) -> tuple[GgufFamily, Fields]:
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise BadConfig(header.path, "general.type", f"expected 'model', not {kind!r}")
    version = header.metadata.get("general.quantization_version", _QUANTIZATION)
    if version != _QUANTIZATION:
        what = f"blocks of version {version!r} cannot be read, only {_QUANTIZATION}"
        raise BadConfig(header.path, "general.quantization_version", what)
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        if isinstance(name, str) and _is_dense(header, name):
            raise BadConfig(header.path, "general.architecture", f"{name!r} is {DENSE}")
        known = ", ".join(sorted(GGUF_FAMILIES))
        what = "is missing" if name is None else f"{name!r} is not supported"
        if isinstance(name, str) and name in ONLY_SAFETENSORS:
            what += f" as GGUF, but as safetensors ({ONLY_SAFETENSORS[name]})"
        raise BadConfig(header.path, "general.architecture", f"{what}; supported: {known}")
    return GGUF_FAMILIES[name], Fields(header, name)


def _is_dense(header: Header, architecture: str) -> bool:
    """Whether an unknown architecture is dense, as far as its header shows."""
    experts = header.metadata.get(f"{architecture}.expert_count")
    return not experts and architecture not in ONLY_SAFETENSORS


def _put_shapes(fields: Fields, family: GgufFamily) -> None:
    _put_layers(fields)
    fields.put_count("max_position_embeddings", "context_length")
    hidden = fields.put_count("hidden_size", "embedding_length")
    fields.put_count("num_attention_heads", "attention.head_count")
    if not fields.has("expert_count") or not fields.value("expert_count"):
        fields.fail("expert_count", f"expected routed experts: this is {DENSE}")
    fields.put_count(family.experts, "expert_count")
    fields.put_count("num_experts_per_tok", "expert_used_count")
    fields.put_count(family.expert_width, family.expert_width_key)
    fields.put_number("rms_norm_eps", "attention.layer_norm_rms_epsilon")
    fields.put("hidden_act", "silu")
    fields.put("tie_word_embeddings", _HEAD not in fields.tensors)
    if not fields.flag("attention.causal", default=True):
        fields.fail("attention.causal", "expected true: only causal attention can be run")
    _put_vocabulary(fields, hidden)


def _put_layers(fields: Fields) -> None:
    """The layers that predict further tokens are counted too in GGUF, and come last."""
    layers = fields.count("block_count")
    if layers > len(fields.tensors):
        fields.fail("block_count", f"{layers} layers in a file of {len(fields.tensors)} tensors")
    further = fields.count("nextn_predict_layers", 0, default=0)
    if further >= layers:
        fields.fail("nextn_predict_layers", f"expected fewer than {layers} (layers)")
    fields.put("num_hidden_layers", layers - further, "block_count")
    if further:
        fields.put("num_nextn_predict_layers", further, "nextn_predict_layers")


def _put_vocabulary(fields: Fields, hidden: int) -> None:
    table = fields.tensors.get(_EMBEDDING)
    if table is None or len(table.shape) != 2:
        fields.fail("vocab_size", f"expected a tensor {_EMBEDDING} of two dimensions")
    rows = table.shape[0]
    if fields.count("vocab_size", default=rows) != rows:
        fields.fail("vocab_size", f"expected {rows}, the rows of {_EMBEDDING}")
    fields.put("vocab_size", rows, "vocab_size")


def _put_heads(fields: Fields, family: GgufFamily) -> None:
    heads = fields.count("attention.head_count")
    kv_heads = fields.count("attention.head_count_kv", default=heads)
    fields.put("num_key_value_heads", kv_heads, "attention.head_count_kv")
    hidden = fields.count("embedding_length")
    if not fields.has("attention.key_length") and hidden % heads:
        fields.fail("attention.key_length", f"is missing, and {hidden} is not {heads} equal heads")
    width = fields.count("attention.key_length", default=hidden // heads)
    if fields.count("attention.value_length", default=width) != width:
        fields.fail("attention.value_length", f"expected {width}, as attention.key_length")
    fields.put("head_dim", width, "attention.key_length")
    rope = put_rope(fields)
    if rope["rope_type"] == "yarn" and not family.yarn_truncates:
        rope["truncate"] = False
    turning = fields.count("rope.dimension_count", default=width)
    if family.partial_rotary:
        rope["partial_rotary_factor"] = turning / width
        fields.put_origin("partial_rotary_factor", "rope.dimension_count")
        if int(width * rope["partial_rotary_factor"]) == turning <= width:
            return
    elif turning == width:
        return
    fields.fail("rope.dimension_count", f"expected the head's {width} values, not {turning}")


def _put_latent(fields: Fields) -> None:
    """Newer files describe the compressed form, one head for keys and values, and give the width
    of the expanded heads beside it; older ones describe the expanded form."""
    heads = fields.count("attention.head_count")
    stated = fields.count("attention.head_count_kv", default=heads)
    if stated not in (1, heads):
        fields.fail("attention.head_count_kv", f"expected 1 or {heads} (heads), not {stated}")
    fields.put("num_key_value_heads", heads, "attention.head_count_kv")
    rank = fields.put_count("kv_lora_rank", "attention.kv_lora_rank")
    turning = fields.put_count("qk_rope_head_dim", "rope.dimension_count")
    compressed = fields.has("attention.key_length_mla")
    end = "_mla" if compressed else ""
    key, value = f"attention.key_length{end}", f"attention.value_length{end}"
    plain = fields.count(key) - turning
    if plain < 1:
        fields.fail(key, f"expected more than {turning} (rope.dimension_count)")
    fields.put("qk_nope_head_dim", plain, key)
    fields.put_count("v_head_dim", value)
    if compressed:
        _check_compressed(fields, rank, turning)
    rank_of_queries = fields.count("attention.q_lora_rank", 0, default=0)
    fields.put("q_lora_rank", rank_of_queries or None, "attention.q_lora_rank")
    put_rope(fields, log_multiplier=True)


def _check_compressed(fields: Fields, rank: int, turning: int) -> None:
    for key, expected in (("key_length", rank + turning), ("value_length", rank)):
        if fields.count(f"attention.{key}", default=expected) != expected:
            fields.fail(f"attention.{key}", f"expected {expected}, as attention.kv_lora_rank has")


def _put_precision(fields: Fields) -> None:
    """Set the precision by that of the routed experts: they are nearly all of a model."""
    experts = [info for name, info in fields.tensors.items() if is_expert(name)]
    kinds = {info.type.name for info in experts}
    if len(kinds) == 1 and kinds <= _FLOATS.keys():
        fields.put("dtype", _FLOATS[kinds.pop()])
        return
    weights = sum(info.size / info.type.bytes * info.type.weights for info in experts)
    bits = 8 * sum(info.size for info in experts) / weights if weights else 16.0
    if bits > 9:
        fields.put("dtype", "bfloat16")
    else:
        fields.put("quantization_config", {"quant_method": "gguf", "bits": 4 if bits < 5 else 8})


def _refuse_unread(fields: Fields) -> None:
    for key, value in fields.unread().items():
        if key not in _HARMLESS and value:
            fields.fail(
                key, f"{value!r} is not understood and may change what the model computes"[:200]
            )


def put_rope(fields: Fields, log_multiplier: bool = False) -> dict[str, Any]:
    """`log_multiplier`: the architecture sharpens scores by YaRN's temperature (DeepSeek-V2)."""
    theta = fields.number("rope.freq_base", default=_THETA)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    kind, factor = _kind_and_factor(fields)
    if kind != "none" and factor != 1.0:
        rope |= {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            rope |= _yarn(fields)
    if log_multiplier and fields.has(f"{_SCALING}.yarn_log_multiplier"):
        # Written as a tenth of it. llama.cpp takes `mscale` to be the same, as published.
        weight = fields.number(f"{_SCALING}.yarn_log_multiplier") * 10
        rope["mscale_all_dim"] = weight
        if kind == "yarn":
            rope["mscale"] = weight
    for field, key in (("rope_theta", "rope.freq_base"), ("factor", f"{_SCALING}.factor")):
        fields.put_origin(field, key)
    fields.put("rope_parameters", rope)
    return rope


def _kind_and_factor(fields: Fields) -> tuple[str, float]:
    """Older files give a linear factor and no kind."""
    kind = "linear"
    if fields.has(f"{_SCALING}.type"):
        kind = fields.text(f"{_SCALING}.type", _KINDS)
    key = _LEGACY_FACTOR if fields.has(_LEGACY_FACTOR) else f"{_SCALING}.factor"
    factor = fields.number(key, default=1.0) or 1.0
    return kind, factor


def _yarn(fields: Fields) -> dict[str, Any]:
    context = fields.count("context_length")
    found: dict[str, Any] = {
        "original_max_position_embeddings": fields.count(
            f"{_SCALING}.original_context_length", default=context
        )
    }
    for name in ("beta_fast", "beta_slow"):
        key = f"{_SCALING}.yarn_{name}"
        if fields.has(key):
            found[name] = fields.number(key)
    key = f"{_SCALING}.yarn_ext_factor"
    if fields.number(key, default=1.0) != 1.0:
        fields.fail(key, "expected 1, the share of YaRN that can be run")
    return found
