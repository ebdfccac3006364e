"""A run on the simulated machine: the brain decides, devices, links and DIMMs take their time."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import numpy as np

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import LayerReport, Timeline
from moesaic.core.step import Step
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble
from moesaic.machines.sim import SimMachine
from moesaic.policies.policy_set import PolicySet
from moesaic.reproductions.trimoe.runs import CONTEXT, PROFILE_STEPS, WARMUP, Outcome, Run, routed
from moesaic.reproductions.trimoe.sources import Ints
from moesaic.workloads.step_routing import StepRouting

PREFETCHING = "trimoe:relayout=false,rebalance=false"
# name -> schedule, its parameters, layout. `gpu-ndp` to `+refinement` are the steps of Fig. 8.
SYSTEMS = {
    "klotski": ("klotski", "", f"{PREFETCHING},devices=gpu"),
    "enhanced-ktransformers": ("enhanced-ktransformers", "", f"{PREFETCHING},devices=gpu-cpu"),
    "monde": ("monde", "", f"{PREFETCHING},devices=gpu-ndp"),
    "+cpu": ("trimoe", "refine=0,", PREFETCHING),
    "+refinement": ("trimoe", "", PREFETCHING),
    "trimoe": ("trimoe", "", "trimoe"),
    "tri-balanced": ("tri-balanced", "", "trimoe:offline=joint"),
}


def machine_of(run: Run) -> MachineSpec:
    changes = dict(run.changes)
    changes["dimms.contention"] = run.rule
    if not run.shared:
        changes["dimms.sharing"] = "none"
    return changed(load_machine(run.machine), changes)


def policies_of(run: Run) -> PolicySet:
    """The system's, knowing the rules of the machine."""
    schedule, parameters, layout = SYSTEMS[run.system]
    known = f"contention={run.rule},shared={str(run.shared).lower()}"
    known += f",pipelined={str(run.pipelined).lower()}"
    return PolicySet.of(
        schedule=f"{schedule}:{parameters}{known}",
        prefill_schedule="gpu-only",
        cache="pinned",
        prefetch="none",
        layout=layout,
    )


def settings_of(run: Run) -> Settings:
    work = run.work
    return Settings(
        work.spec(),
        machine_of(run),
        policies=policies_of(run),
        cache_ratio=run.cache_ratio,
        batch=work.batch,
        profile_tokens=PROFILE_STEPS * work.batch,
        context=CONTEXT,
    )


def simulated(run: Run) -> Outcome:
    settings = settings_of(run)
    profile, played = routed(run.work)
    timeline = Timeline(enabled=False)
    machine, brain = assemble(settings, profile.sum(axis=0), (), timeline)
    layers: list[list[LayerReport]] = []
    elapsed = 0
    for number, choices in enumerate(played):
        if number == WARMUP:
            timeline.enabled = run.timed
            layers, elapsed, before = [], 0, _worked(machine)
        report = machine.step(step_of(choices), brain)
        layers.append(list(report.layers))
        elapsed += report.latency_ns
    took = [[layer.end_ns - layer.start_ns for layer in step] for step in layers]
    after, total = _worked(machine), float(np.sum(took))
    busy = {name: (after[name] - before[name]) / elapsed for name in after}
    experts = _computing(timeline) if run.timed else {}
    return Outcome(
        layer_ms=float(np.mean(took)) / 1e6,
        step_ms=elapsed / np.size(took) / 1e6,
        busy={**busy, **{f"{name} experts": ns / total for name, ns in experts.items()}},
        spread=tuple(fmean(step) / 1e6 for step in took),
    )


def step_of(choices: Ints) -> StepRouting:
    """A decode step in which token b of layer l chooses `choices[l, b]`; weights do not matter."""
    layers, batch, top_k = choices.shape
    weights = np.full((layers, batch, top_k), 1 / top_k, dtype=np.float32)
    return StepRouting(Step.decode(batch, CONTEXT), batch, choices, weights, choices, weights)


def _worked(machine: SimMachine) -> dict[str, int]:
    """Busy time of the devices; of the units, all together over their number, and the busiest."""
    worked = {name: lane.worked_ns for name, lane in machine.lanes.items()}
    units = [ns for name, ns in worked.items() if name.startswith("ndp")]
    found = {name: worked[name] for name in (GPU, CPU, PCIE)}
    if units:
        found["ndp"] = sum(units) // len(units)
    return found


def _computing(timeline: Timeline) -> Counter[str]:
    """Time in which each device computed experts."""
    found: Counter[str] = Counter()
    for span in timeline.spans:
        if span.kind == "expert":
            found["ndp" if span.lane.startswith("ndp") else span.lane] += span.end_ns - span.start_ns
    return found
