"""`moesaic trace import`: routing that other programs have recorded, as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.out_files import check_routing
from moesaic.cli.shared.output import print_json
from moesaic.cli.shared.simulation_options import json_option
from moesaic.core.errors import BadTrace, UnknownName

if TYPE_CHECKING:
    from moesaic.model_info.model_spec import ModelSpec
    from moesaic.workloads.header import TraceHeader
    from moesaic.workloads.importing.document import Imported
    from moesaic.workloads.routing_arrays import RoutingArrays

# As in the workloads, here for `--help`: it must not wait for numpy.
_FORMATS = ("npz", "vllm", "csv", "llama.cpp")
_ORIGINS = ("real", "synthetic", "imported")


@click.command("import")
@click.argument("files", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="The trace, .moet.")
@click.option("--from", "form", metavar="FORMAT", help=f"{one_of(_FORMATS)}  [by content]")
@click.option("--model", metavar="NAME", help="Whose routing it is.  [the file's name]")
@click.option(
    "--experts",
    type=click.IntRange(min=1),
    help="Routed experts of a layer.  [of the known model, or the next power of two]",
)
@click.option("--top-k", type=click.IntRange(min=1), help="For llama.cpp: experts per token.")
@click.option(
    "--phase",
    type=click.Choice(["decode", "prefill"]),
    default="decode",
    show_default=True,
    help="Of tokens whose file does not say.",
)
@click.option(
    "--origin",
    type=click.Choice(_ORIGINS),
    help="What results call this routing; real: you know that a model has made it.  [imported]",
)
@click.option("--source", metavar="TEXT", help="Where it comes from, in words.")
@json_option
def import_(files: tuple[str, ...], output: str, as_json: bool, **asked: Any) -> None:
    """Make a trace of routing that other programs have recorded.

    FILES are one or several of: an .npz of arrays (`experts` [tokens, layers, k], as a hook in
    transformers saves them), what vLLM returns with --enable-return-routed-experts (its responses
    as JSON, or its arrays as .npz), CSV with the columns token,layer,expert, and the output of
    llama.cpp's moe-trace. docs/import-traces.md has each in detail. Results call this routing
    imported, unless --origin says otherwise."""
    from moesaic.workloads.block import PHASES
    from moesaic.workloads.importing.document import one_trace
    from moesaic.workloads.importing.formats import read_routing
    from moesaic.workloads.writer import write_trace

    check_routing("--output", output)
    spec = _known_model(asked["model"])
    top_k = asked["top_k"] or (None if spec is None else spec.top_k)
    found = [(file, read_routing(Path(file), asked["form"], top_k)) for file in files]
    arrays = one_trace(found, PHASES.index(asked["phase"]))
    header = _header([each for _, each in found], arrays, files, asked, spec)
    tokens = write_trace(output, header, arrays.blocks(header))
    _report(output, tokens, header, found, as_json)


def _known_model(name: str | None) -> ModelSpec | None:
    from moesaic.model_info.model_zoo import load_model

    if name is None:
        return None
    try:
        return load_model(name)
    except (UnknownName, OSError):
        return None


def _header(
    found: list[Imported],
    arrays: RoutingArrays,
    files: tuple[str, ...],
    asked: dict[str, Any],
    spec: ModelSpec | None,
) -> TraceHeader:
    from moesaic.workloads.header import IMPORTED, ORIGIN, SYNTHETIC, TraceHeader
    from moesaic.workloads.routing_arrays import check_experts, check_weights

    names = ", ".join(Path(file).name for file in files)
    said = found[0]
    num_experts = asked["experts"] or (said.num_experts if spec is None else spec.num_experts)
    num_experts = check_experts(names, arrays.experts, num_experts)
    if arrays.weights is not None:
        check_weights(names, "weights", arrays.weights, arrays.experts)
    _, layers, top_k = arrays.experts.shape
    _check_model(names, (layers, num_experts, top_k), spec)
    origins = {each.origin or IMPORTED for each in found}
    origin = asked["origin"] or (origins.pop() if len(origins) == 1 else IMPORTED)
    model = asked["model"] or said.model or Path(files[0]).stem
    metadata: dict[str, Any] = {ORIGIN: origin, "imported_from": names}
    domains = [each.domain for one in found for each in one.documents]
    if all(domain is not None for domain in domains):
        metadata["domains"] = domains
    return TraceHeader(
        model=model,
        num_layers=layers,
        num_experts=num_experts,
        top_k=top_k,
        ranks=top_k,
        has_weights=arrays.weights is not None,
        source=asked["source"] or said.source or f"{origin} routing of {model}, from {names}",
        synthetic=origin == SYNTHETIC,
        metadata=metadata,
    )


def _check_model(names: str, shape: tuple[int, int, int], spec: ModelSpec | None) -> None:
    if spec is None:
        return
    wanted = spec.num_moe_layers, spec.num_experts, spec.top_k
    if shape != wanted:
        words = "{} MoE layers, {} experts, {} per token"
        raise BadTrace(
            names, "shape", f"has {words.format(*shape)}; {spec.name} has {words.format(*wanted)}"
        )


def _report(
    output: str,
    tokens: int,
    header: TraceHeader,
    found: list[tuple[str, Imported]],
    as_json: bool,
) -> None:
    notes = [f"{file}: {note}" for file, each in found for note in each.notes]
    documents = sum(len(each.documents) for _, each in found)
    if as_json:
        print_json(
            {"output": output, "tokens": tokens, "documents": documents, "origin": header.origin,
             "notes": notes}
        )  # fmt: skip
        return
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"wrote {output}: {tokens} tokens in {documents} documents, {header.num_layers} layers of "
        f"{header.num_experts} experts, top-{header.top_k}, {header.origin} routing"
    )
