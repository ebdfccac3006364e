"""Every item of an evaluation to its result, in order; what was done before is not done again.
Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from moesaic.engine.loading import LoadedModel
from moesaic.lab.evaluation.answers import answers
from moesaic.lab.evaluation.items import Item, Question, TextWindow, Unusable
from moesaic.lab.evaluation.results import ItemResult
from moesaic.lab.evaluation.text_loss import score_window


def evaluate(
    model: LoadedModel, items: Sequence[Item], done: Mapping[tuple[str, str], ItemResult]
) -> Iterator[ItemResult]:
    """Results of what is not in `done`."""
    left = [item for item in items if (item.task, item.item) not in done]
    for _, several in groupby(left, key=lambda item: item.task):
        yield from _of_one_task(model, list(several))


def _of_one_task(model: LoadedModel, items: Sequence[Item]) -> Iterator[ItemResult]:
    for item in items:
        if isinstance(item, Unusable):
            yield ItemResult(item.task, item.item, item.group, why=item.why)
        elif isinstance(item, TextWindow):
            yield score_window(model, item)
    yield from answers(model, (item for item in items if isinstance(item, Question)))
