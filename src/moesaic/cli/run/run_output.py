"""What `moesaic run` prints at the end, and the exit status it ends with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.run.answer_output import (
    Limits,
    Line,
    answer_fields,
    answer_lines,
    detail_lines,
    hit_rate_lines,
    print_lines,
    warn_incomplete,
)
from moesaic.cli.shared.exit_status import INCOMPLETE
from moesaic.cli.shared.output import print_json
from moesaic.policies.quality_levels import LEVELS, quality_level

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.request import Request
    from moesaic.engine.run_stats import RunStats

_SETTINGS = ("accelerator", "policies", "dtype", "expert_dtype")


@dataclass(frozen=True)
class FinishedRun:
    """All requests have ended, each in its way."""

    prepared: Prepared
    requests: list[Request]  # in the order of the prompts, completions of a prompt together
    stats: RunStats
    quality: str | None  # as asked for

    @cached_property
    def completions(self) -> list[Completion]:
        return [request.completion() for request in self.requests]

    @property
    def failures(self) -> list[Exception]:
        return [each.failure for each in self.requests if each.failure is not None]

    @property
    def limits(self) -> Limits:
        return Limits.of(self.requests[0].params, self.prepared.plan.capacity.length)


def print_summary(run: FinishedRun, details: bool) -> None:
    """On standard error."""
    print_lines(answer_lines(run.completions, run.limits), hit_rate_lines(run.stats))
    if details:
        print_lines(detail_lines(run.stats))
    print_lines(_levels(run.quality, details))


def print_result(run: FinishedRun, command: str) -> None:
    """As one JSON object, of the same shape for one answer and for several."""
    from moesaic.cli.study.plan import describe

    prepared = run.prepared
    memory = describe(prepared.plan, prepared.settings)
    settings = {name: memory.pop(name) for name in _SETTINGS}
    settings["cache_ratio"] = prepared.plan.cache_ratio
    counted = asdict(run.stats)
    gate = counted.pop("gate")
    print_json(
        {
            "model": memory.pop("model"),
            "answers": [_answer(run, place) for place in range(len(run.requests))],
            "stats": counted,
            "gate": gate,
            "quality": None if run.quality is None else asdict(quality_level(run.quality)),
            "settings": settings,
            "memory": memory,
            "command": command,
        }
    )


def end(run: FinishedRun) -> None:
    """Raise what went wrong, or exit with the status of an incomplete answer, if there is one."""
    incomplete = warn_incomplete(run.completions, run.limits)
    if any(each.finish_reason == "cancelled" and not each.failure for each in run.requests):
        raise click.Abort
    for failure in run.failures:
        raise failure
    if incomplete:
        sys.exit(INCOMPLETE)


def _answer(run: FinishedRun, place: int) -> dict[str, Any]:
    request, completion = run.requests[place], run.completions[place]
    fields = answer_fields(completion, run.prepared.tokenizer)
    if request.failure is not None:
        fields["error"] = str(request.failure)
    number = {"prompt_index": place // request.params.n, "index": completion.index}
    return number | fields


def _levels(quality: str | None, every: bool) -> Iterator[Line]:
    """What the chosen quality costs, as measured; with `every`, what each would."""
    chosen = [] if quality is None else [quality_level(quality)]
    others = [level for level in LEVELS.values() if every and level not in chosen]
    return (("quality", str(level)) for level in (*chosen, *others))
