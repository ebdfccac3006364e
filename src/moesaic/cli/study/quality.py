"""`moesaic quality`: what storing a model's weights or its KV cache in fewer bits costs, on a real
text and on problems whose answers are right or wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.engine_options import one_text_options, one_text_settings
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.output import print_json, print_table, progress
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import command_line, json_option, names
from moesaic.cli.shared.usual_options import QUALITY
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.units import GB
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.kv_dtypes import KV_DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.evaluation.items import Question
    from moesaic.lab.evaluation.results import ItemResult
    from moesaic.lab.quality.expert_quality import ExpertQuality
    from moesaic.model_info.model_spec import ModelSpec


DTYPES, TOKENS = "int8,int4", 512
_SAMPLE = "quality_text.txt"
_WINDOW = 2048  # default context of a prediction, in tokens
BUNDLED_PROBLEMS, _AT_ONCE = 50, 16


@click.command(cls=ShortHelpCommand, usual=QUALITY)
@model_argument
@click.option(
    "--expert-dtypes",
    metavar="DTYPES",
    help=f"To compare with --expert-dtype, with commas: {one_of(BITS_PER_WEIGHT)}  "
    f"[{DTYPES}, unless --dense-dtypes or --kv-dtypes is given]",
)
@click.option(
    "--dense-dtypes",
    metavar="DTYPES",
    help="To compare with --dense-dtype, with commas, whole or by parts: "
    "int8,head=int4,attention=int4",
)
@click.option(
    "--kv-dtypes",
    metavar="DTYPES",
    help=f"To compare with --kv-dtype, with commas: {one_of(KV_DTYPES)}",
)
@click.option(
    "--text", metavar="FILE", help="UTF-8 text, also .gz or .xz.  [a sample of plain English]"
)
@click.option(
    "--tokens",
    type=int,
    metavar="N",
    default=TOKENS,
    show_default=True,
    help="Predictions to compare, from the beginning of the text.",
)
@click.option(
    "--problems",
    type=int,
    metavar="N",
    help="Also let each precision solve N held-out problems of each split: exact match.  "
    f"[{BUNDLED_PROBLEMS} with the bundled model, else 0]",
)
@one_text_options
@json_option
@click.pass_context
def quality(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Measure what storing weights or the KV cache in fewer bits costs.

    The model reads the same text with its experts in each precision. KL is the divergence of its
    expectations from those with --expert-dtype experts, in nats per token; same top-1 is how often
    both expect the same token most. With --problems, all solve the same ones. MODEL is a directory
    in Hugging Face layout; without it, the bundled one is measured."""
    settings, dense = one_text_settings(asked), _dense_dtypes(asked["dense_dtypes"])
    kept = _kv_dtypes(asked["kv_dtypes"])
    wanted = _dtypes(asked["expert_dtypes"] or ("" if dense or kept else DTYPES))
    for name, minimum in (("tokens", 1), ("problems", 0)):
        if asked[name] is not None and asked[name] < minimum:
            raise ImpossibleSetting(f"--{name} is {asked[name]}; it must be at least {minimum}")
    folder = model_folder(model, settings)
    text, problems = _text(asked["text"]), _problems(asked["problems"], folder)

    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.quality.expert_quality import compare_precisions, prepare_precisions
    from moesaic.model_info.model_config import read_model_config

    spec = read_model_config(folder)
    questions = _questions(folder, spec, problems)
    window = _window(settings, spec.max_context, asked["tokens"])
    settings = _sized_for(settings, spec.max_context, window, questions)
    precisions = prepare_precisions(folder, settings, wanted, dense, kept)
    tokens = _tokens(precisions[0], text, asked["tokens"])
    announce_compilation()
    found = list(compare_precisions(precisions, tokens, progress, window, questions))
    described = describe(precisions[0], found, asked["text"], window)
    if as_json:
        print_json({**described, "command": command_line(context)})
    else:
        print_quality(described)


def _dense_dtypes(commas: str | None) -> list[str]:
    asked = [] if commas is None else names("--dense-dtypes", commas)
    return [str(DensePrecision.of(each)) for each in asked]


def _kv_dtypes(commas: str | None) -> list[str]:
    asked = [] if commas is None else names("--kv-dtypes", commas)
    for dtype in asked:
        if dtype not in KV_DTYPES:
            raise UnknownName("KV dtype", dtype, KV_DTYPES)
    return asked


def _dtypes(commas: str) -> list[str]:
    asked = names("--expert-dtypes", commas) if commas else []
    for dtype in asked:
        if dtype not in BITS_PER_WEIGHT:
            raise UnknownName("expert dtype", dtype, BITS_PER_WEIGHT)
    return asked


def _text(path: str | None) -> str:
    if path is None:
        return (files("moesaic.cli.study") / "data" / _SAMPLE).read_text(encoding="utf-8")
    from moesaic.lab.evaluation.input_files import read_text

    return read_text(Path(path))


def _problems(asked: int | None, folder: Path) -> int:
    from moesaic.models.bundled_model import is_bundled

    if asked is not None:
        return asked
    return BUNDLED_PROBLEMS if is_bundled(folder) else 0


