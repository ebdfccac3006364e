"""`moesaic eval`: how many questions a model answers right, and the perplexity of a text."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.out_files import check_picture
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import command_line, json_option
from moesaic.cli.shared.usual_options import EVAL
from moesaic.cli.study.eval_options import Asked, eval_options, evaluation_settings, what_is_asked
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.gguf.files import is_gguf, part_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.evaluation.items import Item
    from moesaic.lab.evaluation.journal import Journal

_ADVICE = "raise --max-model-len, if the model allows more"
_SHOTS_ADVICE = "ask with fewer --shots"


@click.command(cls=ShortHelpCommand, usual=EVAL)
@model_argument
@eval_options
@json_option
@click.pass_context
def eval(context: click.Context, /, model: str | None, as_json: bool, **options: Any) -> None:
    """Measure how good a model's answers are.

    Tasks: `problems` (held-out problems of the package, exact match), `questions` (with short
    answers: 200 of the package, or your file), `perplexity` (of a text), `gsm8k` and `humaneval`
    (from files you give; generated programs run under limits). Answers are greedy. MODEL is a
    directory in Hugging Face layout, an id there or a GGUF file; without it, the bundled one is
    asked."""
    asked, settings = what_is_asked(options), evaluation_settings(options)
    check_picture("--plot", options["plot"])
    folder = model_folder(model, settings)

    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.eval_runs import (
        run_evaluation,
        warn_about_answer_length,
        warn_about_sandbox,
    )
    from moesaic.cli.study.eval_tables import describe, print_evaluation

    prepared, items = _prepare(folder, settings, asked)
    known = _identity(folder, prepared, asked, items)
    journal = _journal(options["out"], known, options["restart"])
    warn_about_answer_length(items, prepared.plan.capacity.length, _advice(asked))
    if "humaneval" in asked.tasks:
        warn_about_sandbox()
    try:
        results = run_evaluation(prepared, items, journal)
        described = describe(prepared.spec.name, results, known, command_line(context))
        if journal is not None:
            journal.finish(described)
    finally:
        if journal is not None:
            journal.close()
    if as_json:
        print_json(described)
    else:
        print_evaluation(described)
    if options["plot"] is not None:
        from moesaic.cli.study.eval_picture import draw_scores

        draw_scores(options["plot"], described)


def _prepare(
    folder: Path, settings: EngineSettings, asked: Asked
) -> tuple[Prepared, Sequence[Item]]:
    """`max_model_len` is what the longest item needs, unless the user sets it."""
    from moesaic.cli.study.eval_items import (
        make_items,
        open_tokenizer,
        refuse_if_nothing_can_be_asked,
    )
    from moesaic.engine.preparation import prepare
    from moesaic.lab.evaluation.items import Question, fitting, length_needed
    from moesaic.model_info.model_config import read_model_config

    spec = read_model_config(folder)
    context = settings.max_model_len or spec.max_context
    items: Sequence[Item] = make_items(asked, open_tokenizer(folder, spec), context)
    if settings.max_model_len is None:
        needed = length_needed(items)
        settings = replace(settings, max_model_len=min(needed, spec.max_context or needed))
    questions = sum(isinstance(item, Question) for item in items)
    settings = replace(settings, max_sequences=min(settings.max_sequences, max(questions, 1)))
    prepared = prepare(folder, settings)
    items = fitting(items, prepared.plan.capacity.length, _advice(asked))
    refuse_if_nothing_can_be_asked(items)
    return prepared, items


def _advice(asked: Asked) -> dict[str, str]:
    """What to do where a prompt is too long, per task."""
    shots = {"gsm8k": _SHOTS_ADVICE} if asked.shots else {}
    return dict.fromkeys(asked.tasks, _ADVICE) | shots


def _identity(
    folder: Path, prepared: Prepared, asked: Asked, items: Sequence[Item]
) -> dict[str, Any]:
    """Everything that results depend on, so that they are not mixed with others."""
    from moesaic.lab.evaluation.input_files import digest
    from moesaic.lab.evaluation.items import digest_of_items

    settings = prepared.settings
    identity = asdict(asked) | asdict(settings) | {"policies": settings.policies.as_dict()}
    del identity["host"]  # of plans only
    identity["files"] = {task: _named(path) for task, path in asked.files.items()}
    identity["shots_file"] = asked.shots_file and _named(asked.shots_file)
    return {
        "model": prepared.spec.name,
        "model_files": {path.name: digest(path) for path in _model_files(folder)},
        "questions": digest_of_items(items),
        **identity,
    }


def _model_files(folder: Path) -> list[Path]:
    """What a model is made of; of a GGUF file, the files beside it only where they are read."""
    if not is_gguf(folder):
        suffixes = (".json", ".safetensors")
        return sorted(path for path in folder.iterdir() if path.suffix in suffixes)
    beside = [folder.with_name("tokenizer.json"), folder.with_name("tokenizer_config.json")]
    return [*part_files(folder), *(path for path in beside if path.is_file())]


def _named(path: Path) -> str:
    from moesaic.lab.evaluation.input_files import digest

    return f"{path.name} ({digest(path)})"


def _journal(out: str | None, known: dict[str, Any], restart: bool) -> Journal | None:
    if out is None:
        return None
    from moesaic.lab.evaluation.journal import Journal

    if Path(out).exists() and not Path(out).is_dir():
        raise ImpossibleSetting(f"--out {out!r} is a file: give the name of a folder")
    return Journal(Path(out), known, restart)
