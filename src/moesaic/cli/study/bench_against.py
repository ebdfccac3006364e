"""`moesaic bench --against` and `--compare`: the same model measured by other programs, in turns
with ours, beside our implementations of their strategies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.output import print_table, progress
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.core.folders import temporary_folder
from moesaic.model_info.packed.header import is_packed

if TYPE_CHECKING:
    from moesaic.lab.against.ours import MeasuredModel
    from moesaic.lab.against.rounds import AgainstRow, Contender, Spread
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig
    from moesaic.lab.bench.cases import Case
    from moesaic.lab.bench.stock_peer import PeerRow
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


def run_peers(
    model: BenchModel,
    configs: Sequence[BenchConfig],
    cases: Sequence[Case],
    repetitions: int,
    against: Sequence[str] = (),
    stock: bool = True,
) -> list[dict[str, Any]]:
    """Once for every cache ratio, with as much GPU memory as ours had there; what cannot be
    measured is said. `against`: other programs and where they are, as --against has them;
    `stock`: transformers with accelerate, too."""
    from moesaic.lab.bench.stock_peer import NAME, give_memory_back, measure_stock, why_not_stock

    give_memory_back()
    ratios = list({config.plan.cache_ratio: config for config in configs}.values())
    measuring: dict[str, list[Callable[[], list[PeerRow]]]] = {}
    problem = why_not_stock(configs[0])
    if stock and problem is None:
        measuring[NAME] = [partial(measure_stock, model, one, cases, repetitions) for one in ratios]
    elif stock:
        click.echo(f"not compared: {NAME}: {problem}", err=True)
    for name in (one.partition("=")[0] for one in against):
        if name != LLAMA_CPP:
            only = f"with --compare, --against takes {LLAMA_CPP} only"
            click.echo(f"not compared: {name}: {only}", err=True)
    rows: list[PeerRow] = []
    with ExitStack() as stack:
        for path in _llama_paths(against, configs[0], cases):
            try:
                measuring[LLAMA_CPP] = [_llama(path, model, ratios, cases, repetitions, stack)]
            except (MoesaicError, OSError) as error:
                click.echo(f"not compared: {error}", err=True)
        for name, measured in measuring.items():
            click.echo(f"measuring {name}", err=True)
            for measure in measured:
                try:
                    rows += measure()
                except MoesaicError as error:
                    click.echo(f"not compared: {error}", err=True)
    return [asdict(row) for row in rows]


def _llama_paths(against: Sequence[str], config: BenchConfig, cases: Sequence[Case]) -> list[str]:
    """The paths of llama-bench, where one was given; with a GPU it is run as ours is."""
    paths = [one.partition("=")[2] for one in against if one.startswith(f"{LLAMA_CPP}=")]
    problem = None
    if not config.settings.capabilities.own_memory:
        problem = "there is no GPU in this run"
    elif all(case.batch > 1 for case in cases):
        problem = "beside a GPU it is measured with one sequence only, and --batch asks for more"
    if paths and problem is not None:
        click.echo(f"not compared: {LLAMA_CPP}: {problem}", err=True)
        return []
    return paths


def _llama(
    path: str,
    model: BenchModel,
    ratios: Sequence[BenchConfig],
    cases: Sequence[Case],
    repetitions: int,
    stack: ExitStack,
) -> Callable[[], list[PeerRow]]:
    """llama-bench on random weights in the model's shape, which are written once."""
    from moesaic.lab.against.llama_cpp import find_program, measure_llama
    from moesaic.lab.against.random_gguf import TYPES, check_writable, write_random_gguf

    program, dtype = find_program(path), ratios[0].plan.expert_dtype
    check_writable(model.architecture, dtype, Path(gettempdir()))
    folder = stack.enter_context(temporary_folder("moesaic-gguf-"))
    gguf = folder / "random.gguf"
    click.echo(f"writing random weights in {model.spec.name}'s shape for llama.cpp", err=True)
    write_random_gguf(model.architecture, dtype, gguf)
    return partial(measure_llama, program, gguf, TYPES[dtype], ratios, cases, repetitions)


def print_comparison(result: dict[str, Any]) -> None:
    """`result` is what `bench --json` prints; the first row's system is one's own."""
    from moesaic.lab.bench.compared_systems import COMPARED, speedups

    rows, peers = result["rows"], result["peers"]
    if peers:
        cells = [
            [row["test"], row["program"], f"{row['cache_ratio']:.0%}",
             f"{row['tokens_per_s']:.2f}", row["words"]]
            for row in peers
        ]  # fmt: skip
        print_table("Other programs", ("test", "program", "cache", "tok/s", "how"), cells)
    for line in speedups(rows[0]["system"], [*rows, *peers]):
        click.echo(line)
    stands = "; ".join(f"{system}: {strategy}" for system, strategy in COMPARED.items())
    click.echo(f"strategies by our own implementation, on the same weights: {stands}")
