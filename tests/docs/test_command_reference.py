"""Is docs/command-line.md what the commands say, whatever the machine?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic.cli.command_line import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command-line.md"
# On a machine with another number of cores, a narrow terminal and no PyTorch.
_UPDATED = """
import os, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, NoTorch())
os.cpu_count = lambda: 3
from benchmarks.command_reference import PAGE, updated
sys.stdout.write(updated(PAGE.read_text(encoding="utf-8")))
"""


def test_the_page_is_what_the_commands_say(tmp_path: Path) -> None:
    elsewhere = {"COLUMNS": "40", "HOME": str(tmp_path), "MOESAIC_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _UPDATED],
        cwd=ROOT,
        env={**os.environ, **elsewhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = PAGE.read_text(encoding="utf-8")
    assert done.stdout == page, "python -m benchmarks.command_reference writes it"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_every_option_says_what_it_means(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = re.findall(rf"^### moesaic {name}\b.*?(?=^### |\Z)", page, re.M | re.S)
    assert sections
    for section in sections:
        rows = re.findall(r"^\| `-.*", section, re.M)
        assert rows
        for row in rows:
            cells = re.split(r"(?<!\\)\|", row)
            assert re.search("[A-Za-z]{2}", cells[4]), row
