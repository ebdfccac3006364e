"""docs/command-line.md from the commands themselves: `python -m benchmarks.command_reference`.

The text before the first mark is not generated. Nothing here depends on the machine: a default
that does (how many cores there are) is stated in words by the option's own help.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path

import click

from benchmarks.marked_page import put, table
from moesaic.cli.command_line import app
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.core.files import whole_file

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
COMMANDS = "commands"  # mark in the page
_HELP = {"--help", "--help-all"}  # options of every command, which the page's head describes
_HELP_AND_DEFAULT = re.compile(r"(?P<help>.*?)(?:^|  )\[(?P<default>[^\[\]]+)\]", re.DOTALL)


def updated(page: str) -> str:
    """The page with the commands as they are; text around them stays."""
    return put(page, COMMANDS, "\n\n".join(_reference()))


def _reference() -> Iterator[str]:
    contexts = list(_commands(click.Context(app, info_name="moesaic")))
    yield table(
        ["command", "what it does"],
        ([f"[`{c.command_path}`](#{_anchor(c)})", _paragraphs(c)[0]] for c in contexts),
    )
    for context in contexts:
        yield from _command(context)


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Everything that can be called, in the order of `--help`; a group stands for its commands."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed"
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(inner)
        else:
            yield inner


def _command(context: click.Context) -> Iterator[str]:
    yield f"### {context.command_path}"
    sentence, *more = _paragraphs(context)
    yield sentence
    usage = context.command.get_usage(context).removeprefix("Usage: ")
    yield f"```\n{' '.join(usage.split())}\n```"
    yield from more
    params = context.command.get_params(context)
    arguments = [each for each in params if isinstance(each, click.Argument)]
    if arguments:
        yield table(["argument", "given"], ([_name(each), _given(each)] for each in arguments))
    for heading, options in _groups(context):
        if heading:
            yield f"**{heading}**"
        yield table(
            ["option", "value", "default", "meaning"],
            (_row(option, context) for option in options),
        )


def _groups(context: click.Context) -> Iterator[tuple[str, list[click.Option]]]:
    """With headings where `--help` has them."""
    command = context.command
    found = {
        _long(each): each
        for each in command.get_params(context)
        if isinstance(each, click.Option) and not each.hidden and _long(each) not in _HELP
    }
    if isinstance(command, ShortHelpCommand):
        for heading, names in command.usual.items():
            yield heading, [found.pop(name) for name in names if name in found]
        yield "Other options", list(found.values())
    elif found:
        yield "", list(found.values())


def _long(option: click.Option) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def _row(option: click.Option, context: click.Context) -> list[str]:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names = f"{names} / {', '.join(option.secondary_opts)}"
    value = "" if option.is_flag else f"`{_cell(option.make_metavar(context))}`"
    words, stated = option.help or "", None
    split = _HELP_AND_DEFAULT.fullmatch(words)
    if split is not None:
        words, stated = split["help"], split["default"]
    extra = option.get_help_extra(context)
    if option.required:
        stated = "required"
    elif stated is None:
        stated = extra.get("default")
    if "range" in extra:
        words = f"{words} ({extra['range']})".strip()
    return [f"`{names}`", value, _cell(stated or ""), _cell(words)]


def _name(argument: click.Argument) -> str:
    return f"`{argument.human_readable_name}`"


def _given(argument: click.Argument) -> str:
    if argument.nargs < 0:
        return "one or several" if argument.required else "none, one or several"
    return "required" if argument.required else "may be left out"


def _paragraphs(context: click.Context) -> list[str]:
    words = cleandoc(context.command.help or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in words]


def _anchor(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _cell(words: Iterable[str] | str) -> str:
    return " ".join("".join(words).split()).replace("|", "\\|")


def main() -> int:
    page = updated(PAGE.read_text(encoding="utf-8"))
    with whole_file(PAGE, "w") as file:
        file.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
