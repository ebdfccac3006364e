"""A run by the makespan model alone (equations 1 to 8): the same routing, no machine.

Costs are measured on the simulated machine, with what devices take once per layer and the shared
experts beside the routed ones, so both bodies differ in nothing but how devices, links and DIMMs
wait for each other, and in what a move delays."""

from __future__ import annotations

import numpy as np

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import Timeline
from moesaic.core.step import Step
from moesaic.lab.simulate.simulation import assemble
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.policies.belief import warm_up
from moesaic.policies.tri.costs import Floats, TriCosts
from moesaic.policies.tri.layer import (
    CPU_TIME,
    FIRST_DIMM,
    GPU_TIME,
    PCIE_TIME,
    Places,
    num_resources,
)
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of
from moesaic.reproductions.trimoe.makespan_model import Window, replay
from moesaic.reproductions.trimoe.runs import CONTEXT, WARMUP, Outcome, Run, routed
from moesaic.reproductions.trimoe.simulated import machine_of, settings_of
from moesaic.reproductions.trimoe.sources import Ints, loads_of
from moesaic.reproductions.trimoe.systems import policies_of


def replayed(run: Run) -> Outcome:
    profile, played = routed(run.work)
    experts = profile.shape[2]
    costs, window = costs_of(run)
    replayed = replay(
        policies_of(run), costs, places_of_layers(run, profile), window, profile.mean(axis=0),
        fixed_ns=fixed_of(run, costs), highest_first=True,
    )  # fmt: skip
    makespans, busy, moves, free = [], [], np.zeros(3), []
    for number, choices in enumerate(played):
        step = replayed.step(loads_of(choices, experts))
        if number < WARMUP:
            continue
        makespans.append(step.makespan_ns)
        busy.append(step.busy_ns)
        moves += step.moves
        free.append((step.busy_ns - step.moving_ns).max(axis=1))
    took = np.stack(makespans)
    return Outcome(
        layer_ms=float(took.mean()) / 1e6,
        window_ms=window.window_ns / 1e6,
        experts=_busy(costs, np.stack(busy), took),
        moves=tuple((moves / took.size).tolist()),
        overhead=1.0 - float(np.sum(free) / took.sum()),
        spread=tuple((took.mean(axis=1) / 1e6).tolist()),
    )


def costs_of(run: Run) -> tuple[TriCosts, Window]:
    physics = Physics(machine_of(run), run.work.spec(), "bf16", "bf16")
    machine = SimMachine(physics, 0)
    belief = warm_up(machine, run.work.batch, machine.topology)
    assert belief.costs is not None
    overlaps = run.pipelined is not False or run.system == "klotski"  # as they do on the machine
    costs = believed_costs(belief.costs, contention=run.rule, shared=run.shared, pipelined=overlaps)
    step = Step.decode(run.work.batch, CONTEXT)
    planner = PlanningCost.of(physics.machine.planner)
    active = round(float(np.count_nonzero(routed(run.work)[0], axis=2).mean()))
    between = physics.attention_ns(GPU, step) + planner.decision_ns(run.work.batch, active)
    return costs, Window(float(between), float(physics.move_ns("dimm-link0-1")))


def fixed_of(run: Run, costs: TriCosts) -> Floats:
    """What a layer takes of its devices beside routed experts: their first expert's extra costs,
    and the shared experts."""
    physics = Physics(machine_of(run), run.work.spec(), "bf16", "bf16")
    fixed = np.zeros(num_resources(costs))
    fixed[GPU_TIME] = physics.first_ns(GPU) + physics.shared_ns(GPU, run.work.batch)
    fixed[CPU_TIME] = physics.first_ns(CPU)
    if costs.units:
        fixed[FIRST_DIMM : FIRST_DIMM + costs.units] = physics.first_ns("ndp0")
    return fixed


def places_of_layers(run: Run, profile: Ints) -> list[Places]:
    """The places of experts in the simulated machine before its first step."""
    counts = profile.sum(axis=0)
    machine, _ = assemble(settings_of(run), counts, (), Timeline(enabled=False))
    dimms = DimmIndices.of(machine.topology)
    return [places_of(machine.view(layer), dimms, layer) for layer in range(len(counts))]


def _busy(costs: TriCosts, busy: Floats, took: Floats) -> dict[str, float]:
    """Busy time over the experts' time; a DIMM's counts host reads."""
    total = took.sum()
    dimms = busy[..., FIRST_DIMM : FIRST_DIMM + costs.dimms]
    found = {GPU: GPU_TIME, CPU: CPU_TIME, PCIE: PCIE_TIME}
    shares = {name: float(busy[..., at].sum() / total) for name, at in found.items()}
    return {**shares, "ndp": float(dimms.mean(axis=-1).sum() / total)}