def _questions(folder: Path, spec: ModelSpec, problems: int) -> Sequence[Question]:
    if not problems:
        return ()
    from moesaic.cli.study.eval_items import open_tokenizer
    from moesaic.lab.evaluation.problem_task import problem_items
    from moesaic.lab.evaluation.prompts import CHAT, choose_form

    tokenizer = open_tokenizer(folder, spec)
    return problem_items(tokenizer, choose_form(None, CHAT, tokenizer), problems)


def _window(settings: EngineSettings, max_context: int, tokens: int) -> int:
    """How much of the text is seen at once: all of it, the usual window, or what the user gave."""
    if settings.max_model_len is not None:
        return settings.max_model_len
    return min(tokens, max_context or _WINDOW, _WINDOW)


def _sized_for(
    settings: EngineSettings, max_context: int, window: int, questions: Sequence[Question]
) -> EngineSettings:
    """Settings for the window and, where there are some, for several questions at once.
    `max_context` is the model's context, 0 if it does not say."""
    if not questions:
        return replace(settings, max_model_len=window)
    prompt = max(len(each.prompt) for each in questions)
    longest = prompt + questions[0].max_tokens
    context = settings.max_model_len or max_context or longest
    if prompt >= context:
        raise ImpossibleSetting(
            f"problems have up to {prompt} tokens, and a sequence may have {context}: raise "
            "--max-model-len, if the model allows more, or leave --problems out"
        )
    max_model_len, at_once = min(max(window, longest), context), min(_AT_ONCE, len(questions))
    return replace(settings, max_model_len=max_model_len, max_sequences=at_once)


def _tokens(prepared: Prepared, text: str, max_tokens: int) -> list[int]:
    """One more than predictions: the first token is only read."""
    if prepared.tokenizer is None:
        raise ImpossibleSetting(
            f"{prepared.spec.name} has no tokenizer.json, so a text means nothing to it, and "
            "quality is measured on text: add the file to its directory"
        )
    tokens = prepared.tokenizer.encode(text)[: max_tokens + 1]
    if len(tokens) < 2:
        raise ImpossibleSetting(
            f"the text has {len(tokens)} tokens; at least two are needed, one to read and one to "
            "expect: give a longer one"
        )
    return tokens


_COLUMNS = (
    "experts", "others", "KV", "GB", "load s", "mean KL", "p99 KL", "same top-1", "perplexity",
)  # fmt: skip


def describe(
    reference: Prepared, found: Sequence[ExpertQuality], text: str | None, window: int
) -> dict[str, Any]:
    """`text` is the file that was read, None for the packaged sample; `window` is how many tokens
    of it were seen at once."""
    return {
        "model": reference.spec.name,
        "text": text,
        "tokens": found[0].quality.tokens,
        "window": window,
        "dtype": reference.plan.dtype,
        "reference": found[0].expert_dtype,
        "rows": [_row(each) for each in found],
    }


def print_quality(described: dict[str, Any]) -> None:
    source = described["text"] or "the packaged sample"
    title = f"{described['model']}: {described['tokens']} tokens of {source}, compared with "
    rows = [
        (
            row["expert_dtype"],
            row["dense_dtype"],
            row["kv_dtype"],
            row["expert_bytes"] / GB,
            row["load_s"],
            _or_infinite(row["mean_kl"]),
            _or_infinite(row["p99_kl"]),
            f"{row['same_top1']:.1%}",
            _or_infinite(row["perplexity"]),
        )
        for row in described["rows"]
    ]
    print_table(f"{title}{described['reference']} experts", _COLUMNS, rows)
    if described["rows"][0]["exact_match"]:
        _print_exact_match(described)


def _print_exact_match(described: dict[str, Any]) -> None:
    splits = [score["group"] for score in described["rows"][0]["exact_match"]]
    asked = described["rows"][0]["exact_match"][0]["asked"]
    columns = ["experts", "others", "KV", *(name for split in splits for name in (split, "95 %"))]
    rows = []
    for row in described["rows"]:
        cells = [row["expert_dtype"], row["dense_dtype"], row["kv_dtype"]]
        for score in row["exact_match"]:
            low, high = 100 * score["low"], score["high"]
            cells += [f"{score['share']:.1%}", f"{low:.1f}-{high:.1%}"]
        rows.append(cells)
    print_table(f"exact match on {asked} problems of each split", columns, rows)


def _row(each: ExpertQuality) -> dict[str, Any]:
    measured = each.quality
    return {
        "expert_dtype": each.expert_dtype,
        "dense_dtype": each.dense_dtype,
        "kv_dtype": each.kv_dtype,
        "expert_bytes": each.expert_bytes,
        "load_s": each.load_s,
        "mean_kl": _or_null(measured.mean_kl),
        "p99_kl": _or_null(measured.p99_kl),
        "same_top1": measured.same_top1,
        "perplexity": _or_null(measured.other_perplexity),
        "exact_match": _exact_match(each.answers),
    }


def _exact_match(answers: Sequence[ItemResult]) -> list[dict[str, Any]]:
    """The exact match of each split of the problems; empty where none were given."""
    from moesaic.lab.evaluation.scores import Score, scores

    found = [score for score in scores(answers) if isinstance(score, Score) and not score.kind]
    names = ("group", "right", "asked", "share", "low", "high")
    rows = [{name: getattr(score, name) for name in names} for score in found]
    return sorted(rows, key=lambda score: str(score["group"]))


def _or_null(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
