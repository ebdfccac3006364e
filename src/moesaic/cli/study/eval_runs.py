"""Running an evaluation: resuming, progress on standard error, and an interruption by Ctrl-C that
loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.lab.evaluation.items import Item, Question, Unusable, answer_tokens_left
from moesaic.lab.evaluation.journal import Journal
from moesaic.lab.evaluation.results import ItemResult

if TYPE_CHECKING:
    from moesaic.engine.preparation import Prepared

_SHOWN = 5  # items that cannot be asked
_PRINT_EVERY_S = 30.0


def run_evaluation(
    prepared: Prepared, items: Sequence[Item], journal: Journal | None
) -> list[ItemResult]:
    """In the items' order. A model is loaded only if there is something left to ask."""
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
    from moesaic.cli.shared.output import progress

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
