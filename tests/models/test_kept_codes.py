"""Are experts that were 4-bit integers before rounded a second time, and is it said?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import quantized_models
import stock
from moesaic.models.open_model import open_model
from moesaic.models.repacking import Repacking, repacking
from quantized_models import Form


def repacked(tmp_path: Path, form: Form, dtype: str = "int4") -> Repacking:
    model = stock.make("qwen3-moe", moe_intermediate_size=64)
    folder = stock.save(model, tmp_path / "checkpoint")
    pair = quantized_models.write(folder, tmp_path, form)
    found = repacking(open_model(pair.quantized), dtype)
    assert found is not None
    return found


def symmetric(group: int) -> Form:
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group"}
                | {"group_size": group, "symmetric": True, "dynamic": False},
            }
        },
    }
    return Form(config, partial(quantized_models.packed, symmetric=True))


def test_codes_of_our_groups_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_models, "GROUP", 32)
    found = repacked(tmp_path, symmetric(32))
    assert found.codes_kept
    assert found.error < 0.002
    assert "repacked as int4 with the codes they have and scales in bf16" in str(found)


def test_smaller_groups_are_rounded_again(tmp_path: Path) -> None:
    found = repacked(tmp_path, symmetric(quantized_models.GROUP))
    assert not found.codes_kept
    assert found.error > 0.02
    assert "repacked as int4, rounded to other codes" in str(found)


def test_int8_says_only_how_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_models, "GROUP", 32)
    found = repacked(tmp_path, symmetric(32), "int8")
    assert not found.codes_kept
    assert "repacked as int8, which moves weights by" in str(found)
