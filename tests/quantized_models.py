"""Checkpoints whose matrices are stored quantized, written as the formats' publications say.
Integers are chosen first and put into words then, so that their values are known without unpacking.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
GROUP = 8  # divides all widths of the small models
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # column of a word in its first, second, ... nibble
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCK = (10, 24)  # divides none of the small models' matrices


class Stored(NamedTuple):
    parts: Tensors  # under the names they have in a file
    values: torch.Tensor  # fp32: what they mean


Store = Callable[[str, torch.Tensor], Stored]


def is_stack(name: str) -> bool:
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def is_projection(name: str) -> bool:
    """No embeddings, norms, routers or gates of shared experts."""
    endings = ("_proj", "_proj_with_mqa", ".w1", ".w2", ".w3", "lm_head")
    return name.endswith(tuple(f"{ending}.weight" for ending in endings))


class Form(NamedTuple):
    config: dict[str, Any]
    store: Store
    rows_of: int = 1  # a matrix is quantized if its rows are a multiple
    takes: Callable[[str], bool] = is_projection


def words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] unsigned to int32 [..., n * bits / 32], the first in the lowest bits; the last word
    may not be full."""
    per = 32 // bits
    missing = -numbers.shape[-1] % per
    padded = torch.nn.functional.pad(numbers.long(), (0, missing))
    found = torch.zeros(*padded.shape[:-1], padded.shape[-1] // per, dtype=torch.int64)
    for place in range(per):
        found |= padded[..., place::per] << (bits * place)
    return torch.where(found >= 2**31, found - 2**32, found).int()


def _grouped(matrix: torch.Tensor, group_of: torch.Tensor, bits: int) -> tuple[torch.Tensor, ...]:
    """Integers, zero points [out, groups] that differ, and fp16 scales, of a matrix [out, in]."""
    count, largest = int(group_of.max()) + 1, 2**bits - 1
    rows = matrix.shape[0]
    zeros = torch.arange(rows * count).view(rows, count) % (largest - 2) + 1
    scales = torch.stack([matrix[:, group_of == g].abs().amax(1) for g in range(count)], dim=1)
    scales = (scales / 2 ** (bits - 1)).half()
    spread = scales.float()[:, group_of]
    numbers = (matrix / spread).round().long() + zeros[:, group_of]
    return numbers.clamp(0, largest), zeros, scales


def _values(
    numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group_of: torch.Tensor
) -> torch.Tensor:
    found = torch.empty(numbers.shape)
    for column, group in enumerate(group_of.tolist()):
        found[:, column] = (numbers[:, column] - zeros[:, group]).float() * scales[:, group].float()
    return found


def gptq(
    name: str,
    matrix: torch.Tensor,
    bits: int = 4,
    less: int = 1,
    ordered: bool = False,
    index: bool = True,
) -> Stored:
    """`less`: of the zero points that are stored. `ordered`: inputs were quantized by importance,
    so that groups are spread over the columns."""
    columns = matrix.shape[1]
    group_of = torch.arange(columns) // GROUP
    if ordered:
        group_of = group_of[torch.randperm(columns, generator=torch.Generator().manual_seed(3))]
    numbers, zeros, scales = _grouped(matrix, group_of, bits)
    base = name.removesuffix(".weight")
    parts = {
        f"{base}.qweight": words(numbers, bits).T.contiguous(),
        f"{base}.qzeros": words((zeros - less).T, bits).contiguous(),
        f"{base}.scales": scales.T.contiguous(),
    }
    if index:
        parts[f"{base}.g_idx"] = group_of.int()
    return Stored(parts, _values(numbers, zeros, scales, group_of))


def awq(name: str, matrix: torch.Tensor) -> Stored:
    group_of = torch.arange(matrix.shape[1]) // GROUP
    numbers, zeros, scales = _grouped(matrix, group_of, 4)
    base = name.removesuffix(".weight")
    columns = torch.tensor(AWQ_COLUMNS)

    def packed(outputs_last: torch.Tensor) -> torch.Tensor:
        shuffled = outputs_last.unflatten(1, (-1, 8))[..., columns].flatten(1)
        return words(shuffled, 4)

    parts = {
        f"{base}.qweight": packed(numbers.T),
        f"{base}.qzeros": packed(zeros.T),
        f"{base}.scales": scales.T.contiguous(),
    }
    return Stored(parts, _values(numbers, zeros, scales, group_of))


def packed(
    name: str, matrix: torch.Tensor, bits: int = 4, symmetric: bool = False, ordered: bool = False
) -> Stored:
    """compressed-tensors keeps signed integers and adds half of their range to store them."""
    columns = matrix.shape[1]
    group_of = torch.arange(columns) // GROUP
    if ordered:
        group_of = group_of.flip(0)
    numbers, zeros, scales = _grouped(matrix, group_of, bits)
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    parts = {
        f"{name}_packed": words(numbers, bits),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor(matrix.shape),
    }
    if not symmetric:
        parts[f"{name}_zero_point"] = words(zeros.T, bits).T.contiguous()
    if ordered:
        parts[f"{name}_g_idx"] = group_of.int()
    return Stored(parts, _values(numbers, zeros, scales, group_of))


def scaled(
    name: str,
    matrix: torch.Tensor,
    suffix: str,
    rows: int | None,
    columns: int | None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Stored:
    """One scale per block; the last of a row and of a column are what is left."""
    largest = 127.0 if dtype == torch.int8 else 448.0
    rows, columns = rows or matrix.shape[0], columns or matrix.shape[1]
    numbers, values = torch.empty(matrix.shape, dtype=dtype), torch.empty(matrix.shape)
    scales: list[list[torch.Tensor]] = []
    for top in range(0, matrix.shape[0], rows):
        scales.append([])
        for left in range(0, matrix.shape[1], columns):
            where = slice(top, top + rows), slice(left, left + columns)
            scale = matrix[where].abs().max() / largest
            exact = matrix[where] / scale
            numbers[where] = (exact.round() if dtype == torch.int8 else exact).to(dtype)
            values[where] = numbers[where].float() * scale
            scales[-1].append(scale)
    found = torch.tensor(scales)
    whole = rows == matrix.shape[0] and columns == matrix.shape[1]
    return Stored({name: numbers, f"{name}{suffix}": found.view(1) if whole else found}, values)


def mxfp4(name: str, stack: torch.Tensor) -> Stored:
    """A stack [experts, in, out] as gpt-oss has it: blocks of 32 inputs of one output."""
    blocks = stack.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = (blocks.abs().amax(-1) / 6).log2().ceil().clamp(-100, 100)
    exact = blocks / 2 ** exponents[..., None]
    codes = (exact[..., None] - torch.tensor(FP4)).abs().argmin(-1)
    values = torch.tensor(FP4)[codes] * 2 ** exponents[..., None]
    parts = {
        f"{name}_blocks": (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8),
        f"{name}_scales": (exponents + 127).to(torch.uint8),
    }
    return Stored(parts, values.flatten(2).transpose(1, 2).contiguous())


def stacked(store: Store, name: str, stack: torch.Tensor) -> Stored:
    """Every matrix of a stack by itself, and their parts stacked."""
    found = [store(name, matrix) for matrix in stack]
    parts = {part: torch.stack([each.parts[part] for each in found]) for part in found[0].parts}
    return Stored(parts, torch.stack([each.values for each in found]))


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False} | weights
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}
        },
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": None,
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
_FLOAT = {"num_bits": 8, "type": "float"}
_GROUPS = {"strategy": "group", "group_size": GROUP}

