"""Does measuring this machine give descriptions that everything else can use?"""

from __future__ import annotations

from pathlib import Path

import pytest
from command import refused, run, run_json
from small_measurements import measure_small_things, without_a_gpu

from moesaic.core.errors import MoesaicError
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.machine_reader import load_machine, machine_file, measured_machines
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.synthetic_model import synthetic_decoder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    measure_small_things(monkeypatch, tmp_path)


def test_both_descriptions_are_written_and_can_be_simulated(tmp_path: Path) -> None:
    output = run_json("profile", "--threads", 2)
    assert measured_machines() == ("this", "this-emulated")
    assert [row["accelerator"] for row in output["profiles"]] == ["none", "emulated"]
    for row in output["profiles"]:
        assert set(row["cpu"]["experts"]["by_tokens"]) == {"bf16", "fp32", "int8", "int4"}
        assert row["link"]["bandwidth_gb_s"] > 0
        assert row["link"]["overlapped_gb_s"] > 0
    emulated, alone = load_machine("this-emulated"), load_machine("THIS")
    assert emulated.cpu.cores == 1, "one core of the two plays the accelerator"
    assert alone.cpu.cores == 2
    for name in ("this", "this-emulated"):
        words = ("--machine", name, "--tokens", 4, "--warmup", 1)
        result = run_json("simulate", "--model", tmp_path / "config.json", *words)
        assert result["tokens_per_s"] > 0
    assert "this-emulated" in run("machines").out
    assert run("machines", "this-emulated", "--toml").out == (
        machine_file("this-emulated").read_text()
    )


def test_a_run_can_believe_the_description() -> None:
    from moesaic.engine.assemble import on_store, synthetic_store
    from moesaic.engine.memory.capacity import Capacity

    run("profile", "--accelerator", "none", "--threads", 1)
    config = str(machine_file().parents[2] / "config.json")
    decoder = synthetic_decoder(synthetic_architecture(config), "bf16")
    store = synthetic_store(decoder, "bf16")
    capacity = Capacity(0, 1, 32)
    runner = on_store(decoder, store, EngineSettings(belief="described", threads=1), capacity)
    again = on_store(decoder, store, EngineSettings(belief="described", threads=1), capacity)
    assert (runner.brain.belief.tables == again.brain.belief.tables).all(), "nothing was measured"
    emulated = EngineSettings(belief="described", accelerator="emulated", threads=1)
    with pytest.raises(MoesaicError, match="moesaic profile"):
        on_store(decoder, store, emulated, Capacity(2, 1, 32))
    runner.close()
    again.close()


def test_one_description_goes_where_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    out = run(
        "profile", "--accelerator", "emulated", "--threads", 2, "-o", path, "--link-bandwidth", 1
    )
    assert load_machine(str(path)).pcie.bandwidth_gb_s < 1.1, "the link is held back"
    assert measured_machines() == ()
    assert "One expert" in out.out
    assert "wrote" in out.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--accelerator", "tpu"], "unknown accelerator 'tpu'"),
        (["-o", "both.toml"], "add --accelerator"),
        (["--accelerator", "none", "-o", "mine.txt"], "must end in .toml"),
        (["--threads", "0"], "threads is 0"),
        (["--accelerator", "emulated", "--link-bandwidth", "-1"], "link_gb_s is -1"),
        (["--accelerator", "cuda"], "'cuda' cannot be used here: there is none"),
    ],
)
def test_mistakes_are_refused_before_measuring(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_a_gpu(monkeypatch)
    assert said in refused(monkeypatch, capsys, "profile", *words)
    assert measured_machines() == ()
