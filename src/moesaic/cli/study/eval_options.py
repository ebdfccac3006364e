"""The options of `eval`, and which task each of them is about.

Tasks and their defaults are named here as well as where they are made: `--help` must not wait for
what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.engine_options import (
    batch_invariant_option,
    engine_settings,
    one_text_options,
)
from moesaic.cli.shared.option_stack import one_of, stack
from moesaic.cli.shared.simulation_options import names
from moesaic.core.errors import ImpossibleSetting, UnknownName

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings

TASKS = ("problems", "questions", "perplexity", "gsm8k", "humaneval")
SPLITS = ("held_out_numbers", "held_out_templates")
FORMS = ("chat", "plain")
PROBLEMS, SEQUENCES, SHOTS, TIME_LIMIT_S, WINDOW = 250, 32, 8, 10.0, 1024
MAX_PROBLEMS = 1000  # that the package has of each split
MAX_TOKENS = {"problems": 160, "questions": 160, "gsm8k": 256, "humaneval": 512}
_NEEDS_FILE = ("gsm8k", "humaneval")
# option -> the tasks it changes
_BELONGS = {
    "split": ("problems",),
    "form": ("problems", "questions", "gsm8k", "humaneval"),
    "max_tokens": ("problems", "questions", "gsm8k", "humaneval"),
    "shots": ("gsm8k",),
    "shots_file": ("gsm8k",),
    "window": ("perplexity",),
    "stride": ("perplexity",),
    "time_limit": ("humaneval",),
}
_MINIMUM = {"limit": 1, "max_tokens": 1, "shots": 0, "window": 1, "stride": 1, "top_k": 1}

_task_options = stack(
    click.option(
        "--task",
        metavar="NAMES",
        default=TASKS[0],
        show_default=True,
        help=f"With commas: {one_of(TASKS)}",
    ),
    click.option(
        "--file",
        "files",
        multiple=True,
        metavar="[TASK=]PATH",
        help="What the task asks: text for perplexity, JSON lines for the others; also .gz or .xz. "
        "May be repeated.  [questions: 200 of the package; perplexity: a sample of plain English]",
    ),
    click.option(
        "--limit",
        type=int,
        metavar="N",
        help="Ask so many: problems of each split, questions, windows of text.  "
        f"[{PROBLEMS} problems of {MAX_PROBLEMS}, all of a file]",
    ),
    click.option("--split", metavar="NAMES", help=f"Of problems: {one_of(SPLITS)}  [both]"),
    click.option(
        "--form",
        metavar="FORM",
        help="Ask in the model's chat template or as plain text: chat | plain  [problems "
        "and questions: chat if it has one; others: plain]",
    ),
    click.option("--shots", type=int, metavar="N", help=f"Of gsm8k: examples.  [{SHOTS}]"),
    click.option(
        "--shots-file",
        metavar="PATH",
        help="Of gsm8k: the examples are its first lines.  [the last lines of --file]",
    ),
    click.option(
        "--max-tokens",
        type=int,
        metavar="N",
        help="Most tokens of an answer.  "
        f"[{', '.join(f'{task} {most}' for task, most in MAX_TOKENS.items())}]",
    ),
    click.option(
        "--window",
        type=int,
        metavar="TOKENS",
        help=f"Of perplexity: how much the model sees.  [its context, at most {WINDOW}]",
    ),
    click.option(
        "--stride",
        type=int,
        metavar="TOKENS",
        help="Of perplexity: how far a window lies from the one before.  [half a window]",
    ),
    click.option(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"Of humaneval: what a generated program may take.  [{TIME_LIMIT_S:g}]",
    ),
)

_run_options = stack(
    click.option(
        "--top-k",
        type=int,
        metavar="N",
        help="Let routers choose fewer experts per token.  [as trained]",
    ),
    click.option(
        "--max-sequences",
        type=int,
        metavar="N",
        help=f"Questions answered at the same time.  [{SEQUENCES}]",
    ),
    one_text_options,
    batch_invariant_option,
)

_out_options = stack(
    click.option("--out", metavar="DIR", help="Keep results there; a second call goes on."),
    click.option("--restart", is_flag=True, help="Begin anew, whatever --out has."),
    click.option("--plot", metavar="FILE", help="Draw the scores: .png, .svg or .pdf"),
)

eval_options = stack(_task_options, _run_options, _out_options)


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What is to be evaluated: checked, with defaults in the place of what was left open."""

    tasks: tuple[str, ...]
    files: Mapping[str, Path] = field(default_factory=dict)
    limit: int | None = None
    splits: tuple[str, ...] = SPLITS
    form: str | None = None
    shots: int = SHOTS
    shots_file: Path | None = None
    max_tokens: int | None = None
    window: int | None = None
    stride: int | None = None
    time_limit: float = TIME_LIMIT_S


