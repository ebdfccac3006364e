"""The table of `moesaic plan` without options: a model in every precision on one machine, and the
smallest machine for each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.output import print_table
from moesaic.cli.study.plan_tables import print_notes
from moesaic.core.units import GB
from moesaic.machines.accelerators import has_slots

if TYPE_CHECKING:
    from moesaic.lab.plan_rows import PlanningTarget, PlanRow
    from moesaic.model_info.model_spec import ModelSpec

_COLUMNS = (
    "experts", "main GB", "GPU GB", "on GPU", "context", "tokens/s", "prompt/s", "fits",
)  # fmt: skip
_SMALLEST = ("experts", "main GB", "main GB with a GPU", "GPU GB", "GPU GB for all experts")
_STORED = "*"


def describe_rows(
    spec: ModelSpec, rows: Sequence[PlanRow], target: PlanningTarget, memory_of: str
) -> dict[str, Any]:
    """The rows as `plan --json` prints them; bytes needed include what is left free."""
    from moesaic.cli.study.plan_target import NOT_MEASURED

    reason = NOT_MEASURED if target.machine is None else None
    reasons = [row.no_speed for row in rows if row.no_speed is not None]
    return {
        "model": spec.name,
        "machine": None if target.machine is None else target.machine.name,
        "available_bytes": target.available,
        "memory_of": memory_of,
        "accelerator_limit_bytes": rows[0].plan.accelerator_limit_bytes,
        "sequences": rows[0].plan.capacity.sequences,
        "rows": [_described(row) for row in rows],
        "no_speed": reason or next(iter(reasons), None),
    }


def _described(row: PlanRow) -> dict[str, Any]:
    plan, speed = row.plan, row.speed
    return {
        "expert_dtype": plan.expert_dtype,
        "dense_dtype": plan.dense_dtype,
        "stored": row.stored,
        "accelerator": row.settings.accelerator,
        "fits": plan.fits,
        "problem": row.problem,
        "main_bytes": row.main_bytes,
        "accelerator_bytes": plan.accelerator_bytes,
        "cache_ratio": plan.cache_ratio,
        "context": plan.capacity.length,
        "decode_tokens_per_s": None if speed is None else speed.decode.tokens_per_s,
        "prefill_tokens_per_s": None if speed is None else speed.prefill.tokens_per_s,
        "smallest_machine": asdict(row.smallest),
    }


def print_overview(described: dict[str, Any], model: str | None, asked: dict[str, Any]) -> None:
    """`described` is what `plan --json` prints; `asked` has the options."""
    rows = described["rows"]
    gpu = any(row["accelerator_bytes"] for row in rows)
    there = f"{described['available_bytes'] / GB:.1f} GB of main memory {described['memory_of']}"
    limit = described["accelerator_limit_bytes"]
    if gpu and limit is not None:
        there += f", {limit / GB:.1f} GB on the GPU"
    elif not gpu:
        there += ", no GPU"
    click.echo(f"{described['model']} with {there}:")
    print_table("", *_without_empty(_COLUMNS, map(_cells, rows)))
    for words in _notes(described, gpu):
        click.echo(words)
    context = rows[0]["smallest_machine"]["context"]
    title = f"The smallest machine, for one sequence of {context} tokens"
    print_table(title, _SMALLEST, [_smallest_cells(row) for row in rows])
    click.echo(_row_text(min(rows, key=lambda row: row["smallest_machine"]["main_bytes"])))
    print_notes(described)
    click.echo(f"One row in detail: {_of_one_row(rows[-1]['expert_dtype'], model, asked)}")


def _of_one_row(dtype: str, model: str | None, asked: dict[str, Any]) -> str:
    """The command, for the same model and machine."""
    words = ["moesaic", "plan", *([] if model is None else [model])]
    if asked["machine"] is not None:
        words += ["--machine", str(asked["machine"])]
    if asked["memory"] is not None:
        words += ["--memory", f"{asked['memory']:g}"]
    return shlex.join([*words, "--expert-dtype", dtype])


def _notes(described: dict[str, Any], gpu: bool) -> Iterator[str]:
    """What the table leaves open."""
    yield f"{_STORED} as stored: what `moesaic run` uses unless --expert-dtype names another."
    if gpu:
        yield "on GPU: the share of experts kept in its memory; main memory has all of them."
    unknown = [row for row in described["rows"] if row["fits"] and not row["decode_tokens_per_s"]]
    partly = len(unknown) < sum(row["fits"] for row in described["rows"])
    if described["no_speed"] is not None:
        of = f" of {', '.join(row['expert_dtype'] for row in unknown)}" if partly else ""
        yield f"Speed{of} is not estimated: {described['no_speed']}"
    if described["no_speed"] is None or partly:
        yield f"Speed is simulated for {described['machine']}, with synthetic routing."
    for row in described["rows"]:
        if row["problem"] is not None:
            without = "runs on the CPU only: " if row["fits"] else ""
            yield f"{row['expert_dtype']} {without}{row['problem']}"


def _without_empty(
    columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Columns that say something."""
    cells = list(rows)
    kept = [at for at in range(len(columns)) if any(row[at] is not None for row in cells)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in cells]


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    gpu, fits = has_slots(row["accelerator"]), row["fits"]
    return (
        _name(row),
        f"{row['main_bytes'] / GB:.1f}",
        f"{row['accelerator_bytes'] / GB:.1f}" if gpu else None,
        f"{row['cache_ratio']:.0%}" if gpu and fits else None,
        row["context"] if fits else None,
        _rate(row["decode_tokens_per_s"]),
        _rate(row["prefill_tokens_per_s"]),
        _fits(row),
    )


def _name(row: dict[str, Any]) -> str:
    return f"{row['expert_dtype']}{_STORED if row['stored'] else ''}"


def _fits(row: dict[str, Any]) -> str:
    if not row["fits"]:
        return "no"
    return "yes" if row["problem"] is None else "CPU"


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f}"


def _smallest_cells(row: dict[str, Any]) -> tuple[object, ...]:
    least = row["smallest_machine"]
    sizes = ("main_bytes", "main_bytes_with_gpu", "gpu_bytes", "gpu_bytes_for_all")
    return (row["expert_dtype"], *(f"{least[size] / GB:.1f}" for size in sizes))


def _row_text(row: dict[str, Any]) -> str:
    least = row["smallest_machine"]
    return (
        f"The smallest: {row['expert_dtype']} on a machine with {least['main_bytes'] / GB:.1f} GB "
        f"of main memory available and no GPU, or {least['main_bytes_with_gpu'] / GB:.1f} GB and a "
        f"GPU with {least['gpu_bytes'] / GB:.1f} GB free."
    )
