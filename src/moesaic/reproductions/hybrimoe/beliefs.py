"""What a wrong belief costs: decode with the costs of one device or link off by a factor.

The paper measures costs in a warm-up and plans by them; the simulated warm-up measures exactly.
Here the same runs are done with a planner that is wrong about one of the three."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.reproductions.hybrimoe.claims import (
    IMPLIED,
    MACHINE,
    Claim,
    Outcomes,
    conditions,
)
from moesaic.reproductions.hybrimoe.paper import ABLATION_MODEL, ABLATION_RATIO, MODELS
from moesaic.reproductions.hybrimoe.runs import Run, again
from moesaic.reproductions.row import Row

SYSTEMS = ("hybrimoe", "moesaic")  # those that weigh costs
LANES = (CPU, GPU, PCIE)
FACTORS = (0.5, 0.8, 1.2, 2.0)  # believed cost over the true one
TOKENS = 128
LENGTH = 128


def wanted() -> Iterator[Claim]:
    for lane, factor, system, machine in product(LANES, FACTORS, SYSTEMS, (MACHINE, IMPLIED)):
        exact = _run(machine, system)
        wrong = _run(machine, system, ((lane, factor),))
        yield _kept(f"belief/{lane}={factor:g}/{system}@{machine}", wrong, exact)


def _run(machine: str, system: str, error: tuple[tuple[str, float], ...] = ()) -> Run:
    return Run(
        ABLATION_MODEL, machine, "decode", ABLATION_RATIO, LENGTH, system,
        tokens=TOKENS, belief_error=error,
    )  # fmt: skip


def _kept(name: str, wrong: Run, exact: Run) -> Claim:
    """The speed with a wrong belief over the speed with an exact one."""
    ((lane, factor),) = wrong.belief_error
    believed = f"{factor:g} times as slow" if factor > 1 else f"{1 / factor:.3g} times as fast"
    base = _run(wrong.machine, "ktransformers")

    def row(outcomes: Outcomes) -> Row:
        kept = outcomes[exact].latency_s / outcomes[wrong].latency_s
        over = outcomes[base].latency_s / outcomes[wrong].latency_s
        text = f"over kTransformers {over:.3f} instead of {over / kept:.3f}, {MODELS[wrong.model]} "
        text += f"at {100 * wrong.cache_ratio:g}% cached, {conditions(wrong, outcomes[wrong])}"
        claim = f"decode speed kept by {wrong.system} with the {lane} believed {believed}"
        return Row(name, claim, None, kept, "x", text, again(name, ()))

    return Claim(name, (wrong, exact, base), row)
