"""One run behind the rows: names and numbers only, so that it travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY, KV_CACHES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.trimoe.paper import MACHINE
from moesaic.reproductions.trimoe.sources import (
    DATA_SETS,
    PROFILE_STEPS,
    Ints,
    loads_of,
    synthetic_choices,
    traced_choices,
)
from moesaic.workloads.source import open_trace

SIMULATOR, MAKESPAN = "simulator", "makespan model"
PLANS = "makespan of the simulator's plans"
LAYERS = 4  # of a synthetic model; layers are alike
WARMUP, STEPS = 4, 12
CACHE_RATIO = 1 / 12  # of the experts are in GPU memory: 35 GB of DeepSeek-V2 or Qwen3-235B
ROOMY_GB = 256.0  # an imagined card that holds all that is asked for; the paper's has 80 GB
CONTEXT = 512  # tokens that every sequence looks back on


@dataclass(frozen=True, slots=True)
class Workload:
    """What is routed: runs with equal ones replay equal tokens. `data` names a synthetic source;
    `trace` is the path of a recorded one instead."""

    model: str
    batch: int
    data: str = "chat"
    trace: str | None = None
    layers: int = LAYERS
    seed: int = 0  # of synthetic routing

    def spec(self) -> ModelSpec:
        """The model, cut to its first MoE layers and the dense ones before them."""
        whole = load_model(self.model)
        last = whole.moe_layers[min(self.layers, whole.num_moe_layers) - 1]
        kept = tuple(layer for layer in whole.moe_layers if layer <= last)
        return replace(whole, num_layers=last + 1, moe_layers=kept)

    @property
    def words(self) -> str:
        if self.trace is not None:
            return f"real routing of {self.model}, sequences in different places of the trace"
        words = DATA_SETS[self.data].words
        return f"{words}, seed {self.seed}" if self.seed else words


@dataclass(frozen=True, slots=True)
class Run:
    """A system on a machine, which `table.execute` runs. `rule` is the contention rule; `shared`,
    whether CPU and PCIe share the memory channels; `changes` are numbers of the machine that differ
    from its description, and `gpu_memory_gb` is the GPU's memory (None: the description's)."""

    work: Workload
    system: str
    rule: str = "own-share"
    body: str = SIMULATOR
    shared: bool = True
    changes: tuple[tuple[str, float | str], ...] = ()
    cache_ratio: float = CACHE_RATIO
    machine: str = MACHINE
    pipelined: bool | None = None  # whether schedules believe that loads overlap; None: their own
    timed: bool = False  # record what every device computes
    kv_cache: str = IN_GPU_MEMORY
    gpu_memory_gb: float | None = ROOMY_GB

    @property
    def group(self) -> object:
        return self.work

    @property
    def words(self) -> str:
        """Conditions of a row."""
        work = self.work
        spec = work.spec()
        texts = [f"{self.body} on {self.machine}"]
        texts += [f"{key}={value}" for key, value in self.changes]
        texts += [f"contention {self.rule}", f"batch {work.batch}"]
        if not self.shared:
            texts.append("CPU and PCIe each have the whole host bandwidth")
        if self.pipelined is not None:
            texts.append(f"loads believed {'' if self.pipelined else 'not '}to overlap")
        slots = round(self.cache_ratio * spec.num_experts)
        texts.append(f"KV cache {KV_CACHES[self.kv_cache].replace(';', ',')}")
        if self.gpu_memory_gb is not None:
            texts.append(f"of an imagined {self.gpu_memory_gb:g} GB")
        texts.append(f"{slots} of {spec.num_experts} experts per layer in GPU memory")
        texts.append(f"{spec.num_moe_layers} layers x {STEPS} steps after {WARMUP}, {work.words}")
        return ", ".join(texts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one MoE layer: its experts' time, and that between them and the next layer's
    (attention, shared experts, planning). Shares of time are by device: gpu, cpu, pcie, ndp (mean
    of units)."""

    layer_ms: float
    window_ms: float
    busy: dict[str, float] = field(default_factory=dict)  # of the whole step, with whatever it does
    experts: dict[str, float] = field(default_factory=dict)  # of the experts' time, with experts
    flops: dict[str, float] = field(default_factory=dict)  # experts' operations over the peak's
    moves: tuple[float, ...] = ()  # per layer: prefetches, relayouts, rebalancings
    overhead: float = 0.0  # share of the experts' time that moves under way cost
    spread: tuple[float, ...] = ()  # experts' time, step by step


@lru_cache(maxsize=2)
def routed(work: Workload) -> tuple[NDArray[np.int64], tuple[Ints, ...]]:
    """Loads of the profile [steps, layers, experts], and choices of every step behind it."""
    spec, steps = work.spec(), PROFILE_STEPS + WARMUP + STEPS
    if work.trace is None:
        choices = synthetic_choices(work.data, spec, work.batch, steps, work.seed)
    else:
        source = open_trace(work.trace)
        check_shape(work.trace, source.header, spec)
        choices = traced_choices(source, work.batch, steps)
    profile, played = [], []
    for step, each in enumerate(choices):
        kept = each[: spec.num_moe_layers]
        if step < PROFILE_STEPS:
            profile.append(loads_of(kept, spec.num_experts))
        else:
            played.append(kept)
    return np.stack(profile), tuple(played)


def check_shape(path: str, header: object, spec: ModelSpec) -> None:
    whole = load_model(spec.name)
    asked = (whole.num_moe_layers, whole.num_experts, whole.top_k)
    found = tuple(getattr(header, name) for name in ("num_layers", "num_experts", "top_k"))
    if asked != found:
        raise ImpossibleSetting(
            f"{path!r} has {found[0]} MoE layers, {found[1]} experts, top-{found[2]}; "
            f"{whole.name} has {asked[0]} layers, {asked[1]} experts, top-{asked[2]}: this is the "
            "trace of another model"
        )
