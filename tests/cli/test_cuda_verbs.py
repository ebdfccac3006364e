"""Does every command that runs a model take `--accelerator cuda` and `auto`, and say in one line
what is wrong where there is no GPU? The CPU plays the GPU where one is to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command import refused, run, run_json
from small_measurements import without_a_gpu

from moesaic.cli.info import doctor
from moesaic.engine import assemble, gpu_memory, loading
from moesaic.hardware.host import this_host
from moesaic.hardware.identity import cpu_identity, gpu_identity
from moesaic.hardware.machine_reader import load_machine, machine_file
from moesaic.hardware.machine_writer import save_machine
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu
from moesaic.kernels.instruction_sets import choose
from moesaic.lab.bench import bench_configs, grid
from moesaic.lab.bench.device_rates import DeviceRates
from moesaic.machines import accelerators

GPU = ("--accelerator", "cuda")
VERBS = {
    "run": ("-p", "Hello", "-n", "2"),
    "chat": (),
    "bench": ("-p", "0", "-n", "2"),
    "eval": (),
    "plan": (),
    "profile": (),
    "fidelity": (),
}


@pytest.fixture(autouse=True)
def _no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(accelerators.ACCELERATORS["cuda"], problem=lambda: None)
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", row)
    monkeypatch.setattr(loading, "assemble", partial(assemble.assemble, device="cpu"))
    monkeypatch.setattr(grid, "on_store", partial(assemble.on_store, device="cpu"))
    for module in (bench_configs, gpu_memory):
        monkeypatch.setattr(module, "accelerator_free", lambda settings: 2_000_000_000)
    measured = partial(DeviceRates.measured, device="cpu", scale=64)
    monkeypatch.setattr(DeviceRates, "measured", measured)


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_gpu_every_command_says_so(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_a_gpu(monkeypatch)
    said = refused(monkeypatch, capsys, verb, *VERBS[verb], *GPU)
    assert "accelerator 'cuda' cannot be used here: there is none" in said
    assert "--accelerator none or emulated" in said


@pytest.mark.usefixtures("a_gpu")
def test_a_model_answers_with_a_gpu() -> None:
    said = run("run", "-p", "Hello", "-n", "2", "--threads", "1", *GPU)
    assert "costs: measured now" in said.err
    assert run("run", "-p", "Hello", "-n", "2", "--threads", "1").out == said.out


@pytest.mark.usefixtures("a_gpu")
def test_strategies_are_compared_with_a_gpu() -> None:
    words = ("-p", "0", "-n", "4", "--repetitions", "1", "--cache-ratio", "0.5", "--threads", "1")
    said = run("bench", "--compare", *words, *GPU)
    assert said.err.count("costs: ") == 1, "once, not for every system"
    assert "not compared: llama.cpp (static-layers)" in said.err
    assert "not compared: accelerate" in said.err
    assert "tg4 at 50%: moesaic is" in said.out
    for system in ("ktransformers", "n-cpu-moe", "adapmoe", "fiddler"):
        assert f"x {system}" in said.out


def test_without_an_accelerator_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "add --accelerator" in refused(monkeypatch, capsys, "bench", "--compare")


def test_a_plan_for_another_gpu_needs_none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    output = run_json("plan", "olmoe-1b-7b", *GPU, "--machine", "h200-emr16")
    assert output["accelerator"] == "cuda"
    assert output["speed"]["decode"]["tokens_per_s"] > 0


def test_the_doctor_says_whether_the_gpu_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = NvidiaDriver("12.8", (NvidiaGpu("NVIDIA H200", 10**11, True),))
    monkeypatch.setattr(doctor, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)

    def lacking() -> str | None:
        found = {each["about"]: each["what"] for each in run_json("doctor")["missing"]}
        return found.get("profile-cuda")

    assert "is not measured" in (lacking() or "")
    h200 = load_machine("h200-emr16")
    cpu = replace(h200.cpu, name=cpu_identity(this_host(), h200.cpu.cores, choose()))
    mine = replace(h200, cpu=cpu, gpu=replace(h200.gpu, name=gpu_identity(driver)))
    save_machine(mine, machine_file("this-cuda"))
    assert lacking() is None
    save_machine(h200, machine_file("this-cuda"))
    assert "outdated: NVIDIA H200 141GB is now NVIDIA H200 (driver for CUDA 12.8)" in (
        lacking() or ""
    )
    machine_file("this-cuda").write_text("name = 3")
    assert "name" in (lacking() or "")
