"""Is a checkpoint read the same however it is laid out, one piece at a time?"""

from __future__ import annotations

from pathlib import Path

import loaded_models
import pytest
import torch

import stock
from moesaic.core.routing import ExpertId
from moesaic.models.checkpoints.shard import Shard
from moesaic.models.open_model import load_decoder, open_model, readable_experts

TOKENS = list(range(3, 30, 2))


def logits(folder: Path) -> torch.Tensor:
    return loaded_models.load(folder).logits([TOKENS])[0]


@pytest.mark.parametrize("name", stock.FAMILIES)
@pytest.mark.parametrize("sharded", [False, True])
def test_stacked_and_sharded_files_hold_the_same_model(
    name: str, sharded: bool, tmp_path: Path
) -> None:
    """To the bit: layouts move weights, they do not change them."""
    model, folder = stock.saved(name)
    size = "30KB" if sharded else "1GB"
    stacked = stock.save(
        model, tmp_path / "stacked", save_original_format=False, max_shard_size=size
    )
    single = stock.save(model, tmp_path / "single", max_shard_size=size)
    assert (single / "model.safetensors.index.json").exists() == sharded
    entries = [name for path in stacked.glob("*.safetensors") for name in Shard(path).entries]
    assert any(name.endswith("experts.gate_up_proj") for name in entries)
    expected = logits(folder)
    assert torch.equal(logits(stacked), expected)
    assert torch.equal(logits(single), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_sources_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    """Computed in fp32 from rounded weights, as the stock model does when it reads them so."""
    folder = stock.save(stock.make("qwen2-moe").to(dtype), tmp_path)
    with torch.inference_mode():
        theirs = stock.reload(folder, torch.float32)(torch.tensor([TOKENS])).logits[0]
    assert (theirs - logits(folder)).abs().max() < 1e-4


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_are_read_one_at_a_time(
    stacked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read is larger than one expert's gate and up, so loading needs no second copy."""
    folder = stock.save(stock.make("mixtral"), tmp_path, save_original_format=not stacked)
    model = open_model(folder)
    sizes: list[int] = []
    plain_read = Shard.read

    def read(shard: Shard, name: str, index: int | None = None) -> torch.Tensor:
        tensor = plain_read(shard, name, index)
        sizes.append(tensor.numel())
        return tensor

    monkeypatch.setattr(Shard, "read", read)
    spec = model.architecture.spec
    found = [which for which, _ in readable_experts(model)]
    assert found == [ExpertId(layer, expert) for layer in range(3) for expert in range(6)]
    assert max(sizes) == spec.hidden_size * spec.expert_intermediate * (2 if stacked else 1)


def test_opening_reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> torch.Tensor:
        raise AssertionError("weights are read")

    monkeypatch.setattr(Shard, "read", read)
    model = open_model(stock.saved("deepseek-v2").folder)
    with pytest.raises(AssertionError, match="weights are read"):
        load_decoder(model, "fp32")
