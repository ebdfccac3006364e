"""Is the GPU used where there is one and nothing was said, with the CPU where it cannot be? The CPU
plays the GPU."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command import run, run_json

from moesaic import LLM
from moesaic.cli.shared import engine_options
from moesaic.cli.shared.accelerator_words import accelerator_words
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.engine import assemble, gpu_memory, loading
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware import nvidia
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu
from moesaic.kernels.gpu.nvrtc import CompilationFailed
from moesaic.machines import accelerators
from moesaic.machines.accelerators import ACCELERATORS, VARIABLE, Automatic

H200 = NvidiaDriver("12.8", (NvidiaGpu("NVIDIA H200", 139 * 2**30, True),))
NOTHING = NvidiaDriver(None, problem="NVIDIA's driver (libcuda.so.1) is not installed")
SHORT = ("-p", "Hello", "-n", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def _left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(nvidia, "card_on_bus", lambda: False)


def machine(monkeypatch: pytest.MonkeyPatch, driver: NvidiaDriver, problem: str | None) -> None:
    monkeypatch.setattr(nvidia, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(accelerators, "cuda_problem", lambda: problem)
    monkeypatch.setattr(accelerators, "compiler_problem", lambda: None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 GB."""
    machine(monkeypatch, H200, None)
    row = replace(ACCELERATORS["cuda"], problem=lambda: None)
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", row)
    monkeypatch.setattr(gpu_memory, "accelerator_free", lambda settings: 2_000_000_000)
    monkeypatch.setattr(loading, "assemble", partial(assemble.assemble, device="cpu"))


@pytest.mark.usefixtures("gpu")
def test_nothing_said_runs_on_the_gpu_and_the_first_line_says_so() -> None:
    said = run("run", *SHORT)
    assert said.err.splitlines()[0] == "using the GPU: NVIDIA H200, 139 GiB"
    assert run("run", *SHORT, "--accelerator", "none").out == said.out
    described = run_json("run", *SHORT)
    assert described["settings"]["accelerator"] == "cuda"


@pytest.mark.usefixtures("gpu")
def test_llm_uses_the_gpu_too() -> None:
    with LLM(threads=1) as llm:
        assert llm.model.settings.accelerator == "cuda"
        assert llm.model.plan.capacity.slots > 0


def test_without_a_gpu_the_first_line_says_that_the_cpu_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, NOTHING, f"{NOTHING.problem}: install the driver")
    first = run("run", *SHORT, "--kernel", "reference").err.splitlines()[0]
    assert first == "no GPU: experts run on the CPU (PyTorch)"


@pytest.mark.parametrize(
    ("driver", "on_bus", "reason"),
    [
        (NOTHING, True, "NVIDIA's driver (libcuda.so.1) is not installed"),
        (H200, True, "PyTorch was built without CUDA: install a CUDA build"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_named_with_the_reason(
    driver: NvidiaDriver, on_bus: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, driver, reason)
    monkeypatch.setattr(nvidia, "card_on_bus", lambda: on_bus)
    said = accelerator_words(EngineSettings(kernel="reference"))
    assert said == f"the GPU is not used, experts run on the CPU (PyTorch): {reason}"
    assert accelerator_words(EngineSettings(accelerator="none")) is None, "it was named"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("error", [ImpossibleSetting("too old"), CompilationFailed("no libnvrtc")])
def test_a_gpu_that_fails_late_is_left_unless_it_was_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: EngineSettings) -> int | None:
        if settings.capabilities.own_memory:
            raise error
        return None

    monkeypatch.setattr(gpu_memory, "accelerator_free", fail)
    said = run("run", *SHORT).err.splitlines()
    assert said[0].startswith("using the GPU")
    assert any(line.endswith(f": {error}") and "the GPU is not used" in line for line in said)
    with LLM(threads=1) as llm:
        assert llm.model.settings.accelerator == "none"
        assert llm.model.settings.accelerator.reason == str(error)  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        LLM(threads=1, accelerator="cuda")


@pytest.mark.usefixtures("gpu")
def test_what_does_not_fit_on_the_gpu_runs_on_the_cpu_unless_the_gpu_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_memory, "accelerator_free", lambda settings: 1_000_000)
    with LLM(threads=1) as llm:
        chosen = llm.model.settings.accelerator
        assert isinstance(chosen, Automatic)
        assert "1.00 MB are free there" in str(chosen.reason)
    ways: list[dict[str, Any]] = [
        {"accelerator": "cuda"}, {"cache_ratio": 0.5}, {"gpu_memory_gb": 1.0},
    ]  # fmt: skip
    for asked in ways:
        with pytest.raises(ImpossibleSetting, match="in the accelerator"):
            LLM(threads=1, **asked)


@pytest.mark.usefixtures("gpu")
def test_settings_that_only_the_cpu_can_do_choose_it() -> None:
    settings = EngineSettings(batch_invariant=True)
    assert settings.accelerator == "none"
    assert "batch_invariant was asked for" in (accelerator_words(settings) or "")
    with pytest.raises(ImpossibleSetting, match="batch_invariant"):
        EngineSettings(batch_invariant=True, accelerator="cuda")


@pytest.mark.usefixtures("gpu")
def test_rows_of_one_bench_are_on_one_device() -> None:
    """What is batch-invariant runs on the CPU, and so does what it is compared with."""
    from moesaic.cli.study.bench import _grid

    names = ("system", "systems", "cache_ratio", "cache_ratios", "gate", "gates", "accelerator")
    asked = dict.fromkeys(names) | {"batch_invariant": True, "compare": False, "against": ()}
    assert [each.accelerator for _, each in _grid(asked)] == ["none", "none"]
    plain = _grid(asked | {"batch_invariant": False})
    assert [each.accelerator for _, each in plain] == ["cuda"]
    against = _grid(asked | {"batch_invariant": False, "against": ("transformers",)})
    assert [each.accelerator for _, each in against] == ["none"]


def test_options_of_an_accelerator_that_was_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policies are named, since the text is the same; memory that is not there is refused."""
    machine(monkeypatch, NOTHING, "no driver")
    engine_options.engine_settings({"cache": "lru"})
    assert "note: --cache lru changes nothing" in capsys.readouterr().err
    with pytest.raises(ImpossibleSetting) as caught:
        EngineSettings(cache_ratio=0.5)
    assert "(no driver): leave it out, or add --accelerator emulated" in str(caught.value)


def test_the_variable_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, H200, None)
    monkeypatch.setenv(VARIABLE, "emulated")
    assert EngineSettings().accelerator == "emulated"
    assert EngineSettings(accelerator="none").accelerator == "none"
    monkeypatch.setenv(VARIABLE, "auto")
    assert EngineSettings().accelerator == "cuda"
    monkeypatch.setenv(VARIABLE, "cuba")
    with pytest.raises(UnknownName, match="MOESAIC_ACCELERATOR 'cuba'"):
        EngineSettings()


def test_kernels_that_cannot_be_compiled_are_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"torch": torch.__spec__, "triton": torch.__spec__, "nvidia": None}
    monkeypatch.setattr(nvidia, "find_spec", found.get)
    monkeypatch.setattr(nvidia, "find_library", lambda name: None)
    monkeypatch.setattr(nvidia, "_library_folders", lambda: iter([tmp_path]))
    assert "libnvrtc) was not found" in (nvidia.compiler_problem() or "")
    (tmp_path / "libnvrtc.so.12").touch()
    assert nvidia.compiler_problem() is None
    found["triton"] = None
    assert "Triton is not installed" in (nvidia.compiler_problem() or "")


def test_a_card_is_found_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    assert not nvidia.card_on_bus(tmp_path)
    for name, value in (("vendor", "0x10de\n"), ("class", "0x030200\n")):
        (device / name).write_text(value)
    assert nvidia.card_on_bus(tmp_path)
    (device / "class").write_text("0x040300\n")
    assert not nvidia.card_on_bus(tmp_path), "a sound device"


def test_the_choice_survives_another_process() -> None:
    chosen = pickle.loads(pickle.dumps(EngineSettings(accelerator=Automatic("none", "why"))))
    assert chosen.accelerator.reason == "why"