def eval_request(options: Mapping[str, Any]) -> EvalRequest:
    tasks = _known("task", names("--task", options["task"]), TASKS)
    _check_unused(options, tasks)
    _check_numbers(options)
    plain = ("limit", "shots", "max_tokens", "window", "stride", "time_limit")
    given = {name: options[name] for name in plain if options[name] is not None}
    if options["form"] is not None:
        (given["form"],) = _known("form", [options["form"]], FORMS)
    if options["split"] is not None:
        given["splits"] = _known("split", names("--split", options["split"]), SPLITS)
    if options["shots_file"] is not None:
        given["shots_file"] = _existing("--shots-file", options["shots_file"])
    return EvalRequest(tasks, _files(options["files"], tasks), **given)


def evaluation_settings(options: Mapping[str, Any]) -> EngineSettings:
    sequences = options["max_sequences"]
    settings = engine_settings(
        {**options, "max_sequences": SEQUENCES if sequences is None else sequences}
    )
    return replace(settings, experts_per_token=options["top_k"])


def _known(kind: str, asked: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in asked:
        if name not in known:
            raise UnknownName(kind, name, known)
    return tuple(asked)


def _check_unused(options: Mapping[str, Any], tasks: tuple[str, ...]) -> None:
    """An option that would change nothing is refused: its user believes that it does."""
    for name, belongs in _BELONGS.items():
        if options[name] is not None and not set(belongs) & set(tasks):
            raise ImpossibleSetting(
                f"--{name.replace('_', '-')} is about {' and '.join(belongs)}, but the task is "
                f"{','.join(tasks)}: add it to --task, or leave the option out"
            )
    if options["restart"] and options["out"] is None:
        raise ImpossibleSetting("--restart is about what --out has: give --out DIR, too")


def _check_numbers(options: Mapping[str, Any]) -> None:
    for name, minimum in _MINIMUM.items():
        if options[name] is not None and options[name] < minimum:
            option = f"--{name.replace('_', '-')}"
            raise ImpossibleSetting(f"{option} is {options[name]}; it must be at least {minimum}")
    seconds = options["time_limit"]
    if seconds is not None and not 0 < seconds <= 3600:
        raise ImpossibleSetting(f"--time-limit is {seconds:g}; it must lie between 0 and 3600")
    window, stride = options["window"], options["stride"]
    if window is not None and stride is not None and stride > window:
        raise ImpossibleSetting(
            f"--stride {stride} is more than --window {window}, so tokens between two windows "
            "would not be read: give at most as many"
        )


def _files(given: tuple[str, ...], tasks: tuple[str, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    open_tasks = [task for task in tasks if task != "problems"]
    for words in given:
        task, _, path = words.partition("=")
        if task not in TASKS or not path:
            if len(open_tasks) != 1:
                raise ImpossibleSetting(_whose(words, open_tasks))
            task, path = open_tasks[0], words
        if task not in open_tasks:
            raise ImpossibleSetting(_whose(words, open_tasks))
        if task in found:
            raise ImpossibleSetting(f"{task} has two files: give one --file for each task")
        found[task] = _existing("--file", path)
    for task in _NEEDS_FILE:
        if task in tasks and task not in found:
            raise ImpossibleSetting(f"{task} needs its questions: give --file {task}=PATH")
    return found


def _whose(words: str, tasks: list[str]) -> str:
    if not tasks:
        return f"--file {words!r} belongs to no task: problems come with the package"
    return f"--file {words!r}: which task does it belong to? Write it as {tasks[0]}=PATH"


def _existing(option: str, path: str) -> Path:
    file = Path(path)
    if file.is_dir():
        raise ImpossibleSetting(f"{option} {path!r} is a directory: give the name of a file")
    file.open("rb").close()  # says why not, where it cannot be read
    if not file.is_file():
        raise ImpossibleSetting(
            f"{option} {path!r} is no file that can be read twice: write what it gives to one"
        )
    return file
