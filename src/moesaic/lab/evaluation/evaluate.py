"""Every item of an evaluation to its result, in order; what was done before is not done again.
Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from moesaic.engine.loading import LoadedModel
from moesaic.lab.evaluation.answers import answers
from moesaic.lab.evaluation.items import Item, Question, Unusable, Window
from moesaic.lab.evaluation.reading import read_window
from moesaic.lab.evaluation.results import Result


def evaluate(
    model: LoadedModel, items: Sequence[Item], done: Mapping[tuple[str, str], Result]
) -> Iterator[Result]:
    """Results of what is not in `done`."""
    left = [item for item in items if (item.task, item.item) not in done]
    for _, several in groupby(left, key=lambda item: item.task):
        yield from _of_one_task(model, list(several))


def _of_one_task(model: LoadedModel, items: Sequence[Item]) -> Iterator[Result]:
    for item in items:
        if isinstance(item, Unusable):
            yield Result(item.task, item.item, item.group, why=item.why)
        elif isinstance(item, Window):
            yield read_window(model, item)
    yield from answers(model, (item for item in items if isinstance(item, Question)))
