"""Do `moesaic models` and `moesaic machines` show what they promise?"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from moesaic.cli.command_line import app
from moesaic.cli.main import main
from moesaic.cli.shared.exit_status import FILE, REQUEST
from moesaic.hardware.machine_reader import (
    ATTENTION,
    known_machines,
    load_machine,
    machine_file,
)
from moesaic.hardware.machine_writer import save_machine
from moesaic.model_info.model_zoo import known_models
from moesaic.models.bundled_model import default_model


@pytest.fixture(autouse=True)
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests may be measured; here it is not."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_models_lists_every_name_in_full() -> None:
    listing = run("models")
    assert all(name in listing for name in known_models())
    assert "moesaic-20m comes with the package" in listing


def test_models_as_json() -> None:
    listed = json.loads(run("models", "--json"))["models"]
    assert [model["name"] for model in listed] == list(known_models())


def test_one_model() -> None:
    shown = run("models", "qwen3-30b-a3b")
    assert "30.53 B" in shown
    assert "9.437" in shown  # MB of one bf16 expert
    facts = json.loads(run("models", "Qwen3-30B-A3B", "--json"))
    assert facts["expert_mb"]["bf16"] == pytest.approx(9.437184)
    assert facts["all_experts_gb"]["bf16"] == pytest.approx(57.98, abs=0.01)
    assert facts["active_params"] < facts["total_params"]


def test_who_decodes_a_model_and_what_keeps_it_from_a_faster_one() -> None:
    found = json.loads(run("models", "gpt-oss-20b", "--json"))["executors"]
    assert found["on a CPU"]["executor"] == found["on a GPU"]["executor"] == "layerwise"
    assert "captured lacks a sliding window" in found["on a GPU"]["because"]
    assert json.loads(run("models", "qwen3-30b-a3b", "--json"))["executors"] == {
        "on a CPU": {"executor": "cpu_step", "because": None},
        "on a GPU": {"executor": "captured", "because": None},
    }
    assert "decodes on a CPU    │ cpu_step" in run("models", "olmoe-1b-7b")
    listed = json.loads(run("models", "--executors", "--json"))["models"]
    assert list(listed) == list(known_models())
    assert listed["deepseek-v2-lite"]["on a GPU"]["executor"] == "captured"
    assert "captured" in run("models", "--executors")


def test_a_model_that_cannot_be_run_has_no_executor(tmp_path: Path) -> None:
    fields = json.loads((default_model() / "config.json").read_text()) | {"no_such_rule": 3}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = json.loads(run("models", str(tmp_path), "--json"))["executors"]["on a CPU"]
    assert found["executor"] is None
    assert found["because"].startswith("simulated only: ")
    assert "no_such_rule" in found["because"]


def test_the_bundled_model_says_where_it_lies() -> None:
    assert f"weights, tokenizer and card: {default_model()}" in run("models", "moesaic-20m")


def test_machines_lists_every_name() -> None:
    listing = run("machines")
    assert all(name in listing for name in known_machines())
    listed = json.loads(run("machines", "--json"))["machines"]
    assert [machine["name"] for machine in listed] == list(known_machines())


def test_the_measured_machine_is_listed_as_this() -> None:
    mine = replace(load_machine("h200-emr16"), name="my-desk", title="What stands on my desk")
    save_machine(mine, machine_file())
    listed = json.loads(run("machines", "--json"))["machines"]
    assert [machine["name"] for machine in listed] == [*known_machines(), "this"]
    assert listed[-1]["title"] == mine.title
    assert "my-desk: What stands on my desk" in run("machines", "this")
    assert run("machines", "THIS", "--toml") == machine_file().read_text()
    assert json.loads(run("machines", "this", "--json"))["name"] == "my-desk"


def test_a_measured_machine_without_a_gpu_shows_none() -> None:
    """Its description has the CPU's numbers in a GPU's place."""
    known = load_machine("a6000-xeon5220r")
    mine = replace(known, name="this", gpu=replace(known.gpu, name=f"Some CPU {ATTENTION}"))
    save_machine(mine, machine_file())
    said = run("machines", "this")
    assert "GPU: none" in said
    assert "Some CPU" not in said
    assert "gpu." not in said
    assert "pcie." not in said
    assert "cpu.memory_bandwidth_gb_s" in said
    assert json.loads(run("machines", "this", "--json"))["gpu"] is None
    row = next(line for line in run("machines").splitlines() if "│ this " in line)
    assert [cell.strip() for cell in row.split("│")][3:5] == ["", ""]
    assert f"GPU: {known.gpu.name}." in run("machines", "a6000-xeon5220r")


def test_one_machine_shows_numbers_units_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("machines", "a6000-xeon5220r")
    assert "768" in shown
    assert "GB/s" in shown
    assert "NVIDIA RTX A6000 datasheet" in shown
    numbers = json.loads(run("machines", "a6000-xeon5220r", "--json"))["numbers"]
    assert numbers["pcie.latency_us"]["unit"] == "us"
    assert numbers["gpu.matmul_tflops.int4"]["unit"] == "TFLOP/s"
    assert all(entry["source"] for entry in numbers.values())


def test_the_listing_tells_machines_apart() -> None:
    """Two of them share a data sheet and differ in what their CPU reaches."""
    rows = [line for line in run("machines").splitlines() if "a6000-xeon5220r" in line]
    numbers = [line.split("│")[3:] for line in rows]
    assert len(numbers) == 2
    assert numbers[0] != numbers[1]
    reached = load_machine("a6000-xeon5220r-implied").cpu.effective_bandwidth_gb_s
    assert f" {reached:.0f} " in rows[0] + rows[1]


@pytest.mark.parametrize("name", known_machines())
def test_a_description_can_be_saved_and_read_again(name: str, tmp_path: Path) -> None:
    text = run("machines", name, "--toml")
    copy = tmp_path / "my.toml"
    copy.write_text(text)
    assert load_machine(str(copy)) == load_machine(name)
    assert run("machines", str(copy), "--toml") == text
    assert f"moesaic machines {name} --toml > my.toml" in run("machines", name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "mixtral-8x7"), "Did you mean 'mixtral-8x7b'?"),
        (("models", "absent/config.json"), "expected a config.json"),
        (("machines", "this"), "run `moesaic profile` first"),
        (("machines", "h200"), "unknown machine 'h200'"),
        (("machines", "absent.toml"), "expected a TOML file"),
        (("machines", "absent.toml", "--toml"), "expected a TOML file"),
        (("machines", "--toml"), "name a machine"),
    ],
)
def test_a_mistake_is_one_message_without_a_traceback(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["moesaic", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code in (REQUEST, FILE)
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err
    assert "Traceback" not in streams.err


def test_a_machine_with_one_memory_says_so() -> None:
    said = run("machines", "dgx-spark")
    assert "One memory of 128 GB for GPU and CPU" in said
    numbers = json.loads(run("machines", "dgx-spark", "--json"))["numbers"]
    assert numbers["unified.memory_gb"]["value"] == 128.0
    assert numbers["unified.memory_gb"]["unit"] == "GB"
    assert "One memory" not in run("machines", "gh200-480gb")
