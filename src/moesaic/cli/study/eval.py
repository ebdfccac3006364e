"""`moesaic eval`: how many questions a model answers right, and the perplexity of a text.

An evaluation resumes where it was interrupted: Ctrl-C loses no answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.out_files import check_picture
from moesaic.cli.shared.output import print_json, print_table, progress
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import command_line, json_option
from moesaic.cli.shared.usual_options import EVAL
from moesaic.cli.study.eval_options import (
    EvalRequest,
    eval_options,
    eval_request,
    evaluation_settings,
)
from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.items import (
    Item,
    Question,
    Unusable,
    answer_tokens_left,
    digest_of_items,
    fitting,
    length_needed,
)
from moesaic.lab.evaluation.journal import Journal
from moesaic.lab.evaluation.results import ItemResult
from moesaic.lab.evaluation.scores import Score, TextScore, scores
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
    asked, settings = eval_request(options), evaluation_settings(options)
    check_picture("--plot", options["plot"])
    folder = model_folder(model, settings)

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
    folder: Path, settings: EngineSettings, asked: EvalRequest
) -> tuple[Prepared, Sequence[Item]]:
    """`max_model_len` is what the longest item needs, unless the user sets it."""
    from moesaic.cli.study.eval_items import (
        make_items,
        open_tokenizer,
        refuse_if_nothing_can_be_asked,
    )
    from moesaic.engine.preparation import prepare
    from moesaic.model_info.model_config import read_model_config

    spec = read_model_config(folder)
    context = settings.max_model_len or spec.max_context
    items: Sequence[Item] = make_items(asked, open_tokenizer(folder, spec), context)
    if settings.max_model_len is None:
        needed = length_needed(items)
        settings = replace(settings, max_model_len=min(needed, spec.max_context or needed))
    questions = sum(isinstance(item, Question) for item in items)
    settings = replace(settings, max_sequences=min(settings.sequences, max(questions, 1)))
    prepared = prepare(folder, settings)
    items = fitting(items, prepared.plan.capacity.length, _advice(asked))
    refuse_if_nothing_can_be_asked(items)
    return prepared, items


def _advice(asked: EvalRequest) -> dict[str, str]:
    """What to do where a prompt is too long, per task."""
    shots = {"gsm8k": _SHOTS_ADVICE} if asked.shots else {}
    return dict.fromkeys(asked.tasks, _ADVICE) | shots


def _identity(
    folder: Path, prepared: Prepared, asked: EvalRequest, items: Sequence[Item]
) -> dict[str, Any]:
    """Everything that results depend on, so that they are not mixed with others."""
    from moesaic.lab.evaluation.input_files import digest

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

    if Path(out).exists() and not Path(out).is_dir():
        raise ImpossibleSetting(f"--out {out!r} is a file: give the name of a folder")
    return Journal(Path(out), known, restart)


_SHOWN = 5  # items that cannot be asked
_PRINT_EVERY_S = 30.0


def run_evaluation(
    prepared: Prepared, items: Sequence[Item], journal: Journal | None
) -> list[ItemResult]:
    """Results in the items' order. A model is loaded only if items are left to run."""
    known = {} if journal is None else journal.done
    found = {(item.task, item.item): known.get((item.task, item.item)) for item in items}
    before = {key: result for key, result in found.items() if result is not None}
    if before:
        click.echo(f"{len(before)} of {len(items)} are done already", err=True)
    _name_unusable(items)
    try:
        with closing(_new_results(prepared, items, before)) as results:
            for result in results:
                if journal is not None:
                    journal.add(result)
                found[result.key] = result
    except (KeyboardInterrupt, SystemExit) as end:  # Ctrl-C, or another signal
        done = sum(result is not None for result in found.values())
        with suppress(OSError):  # the terminal may be what went away
            click.echo(_how_to_go_on(done, len(items), journal), err=True)
        if isinstance(end, SystemExit):
            raise
        raise click.Abort from None
    return [result for result in found.values() if result is not None]


def warn_about_answer_length(items: Sequence[Item], length: int, advice: Mapping[str, str]) -> None:
    """A prompt that fills the context leaves nothing to answer in: wrong, but not the model's."""
    for task in dict.fromkeys(item.task for item in items):
        questions = [item for item in items if isinstance(item, Question) and item.task == task]
        if questions and (left := answer_tokens_left(questions, length)) < questions[0].max_tokens:
            click.echo(
                f"{task}: after its prompt, an answer may have {left} tokens instead of "
                f"{questions[0].max_tokens}, and is cut there: {advice[task]}",
                err=True,
            )


