"""`moesaic calibrate`: the cheapest gate that keeps a quality bound on prompts of one's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.engine_options import engine_options, engine_settings
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.out_files import check_file
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import command_line, json_option, names
from moesaic.cli.shared.usual_options import CALIBRATE
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.policies.gate import MEASURES

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.evaluation.items import Question
    from moesaic.lab.gating.bound import Bound
    from moesaic.lab.gating.calibrate import Calibration

MAX_TOKENS = 160
_AT_ONCE = 2  # prompts, each under all thresholds
_SHOWN = 12


@click.command(cls=ShortHelpCommand, usual=CALIBRATE)
@model_argument
@click.option("--prompts", required=True, metavar="FILE", help="Lines of text, or .jsonl.")
@click.option("--bound", metavar="TEXT", help='Such as "1 point exact match"; needs answers.')
@click.option("--max-kl", type=float, metavar="NATS", help="Mean KL(full || gated) per token.")
@click.option("--sure", is_flag=True, help="The 95 % interval must keep the bound, too.")
@click.option("--confidence", help=f"Measures to try, a comma list of {one_of(MEASURES)}.  [all]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N prompts only.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=MAX_TOKENS,
    show_default=True,
    help="Most tokens of an answer.",
)
@click.option("--form", type=click.Choice(["chat", "plain"]), help="How prompts are asked.")
@click.option(
    "--out",
    metavar="FILE",
    default="quality.json",
    show_default=True,
    help="The file to write, which --quality reads.",
)
@engine_options
@json_option
@click.pass_context
def calibrate(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Choose gamma, k and confidence of big-little decoding for a quality bound.

    Prompts are answered greedily by the full model and under every threshold. `.jsonl` lines have
    `prompt` (or `question`), and `answer` where exact match is bounded; without answers, bound the
    KL divergence, measured on the full model's own answers. The file that is written is what
    `--quality FILE` of run, chat, bench, eval and LLM reads."""
    from moesaic.lab.gating.bound import read_bound

    bound = read_bound(asked["bound"], asked["max_kl"], asked["sure"])
    measures = _measures(asked["confidence"])
    check_file("--out", asked["out"], (".json",))
    if asked["gate"] is not None or asked["quality"] is not None:
        raise ImpossibleSetting("calibrate chooses the gate itself: leave out --gate and --quality")
    settings = engine_settings(asked)
    folder = model_folder(model, settings)

    from moesaic.cli.shared.output import print_json, progress
    from moesaic.core.files import whole_file
    from moesaic.engine.loading import load_prepared
    from moesaic.lab.gating.calibrate import calibrate as measure

    prepared, questions = _prepare(folder, settings, asked, bound, measures)
    with progress("asking under every threshold", len(questions)) as advance:
        engine = load_prepared(prepared)
        try:
            found = measure(engine, questions, bound, measures, advance)
        finally:
            engine.close()
    written = found.as_file(Path(asked["prompts"]).name, command_line(context))
    with whole_file(asked["out"]) as stream:
        stream.write(f"{json.dumps(written, indent=2, ensure_ascii=False)}\n".encode())
    if as_json:
        print_json({**written, "out": asked["out"], "candidates": _rows(found)})
    else:
        _print(found, asked["out"])


def _measures(asked: str | None) -> list[str]:
    chosen = names("--confidence", asked) if asked is not None else list(MEASURES)
    for name in chosen:
        if name not in MEASURES:
            raise UnknownName("confidence measure", name, MEASURES)
    return chosen


def _prepare(
    folder: Path,
    settings: EngineSettings,
    asked: dict[str, Any],
    bound: Bound,
    measures: list[str],
) -> tuple[Prepared, list[Question]]:
    from moesaic.cli.study.eval_items import open_tokenizer
    from moesaic.engine.preparation import prepare
    from moesaic.lab.evaluation.items import length_needed
    from moesaic.lab.evaluation.prompts import CHAT, choose_form
    from moesaic.lab.gating.calibrate import candidates
    from moesaic.lab.gating.prompt_file import prompt_questions, read_prompts
    from moesaic.model_info.model_config import read_model_config

    spec = read_model_config(folder)
    lines = read_prompts(Path(asked["prompts"]), asked["limit"])
    without = sum(line.answer is None for line in lines)
    if bound.points is not None and without:
        raise ImpossibleSetting(
            f"--bound is of exact match, and {without} of {len(lines)} prompts have no answer: add "
            '"answer" to the lines of a .jsonl file, or bound the divergence with --max-kl'
        )
    tokenizer = open_tokenizer(folder, spec)
    form = choose_form(asked["form"], CHAT, tokenizer)
    questions = prompt_questions(lines, tokenizer, form, asked["max_tokens"])
    length = settings.max_model_len or min(
        length_needed(questions), spec.max_context or length_needed(questions)
    )
    rules = len(candidates(spec.top_k, measures)) + 1
    prepared = prepare(
        folder, replace(settings, max_model_len=length, max_sequences=_AT_ONCE * rules)
    )
    for question in questions:  # what cannot be asked is refused before loading
        prepared.input_processor.request(question.prompt)
    return prepared, questions


def _rows(found: Calibration) -> list[dict[str, Any]]:
    return [
        {
            "gate": each.rule.gate,
            "expert_reads_over_full": each.reads,
            "fallback_ratio": each.tally.fallback_ratio,
            "exact_match": each.tally.accuracy if found.bound.points is not None else None,
            "loss": each.loss,
            "kept": each.kept,
        }
        for each in found.candidates
    ]


def _print(found: Calibration, out: str) -> None:
    from moesaic.cli.shared.output import print_table

    unit = "points lost" if found.bound.points is not None else "KL, nats"
    chosen = found.candidates.index(found.chosen)
    first = max(0, chosen - _SHOWN // 2)
    cells = [
        (
            each.rule.gate,
            f"{each.reads:.3f}",
            f"{each.tally.fallback_ratio:.1%}",
            f"{each.loss:.4g}",
            "chosen" if each is found.chosen else "yes" if each.kept else "no",
        )
        for each in found.candidates[first : first + _SHOWN]
    ]
    columns = ("gate", "expert reads", "fallback", unit, "bound kept")
    print_table(f"{found.prompts} prompts; bound: {found.bound.words()}", columns, cells)
    click.echo(f"{found.chosen.rule.gate}: {found.cost()}")
    click.echo(f"wrote {out}; use it with --quality {out}")
