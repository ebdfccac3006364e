"""Does the demo show and write what it says?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import refused, run

from moesaic.policies.systems import SYSTEMS


def test_demo_shows_the_systems_and_writes_three_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo-out"
    shown = run("demo", "--out", out, "--tokens", 8).out
    assert all(name in shown for name in SYSTEMS)
    assert shown.count("  moesaic ") == 3
    assert {path.name for path in out.iterdir()} == {"compare.png", "timeline.png", "trace.json"}
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "trace.json").read_text())["traceEvents"]


def test_demo_refuses_a_file_as_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "is a file" in refused(monkeypatch, capsys, "demo", "--out", taken)
