"""The demo's real runs: one answer as it comes, the same answer under every system, and a recording
of what the routers say."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.cli.engine_options import engine_settings, one_text_settings
from moesaic.policies.systems import SYSTEMS

if TYPE_CHECKING:
    from moesaic.engine.generation.completion import Completion
    from moesaic.engine.generation.run_stats import RunStats

ANSWER_TOKENS = 64  # at most
REPEATS = 3  # of every system's answer
_EMULATED: dict[str, Any] = {"accelerator": "emulated", "cache_ratio": 0.25}
_COLUMNS = ("system", "tokens/s", "hits", "MB moved", "same text")
_SAME = """\
All wrote the same text: policies change how fast a model answers, not what. The accelerator is a
thread on this CPU: decisions, copies and waiting are real, but its speed is not a GPU's, and so few
weights leave little to win. What would be fast on a GPU, the simulator says.
"""
_DIFFERENT = """\
Not all wrote the same text, which must not be: please report it with what `moesaic doctor` says.
"""


class _Measured(NamedTuple):
    tokens_per_s: float | None  # of the fastest answer; None: it is one token
    stats: RunStats  # of all answers
    texts: set[tuple[int, ...]]


def first_answer(folder: Path, prompt: str, tokens: int) -> Completion:
    """Show the command, the answer while it is generated, and what it cost."""
    from moesaic.cli.answer_words import answer_lines, cost_lines
    from moesaic.cli.generating import follow, loaded
    from moesaic.engine.generation.preparation import prepare
    from moesaic.engine.generation.sampling_params import SamplingParams

    _compile_planners(folder, prompt)
    click.echo(f"{_command(folder, prompt, tokens)}\n")
    prepared = prepare(folder, one_text_settings(_EMULATED))
    params = SamplingParams(tokens, temperature=0.0)
    with loaded(prepared) as engine:
        click.secho(prompt, bold=True, nl=False)
        request = engine.intake.request(prompt, params)  # its clock starts here
        completion = follow(engine, request, lambda chunk: click.echo(chunk.text, nl=False))
        stats = engine.batcher.tally.stats()
    click.echo("\n")
    if completion.finish_reason == "cancelled":
        raise click.Abort
    context = prepared.plan.room.length
    for name, value in chain(answer_lines(completion, context), cost_lines(stats)):
        click.echo(f"{name:<10}{value}")
    click.echo()
    return completion


def compare_systems(folder: Path, prompt: str, expected: Completion) -> None:
    """The same answer under every system: how fast, and whether it is the same."""
    from moesaic.cli.output import print_table, progress

    rows = []
    tokens = len(expected.tokens)
    with progress("answering", len(SYSTEMS), quiet=not sys.stderr.isatty()) as advance:
        for system in SYSTEMS:
            measured = _measure(folder, system, prompt, tokens)
            rows.append(_row(system, measured, measured.texts == {expected.tokens}))
            advance()
    title = (
        f"The toy on this machine, {REPEATS} times the same answer\n"
        "tokens/s of the fastest, hits and MB of all of them"
    )
    print_table(title, _COLUMNS, rows)
    click.echo(_SAME if all(row[-1] == "yes" for row in rows) else _DIFFERENT)


def record(folder: Path, prompts: Sequence[str], file: Path) -> None:
    """Leave a trace of the routing while the model goes on with all prompts together."""
    from moesaic.engine.generation.llm import LLM
    from moesaic.engine.generation.sampling_params import SamplingParams

    settings = engine_settings({**_EMULATED, "max_sequences": len(prompts)})
    params = SamplingParams(ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    with LLM(folder, settings, record=file) as llm:
        llm.generate(prompts, params)


def _compile_planners(folder: Path, prompt: str) -> None:
    """In a run that nobody times: each is compiled, or read, where it is used first."""
    from moesaic.cli.recording import announce_compilation
    from moesaic.engine.generation.llm import LLM
    from moesaic.engine.generation.sampling_params import SamplingParams

    announce_compilation()
    with LLM(folder, one_text_settings(_EMULATED)) as llm:
        llm.generate([prompt], SamplingParams(4, temperature=0.0))


def _command(folder: Path, prompt: str, tokens: int) -> str:
    words = ["moesaic", "run", str(folder), "-p", prompt, "--temperature", "0"]
    words += ["--max-tokens", str(tokens)]
    for option, value in _EMULATED.items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _measure(folder: Path, system: str, prompt: str, tokens: int) -> _Measured:
    from moesaic.engine.generation.llm import LLM
    from moesaic.engine.generation.sampling_params import SamplingParams

    params = SamplingParams(tokens, temperature=0.0)
    with LLM(folder, one_text_settings({**_EMULATED, "system": system})) as llm:
        answers = [answer for _ in range(REPEATS) for answer in llm.generate([prompt], params)]
        stats = llm.stats()
    rates = [answer.timings.decode_tokens_per_s for answer in answers]
    fastest = max((rate for rate in rates if rate is not None), default=None)
    return _Measured(fastest, stats, {answer.tokens for answer in answers})


def _row(system: str, measured: _Measured, same: bool) -> tuple[object, ...]:
    rate, stats = measured.tokens_per_s, measured.stats
    return (
        system,
        None if rate is None else f"{rate:.0f}",
        None if stats.hit_rate is None else f"{stats.hit_rate:.0%}",
        f"{stats.bytes_moved / 1e6:.1f}",
        "yes" if same else "no",
    )
