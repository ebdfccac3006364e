"""Reads a Hugging Face config.json, or a GGUF file's metadata, into a `ModelSpec`.

Knows which fields all families share; what differs between them is in `model_families`.
Knows nothing of weights or of named models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadConfig
from moesaic.core.files import has_regular_file
from moesaic.core.parsing import read_json, short
from moesaic.model_info.config_reader import MAX_EXPERTS, MAX_LAYERS, ConfigReader
from moesaic.model_info.dense_models import refuse_dense
from moesaic.model_info.gguf.config import read_gguf_config
from moesaic.model_info.gguf.files import is_gguf, model_name
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.model_families import FAMILIES, Family
from moesaic.model_info.model_spec import LatentAttentionSizes, ModelSpec
from moesaic.model_info.quantization.read import stored_bits
from moesaic.model_info.sliding_window import FULL, read_windows
from moesaic.model_info.text_config import text_fields

_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
LINEAR = "linear_attention"
_INTERVAL = 4  # every fourth layer sees all tokens, where a file does not say
_LONGEST_KERNEL = 64


def read_model_config(path: str | os.PathLike[str]) -> ModelSpec:
    """The model that `path` describes: a config.json, a directory with one, or a GGUF file."""
    return model_spec(open_config(path))


def open_config(path: str | os.PathLike[str]) -> ConfigReader:
    """The fields of a config.json, or of the one in a directory, whatever they say; of a GGUF
    file, those its config.json would have."""
    given = Path(path)
    if is_gguf(given):
        return read_gguf_config(given)
    file = given / "config.json" if given.is_dir() else given
    others = sorted(given.glob("*.gguf")) if given.is_dir() and not file.is_file() else []
    if others:
        what = f"expected a config.json; found {others[0].name}: give the name of that file"
        raise BadConfig(file, "file", what)
    return ConfigReader(text_fields(_parse(file)), file)


def model_spec(config: ConfigReader) -> ModelSpec:
    model_type = config.value("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        refuse_dense(config)
        supported = ", ".join(sorted(FAMILIES))
        config.fail(
            "model_type", f"unsupported architecture {short(model_type)}; supported: {supported}"
        )
    return _spec(config, model_type, _name(Path(str(config.path))))


def _parse(file: Path) -> dict[str, Any]:
    if not has_regular_file(file, BadConfig):
        raise BadConfig(file, "file", "expected a config.json, there is none here")
    content = read_json(file, BadConfig)
    if not isinstance(content, dict):
        raise BadConfig(file, "file", "expected a JSON object with the model's fields")
    return content


def _name(file: Path) -> str:
    """The folder's; in the hub's cache, models--OWNER--NAME/snapshots/COMMIT, the repository's."""
    if file.name != "config.json":
        return model_name(file)
    folder = file.parent.resolve()  # the file itself may be a link to another place
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        return folder.parents[1].name.rpartition("--")[2]
    return folder.name


def _spec(config: ConfigReader, model_type: str, name: str) -> ModelSpec:
    family = FAMILIES[model_type]
    layers = config.count("num_hidden_layers", maximum=MAX_LAYERS)
    moe_layers = _moe_layers(config, family, layers)
    experts = config.count(_experts_field(config, family), maximum=MAX_EXPERTS)
    all_route = len(moe_layers) == layers
    latent = _latent_attention(config) if family.latent_attention else None
    context = config.count("max_position_embeddings")
    window: tuple[int, tuple[int, ...]] = (0, ())
    linear: LinearAttentionSizes | None = None
    linear_layers: tuple[int, ...] = ()
    if family.linear_attention:
        linear_layers = read_linear_layers(config, layers)
        linear = read_linear_attention(config)
    else:
        window = read_windows(config, family.window, layers, context)
    return ModelSpec(
        name=name,
        family=model_type,
        num_layers=layers,
        moe_layers=moe_layers,
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        num_experts=experts,
        top_k=_top_k(config, family.top_k, experts),
        expert_intermediate=config.count(family.expert_width),
        shared_intermediate=family.shared_width(config),
        dense_intermediate=0 if all_route else config.count("intermediate_size"),
        num_heads=config.count("num_attention_heads"),
        num_kv_heads=_kv_heads(config),
        head_dim=_head_dim(config, family, latent),
        latent_attention=latent,
        scoring=family.scoring(config),
        normalized_topk=family.normalized(config),
        tied_embeddings=config.flag("tie_word_embeddings"),
        max_context=context,
        sliding_window=window[0],
        window_layers=window[1],
        linear_attention=linear,
        linear_layers=linear_layers,
        output_gate=family.linear_attention,
        attention_sinks=family.attention_sinks,
        expert_bias=family.expert_bias,
        native_dtype=_native_dtype(config),
        source=str(config.path),
    )


