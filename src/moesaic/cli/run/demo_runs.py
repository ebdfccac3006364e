"""The real runs of the demo. The bundled model answers here and in stock transformers, on the same
threads, each alone in its process. An answer under several policies is computed with an emulated
accelerator, a typical step of it is drawn, and what the routers say to more questions is recorded.

The policies are those of the known systems, which differ in everything, and other caches under the
default schedule. Systems whose rules the emulated accelerator cannot follow are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.cli.shared.engine_options import engine_settings, one_text_settings
from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.systems import SYSTEMS, System

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.run_stats import RunStats
    from moesaic.lab.bench.step_recorder import StepRecorder


OWN = "moesaic"
_OTHER_CACHES = ("lru", "lfu", "mrs")


class DemoRun(NamedTuple):
    label: str
    options: dict[str, Any]


ENTRIES = (
    *(DemoRun(system, {"system": system}) for system in SYSTEMS),
    *(DemoRun(f"{OWN}+{cache}", {"system": OWN, "cache": cache}) for cache in _OTHER_CACHES),
)


def refused_here() -> dict[str, str]:
    """Systems that the emulated accelerator refuses -> why."""
    found = {name: _refusal(system) for name, system in SYSTEMS.items()}
    return {name: why for name, why in found.items() if why is not None}


def entries_here() -> list[DemoRun]:
    refused = refused_here()
    return [entry for entry in ENTRIES if entry.options["system"] not in refused]


def _refusal(system: System) -> str | None:
    from moesaic.machines.accelerators import EMULATED
    from moesaic.policies.policy_checks import check_real

    try:
        check_real(system.policies, EMULATED)
    except ImpossibleSetting as error:
        return str(error)
    return None


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
    """An answer that is not timed: policies are compiled, or loaded, on first use."""
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


STOCK_CASES = (64,), (48,)  # tokens read, tokens written
STOCK_ROUNDS = 2


def compare_with_stock() -> None:
    from moesaic.cli.study.bench_against import against_result, print_against, run_against
    from moesaic.lab.against.ours import MeasuredModel
    from moesaic.lab.bench.bench_configs import plan_configs
    from moesaic.lab.bench.bench_model import from_folder
    from moesaic.lab.bench.cases import make_cases
    from moesaic.lab.bench.replayed_routing import OWN
    from moesaic.models.bundled_model import default_model

    folder, cases = default_model(), make_cases(*STOCK_CASES)
    found = from_folder(folder)
    (config,) = plan_configs(found.spec, [("moesaic", one_text_settings(ON_CPU))], cases)
    measured = MeasuredModel(str(folder), None, None, OWN, cases)
    rows = run_against(("transformers",), found, config, measured, STOCK_ROUNDS)
    print_against(against_result(rows, found, config, "moesaic demo"), rows)


def draw_answer(answer: Completion, picture: Path, trace: Path) -> None:
    """A typical decode step as a picture, the last ones as a Chrome trace."""
    from moesaic.cli.shared.perfetto import write_perfetto
    from moesaic.cli.shared.timeline_info import recorded_info, recording_of
    from moesaic.cli.shared.timeline_picture import draw_timeline
    from moesaic.engine.preparation import prepare

    prepared = prepare(None, one_text_settings(EMULATED))
    recorder = _recorded(prepared, answer)
    info = recorded_info(recorder, prepared.settings, prepared.plan, "own routing")
    recording = recording_of(recorder)
    draw_timeline(str(picture), info, recording)
    write_perfetto(str(trace), info, recording, "moesaic demo")


def _recorded(prepared: Prepared, answer: Completion) -> StepRecorder:
    from moesaic.engine.assemble import assemble
    from moesaic.lab.bench.bench_steps import CaseRuns, run_steps
    from moesaic.lab.bench.step_recorder import StepRecorder
    from moesaic.machines.real.forward_pass import ForwardPass, Piece
    from moesaic.models.open_model import load_decoder

    settings, plan, recorder = prepared.settings, prepared.plan, StepRecorder()
    prompt, piece = list(answer.prompt_tokens), settings.step_tokens
    pieces = [prompt[start : start + piece] for start in range(0, len(prompt), piece)]
    runner = assemble(
        load_decoder(prepared.opened, plan.dtype, kernel=settings.kernel),
        prepared.opened.experts,
        plan.expert_dtype,
        settings,
        plan.capacity,
        timeline=recorder.timeline,
    )
    try:
        run_steps(runner, [ForwardPass([Piece(0, tokens)]) for tokens in pieces], CaseRuns())
        recorder.record(runner, [ForwardPass([Piece(0, [token])]) for token in answer.tokens])
    finally:
        runner.close()
    return recorder
