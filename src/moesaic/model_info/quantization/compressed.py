"""`quantization_config` of compressed-tensors: a format of its own around several forms, of which
those are read that are like the others."""

from __future__ import annotations

from moesaic.core.parsing import short
from moesaic.model_info.quantization.kinds import PackedIntegers, Quantization, Scaled
from moesaic.model_info.quantization.table import Table

_PACKED = "pack-quantized"
_SCALED = {"float-quantized": "float", "int-quantized": "int"}  # format -> type of the numbers
_FORMATS = (_PACKED, *_SCALED)
_OFF = ("kv_cache_scheme", "transform_config")  # change what the model computes


def read_compressed(table: Table) -> Quantization:
    for name in _OFF:
        if table.value(name):
            table.fail(name, f"expected null, {short(table.value(name))} cannot be run")
    sparse = table.inner("sparsity_config")
    if sparse.has("format"):
        sparse.choice("format", ("dense",))
    weights = _weights(table)
    form = table.choice("format", _FORMATS)
    if weights.has("dynamic") and weights.value("dynamic") is not False:
        weights.fail("dynamic", "expected false for weights")
    return _packed(weights) if form == _PACKED else _scaled(weights, _SCALED[form])


def _weights(table: Table) -> Table:
    """Of the first group of modules. Others may quantize activations, which stay as they are here,
    in another way, but not weights."""
    groups = table.inner("config_groups")
    found = [groups.inner(name).inner("weights") for name in table.table("config_groups")]
    fields = [groups.inner(name).table("weights") for name in table.table("config_groups")]
    if not found or not fields[0]:
        table.fail("config_groups", "expected a group that says how weights are quantized")
    if any(other != fields[0] for other in fields):
        what = "expected weights quantized in one way, the groups state several"
        table.fail("config_groups", what)
    return found[0]


def _packed(weights: Table) -> Quantization:
    weights.choice("type", ("int",))
    bits = weights.one_of("num_bits", (4, 8))
    strategy = weights.choice("strategy", ("group", "channel"))
    group = weights.group("group_size") if strategy == "group" else None
    return PackedIntegers(bits, group, weights.flag("symmetric"))


def _scaled(weights: Table, kind: str) -> Quantization:
    weights.choice("type", (kind,))
    weights.one_of("num_bits", (8,))
    if not weights.flag("symmetric"):
        weights.fail("symmetric", "expected true with 8 bits that are not packed")
    element = "F8_E4M3" if kind == "float" else "I8"
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "block"))
    rows: int | None = 1
    columns: int | None = None
    if strategy == "tensor":
        rows = None
    elif strategy == "group":
        columns = weights.group("group_size")
    elif strategy == "block":
        rows, columns = weights.block("block_structure")
    return Scaled(element, "_scale", rows, columns)
