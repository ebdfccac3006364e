"""`moesaic bench --against`: the same model measured by other programs, in turns with ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.output import print_table, progress
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.folders import temporary_folder
from moesaic.model_info.packed.header import is_packed

if TYPE_CHECKING:
    from moesaic.lab.against.ours import MeasuredModel
    from moesaic.lab.against.rounds import AgainstRow, Contender, Spread
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig
    from moesaic.model_info.model_spec import ModelSpec

LLAMA_CPP, IK_LLAMA_CPP, TRANSFORMERS = "llama.cpp", "ik_llama.cpp", "transformers"
_EXPECTED = (
    f"--against is {LLAMA_CPP}=PATH or {IK_LLAMA_CPP}=PATH, of llama-bench or its folder, or "
    f"{TRANSFORMERS}"
)


def check_against(asked: Sequence[str]) -> None:
    for one in asked:
        name, equals, path = one.partition("=")
        if name in (LLAMA_CPP, IK_LLAMA_CPP) and path:
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
    measured: MeasuredModel,
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
        others = _Others(found, config, measured, stack)
        contenders += [others.contender(one) for one in asked]
        for each in contenders:
            click.echo(f"{each.name}: {each.words}", err=True)
        warn_if_busy()
        with progress("taking turns", rounds * len(contenders)) as advance:
            done = take_turns(contenders, rounds, advance)
    return rows_of(done, OURS)


class _Others:
    """Makes the other programs' turns; all builds of llama.cpp read one file."""

    def __init__(
        self, found: BenchModel, config: BenchConfig, measured: MeasuredModel, stack: ExitStack
    ) -> None:
        self._found, self._config, self._measured = found, config, measured
        self._stack, self._threads = stack, _threads(config)
        self._gguf: Path | None = None

    def contender(self, asked: str) -> Contender:
        name, _, path = asked.partition("=")
        return self._stock() if name == TRANSFORMERS else self._llama(name, path)

    def _stock(self) -> Contender:
        from moesaic.lab.against.stock_transformers import Transformers

        measured, dtype = self._measured, self._config.plan.dtype
        source = stock_source(measured, self._found.spec, self._stack)
        return Transformers(source, measured.layers, dtype, self._threads, measured.cases)

    def _llama(self, name: str, path: str) -> Contender:
        from moesaic.lab.against.llama_batched import check_cases
        from moesaic.lab.against.llama_cpp import CPU_ONLY, IK_OPTIONS, LlamaCpp, find_program
        from moesaic.lab.against.random_gguf import TYPES

        program, cases = find_program(path), self._measured.cases
        check_cases(cases, program)
        self._gguf = self._gguf or self._written()
        kind = TYPES[self._config.plan.expert_dtype]
        options = IK_OPTIONS if name == IK_LLAMA_CPP else CPU_ONLY
        return LlamaCpp(program, self._gguf, kind, self._threads, cases, options, name)

    def _written(self) -> Path:
        from moesaic.lab.against.random_gguf import check_writable, write_random_gguf

        architecture, dtype = self._found.architecture, self._config.plan.expert_dtype
        check_writable(architecture, dtype, Path(gettempdir()))
        path = self._stack.enter_context(temporary_folder("moesaic-gguf-")) / "random.gguf"
        name = self._found.spec.name
        click.echo(f"writing random weights in {name}'s shape for llama.cpp", err=True)
        write_random_gguf(architecture, dtype, path)
        return path


def _threads(config: BenchConfig) -> int:
    from moesaic.hardware.host import usable_cores

    return config.settings.threads or usable_cores()


def stock_source(measured: MeasuredModel, spec: ModelSpec, stack: ExitStack) -> str:
    """A checkpoint's folder or a config.json, which is written where only a shape is known."""
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
    if Path(measured.synthetic).is_file():
        return measured.synthetic
    from moesaic.lab.bench.stock_config import stock_config

    path = stack.enter_context(temporary_folder("moesaic-config-")) / "config.json"
    path.write_text(json.dumps(stock_config(spec)), encoding="utf-8")
    return str(path)


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
