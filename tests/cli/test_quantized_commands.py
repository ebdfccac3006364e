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
