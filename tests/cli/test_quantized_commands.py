"""Do the commands take a quantized checkpoint, and say what repacking its experts costs?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import only_answer, refused, run, run_json

import quantized_models
import stock
from quantized_models import FORMS

WORDS = ("--prompt-ids", "1,2,3", "--max-tokens", 4, "--temperature", 0, "--threads", 1)


def test_run_and_plan(tmp_path: Path) -> None:
    pair = quantized_models.write(stock.saved("qwen3-moe").folder, tmp_path, FORMS["gptq"])
    exact = ("--dtype", "fp32", "--expert-dtype", "fp32")
    mine = only_answer(pair.quantized, *WORDS, *exact)
    assert mine["tokens"] == only_answer(pair.values, *WORDS, *exact)["tokens"]
    assert run_json("plan", pair.quantized, "--dtype", "auto")["expert_dtype"] == "int4"
    said = run("run", pair.quantized, *WORDS).err
    assert "experts are stored as GPTQ 4-bit and repacked as int4, rounded to other codes" in said


def test_a_variant_that_is_not_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = quantized_models.write(stock.saved("qwen3-moe").folder, tmp_path, FORMS["awq"])
    config = json.loads((pair.quantized / "config.json").read_text())
    config["quantization_config"]["version"] = "gemv"
    (pair.quantized / "config.json").write_text(json.dumps(config))
    said = refused(monkeypatch, capsys, "run", pair.quantized, *WORDS)
    assert "quantization_config.version: expected the layout gemm, not 'gemv'" in said
    cannot = run_json("plan", pair.quantized)["cannot_run"]
    assert "quantization_config.version: expected the layout gemm" in cannot
