"""The prompt of `run`: text from an option or standard input, or token ids."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_stack import stack
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.preparation import Prepared

Prompt = str | list[int]

prompt_options = stack(
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The text to go on with; `-` reads standard input.  [standard input, if piped]",
    ),
    click.option(
        "--prompt-ids",
        metavar="1,2,3",
        help="Token ids instead, for a model without a tokenizer: it then answers in ids.",
    ),
    click.option(
        "--chat/--no-chat",
        default=None,
        help="Put the prompt to the model as a user's message.  [--chat with the bundled model]",
    ),
)


def read_prompt(asked: Mapping[str, Any]) -> Prompt:
    text, ids = asked["prompt"], asked["prompt_ids"]
    if ids is not None:
        for option, given in (("--prompt", text is not None), ("--chat", asked["chat"])):
            if given:
                raise ImpossibleSetting(
                    f"--prompt-ids and {option} were given: {option} is about text; give one"
                )
        return _ids(ids)
    if text is not None and text != "-":
        if not text:
            raise ImpossibleSetting("the prompt given with -p is empty: give some text")
        return str(text)
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise ImpossibleSetting(
            "there is no prompt: give one with -p TEXT, with --prompt-ids 1,2,3, or through a pipe"
        )
    piped = as_text(sys.stdin.buffer.read()).removesuffix("\n")
    if not piped:
        raise ImpossibleSetting("the prompt on standard input is empty: give one with -p TEXT")
    return piped


def as_text(typed: bytes) -> str:
    """Bytes that are not UTF-8 are kept as such: the tokenizer refuses them by place."""
    return typed.decode("utf-8", "surrogateescape")


def prompt_tokens(prompt: Prompt, chat: bool | None, prepared: Prepared) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    if prepared.tokenizer is None:
        raise ImpossibleSetting(
            f"{prepared.spec.name} has no tokenizer.json, so text means nothing to it: give token "
            "ids with --prompt-ids 1,2,3, or add the file to its directory"
        )
    if chat:
        return prepared.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    return list(prepared.input_processor.request(prompt).prompt)


def _ids(commas: str) -> list[int]:
    try:
        return [int(word) for word in commas.split(",")]
    except ValueError:
        raise ImpossibleSetting(
            f"--prompt-ids is {commas!r}; expected token ids with commas between, as in 1,2,3"
        ) from None
