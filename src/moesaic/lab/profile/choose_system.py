"""Which system is the fastest on a described machine: candidates are simulated with its costs, at
several cache ratios and precisions, on synthetic routing (one kind of text, which suits a placement
that never changes) and on routing that was recorded from a model (which changes with the text)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from statistics import mean
from typing import Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.profile.system_candidates import (
    CANDIDATES,
    CLEARLY,
    DTYPES,
    LAYERS,
    MODELS,
    OWN,
    RATIOS,
    RECORDED,
    RECORDED_DTYPES,
    RECORDED_TOKENS,
    TOKENS,
    WARMUP,
)
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import SYNTHETIC, choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.systems import load_system
from moesaic.workloads.bundled_traces import DEFAULT_MODEL, recorded_trace


class Case(NamedTuple):
    """One run of every candidate."""

    routing: str  # SYNTHETIC, or a file
    model: ModelSpec
    dtype: str
    ratio: float
    tokens: int

    @property
    def words(self) -> str:
        kind = "" if self.routing == SYNTHETIC else ", recorded routing"
        return f"{self.dtype} at {self.ratio:.0%}{kind}"


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
    cases = cases_for(machine)
    speeds = {
        system: tuple(_tokens_per_s(machine, case, system, advance) for case in cases)
        for system in candidates
    }
    models = dict.fromkeys(case.model.name for case in cases)
    kinds = [case.routing for case in cases]
    return decided(" and ".join(models), tuple(c.words for c in cases), speeds, kinds)


def cases_for(machine: MachineSpec) -> list[Case]:
    """Those that fit. Where GPU and CPU have one memory there is one cache ratio."""
    ratios = RATIOS if machine.unified is None else (1.0,)
    model = _model_for(machine, ratios)
    found = [Case(SYNTHETIC, model, *each, TOKENS) for each in product(DTYPES, ratios)]
    trace = recorded_trace(DEFAULT_MODEL)
    if RECORDED is None or trace is None:
        return found
    layers = len(load_model(DEFAULT_MODEL).moe_layers)
    sized = _first_layers(load_model(RECORDED), layers)
    tokens = min(RECORDED_TOKENS, 4 * TOKENS)
    for each in product(RECORDED_DTYPES, ratios):
        case = Case(str(trace), sized, *each, tokens)
        if _fits(machine, case):
            found.append(case)
    return found


def decided(
    model: str,
    cases: tuple[str, ...],
    speeds: dict[str, tuple[float, ...]],
    kinds: Sequence[str] = (),
) -> Choice:
    """The highest geometric mean; Moesaic's own where no other is clearly faster. All `kinds` of
    routing count the same, however many cases they have."""
    groups = kinds or [SYNTHETIC] * len(cases)
    means = {system: _mean(rates, groups) for system, rates in speeds.items()}
    ranked = sorted(means, key=lambda system: -means[system])
    best = ranked[0]
    if OWN in means and means[best] < CLEARLY * means[OWN]:
        best = OWN
    others = [system for system in ranked if system != best]
    wins = sum(
        speeds[best][at] >= max(rates[at] for rates in speeds.values()) for at in range(len(cases))
    )
    against = ", ".join(f"{means[best] / means[each]:.2f} x {each}" for each in others)
    because = (
        f"simulated decode of {model} in {len(cases)} cases: fastest in {wins}; on average "
        f"{against}"
    )
    if best != ranked[0]:
        because += f" (another is advised from {CLEARLY:g} times as fast on)"
    return Choice(best, because, cases, speeds)


def _mean(rates: Sequence[float], kinds: Sequence[str]) -> float:
    logs = {
        kind: mean(log(r) for r, k in zip(rates, kinds, strict=True) if k == kind) for kind in kinds
    }
    return exp(mean(logs.values()))


def _model_for(machine: MachineSpec, ratios: Sequence[float]) -> ModelSpec:
    for name in MODELS:
        model = _first_layers(load_model(name), LAYERS)
        if _fits(machine, Case(SYNTHETIC, model, DTYPES[0], max(ratios), TOKENS)):
            return model
    raise ImpossibleSetting(f"{machine.name} is too small for any of {', '.join(MODELS)}")


def _first_layers(model: ModelSpec, layers: int) -> ModelSpec:
    kept: dict[str, Any] = {
        name: tuple(layer for layer in getattr(model, name) if layer < layers)
        for name in ("moe_layers", "window_layers", "linear_layers")
    }
    return replace(model, num_layers=min(layers, model.num_layers), **kept)


def _fits(machine: MachineSpec, case: Case) -> bool:
    try:
        _settings(machine, case, OWN)
    except ImpossibleSetting:
        return False
    return True


def _tokens_per_s(
    machine: MachineSpec, case: Case, system: str, advance: Callable[[int], None]
) -> float:
    settings = _settings(machine, case, system)
    result = simulate(settings, choose_workload(case.routing, settings).source)
    advance(1)
    return result.tokens_per_s


def _settings(machine: MachineSpec, case: Case, system: str) -> Settings:
    settings = Settings(
        case.model,
        machine,
        cache_ratio=case.ratio,
        expert_dtype=case.dtype,
        tokens=case.tokens,
        warmup=WARMUP,
    )
    return settings.with_system(load_system(system))
