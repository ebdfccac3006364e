"""The tensor types of GGUF: how many weights a block has and how many bytes it takes."""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    name: str
    weights: int  # of one block
    bytes: int


F32 = TensorType("F32", 1, 4)
F16 = TensorType("F16", 1, 2)
BF16 = TensorType("BF16", 1, 2)
Q4_0 = TensorType("Q4_0", 32, 18)
Q4_1 = TensorType("Q4_1", 32, 20)
Q5_0 = TensorType("Q5_0", 32, 22)
Q5_1 = TensorType("Q5_1", 32, 24)
Q8_0 = TensorType("Q8_0", 32, 34)
Q4_K = TensorType("Q4_K", 256, 144)
Q5_K = TensorType("Q5_K", 256, 176)
Q6_K = TensorType("Q6_K", 256, 210)
MXFP4 = TensorType("MXFP4", 32, 17)

# The number a file has for it -> type. These are the types we read.
TYPES: dict[int, TensorType] = {
    0: F32,
    1: F16,
    2: Q4_0,
    3: Q4_1,
    6: Q5_0,
    7: Q5_1,
    8: Q8_0,
    12: Q4_K,
    13: Q5_K,
    14: Q6_K,
    30: BF16,
    39: MXFP4,
}
# Known by name only, for messages.
OTHERS: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
