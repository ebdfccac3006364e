"""`moesaic run`: prompts in, their continuations out, what that cost, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
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
from moesaic.cli.run.prompt import Prompt, prompt_options, prompt_tokens, read_prompts
from moesaic.cli.run.sampling_options import sampling_options, sampling_params
from moesaic.cli.shared.bundled_defaults import with_bundled_defaults
from moesaic.cli.shared.engine_options import (
    MAX_SEQUENCES,
    batch_invariant_option,
    engine_settings,
    one_text_options,
    placement_option,
)
from moesaic.cli.shared.exit_status import INCOMPLETE
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.option_order import OrderedOptions
from moesaic.cli.shared.output import print_json
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import command_line
from moesaic.cli.shared.usual_options import RUN
from moesaic.policies.quality_levels import LEVELS, quality_level

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.loading import LoadedModel
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.request import Request
    from moesaic.engine.run_stats import RunStats
    from moesaic.engine.sampling.sampling_params import SamplingParams


MAX_TOKENS = 256


class _RunCommand(OrderedOptions, ShortHelpCommand):
    """Prompts are answered in the order in which they were given."""


@click.command(cls=_RunCommand, usual=RUN)
@model_argument
@prompt_options
@sampling_options(MAX_TOKENS)
@click.option(
    "--completions",
    type=int,
    metavar="N",
    help="Answers to every prompt.  [1]",
)
@click.option("--record", metavar="FILE", help="Leave a trace of the routing there (.moet).")
@one_text_options
@placement_option
@click.option(
    "--max-sequences",
    type=int,
    metavar="N",
    help="Answers generated at the same time.  "
    f"[all of them, at most {MAX_SEQUENCES}, fewer where memory is short]",
)
@batch_invariant_option
@click.option(
    "--stats",
    is_flag=True,
    help="Also print steps, copies, overhead and what the prefix cache and the gate have done, and "
    "what every --quality costs, as measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def run(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Let a model answer or go on with a text.

    MODEL is a directory as published on Hugging Face, an id there, as Qwen/Qwen3-30B-A3B, which is
    fetched, or a GGUF file (the first part of a split one). Without it, the bundled moesaic-20m
    answers, with --chat and --temperature 0 unless you say otherwise. The exit status is 3 where an
    answer is cut before it matches its --json-schema, --grammar or --regex."""
    sequences = asked["max_sequences"]  # None: as many as the answers need, see `_planned`
    settings = engine_settings({**asked, "max_sequences": 1 if sequences is None else sequences})
    folder = model_folder(model, settings)
    asked = with_bundled_defaults(asked, folder)
    params = sampling_params(asked, as_json, folder)
    if asked["record"] is not None:
        from moesaic.cli.shared.out_files import check_routing

        check_routing("--record", asked["record"])
    prompts = read_prompts(asked, context)

    from moesaic.cli.run.generating import loaded
    from moesaic.engine.preparation import prepare

    prepared, asked_tokens = _planned(prepare(folder, settings), prompts, params, asked)
    with loaded(prepared, asked["record"]) as engine:
        requests = _answers(engine, asked_tokens, params, as_json)
        done = FinishedRun(prepared, requests, engine.batcher.stats(), asked["quality"])
        if len(done.failures) == len(requests):  # nothing to show, and nothing to record
            raise done.failures[0]
    if as_json:
        print_result(done, command_line(context))
    else:
        print_summary(done, asked["stats"])
    end(done)


def _planned(
    prepared: Prepared, prompts: list[Prompt], params: SamplingParams, asked: Mapping[str, Any]
) -> tuple[Prepared, list[list[int]]]:
    """The model with room for all answers at once, and the prompts' tokens. What cannot be asked
    is refused here, before loading."""
    from moesaic.cli.run.several_answers import planned_for

    tokens = [
        prompt_tokens(prompt, asked["chat"], prepared, asked["system_prompt"]) for prompt in prompts
    ]
    for each in tokens:
        prepared.input_processor.completions(each, params)
    if asked["max_sequences"] is not None:
        return prepared, tokens
    longest = max(map(len, tokens)) + params.max_tokens
    fixed = asked["max_model_len"] is not None
    return planned_for(prepared, len(tokens) * params.n, longest, fixed), tokens


def _answers(
    engine: LoadedModel, prompts: list[list[int]], params: SamplingParams, silent: bool
) -> list[Request]:
    """All of them, generated together; Ctrl-C ends those that have not ended."""
    from moesaic.cli.run.generating import follow_all
    from moesaic.cli.run.several_answers import AnswerPrinter

    processor = engine.input_processor
    requests = [request for each in prompts for request in processor.completions(each, params)]
    if silent:
        follow_all(engine, requests, lambda request, chunk: None)
        return requests
    printer = AnswerPrinter(requests, params.n)
    follow_all(engine, requests, printer.show)
    printer.finish()
    return requests


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
    """Print the summary on standard error."""
    print_lines(answer_lines(run.completions, run.limits), hit_rate_lines(run.stats))
    if details:
        print_lines(detail_lines(run.stats))
    print_lines(_levels(run.quality, details))


def print_result(run: FinishedRun, command: str) -> None:
    """Print one JSON object, of the same shape for one answer and for several."""
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
