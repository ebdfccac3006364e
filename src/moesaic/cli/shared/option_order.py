"""The order in which repeated options were given, across options: click keeps it for each alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import click

_KEY = "moesaic.repeated_options"


class Given(NamedTuple):
    option: click.Option
    value: Any


class OrderedOptions(click.Command):
    """A command that remembers the order of its repeated options, such as `-p A -f B -p C`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_KEY] = [each for each in order if isinstance(each, click.Option)]
        return super().parse_args(ctx, args)


def repeated_options(context: click.Context) -> list[Given]:
    """Every value of every repeated option, as given; empty where the command does not remember."""
    options = [option for option in context.meta.get(_KEY, ()) if option.multiple]
    left = {option: iter(context.params[str(option.name)]) for option in options}
    return [Given(option, next(left[option])) for option in options]


def named(options: Iterable[Given], *names: str) -> list[tuple[str, Any]]:
    """Name and value of those among the options that have one of these names."""
    return [(str(option.name), value) for option, value in options if option.name in names]
