"""`moesaic plan`: what a model would need here and how fast it would be, without loading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.cli.shared.engine_options import engine_options, engine_settings
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.simulation_options import json_option
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.models.bundled_model import NAME

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.hardware.machine_spec import MachineSpec
    from moesaic.model_info.model_spec import ModelSpec


class AvailableMemory(NamedTuple):
    bytes: int
    words: str  # whose it is


@click.command()
@model_argument
@engine_options
@click.option(
    "--machine",
    help="Plan for a known machine or a TOML, within its memory and its GPU's.  "
    "[this, once `moesaic profile` measured it]",
)
@click.option(
    "--memory",
    type=float,
    metavar="GB",
    help="Main memory to plan with, in 10^9 bytes.  [the machine's, or what is available here]",
)
@json_option
def plan(model: str | None, as_json: bool, **asked: Any) -> None:
    """Say what a model would need and how fast it would be; load nothing.

    MODEL is a model directory, a GGUF file, a config.json, a known name (`moesaic models`) or an id
    on Hugging Face, of which the config alone is fetched; without it, the bundled moesaic-20m is
    planned. What does not fit is refused, with what to change. Speed comes from the simulator, with
    synthetic routing."""
    settings = engine_settings(asked)

    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.plan_download import download
    from moesaic.cli.study.plan_tables import print_plan
    from moesaic.engine.memory.memory_plan import plan_memory
    from moesaic.engine.memory.packed_dtype import with_packed_dtype
    from moesaic.model_info.hub.hub_id import parse_hub_id
    from moesaic.model_info.model_zoo import load_model
    from moesaic.models.runnable import why_not_run

    spec, machine = load_model(model or NAME), _machine(asked["machine"], settings)
    hub_id = parse_hub_id(model)
    settings = with_packed_dtype(settings, Path(model or ""))
    elsewhere = None if _is_here(asked["machine"]) else machine
    settings = _within(settings, elsewhere)
    memory = _memory(asked["memory"], elsewhere)
    decided = plan_memory(spec, settings, memory.bytes, _accelerator_free(settings, elsewhere))
    described = {
        **describe(decided, settings),
        "memory_of": memory.words,
        "cannot_run": why_not_run(spec, model or NAME if hub_id is None else spec.source),
        "download": None if hub_id is None else download(hub_id),
        "speed": _speed(spec, settings, decided, machine, asked),
    }
    if as_json:
        print_json(described)
    else:
        print_plan(described)


def describe(plan: MemoryPlan, settings: EngineSettings) -> dict[str, Any]:
    """A memory plan as `plan --json` prints it."""
    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "expert_dtype": plan.expert_dtype,
        "dense_dtype": plan.dense_dtype,
        "accelerator": settings.accelerator,
        "policies": settings.policies.as_dict(),
        "capacity": {**plan.capacity._asdict(), "cache_ratio": plan.cache_ratio},
        "parts": [part._asdict() for part in plan.parts],
        "main_bytes": plan.main_bytes,
        "available_bytes": plan.available_bytes,
        "accelerator_bytes": plan.accelerator_bytes,
        "accelerator_limit_bytes": plan.accelerator_limit_bytes,
    }


def _machine(name: str | None, settings: EngineSettings) -> MachineSpec | None:
    """The named machine, or this one if it was measured."""
    from moesaic.hardware.machine_reader import load_machine, measured_machines
    from moesaic.machines.accelerators import ACCELERATORS

    here = ACCELERATORS[settings.accelerator].described_as
    if name is None and here not in measured_machines():
        return None
    return load_machine(name or here)


def _is_here(name: str | None) -> bool:
    from moesaic.hardware.machine_reader import CUDA, EMULATED, THIS

    return name is None or name.lower() in (THIS, EMULATED, CUDA)


def _within(settings: EngineSettings, elsewhere: MachineSpec | None) -> EngineSettings:
    """A described machine's GPU has only so much memory."""
    limited = not settings.capabilities.moves or settings.gpu_memory_gb is not None
    if elsewhere is None or limited:
        return settings
    return replace(settings, gpu_memory_gb=elsewhere.gpu.memory_gb)


def _accelerator_free(settings: EngineSettings, elsewhere: MachineSpec | None) -> int | None:
    """Of the GPU here; None: another machine is meant, or --gpu-memory says it."""
    limited = settings.gpu_memory_gb is not None or not settings.capabilities.own_memory
    if elsewhere is not None or limited:
        return None
    from moesaic.engine.gpu_memory import accelerator_free

    return accelerator_free(settings)


def _memory(gigabytes: float | None, elsewhere: MachineSpec | None) -> AvailableMemory:
    from moesaic.hardware.host import this_host

    if gigabytes is not None:
        if not 0 < gigabytes < float("inf"):
            raise ImpossibleSetting(f"--memory is {gigabytes:g} GB; it must be finite and above 0")
        return AvailableMemory(round(gigabytes * GB), "given by --memory")
    if elsewhere is not None:
        return AvailableMemory(round(elsewhere.host_memory_gb * GB), f"in {elsewhere.name}")
    available = this_host().available_bytes
    if available is None:
        raise ImpossibleSetting(
            "how much memory is available here cannot be found out: say it with --memory GB"
        )
    return AvailableMemory(available, "available here")


def _speed(
    spec: ModelSpec,
    settings: EngineSettings,
    plan: MemoryPlan,
    machine: MachineSpec | None,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Predictions, or why there are none: a plan is of use without them."""
    if machine is None:
        reason = (
            "this machine is not measured yet: run `moesaic profile`, or name another with "
            "--machine (see `moesaic machines`)"
        )
        return {"machine": None, "reason": reason}
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.speed_estimate import estimate_speed

    announce_compilation()
    try:
        found = estimate_speed(
            spec, settings, plan, _linked(machine, asked), _is_here(asked["machine"])
        )
    except ImpossibleSetting as error:
        return {"machine": machine.name, "reason": str(error)}
    runs = {"decode": found.decode, "prefill": found.prefill}
    return {"machine": machine.name} | {
        phase: {
            "tokens_per_s": run.tokens_per_s,
            "ms_per_step": 1000 * run.mean_s,
            "tokens_per_step": run.settings.tokens_per_step,
            "hit_rate": run.hit_rate,
        }
        for phase, run in runs.items()
    }


def _linked(machine: MachineSpec, asked: dict[str, Any]) -> MachineSpec:
    """With the link that was asked for, if any was."""
    speed = asked["link_bandwidth"]
    if speed is None:
        return machine
    return replace(machine, pcie=replace(machine.pcie, bandwidth_gb_s=speed))
