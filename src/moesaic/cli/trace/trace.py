"""`moesaic trace`: look at routing traces, compare, fit, make and convert them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.out_files import check_routing, check_writable
from moesaic.cli.shared.output import print_json, progress
from moesaic.cli.shared.simulation_options import json_option
from moesaic.cli.trace.trace_compare import compare
from moesaic.cli.trace.trace_files import open_named
from moesaic.cli.trace.trace_import import import_
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.workloads.synthetic.calibration import Calibration
    from moesaic.workloads.synthetic.generate import TraceShape

_max_tokens = click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="How many tokens the statistics look at.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def trace() -> None:
    """Inspect, compare, fit, synthesize, convert and import routing traces.

    A trace is a .moet file, an .npz of arrays (only `experts` is required), or the word
    `bundled`: routing of moesaic-20m, recorded while it answered prompts, which comes
    with the package."""


trace.add_command(compare)
trace.add_command(import_)


@trace.command()
@click.argument("file")
@_max_tokens
@json_option
def info(file: str, max_tokens: int, as_json: bool) -> None:
    """Show what a trace is and every statistic of it."""
    from dataclasses import asdict

    from moesaic.cli.trace.trace_tables import print_header, print_statistics
    from moesaic.workloads.stats.phases import totals
    from moesaic.workloads.stats.summary import PARTS, describe

    source = open_named(file)
    with progress("describing", PARTS + 1, quiet=as_json) as advance:
        found = totals(source)
        advance()
        statistics = describe(source, max_tokens, advance)
    if as_json:
        print_json({"header": asdict(source.header), **found, "statistics": statistics})
        return
    print_header(file, source.header, found)
    print_statistics(statistics)


@trace.command()
@click.argument("file")
@click.option("-o", "--output", required=True, help="The calibration, JSON.")
@click.option("--name", help="What to call it; the output's name unless given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the trial samples.")
@json_option
def fit(file: str, output: str, name: str | None, seed: int, as_json: bool) -> None:
    """Fit the synthetic generator to a trace."""
    from dataclasses import asdict
    from pathlib import Path

    from moesaic import __version__
    from moesaic.cli.trace.trace_tables import print_comparison
    from moesaic.core.files import whole_file
    from moesaic.workloads.synthetic.fit import PARTS
    from moesaic.workloads.synthetic.fit import fit as fit_calibration

    check_writable("--output", output)
    source = open_named(file)
    provenance = {
        "command": f"moesaic trace fit {Path(file).name} -o {Path(output).name} --seed {seed}",
        "moesaic": __version__,
    }
    with progress("fitting", PARTS, quiet=as_json) as advance:
        calibration = fit_calibration(
            source,
            name or Path(output).stem,
            seed=seed,
            provenance=provenance,
            advance=advance,
        )
    with whole_file(output, "w") as stream:
        stream.write(calibration.to_json())
    if as_json:
        print_json({"output": output, **asdict(calibration)})
        return
    print_comparison(
        _pattern(calibration), calibration.statistics, calibration.synthetic_statistics
    )
    click.echo(f"wrote {output}")


@trace.command()
@click.option("--calibration", help="A built-in name or a file; chosen by the model if absent.")
@click.option("--model", help="A known model, or the path of a config.json.")
@click.option("--layers", type=click.IntRange(min=1), help="MoE layers, instead of --model.")
@click.option("--experts", type=click.IntRange(min=1), help="Experts per layer.")
@click.option("--top-k", type=click.IntRange(min=1), help="Experts per token.")
@click.option("--tokens", type=click.IntRange(min=1), required=True, help="Of the trace.")
@click.option("--ranks", type=click.IntRange(min=1), help="Experts stored per token; 2 top-k.")
@click.option(
    "--forecast-depth",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many later layers each layer forecasts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the routing.")
@click.option("-o", "--output", required=True, help="The trace, .moet.")
@json_option
def synthesize(output: str, as_json: bool, **asked: Any) -> None:
    """Make a synthetic trace and hold it against the one it is calibrated on."""
    from moesaic.cli.trace.trace_tables import print_comparison
    from moesaic.workloads.source import open_trace
    from moesaic.workloads.stats.summary import PARTS, describe
    from moesaic.workloads.synthetic.generate import synthesize as make
    from moesaic.workloads.writer import TraceWriter

    check_routing("--output", output)
    shape = _shape(asked)
    calibration = _calibration(asked["calibration"], shape)
    source = make(
        calibration,
        shape,
        asked["tokens"],
        seed=asked["seed"],
        ranks=asked["ranks"],
        forecast_depth=asked["forecast_depth"],
        metadata={"command": _command(asked, calibration.name)},
    )
    with (
        progress("synthesizing", asked["tokens"], quiet=as_json) as advance,
        TraceWriter(output, source.header) as writer,
    ):
        for block in source.blocks():
            writer.write(block)
            advance(len(block))
    with progress("describing", PARTS, quiet=as_json) as advance:
        statistics = describe(open_trace(output), advance=advance)
    if as_json:
        compared = {"real": dict(calibration.statistics), "synthetic": statistics}
        print_json({"output": output, "calibration": calibration.name, "statistics": compared})
        return
    print_comparison(_pattern(calibration), calibration.statistics, statistics)
    _note_other_shape(calibration, shape)
    click.echo(f"wrote {output}: {writer.tokens} tokens, calibration {calibration.name}")


@trace.command()
@click.argument("source")
@click.argument("output")
@json_option
def convert(source: str, output: str, as_json: bool) -> None:
    """Write a trace of any readable kind as .moet."""
    from moesaic.workloads.writer import TraceWriter

    check_routing("OUTPUT", output)
    opened = open_named(source)
    with (
        progress("converting", None, quiet=as_json) as advance,
        TraceWriter(output, opened.header) as writer,
    ):
        for block in opened.blocks():
            writer.write(block)
            advance(len(block))
    if as_json:
        print_json({"output": output, "tokens": writer.tokens})
    else:
        click.echo(f"wrote {output}: {writer.tokens} tokens")


def _shape(asked: dict[str, Any]) -> TraceShape:
    from moesaic.model_info.model_zoo import load_model
    from moesaic.workloads.synthetic.generate import TraceShape

    sizes = [asked[name] for name in ("layers", "experts", "top_k")]
    if asked["model"] is not None and not any(sizes):
        return TraceShape.of(load_model(asked["model"]))
    if asked["model"] is None and all(sizes):
        layers, experts, top_k = sizes
        return TraceShape(f"{layers}x{experts}-top{top_k}", layers, experts, top_k)
    raise ImpossibleSetting(
        "say which model: either --model, or all of --layers, --experts and --top-k."
    )


def _calibration(name: str | None, shape: TraceShape) -> Calibration:
    from moesaic.workloads.synthetic.calibration import default_calibration, load_calibration

    if name is None:
        return default_calibration(shape.model, shape.num_experts)
    return load_calibration(name)


def _command(asked: dict[str, Any], calibration: str) -> str:
    """The command that makes the same trace again, without what belongs to this machine."""
    given = {**asked, "calibration": calibration, "forecast_depth": asked["forecast_depth"] or None}
    words = [f"--{k.replace('_', '-')} {v}" for k, v in given.items() if v is not None]
    return "moesaic trace synthesize " + " ".join(words)


def _pattern(calibration: Calibration) -> str:
    """The column name of the statistics that the synthetic ones are compared with."""
    return "fitted to" if calibration.source.startswith("synthetic") else "real"


def _note_other_shape(calibration: Calibration, shape: TraceShape) -> None:
    keys = ("layers", "experts", "top_k")
    real = tuple(calibration.provenance.get(key) for key in keys)
    made = (shape.num_layers, shape.num_experts, shape.top_k)
    if real[1:] != made[1:]:
        which = "real trace" if _pattern(calibration) == "real" else "trace it is fitted to"
        click.echo(
            f"The {which} has {real[1]} experts and top-{real[2]}, this one {made[1]} and "
            f"top-{made[2]}: the statistics are not expected to be equal."
        )
