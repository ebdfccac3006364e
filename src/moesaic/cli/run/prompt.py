"""The prompts of `run`: text from options, files or standard input, or token ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_order import named, repeated_options
from moesaic.cli.shared.option_stack import F, stack
from moesaic.core.errors import BadFile, ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.preparation import Prepared

Prompt = str | list[int]


def system_prompt_option(words: str) -> Callable[[F], F]:
    return click.option("-sys", "--system-prompt", metavar="TEXT", help=words)


prompt_options = stack(
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        multiple=True,
        help="The text to go on with; `-` reads standard input. Several, also of -f, are answered "
        "together, in order.  [standard input, if piped]",
    ),
    click.option(
        "-f", "--file", metavar="FILE", multiple=True, help="A file that is a prompt, as -p is."
    ),
    click.option(
        "--prompt-ids",
        metavar="1,2,3",
        multiple=True,
        help="Token ids instead, for a model without a tokenizer: it then answers in ids. May be "
        "repeated.",
    ),
    click.option(
        "--chat/--no-chat",
        default=None,
        help="Put the prompt to the model as a user's message.  [--chat with the bundled model]",
    ),
    system_prompt_option("With --chat: the system message before it."),
)


def read_prompts(asked: Mapping[str, Any], context: click.Context) -> list[Prompt]:
    """Those of -p and -f in the order given; or token ids, or what is piped in."""
    texts, files, ids = asked["prompt"], asked["file"], asked["prompt_ids"]
    if ids:
        for option, given in (("--prompt", texts), ("--file", files), ("--chat", asked["chat"])):
            if given:
                raise ImpossibleSetting(
                    f"--prompt-ids and {option} were given: {option} is about text; give one"
                )
        return [_ids(each) for each in ids]
    if texts or files:
        read = {"prompt": _from_option, "file": _from_file}
        given = named(repeated_options(context), *read)
        return [read[name](value) for name, value in given]
    if sys.stdin is None or sys.stdin.isatty():
        raise ImpossibleSetting(
            "there is no prompt: give one with -p TEXT, with -f FILE, with --prompt-ids 1,2,3, or "
            "through a pipe"
        )
    return [_from_pipe()]


def _from_option(text: str) -> str:
    if text == "-":
        return _from_pipe()
    if not text:
        raise ImpossibleSetting("the prompt given with -p is empty: give some text")
    return text


def _from_file(name: str) -> str:
    """The file's text without the line end that editors put at the end of a file."""
    try:
        content = Path(name).read_bytes()
        text = content.decode().removesuffix("\n")
    except OSError as error:
        raise BadFile(f"--file {name!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadFile(
            f"--file {name!r} is not valid UTF-8: byte 0x{content[error.start]:02x} in line {line} "
            f"(offset {error.start}); convert it, for example with `iconv -f LATIN1 -t UTF-8`"
        ) from None
    if not text:
        raise BadFile(f"the prompt in --file {name!r} is empty: write some text to it")
    return text


def _from_pipe() -> str:
    piped = as_text(sys.stdin.buffer.read()).removesuffix("\n")
    if not piped:
        raise ImpossibleSetting("the prompt on standard input is empty: give one with -p TEXT")
    return piped


def as_text(typed: bytes) -> str:
    """Bytes that are not UTF-8 are kept as such: the tokenizer refuses them by place."""
    return typed.decode("utf-8", "surrogateescape")


def prompt_tokens(
    prompt: Prompt, chat: bool | None, prepared: Prepared, system: str | None = None
) -> list[int]:
    if system is not None and not chat:
        raise ImpossibleSetting(
            "--system-prompt is a message before a user's: add --chat, or leave it out"
        )
    if not isinstance(prompt, str):
        return prompt
    if prepared.tokenizer is None:
        raise ImpossibleSetting(
            f"{prepared.spec.name} has no tokenizer.json, so text means nothing to it: give token "
            "ids with --prompt-ids 1,2,3, or add the file to its directory"
        )
    if chat:
        before = [] if system is None else [{"role": "system", "content": system}]
        return prepared.tokenizer.encode_chat([*before, {"role": "user", "content": prompt}])
    return list(prepared.input_processor.request(prompt).prompt)


def _ids(commas: str) -> list[int]:
    try:
        return [int(word) for word in commas.split(",")]
    except ValueError:
        raise ImpossibleSetting(
            f"--prompt-ids is {commas!r}; expected token ids with commas between, as in 1,2,3"
        ) from None
