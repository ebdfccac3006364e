"""Commands with many options: `--help` shows the usual ones in groups, `--help-all` every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

HELP_ALL = "--help-all"
Groups = Mapping[str, Sequence[str]]  # heading -> long names of options


class ShortHelpCommand(click.Command):
    """Options that are not among the `usual` ones are accepted all the same."""

    def __init__(self, *words: Any, usual: Groups, **fields: Any) -> None:
        super().__init__(*words, **fields)
        self.usual = usual

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        everything = click.Option(
            [HELP_ALL],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_everything,
            help="Show every option and exit.",
        )
        return [*params, everything]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = self._records(ctx)
        for heading, names in self.usual.items():
            shown = [records.pop(name) for name in names if name in records]
            if shown:
                with formatter.section(heading):
                    formatter.write_dl(shown)
        ends = [records.pop(name) for name in ("--help", HELP_ALL) if name in records]
        with formatter.section("Help"):
            formatter.write_dl(ends)
        if _is_whole(ctx):
            with formatter.section("Other options"):
                formatter.write_dl(list(records.values()))
        elif records:
            formatter.write_paragraph()
            formatter.write_text(
                f"{len(records)} more options: {ctx.command_path} {HELP_ALL} lists them."
            )

    def _records(self, ctx: click.Context) -> dict[str, tuple[str, str]]:
        """What help says of each option, by its long name."""
        found = {}
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option):
                continue  # arguments are in the usage line
            record = param.get_help_record(ctx)
            if record is not None:
                long = [name for name in param.opts if name.startswith("--")]
                found[(long or param.opts)[0]] = record
        return found


def _is_whole(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(HELP_ALL))


def _show_everything(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
