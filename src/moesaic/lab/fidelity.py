"""How well the simulator predicts this machine: the same model, policies, placement and routing on
both bodies, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from moesaic.engine.assemble import locked_store, on_store, placed_for
from moesaic.engine.described_belief import described_belief
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gpu_memory import accelerator_free
from moesaic.engine.make_machine import GPU_DEVICE
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.memory.memory_plan import plan_memory
from moesaic.hardware.host import memory
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.replayed_run import replay_steps
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.machine import Machine
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.decoder import Decoder
from moesaic.policies.systems import load_system
from moesaic.workloads.source import TraceSource
from moesaic.workloads.steps import popularity

SYSTEMS = ("hybrimoe", "ktransformers", "adapmoe")
RATIOS = (0.25, 0.5)
WARMUP = 16
GRAPH, PYTHON = "graph", "python"
_STEP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median milliseconds per decode step, predicted and measured; `driven` says by whom the real
    machine's steps were: "graph" (captured) or "python" (layer by layer)."""

    model: str
    system: str
    cache_ratio: float
    predicted_ms: float
    measured_ms: float
    predicted_hits: float
    measured_hits: float
    driven: str = PYTHON

    @property
    def error(self) -> float:
        """The error of the prediction, relative to the measurement."""
        return self.predicted_ms / self.measured_ms - 1.0


def needed_memory(spec: ModelSpec, settings: EngineSettings, ratios: Sequence[float]) -> None:
    """Refuse what does not fit before anything is made."""
    _, available = memory()
    if available is not None:
        largest = replace(settings, cache_ratio=max(ratios), max_model_len=256, max_sequences=1)
        plan_memory(spec, largest, available, accelerator_free(largest))


def routing(spec: ModelSpec, machine: MachineSpec, steps: int) -> TraceSource:
    """Synthetic routing for the model, long enough; the same for both bodies."""
    return choose_workload(None, Settings(spec, machine, tokens=steps, warmup=WARMUP)).source


def predict(
    spec: ModelSpec,
    machine: MachineSpec,
    source: TraceSource,
    system: str,
    ratio: float,
    steps: int,
    dtype: str = "bf16",
    belief: str = "measured",
) -> tuple[Settings, Result]:
    settings = Settings(
        spec,
        machine,
        cache_ratio=ratio,
        tokens=steps,
        warmup=WARMUP,
        expert_dtype=dtype,
        belief=belief,
    ).with_system(load_system(system))
    return settings, simulate(settings, source)


@dataclass(frozen=True, slots=True)
class RealRuns:
    """How the real machine is run: its settings, PyTorch's name of the GPU, and whether steps are
    driven from Python also where they could be captured."""

    settings: EngineSettings
    device: str = GPU_DEVICE
    layerwise: bool = False

    @property
    def belief(self) -> str:
        """The belief: with a GPU both bodies' brains use the description, so that only the body
        differs."""
        return "described" if self.settings.capabilities.own_memory else "measured"


def compare_bodies(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    source: TraceSource,
    runs: RealRuns,
    systems: Sequence[str] = SYSTEMS,
    ratios: Sequence[float] = RATIOS,
    steps: int = 48,
    report: Callable[[Comparison], None] = lambda row: None,
) -> list[Comparison]:
    """Every system at every cache ratio; `report` is called with each row."""
    decoder = placed_for(decoder, runs.settings, runs.device)
    rows = []
    with locked_store(store, runs.settings, runs.device):
        for ratio in ratios:
            for system in systems:
                row = _compare(decoder, store, machine, source, runs, system, ratio, steps)
                rows.append(row)
                report(row)
    return rows


def _compare(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    source: TraceSource,
    runs: RealRuns,
    system: str,
    ratio: float,
    steps: int,
) -> Comparison:
    spec, dtype = decoder.architecture.spec, store.kernel.dtype
    settings, predicted = predict(spec, machine, source, system, ratio, steps, dtype, runs.belief)
    engine = replace(runs.settings, max_step_tokens=_STEP_TOKENS).with_system(load_system(system))
    length = settings.warmup_steps + settings.steps
    counts = popularity(source, settings.profile_tokens)
    believed = None
    if runs.belief == "described":
        believed = described_belief(machine, spec, dtype, _STEP_TOKENS)
    capacity = Capacity(settings.slots, 1, length)
    runner = on_store(decoder, store, engine, capacity, counts, device=runs.device, belief=believed)
    try:
        driven = _driven(runner.machine, runs.layerwise)
        replayed = (each.routed for each in workload(settings, source))
        measured = replay_steps(runner, replayed, settings.warmup_steps)
    finally:
        runner.close()
    return Comparison(
        spec.name,
        system,
        ratio,
        median(predicted.latencies_s) * 1e3,
        measured.median_s * 1e3,
        predicted.hit_rate,
        measured.hit_rate,
        driven,
    )


def _driven(machine: Machine, layerwise: bool) -> str:
    if layerwise:
        machine.use_only_layerwise("asked for")
    return GRAPH if machine.why_layerwise is None else PYTHON
