"""The option that names a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

import click

from moesaic.cli.shared.option_stack import F


def ray_option(what: str) -> Callable[[F], F]:
    """`what` runs there."""
    words = f"{what}: HOST:PORT of its head, `auto`, or `local` for one of this machine alone"
    return click.option("--ray", metavar="ADDRESS", help=f"{words} (needs the ray extra).")
