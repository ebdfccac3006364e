"""Reads `quantization_config`: one of the forms in `kinds`, or BadConfig that names the field and
what is possible.

Only what changes the meaning of the stored numbers is read here. All else that a variant changes
(which modules are quantized, sizes, the order of columns) shows in the names, shapes and types of
its tensors, which are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.quantization.kinds import (
    Awq,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
    Scaled,
)

# Typed access to the `quantization_config` of a config.json, or to a table inside it; errors name
# the whole path of a field.

MAX_GROUP = 1 << 20  # weights that share a scale


class Table(ConfigReader):
    def __init__(self, fields: Mapping[str, Any], path: object, name: str) -> None:
        super().__init__(fields, path)
        self._name = name

    def inner(self, field: str) -> Table:
        return Table(self.table(field), self.path, f"{self._name}.{field}")

    def one_of(self, field: str, options: Sequence[int]) -> int:
        value = self.value(field)
        if type(value) is not int or value not in options:
            expected = " or ".join(map(str, options))
            self.fail(field, f"expected {expected}, not {short(value)}")
        return value

    def group(self, field: str) -> int | None:
        """How many weights share a scale; -1, for a whole row, is None."""
        if self.value(field) == -1:
            return None
        return self.count(field, maximum=MAX_GROUP)

    def block(self, field: str) -> tuple[int, int]:
        value = self.value(field)
        whole = isinstance(value, list) and all(type(size) is int for size in value)
        if not whole or len(value) != 2 or not all(1 <= size <= MAX_GROUP for size in value):
            self.fail(field, f"expected the rows and columns of a block, not {short(value)}")
        return value[0], value[1]

    def fail(self, field: str, expected: str) -> NoReturn:
        super().fail(f"{self._name}.{field}", expected)


# `quantization_config` of compressed-tensors: a format of its own around several forms, of which
# those are read that are like the others.

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
    """The weights of the first group of modules. Others may quantize activations, which stay as
    they are here, in another way, but not weights."""
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


FIELD = "quantization_config"
_FIRST_FORMAT, _SECOND_FORMAT = "gptq", "gptq_v2"  # GPTQ's, which differ in the zero points


class Method(NamedTuple):
    stored_as: str  # for the documentation
    read: Callable[[Table], Quantization]


def read_quantization(config: ConfigReader) -> Quantization | None:
    """None where weights are in floating point, or in GGUF, which states a type per tensor."""
    fields = config.table(FIELD)
    method = fields.get("quant_method")
    if not fields or method == "gguf":
        return None
    if not isinstance(method, str) or method not in METHODS:
        known = ", ".join(METHODS)
        what = f"weights quantized with {short(method)} cannot be read; can be read: {known}"
        config.fail(f"{FIELD}.quant_method", f"{what}, and the model in bf16, fp16 or fp32")
    return METHODS[method].read(Table(fields, config.path, FIELD))


def stored_bits(fields: Mapping[str, Any]) -> int | None:
    """About how many bits a weight takes, also where we cannot read it; None: not said."""
    method, bits = fields.get("quant_method"), fields.get("bits")
    if method == "compressed-tensors":
        groups = fields.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = first.get("weights") if isinstance(first, dict) else None
        bits = weights.get("num_bits") if isinstance(weights, dict) else None
    found = {"fp8": 8, "mxfp4": 4}.get(method) if isinstance(method, str) else None
    return found or (bits if type(bits) is int and bits in (4, 8) else None)


def _read_fp8(table: Table) -> Quantization:
    """DeepSeek-V3's blocks. How activations are rounded (`activation_scheme`) is not followed:
    they stay as they are here."""
    if table.has("fmt"):
        table.choice("fmt", ("e4m3",))
    if not table.has("weight_block_size"):
        return Scaled("F8_E4M3", "_scale_inv", None, None)
    rows, columns = table.block("weight_block_size")
    return Scaled("F8_E4M3", "_scale_inv", rows, columns)


def _read_gptq(table: Table) -> Quantization:
    bits = table.one_of("bits", (4, 8))
    name = "checkpoint_format"
    form = _FIRST_FORMAT
    if table.has(name):
        form = table.choice(name, (_FIRST_FORMAT, _SECOND_FORMAT))
    if table.has("pack_dtype"):
        table.choice("pack_dtype", ("int32",))
    return Gptq(bits, table.group("group_size"), zero_offset=1 if form == _FIRST_FORMAT else 0)


def _read_awq(table: Table) -> Quantization:
    table.one_of("bits", (4,))
    if table.has("version"):
        version = table.value("version")
        if not isinstance(version, str) or version.lower() != "gemm":
            table.fail("version", f"expected the layout gemm, not {short(version)}")
    if table.has("zero_point") and not table.flag("zero_point"):
        table.fail("zero_point", "expected true: without zero points the layout is another")
    return Awq(table.group("group_size"))


def _read_mxfp4(_: Table) -> Quantization:
    return Mxfp4()


# quant_method -> how its config is read
METHODS: dict[str, Method] = {
    "fp8": Method("F8_E4M3 with a scale per block (DeepSeek-V3) or per tensor", _read_fp8),
    "gptq": Method("4 or 8 bits, in the order of columns or of `g_idx`", _read_gptq),
    "awq": Method("4 bits, `gemm` layout", _read_awq),
    "mxfp4": Method("stacked experts in `_blocks` and `_scales` (gpt-oss)", _read_mxfp4),
    "compressed-tensors": Method(
        "`pack-quantized` (4 or 8 bits), `float-quantized`, `int-quantized` (8 bits)",
        read_compressed,
    ),
}
