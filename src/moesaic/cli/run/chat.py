"""`moesaic chat`: a conversation with a model, on a terminal or through a pipe, and the slash
commands of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.run.answer_output import (
    answer_fields,
    answer_lines,
    detail_lines,
    ending,
    fills,
    hit_rate_lines,
    print_lines,
    warn_incomplete,
)
from moesaic.cli.run.prompt import as_text, system_prompt_option
from moesaic.cli.run.sampling_options import sampling_options, sampling_params
from moesaic.cli.shared.bundled_defaults import announce_bundled, with_bundled_defaults
from moesaic.cli.shared.engine_options import (
    one_text_options,
    one_text_settings,
    placement_option,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.out_files import check_routing, check_writable
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.usual_options import CHAT
from moesaic.core.errors import ImpossibleSetting, MoesaicError, UnknownName

if TYPE_CHECKING:
    from moesaic.cli.run.conversation import Conversation
    from moesaic.engine.completion import Chunk, Completion
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.sampling.sampling_params import SamplingParams


MAX_TOKENS = 1024


@click.command(cls=ShortHelpCommand, usual=CHAT)
@model_argument
@sampling_options(MAX_TOKENS)
@system_prompt_option("The system message; /system sets another.")
@click.option("--record", metavar="FILE", help="Leave a trace of the routing there (.moet).")
@one_text_options
@placement_option
@click.option("--stats", is_flag=True, help="Print after every answer what /stats prints.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer.")
def chat(model: str | None, as_json: bool, **asked: Any) -> None:
    """Chat with a model in one conversation.

    MODEL is a directory in Hugging Face layout, an id there or a GGUF file, with a chat template;
    without it, the bundled moesaic-20m answers. Piped lines are answered one by one; the exit
    status is then that of the first that was not, and 3 where an answer is incomplete. /help lists
    commands, Ctrl-C ends an answer, Ctrl-D the conversation."""
    settings = one_text_settings(asked, announce=False)
    folder = model_folder(model, settings)
    params = sampling_params(with_bundled_defaults(asked, folder), as_json, folder)
    if asked["record"] is not None:
        check_routing("--record", asked["record"])

    from moesaic.cli.run.conversation import Conversation
    from moesaic.cli.run.generating import loaded
    from moesaic.engine.preparation import prepare

    prepared = prepare(folder, settings)
    system = asked["system_prompt"]
    _check_chat_template(prepared, params, system)
    announce_bundled(folder)
    one_text_settings(asked)  # says what was chosen, after the line about the model
    with loaded(prepared, asked["record"]) as engine:
        answer = _answer_in_json if as_json else partial(_answer, stats=asked["stats"])
        status = _talk(Conversation(engine, params, system), answer)
    if not _on_terminal():
        sys.exit(status)


def _check_chat_template(prepared: Prepared, params: SamplingParams, system: str | None) -> None:
    """Without a tokenizer or a template, or with one that drops a system message, which the first
    question would find out too late."""
    if prepared.tokenizer is None:
        raise ImpossibleSetting(
            f"{prepared.spec.name} has no tokenizer.json, so words mean nothing to it: give token "
            "ids to `moesaic run --prompt-ids 1,2,3`, or add the file to its directory"
        )
    before = [] if system is None else [{"role": "system", "content": system}]
    hello = {"role": "user", "content": "Hello"}
    prepared.input_processor.conversation([*before, hello], params)


def _talk(conversation: Conversation, answer: Callable[[Conversation, str], Completion]) -> int:
    """Talk until the user leaves. The exit status is that of the first line that failed, if one
    did."""
    from moesaic.cli.shared.exit_status import INCOMPLETE, exit_status

    failed, complete = 0, True
    for line in _lines():
        try:
            if line.startswith("/"):
                if not run_command(line, conversation):
                    break
            elif line.strip():
                complete &= answer(conversation, line.strip()).finish_reason != "incomplete"
        except MoesaicError as error:
            failed = failed or exit_status(error)
            click.echo(f"error: {error}", err=True)
        except KeyboardInterrupt:  # a moment too late for the answer
            click.echo(err=True)
    return failed or (0 if complete else INCOMPLETE)


def _answer(conversation: Conversation, text: str, stats: bool) -> Completion:

    completion = conversation.answer(text, _show)
    if not (completion.text or "").endswith("\n"):
        click.echo()
    if completion.finish_reason != "stop":
        limits = conversation.limits
        advice = "; /reset begins a new one" if fills(completion, limits) else ""
        click.echo(f"({ending(completion, limits)}{advice})", err=True)
    if stats:
        print_stats(conversation)
    return completion


def _answer_in_json(conversation: Conversation, text: str) -> Completion:

    try:
        completion = conversation.answer(text, lambda chunk: None)
    except MoesaicError as error:
        click.echo(json.dumps({"error": str(error)}, ensure_ascii=False))
        raise
    stats = asdict(conversation.model.batcher.stats())
    fields = answer_fields(completion, conversation.model.tokenizer)
    click.echo(json.dumps({**fields, "stats": stats}, ensure_ascii=False))
    warn_incomplete([completion], conversation.limits)
    return completion


def _show(chunk: Chunk) -> None:
    click.echo(chunk.text, nl=False)


def _lines() -> Iterator[str]:
    """What the user types, or what is piped in."""
    if not _on_terminal():
        yield from (as_text(line).rstrip("\r\n") for line in sys.stdin.buffer)
        return
    with suppress(ImportError):
        import_module("readline")  # gives `input` editing and history
    click.echo("/help lists commands, Ctrl-D leaves", err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n/quit or Ctrl-D leaves", err=True)
            continue
        yield line


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


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
