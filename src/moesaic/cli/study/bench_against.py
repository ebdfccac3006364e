"""`moesaic bench --against`: the same model measured by other programs, in turns with ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.output import print_table, progress
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.packed.header import is_packed

if TYPE_CHECKING:
    from moesaic.lab.against.ours import Measured
    from moesaic.lab.against.rounds import AgainstRow, Contender, Spread
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig

LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers"
_EXPECTED = f"--against is {LLAMA_CPP}=PATH, of llama-bench or its folder, or {TRANSFORMERS}"


def check_against(asked: Sequence[str]) -> None:
    for one in asked:
        name, equals, path = one.partition("=")
        if name == LLAMA_CPP and path:
            from moesaic.lab.against.llama_cpp import find_program

            find_program(path)
        elif name == TRANSFORMERS and not equals:
            from moesaic.lab.against.stock_transformers import check_installed

            check_installed()
        else:
            raise ImpossibleSetting(f"--against {one} was given; {_EXPECTED}")
    if len({one.partition("=")[0] for one in asked}) < len(asked):
        raise ImpossibleSetting("--against names a program twice: give each once")


def run_against(
    asked: Sequence[str],
    found: BenchModel,
    config: BenchConfig,
    measured: Measured,
    rounds: int,
) -> list[AgainstRow]:
    """Ours and the others, in turns; prints what takes part."""
    from moesaic.engine.expert_kernel import kernel_for
    from moesaic.kernels.dtypes import torch_dtype
    from moesaic.lab.against.ours import OURS, Ours
    from moesaic.lab.against.rounds import rows_of, take_turns

    plan, settings = config.plan, config.settings
    if settings.capabilities.moves:
        raise ImpossibleSetting(
            f"--against compares on the CPU, but the accelerator is {settings.accelerator!r}: "
            "leave it out"
        )
    shape, dtype = found.architecture.expert_shape, torch_dtype(plan.dtype)
    kernel = kernel_for(shape, plan.expert_dtype, dtype, settings)
    with ExitStack() as stack:
        contenders: list[Contender] = [Ours(measured, config, kernel)]
        for one in asked:
            contenders.append(_contender(one, found, config, measured, stack))
        for each in contenders:
            click.echo(f"{each.name}: {each.words}", err=True)
        warn_if_busy()
        with progress("taking turns", rounds * len(contenders)) as advance:
            done = take_turns(contenders, rounds, advance)
    return rows_of(done, OURS)


def _contender(
    asked: str, found: BenchModel, config: BenchConfig, measured: Measured, stack: ExitStack
) -> Contender:
    name, _, path = asked.partition("=")
    threads = _threads(config)
    if name == TRANSFORMERS:
        from moesaic.lab.against.stock_transformers import Transformers

        source = stock_source(measured)
        return Transformers(source, measured.layers, config.plan.dtype, threads, measured.cases)
    from moesaic.lab.against.llama_cpp import LlamaCpp, check_cases, find_program
    from moesaic.lab.against.random_gguf import TYPES, check_writable, write_random_gguf

    check_cases(measured.cases)
    program, expert_dtype = find_program(path), config.plan.expert_dtype
    check_writable(found.architecture, expert_dtype, Path(gettempdir()))
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="moesaic-gguf-")))
    model = folder / "random.gguf"
    click.echo(f"writing random weights in {found.spec.name}'s shape for llama.cpp", err=True)
    write_random_gguf(found.architecture, expert_dtype, model)
    return LlamaCpp(program, model, TYPES[expert_dtype], threads, measured.cases)


def _threads(config: BenchConfig) -> int:
    from moesaic.hardware.host import usable_cores

    return config.settings.threads or usable_cores()


def stock_source(measured: Measured) -> str:
    if measured.folder is not None:
        if not Path(measured.folder).is_dir():
            raise ImpossibleSetting(
                f"--against transformers needs a directory in Hugging Face layout, but "
                f"{measured.folder} is a file"
            )
        if is_packed(Path(measured.folder)):
            raise ImpossibleSetting(
                f"--against transformers cannot read the experts of {measured.folder}, which is "
                "packed: give the model it was made from"
            )
        return measured.folder
    assert measured.synthetic is not None, "a folder or a shape"
    if not Path(measured.synthetic).is_file():
        raise ImpossibleSetting(
            f"--against transformers needs a checkpoint or its config.json, but --synthetic "
            f"{measured.synthetic} is a shape only: give the path of a config.json"
        )
    return measured.synthetic


def against_result(
    rows: Sequence[AgainstRow], found: BenchModel, config: BenchConfig, command: str
) -> dict[str, Any]:
    """What `bench --against --json` prints."""
    plan = config.plan
    return {
        "command": command,
        "model": found.spec.name,
        "layers": found.spec.num_layers,
        "weights": "random" if found.opened is None else "checkpoint",
        "dtype": plan.dtype,
        "expert_dtype": plan.expert_dtype,
        "threads": _threads(config),
        "rows": [asdict(row) for row in rows],
    }


def print_against(result: dict[str, Any], rows: Sequence[AgainstRow]) -> None:
    title = (
        f"{result['model']}, {result['layers']} layers, {result['threads']} threads; each alone in "
        "its process, in turns\n"
        "Medians of the rounds, lowest and highest; times: ours over theirs, within rounds"
    )
    cells = [
        (row.test, row.name, *_cells(row.tokens_per_s, 1), *_cells(row.times, 2)) for row in rows
    ]
    columns = ("test", "program", "tok/s", "low", "high", "times", "low", "high")
    print_table(title, columns, cells)


def _cells(spread: Spread | None, digits: int) -> tuple[str | None, ...]:
    if spread is None:
        return None, None, None
    return tuple(f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high))
