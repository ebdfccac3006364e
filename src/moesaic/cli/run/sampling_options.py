"""How tokens are chosen: the options that `run` and `chat` share. Values are checked by
`SamplingParams`, before a model is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from moesaic.cli.shared.option_stack import stack
from moesaic.core.errors import BadFile, BadTokenizer, ImpossibleSetting
from moesaic.engine.sampling.sampling_params import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
# option -> (kind, placeholder, what it does)
_NUMBERS: dict[str, tuple[type, str, str]] = {
    "temperature": (float, "T", "0: the likeliest token."),
    "top_k": (int, "K", "Keep the K likeliest tokens; 0 keeps all."),
    "top_p": (float, "P", "Keep the likeliest tokens that together have probability P."),
    "min_p": (float, "P", "Keep tokens at least P times as likely as the likeliest."),
    "repetition_penalty": (float, "X", "Above 1 discourages tokens that were seen."),
    "presence_penalty": (float, "X", "Above 0 discourages tokens that the answer has."),
    "frequency_penalty": (float, "X", "The same, times how often it has them."),
}
_NAMES = ("max_tokens", *_NUMBERS, "seed", "stop", "logprobs", "ignore_eos")
_MAX_BYTES = 1 << 20  # of a file with a schema or a grammar


def sampling_options(max_tokens: int) -> Callable[[F], F]:
    """Add the sampling options; without --max-tokens answers have at most `max_tokens`."""
    return stack(
        click.option(
            "--max-tokens",
            "-n",
            type=int,
            metavar="N",
            default=max_tokens,
            show_default=True,
            help="Most tokens of an answer.",
        ),
        *(_number(name, *described) for name, described in _NUMBERS.items()),
        click.option(
            "--seed",
            type=int,
            help="The same seed gives the same answer on the same machine, if asked alone.  "
            "[a fresh one]",
        ),
        click.option(
            "--ignore-eos", is_flag=True, help="Go on past the model's end, up to --max-tokens."
        ),
        click.option(
            "--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."
        ),
        click.option(
            "--logprobs",
            type=int,
            metavar="N",
            help="With --json: each token's log-probability, and the N likeliest tokens.",
        ),
        click.option(
            "--json-schema",
            metavar="FILE|JSON",
            help="The answer is JSON of this schema; what begins with { is the schema itself.",
        ),
        click.option(
            "--grammar", metavar="FILE", help="The answer matches this grammar, in Lark or GBNF."
        ),
        click.option("--regex", help="The answer matches this regular expression as a whole."),
    )


def sampling_params(asked: Mapping[str, Any], as_json: bool, folder: Path) -> SamplingParams:
    """What was not asked for is what the model's generation_config.json says, and is shown."""
    if asked["logprobs"] is not None and not as_json:
        raise ImpossibleSetting(
            f"--logprobs {asked['logprobs']} is printed as JSON only: add --json, or leave it out"
        )
    given = {name: asked[name] for name in _NAMES if asked[name] is not None}
    given |= _shape(asked)
    if asked.get("completions") is not None:
        given["n"] = asked["completions"]
    from moesaic.models.text.generation_config import defaults_text, sampling_defaults
    from moesaic.models.text.tokenizer_files import GENERATION

    own = {name: v for name, v in sampling_defaults(folder).items() if name not in given}
    try:
        SamplingParams(**own)
    except ImpossibleSetting as error:
        raise BadTokenizer(folder / GENERATION, "sampling", str(error)) from None
    params = SamplingParams(**own, **given)
    if own:
        click.echo(f"sampling: {defaults_text(own)}, as the model's {GENERATION} says", err=True)
    return params


def _shape(asked: Mapping[str, Any]) -> dict[str, str]:
    """What the answer must match, read from files where those are named."""
    found = {name: asked[name] for name in ("json_schema", "grammar", "regex")}
    found = {name: given for name, given in found.items() if given is not None}
    if "json_schema" in found and not found["json_schema"].lstrip().startswith("{"):
        found["json_schema"] = _content("--json-schema", found["json_schema"])
    if "grammar" in found:
        found["grammar"] = _content("--grammar", found["grammar"])
    return found


def _content(option: str, name: str) -> str:
    try:
        with Path(name).open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise BadFile(f"{option} {name!r}: the file has more than {_MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise BadFile(f"{option} {name!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(f"{option} {name!r} is not UTF-8 text") from None


def _number(name: str, kind: type, metavar: str, words: str) -> Callable[[F], F]:
    option = f"--{name.replace('_', '-')}"
    default = f"{_DEFAULTS[name]:g}" + ("; bundled model: 0" if name == "temperature" else "")
    return click.option(option, type=kind, metavar=metavar, help=f"{words}  [{default}]")
