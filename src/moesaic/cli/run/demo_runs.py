"""The demo's real runs: one answer as it comes, on the CPU; an answer under all policies with an
emulated accelerator; and a recording of what the routers say to more questions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.cli.run.demo_policies import DemoRun, entries_here
from moesaic.cli.shared.engine_options import engine_settings, one_text_settings

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.run_stats import RunStats

ON_CPU: dict[str, Any] = {"accelerator": "none"}  # beside stock transformers there
EMULATED: dict[str, Any] = {"accelerator": "emulated", "cache_ratio": 0.25}
ANSWER_TOKENS = 96  # at most
QUESTIONS = 12  # recorded
REPEATS = 2  # of an answer under every set of policies
_SPLIT = "held_out_numbers"  # the kinds of questions it was taught, with numbers it was not
_COLUMNS = ("system", "policies", "hits", "MB", "same", "tokens/s")


class _Measured(NamedTuple):
    policies: str
    tokens_per_s: float | None  # of the fastest answer; None: it is one token
    stats: RunStats  # of all answers
    texts: set[tuple[int, ...]]


def first_answer(question: str) -> Completion:
    """Show the command, the answer while it is generated, and what it cost."""
    from moesaic.cli.run.answer_output import Limits, answer_lines
    from moesaic.cli.run.generating import follow, loaded
    from moesaic.cli.run.prompt import prompt_tokens
    from moesaic.engine.preparation import prepare
    from moesaic.engine.sampling.sampling_params import SamplingParams

    prepared = prepare(None, one_text_settings(ON_CPU))
    tokens = prompt_tokens(question, True, prepared)
    params = SamplingParams(ANSWER_TOKENS, temperature=0.0)
    prepared.input_processor.request(tokens, params)  # what cannot be asked is refused now
    click.echo(f"{_command(question)}\n")
    with loaded(prepared) as engine:
        click.secho(question, bold=True)
        request = engine.input_processor.request(tokens, params)  # its clock starts here
        completion = follow(engine, request, lambda chunk: click.echo(chunk.text, nl=False))
    click.echo("\n")
    if completion.finish_reason == "cancelled":
        raise click.Abort
    limits = Limits.of(params, prepared.plan.capacity.length)
    for name, value in answer_lines([completion], limits):
        click.echo(f"{name:<10}{value}")
    click.echo()
    return completion


def compare_here(expected: Completion) -> bool:
    """The same question under all policies: how fast? And whether all answers are `expected`."""
    from moesaic.cli.shared.output import print_table

    rows = list(_rows(expected))
    title = (
        f"Emulated accelerator: the same question, answered {REPEATS} times\n"
        "hits and MB moved of all answers, tokens/s of the fastest"
    )
    print_table(title, _COLUMNS, rows)
    return all(row[_COLUMNS.index("same")] == "yes" for row in rows)


def record_questions(file: Path) -> int:
    """Leave a trace of the routing while more questions are answered together; how many rightly."""
    from moesaic.engine.llm import LLM
    from moesaic.engine.sampling.sampling_params import SamplingParams
    from moesaic.lab.evaluation.final_answer import extract_answer, same_answer
    from moesaic.lab.evaluation.problem_set import held_out_problems

    problems = held_out_problems(_SPLIT, QUESTIONS)
    settings = engine_settings({**EMULATED, "max_sequences": QUESTIONS})
    with LLM(settings=settings, record=file) as llm:
        tokenizer = llm.model.tokenizer
        assert tokenizer is not None, "the bundled model has one"
        asked = [
            tokenizer.encode_chat([{"role": "user", "content": each.question}]) for each in problems
        ]
        answers = llm.generate(asked, SamplingParams(ANSWER_TOKENS, temperature=0.0))
    return sum(
        same_answer(extract_answer(answer.text or ""), problem.answer)
        for answer, problem in zip(answers, problems, strict=True)
    )


def emulated_answer(tokens: Sequence[int]) -> Completion:
    """Not timed: policies are compiled, or loaded, on first use."""
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.engine.llm import LLM
    from moesaic.engine.sampling.sampling_params import SamplingParams

    announce_compilation()
    with LLM(settings=one_text_settings(EMULATED)) as llm:
        (answer,) = llm.generate([list(tokens)], SamplingParams(ANSWER_TOKENS, temperature=0.0))
    return answer


def _command(question: str) -> str:
    words = ["moesaic", "run", "-p", question, "--max-tokens", str(ANSWER_TOKENS)]
    return shlex.join([*words, "--accelerator", ON_CPU["accelerator"]])


def _rows(expected: Completion) -> Iterator[tuple[object, ...]]:
    from moesaic.cli.shared.output import progress

    entries = entries_here()
    with progress("answering", len(entries)) as advance:
        for entry in entries:
            yield _row(entry, _measure(entry, expected), expected)
            advance()


def _measure(entry: DemoRun, expected: Completion) -> _Measured:
    from moesaic.engine.llm import LLM
    from moesaic.engine.sampling.sampling_params import SamplingParams

    settings = one_text_settings({**EMULATED, **entry.options})
    params = SamplingParams(ANSWER_TOKENS, temperature=0.0)
    asked = list(expected.prompt_tokens)
    with LLM(settings=settings) as llm:
        answers = [answer for _ in range(REPEATS) for answer in llm.generate([asked], params)]
        stats = llm.stats()
    rates = [answer.timings.decode_tokens_per_s for answer in answers]
    fastest = max((rate for rate in rates if rate is not None), default=None)
    return _Measured(
        str(settings.policies).replace(" ", ""),
        fastest,
        stats,
        {answer.tokens for answer in answers},
    )


def _row(entry: DemoRun, measured: _Measured, expected: Completion) -> tuple[object, ...]:
    rate, stats = measured.tokens_per_s, measured.stats
    return (
        entry.label,
        measured.policies,
        None if stats.hit_rate is None else f"{stats.hit_rate:.0%}",
        f"{stats.bytes_moved / 1e6:.0f}",
        "yes" if measured.texts == {expected.tokens} else "no",
        None if rate is None else f"{rate:.0f}",
    )
