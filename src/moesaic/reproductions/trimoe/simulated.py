"""A run on the simulated machine: the brain decides, devices, links and DIMMs take their time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

import numpy as np

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import StepReport, Timeline
from moesaic.core.step import Step
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble
from moesaic.machines.sim import SimMachine
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet
from moesaic.reproductions.trimoe.runs import CONTEXT, WARMUP, Outcome, Run, routed
from moesaic.reproductions.trimoe.sources import PROFILE_STEPS, Ints
from moesaic.workloads.step_routing import StepRouting

NDP = "ndp"
PREFETCHING = "trimoe:relayout=false,rebalance=false"
# name -> schedule, its parameters, layout. `gpu-ndp` to `+refinement` are the steps of Fig. 8.
SYSTEMS = {
    "klotski": ("klotski", "", f"{PREFETCHING},devices=gpu"),
    "enhanced-ktransformers": ("enhanced-ktransformers", "", f"{PREFETCHING},devices=gpu-cpu"),
    "monde": ("monde", "", f"{PREFETCHING},devices=gpu-ndp"),
    "+cpu": ("trimoe", "refine=0,", PREFETCHING),
    "+refinement": ("trimoe", "", PREFETCHING),
    "monde-localized": ("monde", "", f"{PREFETCHING},devices=gpu-ndp,offline=localized"),
    "trimoe": ("trimoe", "", "trimoe"),
    "trimoe-one-candidate": ("trimoe", "candidates=1,", "trimoe"),
    "trimoe-least-first": ("trimoe", "least_first=true,", "trimoe"),
    "trimoe-smooth": ("trimoe", "", "trimoe:rule=smooth-makespan"),
    "tri-balanced": ("tri-balanced", "", "trimoe:offline=joint,margin=0.25"),
    "tri-balanced-smooth": ("tri-balanced", "", "trimoe:offline=joint,rule=smooth-makespan"),
}


def machine_of(run: Run) -> MachineSpec:
    changes = dict(run.changes)
    changes["dimms.contention"] = run.rule
    if run.gpu_memory_gb is not None:
        changes["gpu.memory_gb"] = run.gpu_memory_gb
    if not run.shared:
        changes["dimms.sharing"] = "none"
    return _described(run.machine, tuple(changes.items()))


@lru_cache(maxsize=64)
def _described(machine: str, changes: tuple[tuple[str, float | str], ...]) -> MachineSpec:
    return changed(load_machine(machine), dict(changes))


def policies_of(run: Run) -> PolicySet:
    """The system's, knowing the rules of the machine."""
    schedule, parameters, layout = SYSTEMS[run.system]
    known = f"contention={run.rule},shared={str(run.shared).lower()}"
    if run.pipelined is not None and run.system != "klotski":
        known += f",pipelined={str(run.pipelined).lower()}"
    return PolicySet.of(
        schedule=f"{schedule}:{parameters}{known}",
        prefill_schedule="gpu-only",
        cache="pinned",
        prefetch="none",
        layout=layout,
    )


def settings_of(run: Run) -> Settings:
    """Of the layers that are simulated, where the whole model fits."""
    return replace(whole_settings(run), model=run.work.spec())


@lru_cache(maxsize=1)
def whole_settings(run: Run) -> Settings:
    work = run.work
    return Settings(
        load_model(work.model),
        machine_of(run),
        policies=policies_of(run),
        cache_ratio=run.cache_ratio,
        batch=work.batch,
        profile_tokens=PROFILE_STEPS * work.batch,
        context=CONTEXT,
        tokens=1,
        warmup=0,
        kv_cache=run.kv_cache,
    )


def simulated(run: Run) -> Outcome:
    settings = settings_of(run)
    profile, played = routed(run.work)
    timeline = Timeline(enabled=False)
    machine, brain = assemble(settings, profile.sum(axis=0), (), timeline)
    reports: list[StepReport] = []
    before = _worked(machine)
    for number, choices in enumerate(played):
        if number == WARMUP:
            timeline.enabled, before = run.timed, _worked(machine)
        report = machine.step(step_of(choices), brain)
        if number >= WARMUP:
            reports.append(report)
    elapsed = sum(report.latency_ns for report in reports)
    took = np.array([[layer.end_ns - layer.start_ns for layer in r.layers] for r in reports])
    units = _num_units(machine)
    computing, done = _computing(timeline, units)
    return Outcome(
        layer_ms=float(took.mean()) / 1e6,
        window_ms=fmean(gap for report in reports for gap in _gaps(report)) / 1e6,
        busy={name: (ns - before[name]) / elapsed for name, ns in _worked(machine).items()},
        experts={name: ns / float(took.sum()) for name, ns in computing.items()},
        flops=_flops(machine, done, float(took.sum())),
        spread=tuple((took.mean(axis=1) / 1e6).tolist()),
    )


def _gaps(report: StepReport) -> list[int]:
    """From the end of a layer's experts to the start of the next one's."""
    return [b.start_ns - a.end_ns for a, b in zip(report.layers, report.layers[1:], strict=False)]


def step_of(choices: Ints) -> StepRouting:
    """A decode step in which token b of layer l chooses `choices[l, b]`; weights do not matter."""
    layers, batch, top_k = choices.shape
    weights = np.full((layers, batch, top_k), 1 / top_k, dtype=np.float32)
    return StepRouting(Step.decode(batch, CONTEXT), batch, choices, weights, choices, weights)


def _num_units(machine: SimMachine) -> int:
    return sum(name.startswith(NDP) for name in machine.lanes)


def _worked(machine: SimMachine) -> dict[str, float]:
    """Busy time of the devices; of the units, the mean."""
    worked = {name: float(lane.worked_ns) for name, lane in machine.lanes.items()}
    units = [ns for name, ns in worked.items() if name.startswith(NDP)]
    found = {name: worked[name] for name in (GPU, CPU, PCIE)}
    return {**found, NDP: fmean(units)} if units else found


def _computing(timeline: Timeline, units: int) -> tuple[Counter[str], Counter[str]]:
    """Time in which each device computed experts (the units' mean), and tokens it computed."""
    took: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for span in timeline.spans:
        if span.kind == "expert":
            device = NDP if span.lane.startswith(NDP) else span.lane
            took[device] += span.end_ns - span.start_ns
            tokens[device] += span.tokens
    if took[NDP]:
        took[NDP] //= units
    return took, tokens


def _flops(machine: SimMachine, tokens: Counter[str], took_ns: float) -> dict[str, float]:
    """Operations of the experts computed over what the peak allows in that time."""
    spec, model = machine.physics.machine, machine.physics.model
    peak = {GPU: spec.gpu.matmul_tflops["bf16"], CPU: spec.cpu.matmul_tflops["bf16"]}
    if spec.ndp is not None:
        peak[NDP] = spec.ndp.tflops * spec.ndp.count
    operations = {name: 2 * model.expert_params * count for name, count in tokens.items()}
    return {name: operations[name] / (1e3 * peak[name] * took_ns) for name in operations}
