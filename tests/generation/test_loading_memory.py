"""Does loading take little more memory than the model does in the end?

Asked of the system, in a process that does nothing else: VmRSS at the end, VmHWM in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from large_checkpoints import EXPERTS, HIDDEN, INNER, LAYERS, VOCABULARY, write_checkpoint

from made_up import long
from moesaic.hardware.process_memory import process_memory

MOST = 1.15  # times what is taken in the end
SCRIPT = """
import json, sys
from moesaic import LLM
from moesaic.hardware.process_memory import reset_peak, process_memory

reset_peak()
before = process_memory().now
llm = LLM(sys.argv[1], threads=1, max_model_len=64, max_sequences=1, expert_dtype=sys.argv[2])
now, peak = process_memory()
llm.close()
print(json.dumps({"before": before, "now": now, "peak": peak}))
"""
EXPERT_BYTES = 2 * 3 * HIDDEN * INNER * EXPERTS * LAYERS
OTHER_BYTES = 2 * HIDDEN * (2 * VOCABULARY + LAYERS * (4 * HIDDEN + EXPERTS))
SLACK_BYTES = 60_000_000  # what else is loaded meanwhile: compiled policies, parts of torch

pytestmark = pytest.mark.skipif(
    process_memory().peak is None, reason="this system does not say how much memory a process takes"
)


def load(folder: Path, expert_dtype: str = "auto") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, expert_dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.parametrize(
    ("stacked", "dtype"),
    [(False, torch.bfloat16), (True, torch.float32), long(True, torch.bfloat16)],
    ids=["separate", "stacked and converted", "stacked"],
)
def test_loading_takes_little_more_than_the_model(
    tmp_path: Path, stacked: bool, dtype: torch.dtype
) -> None:
    """Python and torch are left out, on both sides: with them the share would be smaller."""
    measured = load(write_checkpoint(tmp_path / "model", stacked, dtype))
    grown = measured["now"] - measured["before"]
    assert EXPERT_BYTES + OTHER_BYTES < grown < EXPERT_BYTES + OTHER_BYTES + SLACK_BYTES
    assert measured["peak"] - measured["before"] <= MOST * grown


def test_quantizing_on_load_does_not_hold_the_original(tmp_path: Path) -> None:
    measured = load(write_checkpoint(tmp_path / "model", False, torch.bfloat16), "int4")
    grown = measured["now"] - measured["before"]
    assert grown < EXPERT_BYTES * 4.5 / 16 + OTHER_BYTES + SLACK_BYTES
    assert measured["peak"] - measured["before"] <= MOST * grown
