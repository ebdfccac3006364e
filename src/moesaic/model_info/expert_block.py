"""How many bytes a packed expert takes and where its parts lie, for kernels that fill blocks and
for plans made before anything is allocated. Knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from moesaic.core.dtypes import weight_bytes

ALIGNMENT = 64  # bytes: a cache line, and a multiple of every element size
SCALE_BYTES = 2  # of a group's scale
BIAS_BYTES = 4  # of one bias
# How a block's bytes are laid out, by what fills it. Packed files name it: a change of the bytes
# is a new number here, and old files are refused.
ROWS = "rows-1"  # kernels/reference.py, kernels/quantized.py
STRIPS = "strips-1"  # native/layout/, the same for every instruction set


@dataclass(frozen=True, slots=True)
class GroupFormat:
    bits: int
    group: int  # weights that share a scale; a row's last group may be shorter
    largest_code: int  # what the group's largest weight becomes

    def groups(self, columns: int) -> int:
        return -(-columns // self.group)

    def row_bytes(self, columns: int) -> int:
        """The bytes of one row's codes; int4 fills an odd row up."""
        return -(-columns * self.bits // 8)


FORMATS: dict[str, GroupFormat] = {
    "int8": GroupFormat(bits=8, group=256, largest_code=127),
    "int4": GroupFormat(bits=4, group=32, largest_code=-8),
}


class MatrixPlace(NamedTuple):
    """The place of one quantised matrix in a block."""

    rows: int
    columns: int
    codes_at: int
    scales_at: int


class BlockLayout(NamedTuple):
    gate_up: MatrixPlace
    down: MatrixPlace
    bytes: int


def lay_out(form: GroupFormat, hidden: int, intermediate: int) -> BlockLayout:
    """Codes of gate and up, codes of down, then their scales, each part aligned."""
    sizes = ((2 * intermediate, hidden), (hidden, intermediate))
    end, codes_at, scales_at = 0, [], []
    for rows, columns in sizes:
        codes_at.append(end)
        end = aligned(end + rows * form.row_bytes(columns))
    for rows, columns in sizes:
        scales_at.append(end)
        end = aligned(end + rows * form.groups(columns) * SCALE_BYTES)
    layouts = zip(sizes, codes_at, scales_at, strict=True)
    gate_up, down = (MatrixPlace(*size, codes, scales) for size, codes, scales in layouts)
    return BlockLayout(gate_up, down, end)


def block_bytes(dtype: str, hidden: int, intermediate: int, bias: bool = False) -> int:
    """The bytes of one packed expert, in any precision: enough for any kernel that fills it. Biases
    of gate, up and down, in fp32, are the last part."""
    biases = aligned(BIAS_BYTES * (2 * intermediate + hidden)) if bias else 0
    return _weight_part_bytes(dtype, hidden, intermediate) + biases


def _weight_part_bytes(dtype: str, hidden: int, intermediate: int) -> int:
    if dtype in FORMATS:
        rows = lay_out(FORMATS[dtype], hidden, intermediate).bytes
    else:
        rows = aligned(weight_bytes(3 * hidden * intermediate, dtype))
    return max(rows, strips_bytes(dtype, hidden, intermediate)) if dtype in TILES else rows


class Tile(NamedTuple):
    """16 outputs by so many inputs, as the native kernels keep weights (docs/kernels.md)."""

    inputs: int
    bytes: int


STRIP = 16  # outputs
TILES = {"bf16": Tile(32, 1024), "int8": Tile(64, 1024), "int4": Tile(32, 256)}


def strips_bytes(dtype: str, hidden: int, intermediate: int) -> int:
    """The bytes of one expert in strips: gate and up, then down."""
    up, down = _strip_bytes(dtype, hidden), _strip_bytes(dtype, intermediate)
    return 2 * -(-intermediate // STRIP) * up + -(-hidden // STRIP) * down


def matrix_bytes(dtype: str, outputs: int, inputs: int) -> int:
    """The bytes of one matrix in strips."""
    return -(-outputs // STRIP) * _strip_bytes(dtype, inputs)


def _strip_bytes(dtype: str, inputs: int) -> int:
    tile = TILES[dtype]
    groups = FORMATS[dtype].groups(inputs) if dtype in FORMATS else 0
    return aligned(groups * STRIP * SCALE_BYTES) + -(-inputs // tile.inputs) * tile.bytes


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
