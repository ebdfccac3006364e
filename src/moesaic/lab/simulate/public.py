"""`moesaic.simulate` and `moesaic.compare`: simulated runs in one call each.

They choose the trace as the command line does and return results; nothing is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.report import Timeline
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.simulate import simulation
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import choose_workload, usual_trace
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.expert_profile import ExpertProfile
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import SYSTEMS, load_system


class RunOptions(TypedDict, total=False):
    """The settings of a run beside model, machine and policies; `Settings` says what each means,
    and has their defaults."""

    phase: str
    cache_ratio: float
    tokens: int
    batch: int
    context: int
    kv_cache: str
    kv_dtype: str
    prompts: int
    warmup: int | None
    profile_tokens: int
    first_token: int | None
    placement: ExpertProfile | None
    expert_dtype: str
    dense_dtype: str
    belief: str
    belief_error: Mapping[str, float]
    seed: int
    fallback_ratio: float | None
    prefetch_accuracy: float | None
    checked: bool


def simulate(
    model: str | ModelSpec,
    machine: str | MachineSpec,
    policies: str | PolicySet | None = None,
    *,
    trace: str | None = None,
    timeline: Timeline | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """One run of a model on a described machine. `model` and `machine` are names, files, or what
    `load_model` and `load_machine` return; `policies` are a `PolicySet` or the name of a system.

    `trace` is a file, "bundled" or "synthetic"; without one, a model replays routing of its own
    where the package has some, and synthetic routing otherwise."""
    settings = _settings(model, machine, policies, options)
    return simulation.simulate(
        settings, choose_workload(_trace(trace, settings), settings).source, timeline
    )


def compare(
    model: str | ModelSpec,
    machine: str | MachineSpec,
    policies: Iterable[str] | Mapping[str, str | PolicySet] = tuple(SYSTEMS),
    *,
    trace: str | None = None,
    **options: Unpack[RunOptions],
) -> dict[str, Result]:
    """The same run under several policies, on the same tokens: by system name, or by the names
    that a mapping gives to policy sets."""
    if isinstance(policies, str):
        raise ImpossibleSetting(
            f"policies is {policies!r}; compare takes several: a list of systems, or a mapping of "
            "names to policy sets"
        )
    named = policies if isinstance(policies, Mapping) else {name: name for name in policies}
    runs = {name: _settings(model, machine, each, options) for name, each in named.items()}
    if not runs:
        raise ImpossibleSetting(f"there is nothing to compare: name systems ({', '.join(SYSTEMS)})")
    first = next(iter(runs.values()))
    source = choose_workload(_trace(trace, first), first).source
    return {name: simulation.simulate(settings, source) for name, settings in runs.items()}


def _settings(
    model: str | ModelSpec,
    machine: str | MachineSpec,
    policies: str | PolicySet | None,
    options: RunOptions,
) -> Settings:
    for name in options:
        if name not in RunOptions.__annotations__:
            raise UnknownName("option", name, RunOptions.__annotations__)
    if policies is None:
        policies = PolicySet()
    return Settings(
        load_model(model) if isinstance(model, str) else model,
        load_machine(machine) if isinstance(machine, str) else machine,
        policies=load_system(policies).policies if isinstance(policies, str) else policies,
        **options,
    )


def _trace(asked: str | None, settings: Settings) -> str:
    return usual_trace(settings.model.name) if asked is None else asked
