"""`moesaic bench --compare`: other programs beside our implementations of their strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.output import print_table
from moesaic.cli.study.bench_against import LLAMA_CPP
from moesaic.core.folders import temporary_folder

if TYPE_CHECKING:
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig
    from moesaic.lab.bench.cases import Case
    from moesaic.lab.bench.stock_peer import PeerRow


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
    from moesaic.core.errors import MoesaicError
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
    """Of llama-bench, where one was given; with a GPU it is run as ours is."""
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
    from moesaic.lab.against.llama_cpp import find_program
    from moesaic.lab.against.llama_gpu import measure_llama
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
