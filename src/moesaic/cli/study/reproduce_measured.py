"""`moesaic reproduce hybrimoe --measured`: the paper's comparison in real time, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_stack import stack
from moesaic.cli.shared.simulation_options import names, ratios
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig
    from moesaic.lab.bench.placement_grid import Cell, Grid, MeasuredRow
    from moesaic.lab.bench.stock_peer import PeerRow

SYSTEMS = "moesaic,hybrimoe,ktransformers,adapmoe"
MODELS = "deepseek-v2-lite,qwen3-30b-a3b"
THREADS = (2, 4, 8, 16)
DTYPE = "int4"  # of experts and, beside a GPU, of all other matrices
_LLAMA = "llama.cpp="

measured_options = stack(
    click.option(
        "--measured",
        is_flag=True,
        help="Instead: measure on this machine's GPU, random weights with replayed routing.",
    ),
    click.option("--models", help=f"Of --measured, a comma list.  [{MODELS}]"),
    click.option("--layers", type=int, metavar="N", help="Of --measured, only the first N layers."),
    click.option("--systems", help=f"Of --measured, a comma list.  [{SYSTEMS}]"),
    click.option(
        "--threads",
        help="Of --measured, CPU threads, a comma list: few stand for a desktop's memory.  "
        f"[those of {', '.join(map(str, THREADS))} that there are cores for]",
    ),
    click.option("--cache-ratios", help="Of --measured, a comma list.  [0.25,0.5,0.75]"),
    click.option(
        "--profiles",
        help="Of --measured: tokens that the initial placement is profiled on.  [256,8192]",
    ),
    click.option(
        "--first-token",
        help="Of --measured: the token of the routing that measuring begins at, behind the "
        "profile; a comma list.  [the longest profile]",
    ),
    click.option("--rounds", type=int, metavar="N", help="Of --measured.  [3]"),
    click.option("--tokens", type=int, metavar="N", help="Of --measured, in one run.  [128]"),
    click.option("--accelerator", metavar="KIND", help="Of --measured: cuda | emulated  [cuda]"),
    click.option("--against", metavar="llama.cpp=PATH", help="Of --measured: llama-bench, too."),
)
_OPTIONS = (
    "models", "layers", "systems", "threads", "cache_ratios", "profiles", "first_token", "rounds",
    "tokens", "accelerator", "against",
)  # fmt: skip


def check_not_measured(asked: dict[str, Any]) -> None:
    """Refuse options that mean nothing in the simulated reproduction."""
    for name in _OPTIONS:
        if asked[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise ImpossibleSetting(f"{option} is of --measured: add that, or leave it out")


def check_measured(only: str, jobs: int | None) -> None:
    for option, given in (("--only", bool(only)), ("--jobs", jobs is not None)):
        if given:
            raise ImpossibleSetting(
                f"{option} is of the simulated tables and has no meaning with --measured, which "
                "runs one system at a time: leave it out; --models, --threads, --cache-ratios and "
                "--systems make the grid smaller"
            )


def run_measured(asked: dict[str, Any], traces: str | None, command: str) -> dict[str, Any]:
    """Everything that --json prints."""
    from moesaic.lab.bench.bench_model import random_model
    from moesaic.lab.bench.placement_grid import configurations
    from moesaic.reproductions.hybrimoe.table import Traces

    grid, real = _grid(asked), Traces(traces)
    program = _llama_program(asked["against"])
    models = [random_model(name, asked["layers"]) for name in _names(asked, "models", MODELS)]
    planned = [configurations(model, grid) for model in models]
    rows: list[MeasuredRow] = []
    peers: list[dict[str, Any]] = []
    for model, cells in zip(models, planned, strict=True):
        rows += _measure(model, cells, grid, real.of(model.spec.name))
        if program is not None:
            peers += _llama(program, model, cells, grid)
    return {
        "rows": [row.as_dict() for row in rows],
        "peers": peers,
        "precision": grid.settings.expert_dtype,
        "accelerator": str(grid.settings.accelerator),
        "rounds": grid.rounds,
        "tokens": grid.tokens,
        "command": command,
    }


def _names(asked: dict[str, Any], option: str, default: str) -> list[str]:
    return names(f"--{option}", asked[option] or default)


def _grid(asked: dict[str, Any]) -> Grid:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.hardware.host import usable_cores
    from moesaic.lab.bench.placement_grid import Grid
    from moesaic.machines.accelerators import check_usable

    settings = EngineSettings(
        accelerator=asked["accelerator"] or "cuda",
        dtype="bf16",
        expert_dtype=DTYPE,
        max_step_tokens=1,
    )
    if settings.capabilities.own_memory:
        settings = replace(settings, dense_dtype=DTYPE)
    check_usable(settings.accelerator)
    cores = usable_cores()
    threads = [str(count) for count in THREADS if count <= cores] or [str(cores)]
    profiles = _counts("profiles", asked["profiles"] or "256,8192")
    firsts = _counts("first-token", asked["first_token"] or str(max(profiles)))
    if min(firsts) < max(profiles):
        raise ImpossibleSetting(
            f"--first-token {min(firsts)} leaves no room for a profile of {max(profiles)} tokens "
            f"before it: give {max(profiles)} or more, or a shorter one with --profiles"
        )
    grid = Grid(
        settings,
        _counts("threads", asked["threads"] or ",".join(threads)),
        tuple(ratios("--cache-ratios", asked["cache_ratios"] or "0.25,0.5,0.75")),
        profiles,
        firsts,
        tuple(_names(asked, "systems", SYSTEMS)),
        3 if asked["rounds"] is None else asked["rounds"],
        128 if asked["tokens"] is None else asked["tokens"],
    )
    for option, value in (("--rounds", grid.rounds), ("--tokens", grid.tokens)):
        if value < 1:
            raise ImpossibleSetting(f"{option} is {value}; it must be at least 1")
    return grid


def _counts(option: str, commas: str) -> tuple[int, ...]:
    words = names(f"--{option}", commas)
    if not all(word.isdecimal() and int(word) for word in words):
        raise ImpossibleSetting(f"--{option} is {commas!r}: give whole numbers, as in 2,4")
    return tuple(int(word) for word in words)


def _measure(
    model: BenchModel, cells: dict[Cell, BenchConfig], grid: Grid, trace: str | None
) -> list[MeasuredRow]:
    from moesaic.cli.shared.output import progress
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.bench.placement_grid import load, measure, measured_routing

    path = None if trace is None else Path(trace)
    routing = measured_routing(model.spec, path, max(grid.firsts), grid.rounds, grid.tokens)
    announce_compilation()
    first = next(iter(cells.values()))
    with progress(f"{model.spec.name}: loading", model.spec.num_expert_blocks) as advance:
        loaded = load(model, first, advance)
    rows = []
    with progress(f"{model.spec.name}: measuring", grid.runs) as advance:
        for row in measure(model, loaded, cells, routing, grid, advance):
            rows.append(row)
            click.echo(_line(row), err=True)
    return rows


def _line(row: MeasuredRow) -> str:
    """What a run that is interrupted later has found."""
    speed, over = row.tokens_per_s, row.over_static
    times = "" if over is None else f", {over.median:.2f} times static placement"
    return (
        f"{row.model}, {row.threads} threads, {row.cache_ratio:.0%} cached, profile of "
        f"{row.profile_tokens} before token {row.first_token}: {row.system} "
        f"{speed.median:.1f} tokens/s ({speed.low:.1f} to {speed.high:.1f}){times}"
    )


def _llama_program(against: str | None) -> Path | None:
    from moesaic.lab.against.llama_cpp import find_program

    if against is None:
        return None
    if not against.startswith(_LLAMA):
        raise ImpossibleSetting(f"--against is {against!r}: give {_LLAMA}PATH of llama-bench")
    return find_program(against.removeprefix(_LLAMA))


def _llama(
    program: Path, model: BenchModel, cells: dict[Cell, BenchConfig], grid: Grid
) -> list[dict[str, Any]]:
    """llama.cpp's rows with as much GPU memory and as many threads as ours; one process for
    each."""
    from moesaic.core.folders import temporary_folder
    from moesaic.lab.against.llama_cpp import measure_llama
    from moesaic.lab.against.random_gguf import TYPES, check_writable, write_random_gguf
    from moesaic.lab.bench.cases import Case
    from moesaic.lab.bench.stock_peer import give_memory_back

    give_memory_back()
    case = Case("decode", grid.tokens)
    found: list[dict[str, Any]] = []
    with temporary_folder("moesaic-gguf-") as folder:
        check_writable(model.architecture, DTYPE, folder)
        gguf = folder / "random.gguf"
        click.echo(f"writing random weights in {model.spec.name}'s shape for llama.cpp", err=True)
        write_random_gguf(model.architecture, DTYPE, gguf)
        for threads in grid.threads:
            click.echo(f"measuring llama.cpp with {threads} threads", err=True)
            here = {cell.cache_ratio: each for cell, each in cells.items() if cell[0] == threads}
            rows = measure_llama(
                program, gguf, TYPES[DTYPE], list(here.values()), [case], grid.rounds
            )
            found += [_peer(model, threads, row) for row in rows]
            for row in rows:
                share = f"{row.cache_ratio:.0%} cached"
                click.echo(f"llama.cpp, {share}: {row.tokens_per_s:.1f} tokens/s", err=True)
    return found


def _peer(model: BenchModel, threads: int, row: PeerRow) -> dict[str, Any]:
    return {
        "model": model.spec.name,
        "program": row.program,
        "threads": threads,
        "cache_ratio": row.cache_ratio,
        "tokens_per_s": row.tokens_per_s,
        "stdev": row.stdev,
        "how": row.words,
    }


def print_measured(result: dict[str, Any]) -> None:
    from moesaic.cli.shared.output import print_table

    rows = result["rows"]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        peers = [peer for peer in result["peers"] if peer["model"] == model]
        title = (
            f"{model}, {result['precision']}: decode tokens/s, medians of {result['rounds']} "
            f"rounds of {result['tokens']} tokens\n({mine[0]['routing']})"
        )
        print_table(title, *_table(mine, peers))
    click.echo(
        "ktransformers is static placement: its experts stay where the profile put them. "
        "X/static: how many times as fast as that, the median within rounds."
    )
    for words in _widest(rows):
        click.echo(words)


def _table(
    rows: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]
) -> tuple[list[str], list[list[object]]]:
    """One line for threads, cache ratio and profile."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    ahead = [name for name in systems if any(row["over_static"] for row in _of(rows, name))]
    found: dict[tuple[int, float, int, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["threads"], row["cache_ratio"], row["first_token"], row["profile_tokens"])
        found.setdefault(key, {})[row["system"]] = row
    lines: list[list[object]] = []
    for (threads, ratio, first, profile), by in found.items():
        host = next(iter(by.values()))["host_gb_s"]
        line: list[object] = [threads, f"{host:.0f}", f"{ratio:.0%}", first, profile]
        line += [f"{by[system]['tokens_per_s']['median']:.1f}" for system in systems]
        line += [f"{by[system]['over_static']['median']:.2f}" for system in ahead]
        line += [_peer_speed(peers, threads, ratio)] if peers else []
        lines.append(line)
    columns = ["threads", "host GB/s", "cached", "from token", "profile", *systems]
    columns += [f"{system}/static" for system in ahead] + (["llama.cpp"] if peers else [])
    return columns, lines


def _of(rows: Sequence[dict[str, Any]], system: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["system"] == system]


def _peer_speed(peers: Sequence[dict[str, Any]], threads: int, ratio: float) -> str | None:
    for peer in peers:
        if (peer["threads"], peer["cache_ratio"]) == (threads, ratio):
            return f"{peer['tokens_per_s']:.1f}"
    return None


def _widest(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How far rounds lie apart, where there are several."""
    spreads = [row["over_static"] for row in rows if row["over_static"]]
    if not spreads or all(each["low"] == each["high"] for each in spreads):
        return []
    widest = max(spreads, key=lambda each: (each["high"] - each["low"]) / each["median"])
    return [
        f"Rounds differ most where the median is {widest['median']:.2f}: "
        f"{widest['low']:.2f} to {widest['high']:.2f}."
    ]
