"""The slash commands of `chat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from moesaic.cli.run.answer_output import answer_lines, detail_lines, hit_rate_lines, print_lines
from moesaic.cli.shared.out_files import check_writable
from moesaic.core.errors import ImpossibleSetting, UnknownName

if TYPE_CHECKING:
    from moesaic.cli.run.conversation import Conversation

LEAVE = ("/quit", "/exit")


def run_command(line: str, conversation: Conversation) -> bool:
    """Run the command; False: quit."""
    name, _, rest = line.partition(" ")
    if name in LEAVE:
        return False
    if name not in COMMANDS:
        raise UnknownName("command", name, [*COMMANDS, *LEAVE])
    _, run = COMMANDS[name]
    run(conversation, rest.strip())
    return True


def _help(conversation: Conversation, rest: str) -> None:
    for name, (words, _) in COMMANDS.items():
        click.echo(f"{name:<9}{words}", err=True)
    click.echo("/quit    or /exit or Ctrl-D: leave. Ctrl-C ends an answer.", err=True)
    click.echo("A message that begins with a slash: put a space before it.", err=True)


def print_stats(conversation: Conversation, rest: str = "") -> None:
    stats, latest = conversation.model.batcher.stats(), conversation.latest
    if latest is None:
        click.echo("there is no answer yet", err=True)
        return
    print_lines(
        answer_lines([latest], conversation.limits), hit_rate_lines(stats), detail_lines(stats)
    )
    total = f"{stats.prompt_tokens} prompt tokens and {stats.generated_tokens} generated tokens"
    print_lines(iter([("so far", f"{total} in {stats.step_s:.1f} s")]))


def _reset(conversation: Conversation, rest: str) -> None:
    conversation.reset()
    kept = "" if conversation.system is None else "; the system message is kept"
    click.echo(f"started a new conversation{kept}", err=True)


def _system(conversation: Conversation, rest: str) -> None:
    conversation.system = rest or None
    done = "is used from the next answer on" if rest else "is removed"
    click.echo(f"the system message {done}", err=True)


def _save(conversation: Conversation, rest: str) -> None:
    if not rest:
        raise ImpossibleSetting("/save needs the name of a file, as in /save talk.json")
    check_writable("/save", rest)
    try:
        conversation.save(rest)
    except OSError as error:
        raise ImpossibleSetting(f"/save {rest!r}: {error.strerror}") from None
    click.echo(f"wrote {rest}", err=True)


# command -> (description, function)
COMMANDS: dict[str, tuple[str, Callable[[Conversation, str], None]]] = {
    "/help": ("list the commands.", _help),
    "/stats": ("tokens and times of the last answer and of the whole conversation.", print_stats),
    "/system": ("TEXT: set the system message; without TEXT, remove it.", _system),
    "/reset": ("begin a new conversation.", _reset),
    "/save": ("FILE: write the conversation as JSON.", _save),
}
