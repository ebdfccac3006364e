"""The quantized forms of a matrix [out, in] that are read, each with what its config states.

A form is the names, shapes and types of the tensors that a matrix is stored as;
`models/checkpoints/quantized` has the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaled:
    """One number per weight, and one scale per block of `rows` x `columns` of them."""

    element: str  # as safetensors calls it: F8_E4M3 or I8
    suffix: str  # of the scales' name: the matrix's name and this
    rows: int | None  # None: all of them
    columns: int | None

    @property
    def title(self) -> str:
        return "FP8" if self.element == "F8_E4M3" else "8-bit integers"

    @property
    def bits(self) -> int:
        return 8


@dataclass(frozen=True, slots=True)
class Gptq:
    bits: int
    group: int | None  # inputs that share a scale; None: all of them
    zero_offset: int  # what is added to the zero points that are stored

    @property
    def title(self) -> str:
        return f"GPTQ {self.bits}-bit"


@dataclass(frozen=True, slots=True)
class Awq:
    group: int | None

    @property
    def title(self) -> str:
        return "AWQ 4-bit"

    @property
    def bits(self) -> int:
        return 4


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """compressed-tensors, `pack-quantized`."""

    bits: int
    group: int | None
    symmetric: bool

    @property
    def title(self) -> str:
        return f"packed {self.bits}-bit integers"


@dataclass(frozen=True, slots=True)
class Mxfp4:
    @property
    def title(self) -> str:
        return "MXFP4"

    @property
    def bits(self) -> int:
        return 4


Quantization = Scaled | Gptq | Awq | PackedIntegers | Mxfp4
