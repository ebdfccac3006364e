"""Where things are in a packed block, in numbers that Triton kernels take as constants."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.model_info.expert_block import FORMATS, SCALE_BYTES, STRIP, TILES, aligned
from moesaic.model_info.expert_shape import ExpertShape

BITS = {"bf16": 16, "int8": 8, "int4": 4}
_DTYPES = {bits: dtype for dtype, bits in BITS.items()}


@dataclass(frozen=True, slots=True)
class MatrixWords:
    """One packed matrix; sizes in 32-bit words."""

    outputs: int
    inputs: int
    bits: int

    @property
    def strips(self) -> int:
        return -(-self.outputs // STRIP)

    @property
    def per_word(self) -> int:
        return 32 // self.bits

    @property
    def rows(self) -> int:
        """Rows of 16 words in a strip, padding included."""
        tile = TILES[_DTYPES[self.bits]].inputs
        return -(-self.inputs // tile) * tile // self.per_word

    @property
    def scale_words(self) -> int:
        form = FORMATS.get(_DTYPES[self.bits])
        groups = 0 if form is None else form.groups(self.inputs)
        return aligned(groups * STRIP * SCALE_BYTES) // 4

    @property
    def strip_words(self) -> int:
        return self.scale_words + self.rows * STRIP


@dataclass(frozen=True, slots=True)
class BlockWords:
    """A whole expert: strips of gate and up in turns, then those of down."""

    shape: ExpertShape
    dtype: str

    @property
    def up(self) -> MatrixWords:
        return MatrixWords(self.shape.intermediate, self.shape.hidden, BITS[self.dtype])

    @property
    def down(self) -> MatrixWords:
        return MatrixWords(self.shape.hidden, self.shape.intermediate, BITS[self.dtype])

    @property
    def down_offset(self) -> int:
        return 2 * self.up.strips * self.up.strip_words

    @property
    def bytes(self) -> int:
        return 4 * (self.down_offset + self.down.strips * self.down.strip_words)
