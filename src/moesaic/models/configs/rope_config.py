"""Reads the rotary embedding from a config.json: today's `rope_parameters`, or the older
`rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.network import Rope
from moesaic.models.configs.config_fields import refuse_rope_not_understood
from moesaic.models.configs.families import RunnableFamily

Kind = Literal["default", "linear", "yarn"]
_ROTATED = "partial_rotary_factor"
_OUTSIDE = ("rope_theta", _ROTATED)  # may be given outside the table
_KINDS: dict[str, Kind] = {"default": "default", "linear": "linear", "yarn": "yarn"}


def read_rope(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> Rope:
    fields = _fields(config)
    rope = _rope(fields, spec, family)
    refuse_rope_not_understood(fields)
    return replace(rope, interleaved=_interleaved(config, family))


def _interleaved(config: ConfigReader, family: RunnableFamily) -> bool:
    if family.states_interleaving and config.has("rope_interleave"):
        return config.flag("rope_interleave")
    return family.interleaved_rope


def _rope(fields: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> Rope:
    kind = _kind(fields)
    dim = _rotary_dim(fields, spec, family)
    theta = fields.number("rope_theta", minimum=1.0)
    if kind == "default":
        return Rope(kind, theta, dim)
    if kind == "linear":
        return Rope(kind, theta, dim, fields.number("factor", minimum=1.0))
    if theta == 1.0:
        fields.fail("rope_theta", "expected a number above 1 with YaRN, not 1.0")
    original = _original_context(fields, spec)
    factor = _yarn_factor(fields, spec, original)
    return Rope(
        kind=kind,
        theta=theta,
        dim=dim,
        factor=factor,
        original_context=original,
        beta_fast=(fields.has("beta_fast") and fields.number("beta_fast")) or 32.0,
        beta_slow=(fields.has("beta_slow") and fields.number("beta_slow")) or 1.0,
        truncate=fields.flag("truncate") if fields.has("truncate") else True,
        magnitude=_magnitude(fields, factor),
    )


def score_magnitude(config: ConfigReader) -> float:
    """What latent attention multiplies its scores by, once for queries and once for keys:
    stretched positions need sharper scores (YaRN with `mscale_all_dim`)."""
    fields = _fields(config)
    if _kind(fields) == "default" or not fields.has("mscale_all_dim"):
        return 1.0
    weight = fields.number("mscale_all_dim")
    return _mscale(fields.number("factor"), weight) if weight else 1.0


def _fields(config: ConfigReader) -> ConfigReader:
    """All fields about positions, in one table. Transformers before 5.18 writes a default of
    `partial_rotary_factor` beside the tables and computes with the table's."""
    fields: dict[str, Any] = {}
    tables = (config.table("rope_parameters"), config.table("rope_scaling"))
    outer = {name: config.value(name) for name in _OUTSIDE if config.has(name)}
    if _ROTATED in tables[0]:
        outer.pop(_ROTATED, None)
    for table in (*tables, outer):
        for name, value in table.items():
            if fields.setdefault(name, value) != value:
                config.fail(
                    name, f"is stated twice, as {short(fields[name])} and as {short(value)}"
                )
    return config.nested(fields)


def _kind(fields: ConfigReader) -> Kind:
    field = "rope_type" if fields.has("rope_type") else "type"
    return _KINDS[fields.choice(field, tuple(_KINDS))] if fields.has(field) else "default"


def _rotary_dim(fields: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> int:
    if spec.latent_attention is not None:
        return spec.latent_attention.qk_rope_head_dim
    share, name = family.default_rotary, _ROTATED
    if share < 1 and fields.has(name):
        share = fields.number(name)
    dim = int(spec.head_dim * share)
    if dim % 2 or not 0 < dim <= spec.head_dim:
        fields.fail(name, f"expected an even share of {spec.head_dim} (head_dim), not {share:g}")
    return dim


def _original_context(fields: ConfigReader, spec: ModelSpec) -> int:
    name = "original_max_position_embeddings"
    return fields.count(name) if fields.has(name) else spec.max_context


def _yarn_factor(fields: ConfigReader, spec: ModelSpec, original: int) -> float:
    """Stated, or null: then what the stated context is to the original one."""
    if fields.has("factor"):
        return fields.number("factor", minimum=1.0)
    return spec.max_context / original


def _magnitude(fields: ConfigReader, factor: float) -> float:
    if fields.has("attention_factor"):
        return fields.number("attention_factor")
    mscale = fields.number("mscale") if fields.has("mscale") else 0.0
    all_dim = fields.number("mscale_all_dim") if fields.has("mscale_all_dim") else 0.0
    if mscale and all_dim:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    """YaRN's attention temperature, 0.1 ln(s) + 1, its logarithm weighted."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
