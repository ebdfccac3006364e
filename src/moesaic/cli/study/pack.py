"""`moesaic pack`: a model in the form that opens at once."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.kernels.instruction_sets import KERNELS

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.models.open_model import OpenModel


@click.command()
@model_argument
@click.option("-o", "--output", metavar="DIR", help="The directory to write.")
@click.option("--verify", is_flag=True, help="Instead: compare a packed MODEL with its checksums.")
@click.option("--source", metavar="MODEL", help="With --verify: was it packed from this one?")
@click.option(
    "--expert-dtype",
    default="auto",
    metavar="DTYPE",
    help=f"Of the routed experts: {' | '.join(('auto', *BITS_PER_WEIGHT))}  [auto: as published]",
)
@click.option(
    "--kernel",
    default="auto",
    metavar="NAME",
    help=f"Whose layout: {' | '.join(KERNELS)}  [auto: the best this CPU has]",
)
def pack(
    model: str | None, output: str | None, verify: bool, source: str | None, **asked: Any
) -> None:
    """Save a model packed for this machine: it then opens in seconds.

    MODEL is a directory in Hugging Face layout, or an id there. DIR gets its routed experts in the
    layout of the CPU's kernels, which commands map instead of converting them, and everything else
    that the model needs; give DIR wherever a model is taken."""
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.packing_target import packing_target

    if (output is None) != verify:
        raise ImpossibleSetting("give either -o DIR, the directory to write, or --verify")
    if source is not None and not verify:
        raise ImpossibleSetting("--source is what --verify compares with: give --verify, too")
    settings = EngineSettings(accelerator="none", **asked)  # the layout of the CPU's kernels
    if output is not None:
        packing_target(Path(output))  # before anything is fetched
    folder = model_folder(model)

    from moesaic.models.open_model import open_model

    if output is None:
        _verify(open_model(folder), folder, source)
    else:
        _write(open_model(folder), folder, Path(output), settings)


def _write(model: OpenModel, folder: Path, target: Path, settings: EngineSettings) -> None:
    from moesaic.cli.shared.output import progress
    from moesaic.engine.packing import plan_packing, write_packing

    packing = plan_packing(model, folder, target, settings)
    kernel = packing.kernel
    click.echo(
        f"packing {kernel.dtype} experts in the layout {kernel.layout}: "
        f"{packing.expert_bytes / GB:.2f} GB, and up to {packing.other_bytes / GB:.2f} GB besides",
        err=True,
    )
    started = perf_counter()
    with progress("packing experts", model.architecture.spec.num_expert_blocks) as advance:
        write_packing(packing, advance)
    click.echo(f"{target}: written in {perf_counter() - started:.1f} s", err=True)


def _verify(model: OpenModel, folder: Path, source: str | None) -> None:
    from moesaic.cli.shared.output import progress
    from moesaic.engine.packed_store import verify
    from moesaic.models.checkpoints.packed_experts import PackedExperts
    from moesaic.models.checkpoints.source_files import fingerprint

    if not isinstance(model.experts, PackedExperts):
        raise ImpossibleSetting(f"{str(folder)!r} is not packed: there is nothing to verify")
    header = model.experts.header
    if source is not None and fingerprint(model_folder(source)) != header.fingerprint:
        raise ImpossibleSetting(
            f"{str(folder)!r} was not packed from the files of {source!r}, or they have changed "
            f"since (it was made from {header.source}): pack the model again"
        )
    with progress("reading layers", header.layers) as advance:
        verify(model.experts, advance)
    click.echo(
        f"{folder}: all {header.layers} layers and {len(header.others)} other files are as they "
        "were packed"
    )
