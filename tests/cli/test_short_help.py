"""Does `--help` fit two screens with the usual options, and `--help-all` show every one?"""

from __future__ import annotations

import re
from importlib import import_module

import click
import pytest
from click.testing import CliRunner
from command import run

from moesaic.cli.command_line import COMMANDS
from moesaic.cli.shared.short_help import HELP_ALL, ShortHelpCommand

LONG = ("run", "chat", "bench", "eval", "plan", "simulate", "compare", "quality", "calibrate")
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
