"""Is a quantized checkpoint that is damaged, or of a variant that is not read, refused with file
and field?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantized_models
import stock
from moesaic.core.errors import BadCheckpoint, BadConfig
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.model_config import read_model_config
from moesaic.model_info.quantization.kinds import PackedIntegers, Scaled
from moesaic.model_info.quantization.read import FIELD, read_quantization
from moesaic.models.open_model import load_resident_experts, open_model
from quantized_models import FORMS, Tensors

EXPERT = "model.layers.1.mlp.experts.2.up_proj"
Change = Callable[[Tensors], object]


def checkpoint(form: str, to: Path, change: Change = lambda tensors: None) -> Path:
    folder = quantized_models.write(stock.saved("qwen3-moe").folder, to, FORMS[form]).quantized
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def put(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


def drop(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


INT = torch.int32


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        ("gptq", drop(f"{EXPERT}.scales"), f"{EXPERT}.scales: the tensor is missing"),
        ("gptq", drop(f"{EXPERT}.qweight"), f"{EXPERT}.weight: the tensor is missing"),
        (
            "gptq",
            put(f"{EXPERT}.qzeros", torch.zeros(4, 4, dtype=INT)),
            f"{EXPERT}.qzeros: expected shape [4, 3], found [4, 4]",
        ),
        (
            "gptq",
            put(f"{EXPERT}.scales", torch.zeros(4, 24, dtype=INT)),
            f"{EXPERT}.scales: stored as I32; expected F32, F16, BF16",
        ),
        (
            "gptq",
            put(f"{EXPERT}.weight", torch.zeros(24, 32)),
            f"{EXPERT}.weight: nothing in qwen3_moe as config.json describes it uses this",
        ),
        (
            "gptq",
            put("model.norm.qweight", torch.zeros(4, 4, dtype=INT)),
            "model.norm.weight: expected a matrix where [32] is expected",
        ),
        (
            "awq",
            put(f"{EXPERT}.qweight", torch.zeros(32, 24, dtype=INT)),
            f"{EXPERT}.qweight: expected shape [32, 3], found [32, 24]",
        ),
        ("packed", drop(f"{EXPERT}.weight_zero_point"), "weight_zero_point: the tensor is missing"),
        (
            "fp8",
            put(f"{EXPERT}.weight_scale_inv", torch.ones(1, 2)),
            f"{EXPERT}.weight_scale_inv: expected shape [3, 2], found [1, 2]",
        ),
        (
            "fp8",
            put(f"{EXPERT}.weight", torch.zeros(24, 32)),
            f"{EXPERT}.weight: stored as F32; expected F8_E4M3",
        ),
        (
            "fp8",
            drop(f"{EXPERT}.weight_scale_inv"),
            f"{EXPERT}.weight: stored as F8_E4M3; expected",
        ),
        (
            "int-rows",
            put(f"{EXPERT}.weight", torch.zeros(24, 32, dtype=torch.uint8)),
            f"{EXPERT}.weight: stored as U8; expected I8",
        ),
    ],
)
def test_a_part_that_does_not_fit(form: str, change: Change, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=re.escape(said)) as caught:
        open_model(checkpoint(form, tmp_path, change))
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        ("gptq", put(f"{EXPERT}.g_idx", torch.full((32,), 4, dtype=INT)), "outside 0 to 3"),
        ("gptq", put(f"{EXPERT}.g_idx", torch.full((32,), -1, dtype=INT)), "outside 0 to 3"),
        (
            "packed",
            put(f"{EXPERT}.weight_shape", torch.tensor([32, 24])),
            "weight_shape says [32, 24], expected [24, 32]",
        ),
    ],
)
def test_numbers_that_do_not_fit(form: str, change: Change, said: str, tmp_path: Path) -> None:
    """Found when they are read, as weights are."""
    model = open_model(checkpoint(form, tmp_path, change))
    with pytest.raises(BadCheckpoint, match=f"{re.escape(EXPERT)}.weight: .*{re.escape(said)}"):
        load_resident_experts(model, "fp32")


def test_scales_of_activations_are_not_needed(tmp_path: Path) -> None:
    scale = put(f"{EXPERT}.input_scale", torch.ones(1))
    open_model(checkpoint("float-rows", tmp_path, scale))


def test_experts_are_held_in_about_what_they_take(tmp_path: Path) -> None:
    held = {"fp8": "int8", "gptq": "int4", "gptq-8": "int8", "packed": "int4", "int-rows": "int8"}
    for form, dtype in held.items():
        folder = checkpoint(form, tmp_path / form)
        assert read_model_config(folder).native_dtype == dtype


def read(fields: Mapping[str, Any]) -> Any:
    return read_quantization(ConfigReader({FIELD: fields}, "config.json"))


def compressed(form: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    fields = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True} | weights
    groups = {"a": {"weights": fields}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
TWO = {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quant_method": 7}, "quant_method: weights quantized with 7 cannot be read"),
        ({"bits": 4}, "quant_method: weights quantized with None cannot be read"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt: expected one of e4m3, not 'e5m2'"),
        (
            {"quant_method": "fp8", "weight_block_size": [0, 128]},
            "weight_block_size: expected the rows and columns of a block, not [0, 128]",
        ),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size: expected the rows"),
        (GPTQ | {"bits": 3}, "bits: expected 4 or 8, not 3"),
        (GPTQ | {"bits": True}, "bits: expected 4 or 8, not True"),
        (GPTQ | {"group_size": 0}, "group_size: expected a whole number of 1 or more, not 0"),
        (GPTQ | {"group_size": 2**40}, "group_size: expected at most"),
        (
            GPTQ | {"checkpoint_format": "marlin"},
            "checkpoint_format: expected one of gptq, gptq",
        ),
        (AWQ | {"bits": 8}, "bits: expected 4, not 8"),
        (AWQ | {"version": "gemv"}, "version: expected the layout gemm, not 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point: expected true"),
        (compressed("nvfp4-pack-quantized"), "format: expected one of pack-quantized, float"),
        (compressed(num_bits=3), "config_groups.a.weights.num_bits: expected 4 or 8, not 3"),
        (compressed(strategy="tensor"), "weights.strategy: expected one of group, channel"),
        (compressed(dynamic=True), "weights.dynamic: expected false"),
        (compressed() | {"config_groups": {}}, "config_groups: expected a group"),
        (compressed() | {"config_groups": TWO}, "config_groups: expected weights quantized in one"),
        (compressed() | {"kv_cache_scheme": {"a": 1}}, "kv_cache_scheme: expected null"),
        (
            compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config.format: expected one of dense",
        ),
        (compressed("int-quantized", num_bits=8, symmetric=False), "symmetric: expected true"),
    ],
)
def test_a_variant_that_is_not_read(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=rf"config\.json.*: {FIELD}\.(.*\.)?{re.escape(said)}"):
        read(fields)


def test_variants_that_are_read() -> None:
    assert read({}) is None
    assert read({"quant_method": "gguf", "bits": 4}) is None
    assert read(compressed(num_bits=8)) == PackedIntegers(8, None, symmetric=True)
    block = compressed(
        "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 64]
    )
    assert read(block) == Scaled("F8_E4M3", "_scale", 128, 64)


def test_groups_that_do_not_divide_a_row(tmp_path: Path) -> None:
    folder = checkpoint("gptq", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config[FIELD]["group_size"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="rows of 32 weights are no whole groups of 7"):
        open_model(folder)
