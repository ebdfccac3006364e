"""Can tests hide the native modules, and are they interrupted where their parent ignored it?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hiding

pytestmark = pytest.mark.without_native

_LOOK = """
import subprocess, sys
from hiding import hide
hide()
look = "from moesaic.kernels.instruction_sets import native; print(native())"
exec(look)
sys.stdout.flush()
subprocess.run([sys.executable, "-c", look], check=True)
"""


def test_a_hidden_module_is_hidden_in_child_processes_too() -> None:
    folder = str(Path(hiding.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", _LOOK],
        env=os.environ | {hiding.VARIABLE: "native", "PYTHONPATH": folder},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["None", "None"]


def test_the_tests_are_interrupted_though_their_parent_ignored_it() -> None:
    """As `make test &` in a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test = Path(__file__).parents[1] / "cli" / "test_early_interrupt.py"
        words = [
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"{test}::test_while_the_command_is_imported",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout
