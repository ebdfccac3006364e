"""Does `moesaic profile` describe a machine with a GPU, and do runs use that as long as it is of
the machine they run on? The CPU plays the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import refused, run, run_json
from small_measurements import measure_small_things, pretend_a_gpu

from moesaic.engine import belief_source as source
from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.belief_source import belief_source
from moesaic.engine.described_belief import described_belief
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.hardware.machine_reader import load_machine, machine_file
from moesaic.hardware.machine_writer import save_machine
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu, nvidia_driver
from moesaic.lab.profile import choose_system, cuda_profile, cuda_times
from moesaic.machines import accelerators
from moesaic.machines.accelerators import ACCELERATORS
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.synthetic_model import synthetic_decoder

HOW = EngineSettings(accelerator="cuda", threads=1, max_step_tokens=8)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    measure_small_things(monkeypatch, tmp_path)
    pretend_a_gpu(monkeypatch, tmp_path)


def test_a_gpu_is_described_and_the_description_is_used(tmp_path: Path) -> None:
    (output,) = run_json("profile", "--accelerator", "cuda", "--threads", 1)["profiles"]
    assert set(output["times"]["experts"]) == {"bf16", "int8", "int4"}
    machine = load_machine("this-cuda")
    assert machine.system == output["choice"]["system"]
    assert any("Default system" in note for note in machine.notes)
    assert machine.gpu.layer_overhead_us > 0
    config = str(tmp_path / "config.json")
    simulated = run_json(
        "simulate", "--model", config, "--machine", "this-cuda", "--tokens", 4, "--warmup", 1
    )
    assert simulated["tokens_per_s"] > 0
    found = belief_source(HOW)
    assert (found.described, found.system) == (True, machine.system)
    decoder = synthetic_decoder(synthetic_architecture(config), "bf16")
    store = synthetic_store(decoder, "int4", kernel_name="reference")
    runner = on_store(decoder, store, HOW, Capacity(4, 1, 32), device="cpu")
    believed = described_belief(machine, decoder.architecture.spec, "int4", 8)
    assert (runner.brain.belief.tables == believed.tables).all(), "nothing was measured"
    runner.close()


def describe() -> None:
    """This machine, as if it had been measured."""
    from moesaic.hardware.host import this_host
    from moesaic.hardware.identity import cpu_identity, gpu_identity
    from moesaic.kernels.instruction_sets import choose

    h200 = load_machine("h200-emr16")
    cpu = replace(h200.cpu, name=cpu_identity(this_host(), 1, choose()))
    gpu = replace(h200.gpu, name=gpu_identity(nvidia_driver()))
    spec = replace(h200, gpu=gpu, cpu=cpu, system="moesaic-lru")
    save_machine(spec, machine_file("this-cuda"))


def test_a_description_of_another_machine_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "measured now" in belief_source(HOW).words
    describe()
    assert belief_source(HOW).system == "moesaic-lru"
    assert belief_source(HOW, "int4").described
    assert "fp32 experts were not measured" in belief_source(HOW, "fp32").words
    assert not belief_source(replace(HOW, belief="measured")).described
    other = belief_source(replace(HOW, threads=2))
    assert not other.described
    assert "is now" in other.words
    newer = NvidiaDriver("99.0", (NvidiaGpu("NVIDIA H200", 10**11, True),))
    monkeypatch.setattr(source, "nvidia_driver", lambda: newer)
    words = belief_source(HOW).words
    assert "no GPU is now NVIDIA H200 (driver for CUDA 99.0)" in words
    assert "moesaic profile" in words


def test_a_damaged_description_is_said_and_not_used() -> None:
    machine_file("this-cuda").parent.mkdir(parents=True)
    machine_file("this-cuda").write_text("name = 3")
    assert "damaged" in belief_source(HOW).words


def test_the_advised_system_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    from moesaic.cli.shared.engine_options import engine_settings
    from moesaic.engine.loading import settings_from

    describe()
    cuda = {"accelerator": "cuda", "threads": 1}
    assert str(engine_settings(cuda).policies) == "best-split + lru + none"
    said = capsys.readouterr().err
    assert "moesaic-lru, as `moesaic profile` advises" in said
    assert str(machine_file("this-cuda")) in said
    assert engine_settings({**cuda, "system": "fiddler"}).policies.schedule.name == "threshold"
    assert engine_settings({**cuda, "cache": "lfu"}).policies.cache.name == "lfu"
    assert str(settings_from(None, None, cuda).policies) == "best-split + lru + none"
    assert settings_from(None, "fiddler", cuda).policies.schedule.name == "threshold"


def test_a_full_gpu_leads_to_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process has it: less is free than measuring needs."""
    monkeypatch.setattr(cuda_profile, "accelerator_free", lambda settings: 10**9)
    said = refused(monkeypatch, capsys, "profile", "--accelerator", "cuda", "--threads", 1)
    assert "GB of GPU memory, and 1.0 GB are free" in said
    assert "end other programs there" in said


def test_a_full_host_is_not_said_to_be_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_times, "MODEL", "olmoe-1b-7b")
    monkeypatch.setattr(cuda_times, "LAYERS", 16)
    monkeypatch.setattr(cuda_profile, "accelerator_free", lambda settings: 10**12)
    monkeypatch.setattr(cuda_profile, "memory", lambda: (10**12, 5 * 10**9))
    said = refused(monkeypatch, capsys, "profile", "--accelerator", "cuda", "--threads", 1)
    assert "needs 6.4 GB of main memory, and 5.0 GB are free" in said
    assert "GPU memory" not in said
    monkeypatch.setattr(cuda_profile, "memory", lambda: (10**12, 10 * 10**9))
    settings = EngineSettings(accelerator="cuda")
    assert cuda_profile.check_memory(settings) == 6, "half of main memory"
    monkeypatch.setattr(cuda_profile, "accelerator_free", lambda settings: 7 * 10**9)
    assert cuda_profile.check_memory(settings) == 4, "what the GPU has room for"


def test_without_a_gpu_there_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(ACCELERATORS["cuda"], problem=lambda: "the driver is too old: update it")
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", broken)
    said = refused(monkeypatch, capsys, "profile", "--accelerator", "cuda")
    assert "the driver is too old" in said


def test_the_choice_is_by_simulated_speed_and_says_why() -> None:
    speeds: dict[str, tuple[float, ...]] = {
        "moesaic": (100.0, 80.0),
        "ktransformers": (50.0, 40.0),
        "moesaic-lru": (101.0, 80.5),
    }
    choice = choose_system.decided("a model", ("bf16 at 25%", "int4 at 25%"), speeds)
    assert choice.system == "moesaic", "a percent is within the error"
    assert "another is advised from 1.05 times as fast on" in choice.because
    assert "2.00 x ktransformers" in choice.because
    faster = {**speeds, "moesaic-lru": (120.0, 90.0)}
    assert choose_system.decided("a model", ("a", "b"), faster).system == "moesaic-lru"


def test_systems_are_simulated_on_the_machine() -> None:
    machine = load_machine("h200-emr16")
    choice = choose_system.choose_system(machine, ("moesaic", "ktransformers"))
    assert set(choice.speeds) == {"moesaic", "ktransformers"}
    assert all(rate > 0 for rates in choice.speeds.values() for rate in rates)


def test_help_names_the_kinds() -> None:
    assert "cuda" in run("profile", "--help").out
