"""Small valid checkpoints of every quantized form, for the fuzzer: one matrix [8, 8], or a stack of
them, and the config that says how it is stored."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

OUT, IN = 8, 32  # MXFP4 has blocks of 32
NAME = "model.layers.0.mlp.x.weight"
STACK = "model.layers.0.mlp.experts.down_proj"
_SIZES = {"F8_E4M3": 1, "I8": 1, "U8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8}
_BASE = NAME.removesuffix(".weight")


class Example(NamedTuple):
    config: dict[str, Any]
    name: str  # of the matrix, or of the stack
    shape: tuple[int, ...]
    tensors: dict[str, tuple[str, list[int]]]  # type and shape by name
    numbers: Mapping[str, bytes] = MappingProxyType({})  # where a tensor's data may not be 0

    def header(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        start = 0
        for name, (dtype, shape) in self.tensors.items():
            end = start + math.prod(shape) * _SIZES[dtype]
            fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
            start = end
        return fields

    def data(self) -> bytes:
        sizes = {n: math.prod(shape) * _SIZES[dtype] for n, (dtype, shape) in self.tensors.items()}
        return b"".join(self.numbers.get(name, bytes(size)) for name, size in sizes.items())


def _matrix(config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]]) -> Example:
    shape = {f"{NAME}_shape": struct.pack("<2q", OUT, IN)}
    return Example(config, NAME, (OUT, IN), tensors, shape)


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    weights = {"symmetric": True, "dynamic": False} | weights
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "kv_cache_scheme": None,
        "sparsity_config": {"format": "dense"},
    }


_GROUPS = {"strategy": "group", "group_size": 16}
EXAMPLES: tuple[Example, ...] = (
    _matrix(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [5, 16]},
        {NAME: ("F8_E4M3", [OUT, IN]), f"{NAME}_scale_inv": ("F32", [2, 2])},
    ),
    _matrix(
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq"},
        {
            f"{_BASE}.qweight": ("I32", [IN // 8, OUT]),
            f"{_BASE}.qzeros": ("I32", [2, OUT // 8]),
            f"{_BASE}.scales": ("F16", [2, OUT]),
            f"{_BASE}.g_idx": ("I32", [IN]),
        },
    ),
    _matrix(
        {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "gemm", "zero_point": True},
        {
            f"{_BASE}.qweight": ("I32", [IN, OUT // 8]),
            f"{_BASE}.qzeros": ("I32", [1, OUT // 8]),
            f"{_BASE}.scales": ("F16", [1, OUT]),
        },
    ),
    _matrix(
        _compressed("pack-quantized", num_bits=4, type="int", symmetric=False, **_GROUPS),
        {
            f"{NAME}_packed": ("I32", [OUT, IN // 8]),
            f"{NAME}_scale": ("BF16", [OUT, 2]),
            f"{NAME}_zero_point": ("I32", [OUT // 8, 2]),
            f"{NAME}_shape": ("I64", [2]),
            f"{NAME}_g_idx": ("I32", [IN]),
        },
    ),
    _matrix(
        _compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        {NAME: ("F8_E4M3", [OUT, IN]), f"{NAME}_scale": ("BF16", [1])},
    ),
    Example(
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        STACK,
        (3, IN, OUT),
        {
            f"{STACK}_blocks": ("U8", [3, OUT, IN // 32, 16]),
            f"{STACK}_scales": ("U8", [3, OUT, IN // 32]),
        },
    ),
)