def warn_about_sandbox() -> None:
    """What keeps generated programs from doing harm here, where it is less than it could be."""
    from moesaic.lab.evaluation.sandbox import WALLS, walls

    found = walls()
    missing = [wall for wall in WALLS if wall not in found]
    if missing:
        click.echo(
            f"this system does not separate generated programs from its {', '.join(missing)}: "
            "limits and Python's own checks hold them, which stops accidents only",
            err=True,
        )


def _new_results(
    prepared: Prepared, items: Sequence[Item], done: dict[tuple[str, str], ItemResult]
) -> Generator[ItemResult]:
    if len(done) == len(items):
        return
    from moesaic.cli.run.generating import loaded
    from moesaic.lab.evaluation.evaluate import evaluate

    with loaded(prepared) as model, _progress(len(items), len(done)) as advance:
        for result in evaluate(model, items, done):
            yield result
            advance()
        gate = asdict(model.batcher.stats().gate)
    for title, words in gate_lines(gate):
        click.echo(f"{title:10}{words}", err=True)


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar for people, a line now and then for files."""

    if sys.stderr.isatty():
        with progress("evaluating", total) as advance:
            advance(done)
            yield advance
        return
    printed = monotonic()

    def print_progress() -> None:
        nonlocal done, printed
        done += 1
        if monotonic() - printed > _PRINT_EVERY_S:
            printed = monotonic()
            click.echo(f"evaluated {done} of {total}", err=True)

    yield print_progress


def _name_unusable(items: Sequence[Item]) -> None:
    unusable = [item for item in items if isinstance(item, Unusable)]
    for item in unusable[:_SHOWN]:
        click.echo(f"left out: {item.why}", err=True)
    if len(unusable) > _SHOWN:
        click.echo(f"left out: {len(unusable) - _SHOWN} more", err=True)


def _how_to_go_on(done: int, total: int, journal: Journal | None) -> str:
    if journal is None:
        return f"{done} of {total} were done and are lost: with --out DIR they would be kept"
    return f"{done} of {total} are done and kept: the same command goes on from there"


_MISTAKES = 5  # shown of every group
_SCORES = ("task", "kind", "right", "asked", "score", "95 %", "tokens/s", "left out")
_TEXTS = ("tokens", "per token", "per word", "per byte", "bits per byte", "tokens/s")


def describe(
    model: str, results: Sequence[ItemResult], settings: Mapping[str, Any], command: str
) -> dict[str, Any]:
    found = scores(results)
    return {
        "model": model,
        "scores": [asdict(score) for score in found if isinstance(score, Score)],
        "texts": [asdict(score) for score in found if isinstance(score, TextScore)],
        "left_out": [
            {"task": each.task, "item": each.item, "why": each.why}
            for each in results
            if each.left_out
        ],
        "mistakes": _mistakes(results),
        "settings": dict(settings),
        "command": command,
    }


def print_evaluation(described: Mapping[str, Any]) -> None:
    model = described["model"]
    if described["scores"]:
        rows = [_score(score) for score in described["scores"]]
        shown = len(_SCORES) if any(row[-1] for row in rows) else -1  # left out are rarely any
        print_table(f"{model}: answers", _SCORES[:shown], [row[:shown] for row in rows])
    if described["texts"]:
        rows = [_text(text) for text in described["texts"]]
        print_table(f"{model}: perplexity", _TEXTS, rows)


def _score(score: Mapping[str, Any]) -> tuple[object, ...]:
    interval = None
    if score["share"] is not None:
        interval = f"{score['low'] * 100:.1f}-{score['high']:.1%}"
    rate = score["tokens_per_s"]
    return (
        score["group"] or score["task"],
        score["kind"] or "all",
        score["right"],
        score["asked"],
        None if score["share"] is None else f"{score['share']:.1%}",
        interval,
        None if rate is None else f"{rate:.0f}",
        score["left_out"],
    )


def _text(text: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
    rate = text["tokens_per_s"]
    return (
        text["tokens"],
        *(text[name] for name in names),
        None if rate is None else f"{rate:.0f}",
    )


def _mistakes(results: Sequence[ItemResult]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    counts: dict[tuple[str, str], int] = {}
    for each in results:
        group = each.task, each.group
        if each.right is False and counts.get(group, 0) < _MISTAKES:
            counts[group] = counts.get(group, 0) + 1
            shown = ("task", "item", "kind", "answer", "expected", "why")
            found.append({name: getattr(each, name) for name in shown})
    return found
