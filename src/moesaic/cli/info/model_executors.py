"""Which executor decodes a model on a machine without and with a GPU, for `moesaic models`."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.cli.shared.output import print_json, print_table
from moesaic.core.errors import MoesaicError
from moesaic.machines.support import WHERE, fastest
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.model_info.network import NetworkSpec
from moesaic.models.configs.families import RUNNABLE
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.configs.synthetic_architecture import plain_architecture

_ONLY_SIMULATED = "simulated only"


def network_of(spec: ModelSpec, model: str) -> NetworkSpec | str:
    """The network of a known name or of the model at a path; or why it can only be simulated."""
    if spec.family not in RUNNABLE:
        return f"{_ONLY_SIMULATED}: {spec.family} has no implementation here"
    if model in known_models():
        return plain_architecture(spec).network
    try:
        return read_architecture(spec.source or model).network
    except MoesaicError as error:
        return f"{_ONLY_SIMULATED}: {error}"


def executors(network: NetworkSpec | str) -> dict[str, dict[str, str | None]]:
    """The executors as JSON: by place, the executor and what keeps a model from a faster one."""
    found: dict[str, dict[str, str | None]] = {}
    for executor, where in WHERE.items():
        if isinstance(network, str):
            found[where] = {"executor": None, "because": network}
            continue
        chosen, why = fastest(executor, network)
        found[where] = {"executor": chosen.value, "because": why}
    return found


def rows(network: NetworkSpec | str) -> Iterator[tuple[str, str]]:
    for where, found in executors(network).items():
        words = [each for each in (found["executor"], found["because"]) if each is not None]
        yield f"decodes {where}", ": ".join(words)


def list_executors(as_json: bool) -> None:
    """All known models, and who decodes them."""
    specs = [load_model(name) for name in known_models()]
    found = {spec.name: executors(network_of(spec, spec.name)) for spec in specs}
    if as_json:
        print_json({"models": found})
        return
    columns = ("model", *WHERE.values())
    table = [
        (name, *(each["executor"] or _ONLY_SIMULATED for each in by_place.values()))
        for name, by_place in found.items()
    ]
    print_table("Who decodes the known models (captured: CUDA graphs)", columns, table)
