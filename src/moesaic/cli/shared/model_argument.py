"""MODEL of commands that run one: an argument, or `-m` as in llama.cpp."""

from __future__ import annotations

import click

from moesaic.cli.shared.option_stack import stack
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.hub.hub_id import parse_hub_id, with_revision

_GIVEN = "moesaic.model"  # where the option keeps its value for the argument
_REVISION = "moesaic.revision"


def _keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta[_GIVEN] = value


def _either(context: click.Context, argument: click.Parameter, value: str | None) -> str | None:
    """The argument, or what -m says; it then counts as given, for the command in results."""
    option: str | None = context.meta[_GIVEN]
    revision: str | None = context.meta[_REVISION]
    if value is not None and option is not None:
        raise ImpossibleSetting(f"two models were given, {value!r} and -m {option!r}: give one")
    if option is not None:
        context.set_parameter_source("model", click.core.ParameterSource.COMMANDLINE)
    model = option if value is None else value
    return model if revision is None else _at_revision(model, revision)


def _keep_revision(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta[_REVISION] = value


def _at_revision(model: str | None, revision: str) -> str:
    """A known name is one of ours, which has no revisions; so has a directory."""
    found = None if model is None else with_revision(model, revision)
    if found is None:
        if parse_hub_id(model) is not None:
            raise ImpossibleSetting(
                f"--revision {revision!r} is no name of a branch, tag or commit: give one of those"
            )
        named = "no model was named" if model is None else f"{model!r} is no id on the hub"
        raise ImpossibleSetting(
            f"--revision {revision} is of models fetched by their id, as Qwen/Qwen3-30B-A3B, and "
            f"{named}: leave it out"
        )
    return found


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
    click.option(
        "--revision",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_keep_revision,
        help="Branch, tag or commit of a MODEL given by its id on the hub.  [main]",
    ),
)
