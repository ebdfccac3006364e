"""Do the engine's options mean the settings they say, system first, then single options?"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from command import refused, run, run_json

from moesaic.cli.shared import engine_options as options_module
from moesaic.cli.shared.engine_options import engine_options, engine_settings
from moesaic.core.errors import ImpossibleSetting, MoesaicError, UnknownName
from moesaic.engine import engine_settings as settings_module
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import CACHE_RATIO
from moesaic.machines.accelerators import ACCELERATORS, AUTO
from moesaic.policies.policy_choice import policy
from moesaic.policies.policy_set import PHASES, with_options
from moesaic.policies.systems import load_system

EMULATED, ON = ("--accelerator", "emulated"), {"accelerator": "emulated"}


@click.command()
@engine_options
@click.pass_context
def command(context: click.Context, /, **asked: Any) -> None:
    """Does nothing but understand its options."""
    context.obj.append(engine_settings(asked))


def understood(*words: object) -> EngineSettings:
    found: list[EngineSettings] = []
    CliRunner().invoke(command, [str(word) for word in words], obj=found, catch_exceptions=False)
    return found[0]


def test_nothing_asked_means_the_defaults() -> None:
    assert understood() == EngineSettings()


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ((*EMULATED, "--schedule", "hybrid"), {**ON, "schedule": "hybrid"}),
        ((*EMULATED, "--cache", "lru"), {**ON, "cache": "lru"}),
        ((*EMULATED, "--prefetch", "none"), {**ON, "prefetch": "none"}),
        (("--gate", "full"), {"gate": "full"}),
        (
            (*EMULATED, "--cache", "lru:pool=global"),
            {**ON, "cache": policy("lru", pool="global")},
        ),
        (
            (*EMULATED, "--prefetch", "impact:lookahead=2"),
            {**ON, "prefetch": policy("impact", lookahead=2)},
        ),
        ((*EMULATED, "--no-promote"), {**ON, "promote": False}),
        (("--dtype", "fp32"), {"dtype": "fp32"}),
        (("--expert-dtype", "int4"), {"expert_dtype": "int4"}),
        (("--accelerator", "emulated"), {"accelerator": "emulated"}),
        (("--max-model-len", 300), {"max_model_len": 300}),
        (("--max-sequences", 2), {"max_sequences": 2}),
        (("--threads", 3), {"threads": 3}),
        (("--check",), {"checked": True}),
        (
            ("--accelerator", "emulated", "--cache-ratio", 0.5, "--link-bandwidth", 8),
            {"accelerator": "emulated", "cache_ratio": 0.5, "link_gb_s": 8.0},
        ),
        (
            ("--accelerator", "emulated", "--gpu-memory", 2.5),
            {"accelerator": "emulated", "gpu_memory_gb": 2.5},
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_option_changes_its_setting_and_no_other(
    words: tuple[object, ...], change: dict[str, Any]
) -> None:
    assert understood(*words) == with_options(EngineSettings(), change)


def test_a_system_comes_first_and_single_options_last() -> None:
    kt = EngineSettings(accelerator="emulated").with_system(load_system("ktransformers"))
    system = (*EMULATED, "--policies", "ktransformers")
    assert str(kt.policies.prefill_schedule) == "gpu-only"
    assert understood(*system) == kt
    changed = understood(*system, "--cache", "lru", "--prefetch", "impact")
    assert changed == with_options(kt, {"cache": "lru", "prefetch": "impact"})
    both = understood(*system, "--schedule", "threshold")
    assert {str(both.policies.schedule_for(phase)) for phase in PHASES} == {"threshold"}


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("--policies", "moesaik"), UnknownName, "Did you mean 'moesaic'"),
        (("--schedule", "hybird"), UnknownName, "Did you mean 'hybrid'"),
        (("--cache", "lru:poll=global"), UnknownName, "Did you mean 'pool'"),
        (("--cache", "lru:pool=all"), ImpossibleSetting, "it must be per-layer | global"),
        (("--cache", "mrs:alpha=0"), ImpossibleSetting, "a number above 0 and at most 1"),
        (
            ("--accelerator", "emulated", "--policies", "llama.cpp"),
            ImpossibleSetting,
            "moesaic simulate --policies llama.cpp",
        ),
        (("--dtype", "bf61"), UnknownName, "unknown dtype 'bf61'"),
        (("--expert-dtype", "int2"), UnknownName, "unknown expert dtype 'int2'"),
        (("--accelerator", "emulate"), UnknownName, "Did you mean 'emulated'"),
        (("--cache-ratio", 0.5), ImpossibleSetting, "there is no accelerator"),
        (("--gpu-memory", 8), ImpossibleSetting, "there is no accelerator"),
        (("--link-bandwidth", 8), ImpossibleSetting, "--link-bandwidth 8 is of the emulated"),
        (
            ("--accelerator", "cuda", "--link-bandwidth", 8),
            ImpossibleSetting,
            "the link of 'cuda' is as fast as it is",
        ),
        (("--accelerator", "rocm"), ImpossibleSetting, "kernels for NVIDIA's GPUs only"),
        (("--cache", "belady"), ImpossibleSetting, "must know the future"),
        (("--cache", "lru"), ImpossibleSetting, "--cache lru changes nothing: there is no accel"),
        (
            ("--prefetch", "impact", "--no-promote"),
            ImpossibleSetting,
            "--prefetch impact and --no-promote change nothing",
        ),
        (("--max-sequences", 0), ImpossibleSetting, "max_sequences is 0"),
        (("--threads", 0), ImpossibleSetting, "threads is 0"),
        (("--accelerator", "emulated", "--gpu-memory", "nan"), ImpossibleSetting, "above 0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_refused(
    words: tuple[object, ...], kind: type[MoesaicError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        understood(*words)


def test_help_says_the_choices_and_defaults_that_count() -> None:
    default = {field.name: field.default for field in fields(EngineSettings)}
    own = EngineSettings().with_system(load_system(options_module.SYSTEM))
    assert own == EngineSettings(), "help says the policies of this system"
    assert (AUTO, *ACCELERATORS) == options_module.ACCELERATORS
    assert settings_module.DTYPES == options_module.DTYPES
    assert default["accelerator"] == options_module.ACCELERATORS[0]
    assert default["link_gb_s"] == options_module.LINK_GB_S
    assert EngineSettings().sequences == options_module.MAX_SEQUENCES
    assert CACHE_RATIO == options_module.CACHE_RATIO
    shown = " ".join(CliRunner().invoke(command, ["--help"]).output.split()).replace("- ", "-")
    choices = " | ".join(("auto", *EngineSettings().capabilities.expert_dtypes))
    for part in (
        "[moesaic]",
        "[learned-speed:pool=global, or",
        "else 0.25]",
        "[4]",
        "[32]",
        choices,
        "10^9 bytes",
    ):
        assert part in shown


# `--placement` on the command line: one run leaves the file, others start from it.

FEW_SLOTS = ("--accelerator", "emulated", "--cache-ratio", 0.25, "--threads", 1)
RUN = ("run", "-p", "What is 3 + 4?", "--max-tokens", 4, *FEW_SLOTS)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placement") / "uses.json"
    run_json(*RUN, "--placement", path)
    return path


def test_a_run_leaves_a_file_that_the_others_take(left: Path) -> None:
    before = left.read_text()
    assert json.loads(before)["model"] == "moesaic-20m"
    simulated: Any = run_json(
        "simulate", "--model", "moesaic-20m", "--tokens", 8, "--placement", left,
        "--policies", "ktransformers",
    )  # fmt: skip
    assert "--placement" in simulated["command"]
    measured: Any = run_json(
        "bench", "-p", 0, "-n", 4, "--repetitions", 1, *FEW_SLOTS, "--placement", left
    )
    assert measured
    assert left.read_text() == before, "only runs add to it"


def test_mistakes_have_one_line(
    left: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = left.with_name("nothing.json")
    for words, why in (
        (("simulate", "--placement", nothing), "there is no such file"),
        (("simulate", "--model", "olmoe-1b-7b", "--placement", left), "it is of moesaic-20m"),
        (("simulate", "--first-token", 5), "begin later"),
    ):
        assert why in refused(monkeypatch, capsys, *words)


def test_a_bench_needs_the_file_before_it_loads(left: Path) -> None:
    nothing = left.with_name("nothing.json")
    with pytest.raises(ImpossibleSetting, match="there is no such file"):
        run("bench", "-p", 0, "-n", 4, *FEW_SLOTS, "--placement", nothing)
