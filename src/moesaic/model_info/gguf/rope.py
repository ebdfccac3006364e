"""Rotary positions from GGUF keys, as the `rope_parameters` of a config.json."""

from __future__ import annotations

from typing import Any

from moesaic.model_info.gguf.fields import Fields

_THETA = 10000.0  # llama.cpp's, where a file says nothing
_KINDS = ("none", "linear", "yarn")
_SCALING = "rope.scaling"
_LEGACY_FACTOR = "rope.scale_linear"


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
