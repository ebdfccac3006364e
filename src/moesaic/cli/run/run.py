"""`moesaic run`: prompts in, their continuations out, and what that cost."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.run.prompt import prompt_options, prompt_tokens, read_prompts
from moesaic.cli.run.sampling_options import sampling_options, sampling_params
from moesaic.cli.shared.bundled_defaults import with_bundled_defaults
from moesaic.cli.shared.engine_options import one_text_options, one_text_settings
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.simulation_options import command_line
from moesaic.policies.quality_levels import LEVELS, QualityLevel, quality_level

if TYPE_CHECKING:
    from collections.abc import Callable

    from moesaic.engine.completion import Chunk, Completion
    from moesaic.engine.loading import LoadedModel
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.run_stats import RunStats
    from moesaic.engine.sampling.sampling_params import SamplingParams

MAX_TOKENS = 256
_SETTINGS = ("accelerator", "policies", "dtype", "expert_dtype")


@click.command()
@model_argument
@prompt_options
@sampling_options(MAX_TOKENS)
@click.option(
    "--completions",
    type=int,
    metavar="N",
    help="Answers to every prompt, each with a seed of its own.  [1]",
)
@click.option("--record", metavar="FILE", help="Leave a trace of the routing there (.moet).")
@one_text_options
@click.option("--stats", is_flag=True, help="Also say what every --quality costs, as measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def run(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Let a model answer or go on with a text, which appears while it is generated.

    MODEL is a directory in Hugging Face layout (config.json, safetensors files, and tokenizer.json
    where prompts are text), an id there, as Qwen/Qwen3-30B-A3B, which is fetched, or a GGUF file
    (the first part of a split one). Without it, the bundled moesaic-20m answers: a prompt is then a
    question (--chat) and tokens are not drawn (--temperature 0), unless you say otherwise. What it
    cost is printed on standard error."""
    settings = one_text_settings(asked)
    folder = model_folder(model, settings)
    asked = with_bundled_defaults(asked, folder)
    params = sampling_params(asked, as_json, folder)
    if asked["record"] is not None:
        from moesaic.cli.shared.out_files import check_routing

        check_routing("--record", asked["record"])
    prompts = read_prompts(asked)

    from moesaic.cli.run.generating import loaded
    from moesaic.engine.preparation import prepare

    prepared = prepare(folder, settings)
    asked_tokens = [
        prompt_tokens(prompt, asked["chat"], prepared, asked["system_prompt"]) for prompt in prompts
    ]
    for tokens in asked_tokens:  # what cannot be asked is refused before loading
        prepared.input_processor.completions(tokens, params)
    with loaded(prepared, asked["record"]) as engine:
        completions = _answers(engine, asked_tokens, params, as_json)
        stats = engine.batcher.stats()
    if as_json:
        level = None if asked["quality"] is None else quality_level(asked["quality"])
        _print_json(prepared, completions, stats, command_line(context), level)
    else:
        _end(prepared, completions, stats, _levels(asked["quality"], asked["stats"]))
    if completions[-1].finish_reason == "cancelled":
        raise click.Abort


def _answers(
    engine: LoadedModel, prompts: list[list[int]], params: SamplingParams, silent: bool
) -> list[Completion]:
    """One after the other, each on lines of its own; Ctrl-C ends the answer and the rest."""
    from moesaic.cli.run.generating import follow

    completions: list[Completion] = []
    processor = engine.input_processor
    for request in chain(*(processor.completions(tokens, params) for tokens in prompts)):
        show = _silent if silent else _printer(engine)
        completions.append(follow(engine, request, show))
        if not silent and completions[-1].tokens and not _ends_a_line(completions[-1]):
            click.echo()
        if completions[-1].finish_reason == "cancelled":
            break
    return completions


def _ends_a_line(completion: Completion) -> bool:
    return (completion.text or "").endswith("\n")


def _silent(chunk: Chunk) -> None:
    pass


def _printer(model: LoadedModel) -> Callable[[Chunk], None]:
    if model.tokenizer is not None:
        return lambda chunk: click.echo(chunk.text, nl=False)
    before = chain([""], repeat(" "))
    return lambda chunk: click.echo(f"{next(before)}{chunk.token}", nl=False)


def _levels(quality: str | None, every: bool) -> list[tuple[str, str]]:
    """What the chosen quality costs, as measured; with `every`, what each would."""
    chosen = [] if quality is None else [quality_level(quality)]
    others = [level for level in LEVELS.values() if every and level not in chosen]
    return [("quality", str(level)) for level in (*chosen, *others)]


def _end(
    prepared: Prepared,
    completions: list[Completion],
    stats: RunStats,
    levels: list[tuple[str, str]],
) -> None:
    from moesaic.cli.run.answer_output import answer_lines, cost_lines, print_lines

    context = prepared.plan.capacity.length
    answers = (answer_lines(completion, context) for completion in completions)
    print_lines(*answers, cost_lines(stats), iter(levels))


def _print_json(
    prepared: Prepared,
    completions: list[Completion],
    stats: RunStats,
    command: str,
    level: QualityLevel | None,
) -> None:
    """One answer is part of the object; several are a list in it."""
    from moesaic.cli.run.answer_output import answer_fields
    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.plan import describe

    memory = describe(prepared.plan, prepared.settings)
    settings = {name: memory.pop(name) for name in _SETTINGS}
    settings["cache_ratio"] = prepared.plan.cache_ratio
    counted = asdict(stats)
    gate = counted.pop("gate")
    answers = [answer_fields(completion) for completion in completions]
    print_json(
        {
            "model": memory.pop("model"),
            **(answers[0] if len(answers) == 1 else {"answers": answers}),
            "stats": counted,
            "gate": gate,
            "quality": None if level is None else asdict(level),
            "settings": settings,
            "memory": memory,
            "command": command,
        }
    )
