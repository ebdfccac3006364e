"""Do options say their defaults and choices, and is one that would change nothing refused?"""

from __future__ import annotations

import re
from importlib import import_module

import click
import pytest
from click.testing import CliRunner
from command import SMALL, refused, run, run_json

from moesaic.cli.command_line import COMMANDS
from moesaic.cli.shared.short_help import HELP_ALL, ShortHelpCommand
from moesaic.cli.shared.simulation_options import MACHINE, build_settings
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.policies.policy_set import PolicySet

PREFILL = ("--phase", "prefill")
IDLE = [
    (("simulate", *PREFILL, "--batch", 1), "--batch 1 means nothing in prefill"),
    (("simulate", *PREFILL, "--context", 0), "use --phase decode"),
    (("simulate", "--prompts", 2), "--prompts 2 means nothing in decode"),
    (("simulate", "--cache", "lru:alpha=0.2"), "unknown lru parameter 'alpha'"),
    (("compare", *PREFILL, "--batch", 1), "--batch 1 means nothing in prefill"),
    (("compare", "--prompts", 2), "--prompts 2 means nothing in decode"),
    (("compare", "--caches", "mrs,lru:alpha=0.2,belady"), "unknown lru parameter 'alpha'"),
]


@pytest.mark.parametrize(("words", "message"), IDLE, ids=lambda value: str(value)[:40])
def test_an_option_without_effect_is_refused(
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(monkeypatch, capsys, *words, *SMALL)
    assert message in said
    assert "none of these can run" not in said


@pytest.mark.parametrize("command", ["simulate", "compare", "run", "chat", "bench", "plan", "eval"])
def test_an_option_that_became_a_parameter_names_its_new_form(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, command, "--alpha", 0.2)
    assert "No such option: --alpha" in said
    assert "--cache mrs:alpha=0.2" in said
    assert "--cache lru:pool=global" in refused(monkeypatch, capsys, command, "--slots", "global")
    shown = run(command, "--help-all").out
    assert "--alpha" not in shown
    assert "--slots" not in shown


def test_a_list_of_policies_has_parameters() -> None:
    """A comma before `parameter=` belongs to the policy before it."""
    listed = "mrs, mrs:alpha=0.9,pool=global,lru,mrs:alpha=0.1"
    rows = run_json("compare", *SMALL, "--jobs", 1, "--caches", listed, "--schedules", "hybrid")
    chosen = ["mrs", "mrs:alpha=0.9,pool=global", "lru"]  # 0.1 is the default: the same as mrs
    assert [row["policies"]["cache"] for row in rows] == chosen
    assert [row["system"] for row in rows] == [f"hybrid+{cache}+impact" for cache in chosen]
    values = [row["policies"]["parameters"]["cache"] for row in rows]
    assert values[0] == {"alpha": 0.1, "top_p": None, "pool": "per-layer", "admission": "bypass"}
    assert values[1] == {"alpha": 0.9, "top_p": None, "pool": "global", "admission": "bypass"}
    assert values[2] == {"counts": "used", "pool": "per-layer", "admission": "bypass"}
    assert len({row["latency_s"]["mean"] for row in rows}) == 3, "a parameter has an effect"


@pytest.mark.parametrize(
    ("model", "experts"),
    [("gpt-oss-20b", "int4"), ("deepseek-v3", "int8"), ("olmoe-1b-7b", "bf16")],
)
def test_plans_and_simulations_have_the_same_precision_by_default(model: str, experts: str) -> None:
    planned = run_json("plan", model, "--memory", 2000, "--dtype", "auto")
    assert (planned["expert_dtype"], planned["dtype"]) == (experts, "bf16")
    asked = {"model": model, "machine": MACHINE, "phase": "decode", "cache_ratio": 0.0}
    asked["changes"] = {"cpu.memory_gb": 2000}
    for given in ({}, {"expert_dtype": "auto", "dense_dtype": "auto"}):
        simulated = build_settings({**asked, **given})
        assert (simulated.expert_dtype, simulated.dense_dtype) == (experts, "bf16")
    assert build_settings({**asked, "expert_dtype": "int8"}).expert_dtype == "int8"


@pytest.mark.parametrize("command", ["simulate", "compare", "run", "bench"])
def test_help_shows_defaults_and_choices(command: str) -> None:
    shown = " ".join(run(command, "--help-all").out.split()).replace("- ", "-")
    own = PolicySet()
    for default in (str(own.schedule), str(own.cache), str(own.prefetch), "promote"):
        assert f"[{default}" in shown
    if command in ("simulate", "compare"):
        assert shown.count(" | ".join(BITS_PER_WEIGHT)) == 2


def test_compare_overrides_promotion_of_systems() -> None:
    words = ("compare", *SMALL, "--jobs", 1, "--systems", "llama.cpp,moesaic-lru")
    says = [row["policies"] for row in run_json(*words)]
    pools = [policies["parameters"]["cache"]["pool"] for policies in says]
    assert pools == ["global", "per-layer"]
    assert all(policies["promote"] for policies in says)
    assert not any(row["policies"]["promote"] for row in run_json(*words, "--no-promote"))


# Does `--help` fit two screens with the usual options, and `--help-all` show every one?

LONG = (
    "run",
    "chat",
    "bench",
    "eval",
    "plan",
    "simulate",
    "compare",
    "quality",
    "calibrate",
    "serve",
)
LINES = 60  # of 80 columns: two screens of 30 lines
FIRST = 48  # of the command that people try first: two of the smallest terminals, 24 lines each


def command(name: str) -> ShortHelpCommand:
    found = getattr(import_module(COMMANDS[name][0]), name)
    assert isinstance(found, ShortHelpCommand)
    return found


@pytest.mark.parametrize("name", LONG)
def test_help_has_the_usual_options_on_two_screens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run(name, "--help").out
    assert len(said.splitlines()) <= (FIRST if name == "run" else LINES)
    assert max(map(len, said.splitlines())) <= 80
    assert f" {name} {HELP_ALL} lists them." in said
    usual = [option for group in command(name).usual.values() for option in group]
    assert len(set(usual)) == len(usual)
    found = command(name)
    context = click.Context(found, info_name=name)
    known = {opt for param in found.get_params(context) for opt in param.opts}
    assert set(usual) <= known, "each is an option of the command"


@pytest.mark.parametrize("name", LONG)
def test_help_all_has_every_option_and_hidden_ones_stay_hidden(name: str) -> None:
    said = run(name, HELP_ALL).out
    found = command(name)
    for param in found.get_params(click.Context(found, info_name=name)):
        if isinstance(param, click.Option):
            shown = re.search(rf"\s{param.opts[0]}[\s,]", said) is not None
            assert shown is not param.hidden, param.opts
    assert "more options" not in said
    assert not re.search(r"^ +\[[A-Z]+\]", said, re.M), "arguments are in the usage line"


def test_the_usual_options_come_first_and_the_others_work() -> None:
    said = run("run", "--help").out
    order = [said.index(f"{option} ") for option in ("--prompt", "--max-tokens", "--accelerator")]
    assert order == sorted(order)
    assert "--frequency-penalty" not in said
    result = CliRunner().invoke(command("run"), ["--frequency-penalty", "x"])
    assert "is not a valid float" in result.output
