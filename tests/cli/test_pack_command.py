"""Does `moesaic pack` write what the other commands open, and say what it does?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from command import refused, run, run_json

from chat_models import talking
from moesaic.model_info.packed.header import DATA_START, EXPERTS


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("made") / "small"
    said = run("pack", talking().folder, "-o", target, "--expert-dtype", "int4").err
    assert "packing int4 experts in the layout " in said
    assert f"{target}: written in " in said
    return target


def test_commands_open_it(packed: Path) -> None:
    asked = ("-p", "Weights", "--temperature", 0, "-n", 4, "--threads", 1)
    streams = run("run", packed, *asked)
    assert f"experts: mapped from {packed / EXPERTS}, shared" in streams.err
    assert streams.out == run("run", talking().folder, *asked, "--expert-dtype", "int4").out
    assert [row["expert_dtype"] for row in run_json("plan", packed)["rows"]] == ["int4"]
    assert run_json("models", packed)["family"] == run_json("models", talking().folder)["family"]


def test_verify_names_the_layer_that_changed(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "are as they were packed" in run("pack", packed, "--verify").out
    path = packed / EXPERTS
    data = path.read_bytes()
    path.write_bytes(data[:DATA_START] + bytes([data[DATA_START] ^ 1]) + data[DATA_START + 1 :])
    try:
        said = refused(monkeypatch, capsys, "pack", packed, "--verify")
    finally:
        path.write_bytes(data)
    assert "layer 0: its bytes are not those that were packed" in said


def test_verify_knows_its_source(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = talking().folder
    assert "other files are as" in run("pack", packed, "--verify", "--source", source).out
    other = shutil.copytree(source, tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    said = refused(monkeypatch, capsys, "pack", packed, "--verify", "--source", other)
    assert "was not packed from the files of" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "x", "--source", "y"), "--source is what --verify compares with"),
        ((), "give either -o DIR"),
        (("--verify", "-o", "x"), "give either -o DIR"),
        (("--verify",), "is not packed: there is nothing to verify"),
        (("-o", "x", "--expert-dtype", "int3"), "unknown expert dtype 'int3'"),
        (("-o", "/nowhere/x"), "there is no directory '/nowhere'"),
    ],
)
def test_mistakes(
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in refused(monkeypatch, capsys, "pack", talking().folder, *words)


def test_nothing_is_fetched_for_a_place_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("moesaic.cli.study.pack.model_folder", lambda model: pytest.fail("asked"))
    said = refused(monkeypatch, capsys, "pack", "owner/name", "-o", "/nowhere/x")
    assert "there is no directory '/nowhere'" in said


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("moesaic.cli.shared.model_folder.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "moesaic.models.open_model", None)
    said = refused(monkeypatch, capsys, "pack", tmp_path, "-o", tmp_path / "x")
    assert "pip install 'moesaic[engine]'" in said


def test_another_precision_is_refused_by_plan_and_run(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("plan", packed), ("run", packed, "-p", "x")):
        said = refused(monkeypatch, capsys, *command, "--expert-dtype", "int8")
        assert "is packed with int4 ones" in said
