"""Which system is the fastest on a described machine: candidates are simulated with its costs, on
synthetic routing, at several cache ratios and precisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.synthetic_model import synthetic_architecture
from moesaic.policies.systems import load_system

OWN = "moesaic"
CANDIDATES = (OWN, "moesaic-lru", "hybrimoe", "ktransformers", "fiddler", "adapmoe")
MODELS = ("qwen3-30b-a3b", "olmoe-1b-7b", "moesaic-20m")  # the first that the machine can hold
LAYERS = 12  # its first: every layer costs the same
RATIOS = (0.25, 0.5, 0.75)
DTYPES = ("bf16", "int4")
TOKENS, WARMUP = 24, 16
_CLEARLY = 1.02  # times as fast as Moesaic's own: less is within the simulator's error


@dataclass(frozen=True, slots=True)
class Choice:
    """`speeds[system]` is tokens per second in every case; `cases` names them."""

    system: str
    because: str
    cases: tuple[str, ...]
    speeds: dict[str, tuple[float, ...]]


def choose_system(
    machine: MachineSpec,
    candidates: Sequence[str] = CANDIDATES,
    advance: Callable[[int], None] = lambda runs: None,
) -> Choice:
    model = _model_for(machine)
    cases = [(dtype, ratio) for dtype in DTYPES for ratio in RATIOS]
    speeds = {
        system: tuple(_tokens_per_s(machine, model, system, *case, advance) for case in cases)
        for system in candidates
    }
    names = tuple(f"{dtype} at {ratio:.0%}" for dtype, ratio in cases)
    return decided(model.name, names, speeds)


def decided(model: str, cases: tuple[str, ...], speeds: dict[str, tuple[float, ...]]) -> Choice:
    """The highest geometric mean; Moesaic's own where no other is clearly faster."""
    means = {system: exp(mean(map(log, rates))) for system, rates in speeds.items()}
    ranked = sorted(means, key=lambda system: -means[system])
    best = ranked[0]
    if OWN in means and means[best] < _CLEARLY * means[OWN]:
        best = OWN
    others = [system for system in ranked if system != best]
    wins = sum(
        speeds[best][at] >= max(rates[at] for rates in speeds.values()) for at in range(len(cases))
    )
    against = ", ".join(f"{means[best] / means[each]:.2f} x {each}" for each in others)
    because = (
        f"simulated decode of {model}, {', '.join(cases)} of the experts in GPU memory: fastest "
        f"in {wins} of {len(cases)}; on average {against}"
    )
    return Choice(best, because, cases, speeds)


def _model_for(machine: MachineSpec) -> ModelSpec:
    for name in MODELS:
        model = synthetic_architecture(name).spec
        model = synthetic_architecture(name, min(LAYERS, model.num_layers)).spec
        try:
            _settings(machine, model, OWN, DTYPES[0], max(RATIOS))
        except ImpossibleSetting:
            continue
        return model
    raise ImpossibleSetting(f"{machine.name} is too small for any of {', '.join(MODELS)}")


def _tokens_per_s(
    machine: MachineSpec,
    model: ModelSpec,
    system: str,
    dtype: str,
    ratio: float,
    advance: Callable[[int], None],
) -> float:
    settings = _settings(machine, model, system, dtype, ratio)
    result = simulate(settings, choose_workload(None, settings).source)
    advance(1)
    return result.tokens_per_s


def _settings(
    machine: MachineSpec, model: ModelSpec, system: str, dtype: str, ratio: float
) -> Settings:
    settings = Settings(
        model, machine, cache_ratio=ratio, expert_dtype=dtype, tokens=TOKENS, warmup=WARMUP
    )
    return settings.with_system(load_system(system))
