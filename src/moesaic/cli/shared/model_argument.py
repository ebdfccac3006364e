"""MODEL of commands that run one: an argument, or `-m` as in llama.cpp."""

from __future__ import annotations

import click

from moesaic.cli.shared.option_stack import stack
from moesaic.core.errors import ImpossibleSetting

_GIVEN = "moesaic.model"  # where the option keeps its value for the argument


def _keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta[_GIVEN] = value


def _either(context: click.Context, argument: click.Parameter, value: str | None) -> str | None:
    """The argument, or what -m says; it then counts as given, for the command in results."""
    option: str | None = context.meta[_GIVEN]
    if value is not None and option is not None:
        raise ImpossibleSetting(f"two models were given, {value!r} and -m {option!r}: give one")
    if option is not None:
        context.set_parameter_source("model", click.core.ParameterSource.COMMANDLINE)
    return option if value is None else value


model_argument = stack(
    click.argument("model", required=False, callback=_either),
    click.option(
        "-m",
        "--model",
        "named_model",
        metavar="MODEL",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="MODEL, where it is easier to give as an option.",
    ),
)
