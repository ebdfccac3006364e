"""Does every layer import only what lies above it? The table of the design, enforced."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from sources import Source, sources

# Layer -> the layers it may import. A folder that is not here is an unknown layer.
EXECUTORS = {"machines.layerwise", "machines.cpu_step", "machines.captured"}
MACHINES = {"machines.sim", "machines.real"} | EXECUTORS
BELOW_EXECUTORS = {"core", "model_info", "kernels", "models", "machines", "machines.real"}
BELOW_ENGINE = {
    "core",
    "compiling",
    "model_info",
    "policies",
    "hardware",
    "workloads",
    "kernels",
    "models",
    "machines",
} | MACHINES
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "compiling": {"core"},
    "model_info": {"core"},
    "policies": {"core", "compiling"},
    "hardware": {"core"},
    "workloads": {"core", "compiling", "model_info"},
    # the loop over layers, the accelerators, what executors support
    "machines": {"core", "model_info", "hardware", "kernels"},
    "machines.sim": {"core", "compiling", "model_info", "hardware", "machines"},
    "kernels": {"core", "model_info"},
    "models": {"core", "model_info", "kernels"},
    # what the executors of the real machine share
    "machines.real": {"core", "kernels", "models", "machines"},
    # the executors: none imports another, `engine` puts them together
    "machines.layerwise": BELOW_EXECUTORS,
    "machines.cpu_step": BELOW_EXECUTORS,
    "machines.captured": BELOW_EXECUTORS | {"hardware"},
    "engine": BELOW_ENGINE,
    # machines that Ray connects: joined, checked, given parts of a study
    "cluster": {"core"},
    "serve": BELOW_ENGINE | {"engine", "cluster"},
    "lab": BELOW_ENGINE | {"engine"},
    "reproductions": BELOW_ENGINE | {"engine", "lab"},
    "cli": BELOW_ENGINE | {"engine", "cluster", "serve", "lab", "reproductions"},
}
# What the vocabulary may rest on: anything more, and every layer would carry it.
CORE_MAY_IMPORT = {"numpy", "moesaic"}


def layer_of(module: str) -> str | None:
    """`moesaic.machines.sim.lane` -> machines.sim; None for the package itself."""
    parts = module.split(".")[1:]
    if not parts:
        return None
    if parts[0] == "machines" and len(parts) > 1 and f"machines.{parts[1]}" in MACHINES:
        return f"machines.{parts[1]}"
    return parts[0]


def broken_rules(source: Source) -> list[str]:
    mine = layer_of(source.module)
    found = []
    for imported in source.imports():
        if imported.split(".")[0] != "moesaic":
            continue
        theirs = layer_of(imported)
        if theirs in (None, "__version__", mine):
            continue
        if theirs not in ALLOWED:
            found.append(f"{source.path} imports {imported}: no such layer")
        elif mine is None or theirs not in ALLOWED[mine]:
            found.append(f"{source.path} ({mine}) imports {imported}")
    return found


def test_every_folder_is_a_known_layer() -> None:
    unknown = {layer_of(s.module) for s in sources()} - ALLOWED.keys() - {None}
    assert not unknown, f"place these in the layer table of the design first: {unknown}"


def test_every_import_obeys_the_layer_rule() -> None:
    assert [rule for source in sources() for rule in broken_rules(source)] == []


def test_core_rests_on_the_standard_library_and_numpy() -> None:
    for source in sources():
        if layer_of(source.module) == "core":
            outside = {name.split(".")[0] for name in source.imports()} - CORE_MAY_IMPORT
            assert outside <= sys.stdlib_module_names, f"{source.path} imports {outside}"


def test_only_machines_are_driven_layer_by_layer() -> None:
    """Everybody else gives a body a step: another body may run it without this loop."""
    loop = "moesaic.machines.loop"
    users = {layer_of(s.module) for s in sources() if any(i.startswith(loop) for i in s.imports())}
    assert users == {"machines.sim", "machines.layerwise"}


def test_torch_is_named_only_where_tensors_are() -> None:
    """Everything else must start fast and work without the engine extra."""
    for source in sources():
        if not source.needs_torch:
            assert not any(name.split(".")[0] == "torch" for name in source.imports()), source.path


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("core/a.py", "from moesaic.policies.brain import Brain", "(core) imports"),
        (
            "policies/a.py",
            "def f():\n    import moesaic.hardware.machine_spec",
            "(policies) imports",
        ),
        ("policies/a.py", "from moesaic import machines", "(policies) imports"),
        (
            "machines/sim/a.py",
            "if TYPE_CHECKING:\n    from moesaic.policies import x",
            "(machines.sim) imports",
        ),
        ("workloads/a.py", "from ..policies import belief", "(workloads) imports"),
        ("engine/a.py", "from moesaic.cli.main import main", "(engine) imports"),
        (
            "machines/captured/a.py",
            "from moesaic.machines.layerwise import gpu_layers",
            "(machines.captured) imports",
        ),
        ("engine/a.py", "from moesaic.attic import x", "no such layer"),
        ("reproductions/row.py", "import moesaic.cli.shared.output", "(reproductions) imports"),
    ],
)
def test_a_broken_rule_would_be_found(path: str, text: str, complaint: str) -> None:
    (said,) = broken_rules(Source(Path(path), text, ast.parse(text)))
    assert complaint in said