FORMS: dict[str, Form] = {
    "fp8": Form(
        _FP8 | {"weight_block_size": list(BLOCK)},
        partial(scaled, suffix="_scale_inv", rows=BLOCK[0], columns=BLOCK[1]),
    ),
    "fp8-whole": Form(_FP8, partial(scaled, suffix="_scale_inv", rows=None, columns=None)),
    "gptq": Form(_GPTQ | {"desc_act": True}, partial(gptq, ordered=True), 8),
    "gptq-no-index": Form(_GPTQ, partial(gptq, index=False), 8),
    "gptq-v2": Form(_GPTQ | {"checkpoint_format": "gptq_v2"}, partial(gptq, less=0), 8),
    "gptq-8": Form(_GPTQ | {"bits": 8}, partial(gptq, bits=8), 4),
    "awq": Form(
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
        awq,
        8,
    ),
    "packed": Form(_compressed("pack-quantized", symmetric=False, **_GROUPS), packed),
    "packed-symmetric": Form(
        _compressed("pack-quantized", **_GROUPS), partial(packed, symmetric=True, ordered=True)
    ),
    "packed-8": Form(
        _compressed("pack-quantized", num_bits=8, symmetric=False, **_GROUPS),
        partial(packed, bits=8),
    ),
    "float-rows": Form(
        _compressed("float-quantized", strategy="channel", **_FLOAT),
        partial(scaled, suffix="_scale", rows=1, columns=None),
    ),
    "float-blocks": Form(
        _compressed("float-quantized", strategy="block", block_structure=list(BLOCK), **_FLOAT),
        partial(scaled, suffix="_scale", rows=BLOCK[0], columns=BLOCK[1]),
    ),
    "int-rows": Form(
        _compressed("int-quantized", strategy="channel", num_bits=8),
        partial(scaled, suffix="_scale", rows=1, columns=None, dtype=torch.int8),
    ),
}


STACKS: dict[str, Form] = {
    "fp8": FORMS["fp8"]._replace(store=partial(stacked, FORMS["fp8"].store), takes=is_stack),
    "mxfp4": Form({"quant_method": "mxfp4"}, mxfp4, takes=is_stack),
}


class Pair(NamedTuple):
    quantized: Path
    values: Path  # the same model, the values of its quantized matrices in fp32


def write(folder: Path, to: Path, form: Form) -> Pair:
    """All projections of a checkpoint quantized: attention, dense, shared and routed experts."""
    stored: Tensors = {}
    values: Tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if form.takes(name) and tensor.shape[0] % form.rows_of == 0:
            found = form.store(name, tensor)
            stored |= found.parts
            values[name] = found.values
        else:
            stored[name] = values[name] = tensor
    config = json.loads((folder / "config.json").read_text())
    pair = Pair(to / "quantized", to / "values")
    for place, tensors, more in (
        (pair.quantized, stored, {"quantization_config": form.config}),
        (pair.values, values, {}),
    ):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return pair
