"""Is a quantized checkpoint the model whose weights its numbers mean? Logits to the bit where the
values are the same, and those of the stock implementation with these values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import loaded_models
import pytest
import torch
from safetensors.torch import save_file

import quantized_models
import stock
from made_up import in_turns
from moesaic.model_info.quantization.kinds import Mxfp4
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.quantized.checkpoint import QuantizedCheckpoint
from moesaic.models.checkpoints.read_bytes import read_bytes
from moesaic.models.open_model import open_model
from moesaic.models.repacking import repacking
from quantized_models import FORMS, STACKS
from stock_text import prompt, stock_logits

EVERYWHERE = ("fp8", "gptq", "awq", "packed")  # in all families; the others in one
CASES = in_turns(list(stock.FAMILIES), EVERYWHERE)
CASES += [pytest.param("qwen3-moe", form) for form in FORMS if form not in EVERYWHERE]


def logits(folder: Path) -> torch.Tensor:
    """Of a prompt and of one token after it."""
    model = loaded_models.load(folder)
    return torch.cat([*model.logits([prompt(12)]), *model.logits([[5]])])


@pytest.mark.parametrize(("name", "form"), CASES)
def test_logits_are_those_of_the_values(name: str, form: str, tmp_path: Path) -> None:
    pair = quantized_models.write(stock.saved(name).folder, tmp_path, FORMS[form])
    mine = logits(pair.quantized)
    assert torch.equal(mine, logits(pair.values))
    theirs, _ = stock_logits(stock.reload(pair.values, torch.float32), [*prompt(12), 5])
    assert (theirs - mine).abs().max() < 1e-4
    assert not torch.equal(mine, logits(stock.saved(name).folder)), "quantization moved nothing"


def test_stacked_experts_in_blocks_of_fp8(tmp_path: Path) -> None:
    """As newer libraries save them; one at a time is read."""
    folder = stock.save(stock.make("mixtral"), tmp_path / "stock", save_original_format=False)
    pair = quantized_models.write(folder, tmp_path, STACKS["fp8"])
    assert torch.equal(logits(pair.quantized), logits(pair.values))
    assert open_model(pair.quantized).checkpoint.block_formats() == ("FP8",)


def test_stacked_experts_in_mxfp4(tmp_path: Path) -> None:
    model = stock.make("gpt-oss", intermediate_size=64)
    pair = quantized_models.write(stock.save(model, tmp_path / "stock"), tmp_path, STACKS["mxfp4"])
    mine = logits(pair.quantized)
    assert torch.equal(mine, logits(pair.values))
    theirs, _ = stock_logits(stock.reload(pair.values, torch.float32), [*prompt(12), 5])
    assert (theirs - mine).abs().max() < 1e-4
    assert open_model(pair.quantized).checkpoint.block_formats() == ("MXFP4",)


def test_mxfp4_is_read_one_expert_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shape = "model.layers.0.mlp.experts.down_proj", (3, 64, 20)
    stored = quantized_models.mxfp4(name, torch.randn(shape))
    save_file(stored.parts, tmp_path / "model.safetensors")
    checkpoint = QuantizedCheckpoint(Checkpoint(tmp_path), Mxfp4())
    assert name in checkpoint
    sizes: list[int] = []
    monkeypatch.setattr("moesaic.models.checkpoints.shard.read_bytes", _noting(sizes))
    for expert in range(3):
        assert torch.equal(checkpoint.read_part(name, shape, expert), stored.values[expert])
    assert sizes == [64 * 20 // 2, 64 * 20 // 32] * 3
    assert checkpoint.unread() == []


def _noting(sizes: list[int]) -> Callable[..., torch.Tensor]:
    def read(path: Path, start: int, size: int, name: str) -> torch.Tensor:
        sizes.append(size)
        return read_bytes(path, start, size, name)

    return read


@pytest.mark.parametrize(
    ("form", "dtype", "least", "most"),
    [("gptq", "int8", 0.001, 0.01), ("fp8", "int4", 0.04, 0.14), ("awq", "bf16", 0.0001, 0.003)],
)
def test_what_repacking_costs_is_said(
    form: str, dtype: str, least: float, most: float, tmp_path: Path
) -> None:
    folder = stock.saved("qwen3-moe").folder
    found = repacking(open_model(quantized_models.write(folder, tmp_path, FORMS[form])[0]), dtype)
    assert found is not None
    assert least < found.error < most
    assert found.stored[0].lower().startswith(form)
    assert repacking(open_model(folder), dtype) is None
