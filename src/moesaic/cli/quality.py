"""`moesaic quality`: what storing a model's experts in fewer bits costs, on a real text."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.common_options import command_line, json_option, names, one_of
from moesaic.cli.engine_options import one_text_options, one_text_settings
from moesaic.cli.model_folder import model_folder
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting, UnknownName

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.generation.preparation import Prepared

DTYPES, TOKENS = "int8,int4", 512
_SAMPLE = "quality_text.txt"
_WINDOW = 2048  # tokens the model sees at once, if nobody says otherwise


@click.command()
@click.argument("model")
@click.option(
    "--expert-dtypes",
    metavar="DTYPES",
    default=DTYPES,
    show_default=True,
    help=f"To compare with --expert-dtype, with commas: {one_of(BITS_PER_WEIGHT)}",
)
@click.option("--text", metavar="FILE", help="UTF-8 text to read.  [a sample of plain English]")
@click.option(
    "--tokens",
    type=int,
    metavar="N",
    default=TOKENS,
    show_default=True,
    help="Predictions to compare, from the beginning of the text.",
)
@one_text_options
@json_option
@click.pass_context
def quality(context: click.Context, /, model: str, as_json: bool, **asked: Any) -> None:
    """Measure what storing experts in fewer bits costs.

    The model reads the same text with its experts in each precision. KL is the divergence of its
    expectations from those with --expert-dtype experts, in nats per token; same top-1 is how often
    both expect the same token most. MODEL is a directory in Hugging Face layout."""
    settings, wanted = one_text_settings(asked), _dtypes(asked["expert_dtypes"])
    if asked["tokens"] < 1:
        raise ImpossibleSetting(f"--tokens is {asked['tokens']}; it must be at least 1")
    folder, text = model_folder(model), _text(asked["text"])

    from moesaic.cli.output import print_json, progress
    from moesaic.cli.quality_tables import describe, print_quality
    from moesaic.cli.recording import announce_compilation
    from moesaic.engine.quality.expert_quality import compare_precisions, prepare_precisions

    settings = _with_room(settings, folder, asked["tokens"])
    precisions = prepare_precisions(folder, settings, wanted)
    tokens = _tokens(precisions[0], text, asked["tokens"])
    announce_compilation()
    bar = partial(progress, quiet=not sys.stderr.isatty())
    found = list(compare_precisions(precisions, tokens, bar))
    described = describe(precisions[0], found, asked["text"])
    if as_json:
        print_json({**described, "command": command_line(context)})
    else:
        print_quality(described)


def _dtypes(commas: str) -> list[str]:
    asked = names("--expert-dtypes", commas)
    for dtype in asked:
        if dtype not in BITS_PER_WEIGHT:
            raise UnknownName("expert dtype", dtype, BITS_PER_WEIGHT)
    return asked


def _text(path: str | None) -> str:
    if path is None:
        return (files("moesaic.cli") / "data" / _SAMPLE).read_text(encoding="utf-8")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ImpossibleSetting(
            f"--text {path!r} is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None


def _with_room(settings: EngineSettings, folder: Path, tokens: int) -> EngineSettings:
    """Where the user leaves it open, sequences are as long as the text, or as is usual."""
    from moesaic.core.model_config import read_model_config

    if settings.max_model_len is not None:
        return settings
    most = read_model_config(folder).max_context or _WINDOW
    return replace(settings, max_model_len=min(tokens, most, _WINDOW))


def _tokens(prepared: Prepared, text: str, most: int) -> list[int]:
    """One more than predictions: the first token is only read."""
    if prepared.tokenizer is None:
        raise ImpossibleSetting(
            f"{prepared.spec.name} has no tokenizer.json, so a text means nothing to it, and "
            "quality is measured on text: add the file to its directory"
        )
    tokens = prepared.tokenizer.encode(text)[: most + 1]
    if len(tokens) < 2:
        raise ImpossibleSetting(
            f"the text has {len(tokens)} tokens; at least two are needed, one to read and one to "
            "expect: give a longer one"
        )
    return tokens
