"""A run on the simulated machine: the brain decides, devices, links and DIMMs take their time.

`planned` is what the plans of such a run are expected to take: the makespan of each by equations 5
to 7, under the costs that the schedule believes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import StepReport, Timeline
from moesaic.core.step import Step
from moesaic.core.view import View
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble
from moesaic.machines.sim import SimMachine
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.brain import Brain
from moesaic.reproductions.trimoe.runs import CONTEXT, WARMUP, Outcome, Run, routed
from moesaic.reproductions.trimoe.sources import PROFILE_STEPS, Ints
from moesaic.reproductions.trimoe.systems import policies_of
from moesaic.workloads.step_routing import StepRouting

NDP = "ndp"


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


def settings_of(run: Run) -> Settings:
    """The settings of the layers that are simulated, where the whole model fits."""
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
        context=CONTEXT - 1,  # behind it the token of the step
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


class NotingBrain:
    """A brain whose plans' expected times are kept."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self.believed_ns: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brain, name)

    def decide(self, routing: Any, view: View) -> LayerPlan:
        plan = self._brain.decide(routing, view)
        self.believed_ns.append(plan.believed_ns)
        return plan


def planned(run: Run) -> Outcome:
    profile, played = routed(run.work)
    machine, brain = assemble(settings_of(run), profile.sum(axis=0), (), Timeline(enabled=False))
    noting: Any = NotingBrain(brain)
    for number, choices in enumerate(played):
        if number == WARMUP:
            noting.believed_ns.clear()
        machine.step(step_of(choices), noting)
    return Outcome(layer_ms=float(np.mean(noting.believed_ns)) / 1e6, window_ms=0.0)


def _gaps(report: StepReport) -> list[int]:
    """The times from the end of a layer's experts to the start of the next one's."""
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
