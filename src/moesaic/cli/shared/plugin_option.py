"""`--plugin`: policies of the user's own, registered before any other option is read."""

from __future__ import annotations

import click


def _load(
    context: click.Context, option: click.Parameter, named: tuple[str, ...]
) -> tuple[str, ...]:
    if named and not context.resilient_parsing:
        from moesaic.core.plugins import load_plugin

        for name in named:
            load_plugin(name)
    return named


plugin_option = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    is_eager=True,
    callback=_load,
    help="A Python file or module that registers policies of your own; may be repeated.",
)
