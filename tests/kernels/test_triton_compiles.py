"""Do the decode kernels that are Triton's compile for a GPU, and fit it? Here without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

MOST_SHARED = 227 * 1024  # bytes of a block, on Hopper


def test_attention_of_a_decode_step_compiles_for_hopper(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compiled_for_hopper.py")
    where = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(script)], env=where, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    needs = json.loads(ran.stdout)
    assert len(needs) == 3
    assert all(0 < size <= MOST_SHARED for size in needs.values()), needs
