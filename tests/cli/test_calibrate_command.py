"""Does `moesaic calibrate` choose, write and refuse as it says, and is its file of use?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import refused, run, run_json

ASKED = "Tom has 12 apples. He gives 4 to Ann. How many apples does Tom have?"
SMALL = ("--confidence", "top-probability", "--max-tokens", "24", "--dtype", "fp32",
         "--threads", "1")  # fmt: skip


def prompts(folder: Path, *answers: str | None) -> str:
    path = folder / "mine.jsonl"
    lines = [{"prompt": ASKED} | ({} if each is None else {"answer": each}) for each in answers]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_what_is_chosen_is_written_and_used(tmp_path: Path) -> None:
    out = str(tmp_path / "q.json")
    words = ("calibrate", "--prompts", prompts(tmp_path, None), "--max-kl", "0.5", "--out", out)
    found = run_json(*words, *SMALL)
    rows = found["candidates"]
    (chosen,) = [row for row in rows if row["gate"] == found["gate"]]
    assert chosen["kept"]
    cheaper = [r for r in rows if r["expert_reads_over_full"] < chosen["expert_reads_over_full"]]
    assert not any(row["kept"] for row in cheaper)
    assert found["measured"]["kl"] <= 0.5
    assert json.loads(Path(out).read_text())["gate"] == found["gate"]
    ours = run_json("run", "-p", ASKED, "--quality", out, "--max-tokens", "4")
    assert ours["settings"]["policies"]["gate"] == found["gate"]
    assert ours["quality"]["cost"] == found["cost"]


def test_stats_say_what_every_level_costs() -> None:
    said = run("run", "-p", ASKED, "--max-tokens", "4", "--quality", "fast", "--stats").err
    assert "fast: big-little:gamma=0.9" in said
    assert "balanced: big-little:gamma=0.99" in said
    assert "strict: full" in said


def test_impossible_calibrations_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = prompts(tmp_path, "8", None)
    words = ("calibrate", "--prompts", file)
    for more, expected in (
        (("--bound", "1 point exact match"), "1 of 2 prompts have no answer"),
        (("--bound", "little"), "1 point exact match"),
        ((), "give one bound"),
        (("--max-kl", "1", "--gate", "full"), "chooses the gate itself"),
        (("--max-kl", "1", "--confidence", "mood"), "confidence measure"),
        (("--max-kl", "1", "--out", "q.txt"), "must end in .json"),
    ):
        assert expected in refused(monkeypatch, capsys, *words, *more)
    assert "both --gate" in refused(
        monkeypatch, capsys, "run", "-p", "x", "--gate", "full", "--quality", "fast"
    )


def test_a_bound_that_nothing_keeps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("calibrate", "--prompts", prompts(tmp_path, None), "--max-kl", "1e-12", *SMALL)
    said = refused(monkeypatch, capsys, *words, "--out", str(tmp_path / "q.json"))
    assert "no threshold that reads fewer experts than the full model" in said
    assert not (tmp_path / "q.json").exists()
