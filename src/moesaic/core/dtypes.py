"""Weight precisions and what they cost in bytes, scales included."""

from __future__ import annotations

from moesaic.core.errors import UnknownName

# Bits per weight. int8 carries one 16-bit scale per 256 weights; int4 one per 32 weights,
# the density of the common 4-bit formats (4.5 bits).
BITS_PER_WEIGHT: dict[str, float] = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "int8": 8.0625,
    "int4": 4.5,
}


def weight_bytes(parameters: int, dtype: str) -> int:
    """Bytes that `parameters` weights take in `dtype`."""
    if dtype not in BITS_PER_WEIGHT:
        raise UnknownName("dtype", dtype, BITS_PER_WEIGHT)
    return round(parameters * BITS_PER_WEIGHT[dtype] / 8)