def _moe_layers(config: ConfigReader, family: Family, layers: int) -> tuple[int, ...]:
    found = family.moe_layers(config, layers)
    if not found:
        config.fail("num_hidden_layers", f"none of the {layers} layers has routed experts")
    return found


def _experts_field(config: ConfigReader, family: Family) -> str:
    name, other = family.experts, family.experts_also
    if other is None or not config.has(other):
        return name
    if config.has(name) and config.value(name) != config.value(other):
        config.fail(
            other, f"says {short(config.value(other))}, but {name} says {short(config.value(name))}"
        )
    return other


def _top_k(config: ConfigReader, field: str, experts: int) -> int:
    top_k = config.count(field)
    if top_k > experts:
        config.fail(field, f"expected at most {experts} (experts), not {top_k}")
    return top_k


def _kv_heads(config: ConfigReader) -> int:
    heads, kv_heads = config.count("num_attention_heads"), config.count("num_key_value_heads")
    if heads % kv_heads:
        config.fail("num_key_value_heads", f"expected a divisor of {heads} (heads), not {kv_heads}")
    return kv_heads


def _head_dim(config: ConfigReader, family: Family, latent: LatentAttentionSizes | None) -> int:
    """Width of a query head: stated, or by convention hidden_size / num_attention_heads."""
    if latent is not None:
        return latent.qk_nope_head_dim + latent.qk_rope_head_dim
    if family.states_head_dim or config.has("head_dim"):
        return config.count("head_dim")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        config.fail("head_dim", f"is missing, and hidden_size {hidden} is not {heads} equal heads")
    return hidden // heads


def _latent_attention(config: ConfigReader) -> LatentAttentionSizes:
    return LatentAttentionSizes(
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
        q_lora_rank=config.nullable_count("q_lora_rank"),
    )


def _native_dtype(config: ConfigReader) -> str:
    """The precision the weights are published in. A shape-less detail: files that do not state
    it are read as bf16, which all these families were released in; quantized weights as the
    precision of ours that takes about as many bytes."""
    quantization = config.table("quantization_config")
    method = quantization.get("quant_method")
    if method is not None and not isinstance(method, str):
        what = f"expected the name of a method, not {short(method)}"
        config.fail("quantization_config.quant_method", what)
    bits = stored_bits(quantization)
    if bits is not None:
        return f"int{bits}"
    field = "dtype" if config.has("dtype") else "torch_dtype"
    if not config.has(field):
        return "bf16"
    return _TORCH_DTYPES[config.choice(field, tuple(_TORCH_DTYPES))]


def read_linear_layers(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """The layers with linear attention: listed, or all but every n-th."""
    kinds, field = config.value("layer_types"), "full_attention_interval"
    interval = config.count(field) if config.has(field) else _INTERVAL
    by_interval = tuple(n for n in range(layers) if (n + 1) % interval)
    if not kinds:
        return by_interval
    if not isinstance(kinds, list) or any(kind not in (FULL, LINEAR) for kind in kinds):
        what = f"expected a list of {FULL} and {LINEAR}, not {short(kinds)}"
        config.fail("layer_types", what)
    if len(kinds) != layers:
        config.fail("layer_types", f"expected {layers} (layers), not {len(kinds)}")
    listed = tuple(number for number, kind in enumerate(kinds) if kind == LINEAR)
    if config.has(field) and listed != by_interval:
        config.fail(field, f"says {interval}, but layer_types lists other layers")
    return listed


def read_linear_attention(config: ConfigReader) -> LinearAttentionSizes:
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if values % keys:
        what = f"expected a multiple of {keys} (linear_num_key_heads), not {values}"
        config.fail("linear_num_value_heads", what)
    return LinearAttentionSizes(
        key_heads=keys,
        value_heads=values,
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim", minimum=2, maximum=_LONGEST_KERNEL),
    )
