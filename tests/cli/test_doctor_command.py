"""Does `moesaic doctor` say what is there, what will be used, and how to get what is missing?"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.cli.info import doctor
from moesaic.cli.info import doctor as doctor_module
from moesaic.hardware.host import Gpu, Host, NumaNode, this_host
from moesaic.hardware.machine_reader import load_machine, machine_file
from moesaic.hardware.machine_writer import save_machine
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu
from moesaic.kernels import instruction_sets
from moesaic.kernels.instruction_sets import choose, kernel_description, native

pytestmark = pytest.mark.without_native

WELL_EQUIPPED = Host(
    cpu="Intel(R) Xeon(R) Gold",
    cores=16,
    isa=("amx_tile", "avx2"),
    memory_bytes=128_000_000_000,
    available_bytes=100_500_000_000,
    huge_pages="madvise",
    huge_pages_on_request=True,
    numa_nodes=(NumaNode(0, "0-15", 128_000_000_000),),
    gpus=(),
)
KEYS = {
    "machine": {
        *("cpu", "cores", "isa", "memory_bytes", "available_bytes"),
        *("huge_pages", "huge_pages_on_request", "numa_nodes", "gpus", "nvidia"),
    },
    "used": {
        *("cpu_kernel", "better_kernel_needs", "accelerator", "expert_memory_bytes"),
        *("huge_pages", "machine_description", "packages"),
    },
}
Place = Callable[[Host], None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Puts the command on another computer, where this user has a measured machine, a cache,
    every package and the native kernels."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("NUMBA_CACHE_DIR", "MOESAIC_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(doctor, "version", lambda package: "1.2.3")
    if native() is None:
        monkeypatch.setattr(doctor, "choose_kernel", lambda: "amx")
        monkeypatch.setattr(sys.modules[__name__], "choose", lambda: "amx")
    monkeypatch.setattr(doctor_module, "nvidia_driver", lambda: NvidiaDriver(None, (), "no driver"))
    monkeypatch.setattr(doctor_module, "cuda_problem", lambda: "no driver: install it")
    for name in ("this", "this-emulated"):
        save_machine(load_machine("h200-emr16"), machine_file(name))
    return lambda host: monkeypatch.setattr(doctor_module, "this_host", lambda: host)


def lacks() -> dict[str, dict[str, str]]:
    return {lack["about"]: lack for lack in run_json("doctor")["missing"]}


def test_json_is_one_object_with_stable_keys(place: Place) -> None:
    place(replace(WELL_EQUIPPED, gpus=(Gpu("NVIDIA H200", "0000:41:00.0"),)))
    output = run_json("doctor")
    assert set(output) == {"machine", "used", "missing"}
    assert {part: set(output[part]) for part in KEYS} == KEYS
    assert output["machine"]["gpus"] == [{"name": "NVIDIA H200", "bus": "0000:41:00.0"}]
    assert output["used"]["accelerator"] is None, "a GPU is found, but cannot be used"
    assert lacks()["gpu"]["remedy"] == "install it"
    assert output["used"]["machine_description"] == str(machine_file())


def test_a_gpu_that_can_be_used_is_described(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place(replace(WELL_EQUIPPED, gpus=(Gpu("NVIDIA H200", "0000:41:00.0"),)))
    driver = NvidiaDriver("12.8", (NvidiaGpu("NVIDIA H200", 150_000_000_000, True),))
    monkeypatch.setattr(doctor_module, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(doctor_module, "cuda_problem", lambda: None)
    said, output = run("doctor").out, run_json("doctor")
    assert "NVIDIA H200, 150.0 GB, with stream memory operations; driver for CUDA 12.8" in said
    assert "NVIDIA H200, used unless --accelerator none is given" in said
    assert output["used"]["accelerator"] == "cuda"
    assert output["machine"]["nvidia"]["gpus"][0]["memory_bytes"] == 150_000_000_000
    assert [each["about"] for each in output["missing"]] == ["profile-cuda"]


def test_words_for_a_machine_that_has_everything(place: Place) -> None:
    place(WELL_EQUIPPED)
    said = run("doctor").out
    titles = ("What this machine has", "What will be used", "What is missing")
    assert [line for line in said.splitlines() if line in titles] == list(titles)
    for part in (
        "Intel(R) Xeon(R) Gold, 16 usable cores",
        "amx_tile avx2",
        "128.0 GB, available now 100.5 GB",
        kernel_description(choose(), WELL_EQUIPPED.isa),
        "--accelerator emulated",
        "torch 1.2.3",
        str(machine_file()),
    ):
        assert part in said
    assert said.endswith("What is missing\n  nothing\n")


def test_this_computer_is_described_as_it_is() -> None:
    output: dict[str, Any] = run_json("doctor")
    host = asdict(this_host())
    steady = ("cpu", "cores", "memory_bytes", "huge_pages", "huge_pages_on_request")
    assert [output["machine"][key] for key in steady] == [host[key] for key in steady]
    scipy = pytest.importorskip("scipy")
    assert output["used"]["packages"]["scipy"] == scipy.__version__


def test_the_text_says_that_nothing_is_known_too(place: Place, tmp_path: Path) -> None:
    place(this_host(tmp_path / "absent"))
    said = run("doctor").out
    assert "of unknown make" in said
    assert "an unknown amount, available now an unknown amount" in said
    assert "None" not in said
    assert lacks() == {}


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        ("torch", "pip install 'moesaic[engine]'"),
        ("tokenizers", "pip install 'moesaic[engine]'"),
        ("jinja2", "pip install jinja2"),
        ("matplotlib", "pip install 'moesaic[plot]'"),
        ("scipy", "pip install 'moesaic[optimal]'"),
        ("safetensors", None),  # nothing here needs it
    ],
)
def test_a_missing_package(
    place: Place, monkeypatch: pytest.MonkeyPatch, package: str, remedy: str | None
) -> None:
    def version(name: str) -> str:
        if name == package:
            raise PackageNotFoundError(name)
        return "1.2.3"

    place(WELL_EQUIPPED)
    monkeypatch.setattr(doctor, "version", version)
    output = run_json("doctor")
    assert output["used"]["packages"][package] is None
    assert output["used"]["cpu_kernel"] == (None if package == "torch" else choose())
    assert [lack["remedy"] for lack in output["missing"]] == ([] if remedy is None else [remedy])
    said = run("doctor").out
    assert f"{package} 1.2.3" not in said
    assert remedy is None or f"    -> {remedy}\n" in said


def test_a_machine_that_was_never_measured(place: Place) -> None:
    place(WELL_EQUIPPED)
    machine_file().unlink()
    assert lacks()["profile"]["remedy"] == "run `moesaic profile`"
    assert run_json("doctor")["used"]["machine_description"] is None


def test_a_profile_that_was_interrupted_says_what_is_missing(place: Place) -> None:
    """`profile` describes the CPU alone first."""
    place(WELL_EQUIPPED)
    assert lacks() == {}
    machine_file("this-emulated").unlink()
    lack = lacks()["profile-emulated"]
    assert "this-emulated" in lack["what"]
    assert "interrupted" in lack["what"]
    assert lack["remedy"] == "run `moesaic profile --accelerator emulated`"
    assert run_json("doctor")["used"]["machine_description"] == str(machine_file())


AVX512 = ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "avx2")
VNNI_BF16 = ["avx512_vnni", "avx512_bf16"]


@pytest.mark.parametrize(
    ("kernel", "isa", "words", "missing"),
    [
        ("avx512", ("amx_tile", *AVX512), "amx needs amx_bf16, amx_int8", ["amx_bf16", "amx_int8"]),
        ("avx512-vnni", AVX512[:4], "avx512 needs avx512_vnni, avx512_bf16", VNNI_BF16),
        ("avx512-base", AVX512[:5], "avx512-vnni needs avx512_vnni", ["avx512_vnni"]),
        ("avx2-vnni", ("avx_vnni", *AVX512[1:]), "avx512-base needs avx512f", ["avx512f"]),
        ("avx2", AVX512, "avx2-vnni needs avx_vnni", ["avx_vnni"]),
        ("avx2-vnni", AVX512, "has what avx512-base needs, but the system does not allow", []),
    ],
)
def test_the_instructions_that_a_better_kernel_needs(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    isa: tuple[str, ...],
    words: str,
    missing: list[str],
) -> None:
    place(replace(WELL_EQUIPPED, isa=isa))
    monkeypatch.setattr(doctor, "choose_kernel", lambda: kernel)
    monkeypatch.setattr(instruction_sets, "native", lambda: True)
    monkeypatch.setattr(instruction_sets, "available", lambda: (kernel, "reference"))
    assert words in run("doctor").out
    assert run_json("doctor")["used"]["better_kernel_needs"] == missing


def test_a_cpu_without_any_kernel_says_what_it_has_not_got(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(replace(WELL_EQUIPPED, isa=("avx2", "f16c")))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "choose_kernel", lambda: "reference")
    assert "this CPU has not got fma" in lacks()["kernels"]["what"]


@pytest.mark.parametrize(
    ("machine", "compiler", "why", "remedy"),
    [
        ("aarch64", "/usr/bin/c++", "none for Linux on aarch64", "nothing can be installed"),
        ("x86_64", None, "not built, and there is no C++ compiler", "install a C++20 compiler"),
        ("x86_64", "/usr/bin/c++", "/usr/bin/c++ was missing or too old", "reinstall Moesaic"),
    ],
)
def test_an_installation_without_native_kernels_says_why(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    compiler: str | None,
    why: str,
    remedy: str,
) -> None:
    """A compiler is missing only where there is none and one would help."""
    isa = ("asimd",) if machine == "aarch64" else ("avx2", "fma", "f16c")
    place(replace(WELL_EQUIPPED, isa=isa))
    for where in (instruction_sets, doctor_module):
        monkeypatch.setattr(where, "native", lambda: None)
    monkeypatch.setattr(doctor, "choose_kernel", lambda: "reference")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    lack = lacks()["kernels"]
    assert why in lack["what"]
    assert lack["remedy"].startswith(remedy)
    assert (
        f"(native kernels: {lack['what'].rpartition('native kernels: ')[2]})" in run("doctor").out
    )


def test_a_broken_description_is_reported(place: Place) -> None:
    place(WELL_EQUIPPED)
    machine_file().write_text(machine_file().read_text().replace("value = 54.0", "value = -54.0"))
    lack = lacks()["profile"]
    assert "pcie.bandwidth_gb_s: expected a number above 0" in lack["what"]
    assert "moesaic profile" in lack["remedy"]
    assert run_json("doctor")["used"]["machine_description"] is None


def test_huge_pages_switched_off(place: Place) -> None:
    place(replace(WELL_EQUIPPED, huge_pages="never", huge_pages_on_request=False))
    assert "echo madvise | sudo tee /sys/kernel/mm" in lacks()["huge-pages"]["remedy"]
    assert run_json("doctor")["used"]["huge_pages"] is False
    place(replace(WELL_EQUIPPED, huge_pages_on_request=False))
    assert "for this process" in lacks()["huge-pages"]["what"]


@pytest.mark.parametrize("variable", ["MOESAIC_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_a_cache_that_cannot_be_written(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A file stands where the folder should be: even root cannot write there."""
    place(WELL_EQUIPPED)
    assert lacks() == {}
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv(variable, str(in_the_way))
    assert str(in_the_way) in lacks()["compiled-cache"]["what"]


def test_the_cache_is_where_compiled_policies_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moesaic.policies import compiled

    for variable in ("NUMBA_CACHE_DIR", "MOESAIC_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = compiled._cache_folder.__wrapped__()
    assert kept is not None
    assert Path(kept).parent == doctor.compiled_folder()


def test_looking_loads_none_of_the_packages_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from moesaic.cli.command_line import app\n"
        "app.main(['doctor'], standalone_mode=False)\n"
        "print('loaded:', *sys.modules)"
    )
    places = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | places,
    )
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert "moesaic.cli.info.doctor" in loaded
    assert not loaded & {*doctor.PACKAGES, "numba"}
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "moesaic doctor --help" in refused(monkeypatch, capsys, "doctor", "nurse")
