"""`moesaic batch`: a file of requests, as the published Batch API has them, to one of answers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.run.serving_model import (
    SERVE_PACKAGES,
    check_tokenizer,
    load_engine,
    model_name,
    model_names_option,
    reasoning_format_option,
    tool_format_option,
)
from moesaic.cli.shared.bundled_defaults import announce_bundled
from moesaic.cli.shared.engine_options import (
    batch_invariant_option,
    engine_settings,
    one_text_options,
    placement_option,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.out_files import check_writable
from moesaic.cli.shared.output import print_json, progress
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import json_option
from moesaic.cli.shared.usual_options import BATCH
from moesaic.core.errors import BadFile, FileError, ImpossibleSetting, MissingExtra
from moesaic.core.files import has_regular_file

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.serve.batch.batch_input import BatchInput
    from moesaic.serve.batch.batch_output import BatchOutput
    from moesaic.serve.batch.batch_run import BatchRun
    from moesaic.serve.server_settings import ServerSettings
    from moesaic.serve.service import Service

MOST_SEQUENCES = 128  # with a GPU, where memory allows
_ANY_NUMBER = 1 << 30  # of requests may wait: the batch itself limits how many do
_SAME = ("dtype", "expert_dtype", "dense_dtype", "experts_per_token", "quality_of")


@click.command(cls=ShortHelpCommand, usual=BATCH)
@click.argument("requests", metavar="IN.jsonl")
@model_argument
@click.option(
    "-o", "--out", metavar="OUT.jsonl", required=True, help="Where answers are added, one a line."
)
@click.option("--restart", is_flag=True, help="Replace answers that are there already.")
@model_names_option
@tool_format_option
@reasoning_format_option
@one_text_options
@placement_option
@click.option(
    "--max-sequences",
    "--max-num-seqs",
    type=int,
    metavar="N",
    help=f"Answers written at the same time.  [{MOST_SEQUENCES} with a GPU, else 32; fewer where "
    "memory is short]",
)
@batch_invariant_option
@json_option
def batch(requests: str, model: str | None, as_json: bool, **asked: Any) -> None:
    """Answer a file of requests.

    IN.jsonl has one request a line, as for the published Batch API: custom_id, method, url
    (/v1/chat/completions, /v1/completions or /v1/responses) and body. OUT.jsonl gets one answer a
    line, in the order in which they end. Whatever interrupts a batch, the same command goes on with
    what is left. MODEL is a directory in Hugging Face layout, an id there or a GGUF file; without
    it, the bundled moesaic-20m answers."""
    if not all(find_spec(package) for package in SERVE_PACKAGES):
        raise MissingExtra("a batch", "serve")
    source_path, out = Path(requests), Path(asked["out"])
    _check_files(source_path, out)
    settings = engine_settings(asked)
    folder = model_folder(model, settings)
    check_tokenizer(folder)
    serving = _serving(asked, model_name(model, folder))

    from moesaic.serve.batch.batch_input import BatchInput
    from moesaic.serve.batch.batch_output import BatchOutput

    source = BatchInput(source_path, lambda name: _wrong_model(name, serving.model_names))
    output = BatchOutput(out, source, _identity(folder, settings, serving), asked["restart"])
    with _going_on(source, output):
        summary = _answer(source, output, serving, folder, _many_sequences(settings))
    if as_json:
        print_json(summary)
    else:
        click.echo(_in_words(summary), err=True)


def _check_files(source: Path, out: Path) -> None:
    if not has_regular_file(source, FileError):
        raise BadFile(f"there is no file {str(source)!r}: give one with a request a line")
    check_writable("-o", str(out))
    if out.exists() and out.samefile(source):
        raise ImpossibleSetting(f"-o {str(out)!r} is the input: give another file")


def _serving(asked: Mapping[str, Any], name: str) -> ServerSettings:
    from moesaic.serve.server_settings import ServerSettings

    return ServerSettings(
        model_names=asked["model_names"] or (name,),
        max_queue=_ANY_NUMBER,
        tool_format=asked["tool_format"],
        reasoning_format=asked["reasoning_format"],
    )


def _wrong_model(name: str | None, names: tuple[str, ...]) -> str | None:
    if name is None or name in names:
        return None
    return (
        f"it asks for model {name!r}, and {', '.join(names)} answers: add --served-model-name "
        f"{name}, or change the file"
    )


def _identity(folder: Path, settings: EngineSettings, serving: ServerSettings) -> dict[str, Any]:
    """What answers depend on, so that they are not mixed with others."""
    from moesaic.serve.batch.model_digest import model_digest

    return {
        "model": serving.model_names[0],
        "model_sha256": model_digest(folder),
        **{name: getattr(settings, name) for name in _SAME},
        "gate": settings.policies.as_dict()["gate"],
        "tool_format": serving.tool_format,
        "reasoning_format": serving.reasoning_format,
    }


def _many_sequences(settings: EngineSettings) -> EngineSettings:
    """A GPU decodes many more sequences in hardly more time. On the CPU 32 already read most of the
    experts, and more bring little."""
    from moesaic.engine.engine_settings import UsualSequences

    if settings.max_sequences is not None or not settings.capabilities.own_memory:
        return settings
    return replace(settings, max_sequences=UsualSequences(MOST_SEQUENCES))


@contextmanager
def _going_on(source: BatchInput, output: BatchOutput) -> Iterator[None]:
    """In any case what has been answered is kept, and a message says how to go on."""
    try:
        try:
            yield
        finally:
            output.close()
    except BaseException:
        with suppress(OSError):  # the terminal may be what went away
            click.echo(
                f"{output.count} of {source.count} are answered and kept in {output.path}: the "
                "same command goes on from there",
                err=True,
            )
        raise


def _answer(
    source: BatchInput,
    output: BatchOutput,
    serving: ServerSettings,
    folder: Path,
    settings: EngineSettings,
) -> dict[str, Any]:
    """The model is loaded only if requests are left."""
    from moesaic.serve.batch.batch_run import BatchCounts, BatchRun
    from moesaic.serve.service import Service

    before, total = output.count, source.count
    if before:
        click.echo(f"{before} of {total} are answered already", err=True)
    counts, seconds, sequences = BatchCounts(), 0.0, None
    if before < total:
        announce_bundled(folder)
        service = Service(load_engine(folder, settings), serving)
        sequences = service.llm.sequences
        click.echo(f"up to {sequences} answers are written at a time", err=True)
        started = monotonic()
        with progress("answering", total, unit="requests", done=before) as advance:
            run = BatchRun(service, source, output, advance)
            _finish(service, run)
        counts, seconds = run.counts, monotonic() - started
    return {
        "input": str(source.path),
        "output": str(output.path),
        "model": serving.model_names[0],
        "requests": total,
        "answered_before": before,
        **asdict(counts),
        "sequences": sequences,
        "seconds": seconds,
        "requests_per_s": counts.answered / seconds if seconds else None,
        "generated_tokens_per_s": counts.generated_tokens / seconds if seconds else None,
    }


def _finish(service: Service, run: BatchRun) -> None:
    """A signal ends it in order, and this process as if by that signal."""
    from moesaic.serve.signals import caught_signals

    signals: list[int] = []

    async def work() -> None:
        task = asyncio.create_task(run.run())

        def end(number: int) -> None:
            signals.append(number)
            task.cancel()

        with caught_signals(end):
            try:
                await task
            except asyncio.CancelledError:
                if not signals:
                    raise
            finally:
                await service.llm.close()

    asyncio.run(work())
    if signals and signals[0] == signal.SIGINT:
        raise click.Abort
    if signals:
        raise SystemExit(128 + signals[0])


def _in_words(summary: Mapping[str, Any]) -> str:
    said = f"{summary['requests']} requests are answered in {summary['output']}"
    if summary["refused"]:
        said += f", {summary['refused']} of them by an error"
    if not summary["answered"]:
        return said
    return (
        f"{said}: {summary['answered']} in {summary['seconds']:.1f} s, "
        f"{summary['generated_tokens_per_s']:.0f} tokens/s written, {summary['prompt_tokens']} "
        f"tokens of prompts ({summary['cached_tokens']} found in the KV cache)"
    )
