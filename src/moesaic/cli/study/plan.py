"""`moesaic plan`: what a model would need and how fast it would be, without loading it.

What fetching a model would take is known from the hub's own listing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.engine_options import (
    engine_settings,
    one_sequence_option,
    one_text_options,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import json_option
from moesaic.cli.shared.usual_options import PLAN
from moesaic.core.errors import CannotFetch, ImpossibleSetting
from moesaic.core.units import GB
from moesaic.model_info.hub.hub_id import HubId
from moesaic.models.bundled_model import NAME

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.hardware.machine_spec import MachineSpec
    from moesaic.lab.speed_estimate import SpeedEstimate
    from moesaic.model_info.model_spec import ModelSpec

_OF_TABLES = ("machine", "memory")  # options that a table of all precisions has, too


@click.command(cls=ShortHelpCommand, usual=PLAN)
@model_argument
@one_text_options
@one_sequence_option
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
    planned. Without options other than --machine and --memory, a table has a row for every
    precision, and the smallest machine for each. With options, what `moesaic run` would do with
    them is planned in detail; what does not fit is refused, with what to change. Speed comes from
    the simulator, with synthetic routing."""
    from moesaic.cli.shared.advised_policies import advised_policies
    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.plan_target import described_elsewhere, options_for
    from moesaic.model_info.hub.hub_id import parse_hub_id
    from moesaic.model_info.model_zoo import load_model
    from moesaic.models.configs.runnable import why_not_run

    asked["max_sequences"] = asked["max_sequences"] or 1
    elsewhere = described_elsewhere(asked["machine"])
    settings = engine_settings(options_for(asked, elsewhere))
    spec, hub_id = load_model(model or NAME), parse_hub_id(model)
    detailed = _detailed(click.get_current_context())
    make = _detailed_plan if detailed else _table
    described = {
        **make(spec, settings, model, asked, elsewhere),
        "cannot_run": why_not_run(spec, model or NAME if hub_id is None else spec.source),
        "download": None if hub_id is None else download(hub_id),
    }
    if elsewhere is not None:
        advised_policies(asked, elsewhere).announce()
    if as_json:
        print_json(described)
    elif detailed:
        from moesaic.cli.study.plan_tables import print_plan

        print_plan(described)
    else:
        from moesaic.cli.study.plan_overview import print_overview

        print_overview(described, model, asked)


def _detailed(context: click.Context) -> bool:
    """Whether options say what is to be planned."""
    given = click.core.ParameterSource.COMMANDLINE
    known = ("model", "named_model", "revision", "as_json", *_OF_TABLES)
    names = (str(each.name) for each in context.command.params)
    return any(context.get_parameter_source(n) == given for n in names if n not in known)


def _table(
    spec: ModelSpec,
    settings: EngineSettings,
    model: str | None,
    asked: dict[str, Any],
    elsewhere: MachineSpec | None,
) -> dict[str, Any]:
    from moesaic.cli.study.plan_overview import describe_rows
    from moesaic.cli.study.plan_target import (
        available_memory,
        description,
        is_here,
        usable_memory,
    )
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.engine.memory.packed_dtype import with_packed_dtype
    from moesaic.lab.plan_rows import PlanningTarget, plan_rows
    from moesaic.model_info.packed.header import is_packed

    settings, free = usable_memory(settings, elsewhere)
    memory = available_memory(asked["memory"], elsewhere)
    machine = description(settings, asked["machine"])
    target = PlanningTarget(memory.bytes, free, machine, is_here(asked["machine"]))
    folder = Path(model or "")
    if machine is not None:
        announce_compilation()
    rows = plan_rows(spec, with_packed_dtype(settings, folder), target, is_packed(folder))
    return describe_rows(spec, rows, target, memory.words)


def _detailed_plan(
    spec: ModelSpec,
    settings: EngineSettings,
    model: str | None,
    asked: dict[str, Any],
    elsewhere: MachineSpec | None,
) -> dict[str, Any]:
    from moesaic.cli.study.plan_target import (
        available_memory,
        description,
        is_here,
        usable_memory,
    )
    from moesaic.engine.memory.memory_plan import plan_or_without_gpu
    from moesaic.engine.memory.packed_dtype import with_packed_dtype
    from moesaic.engine.memory.refusal import longer_sequences
    from moesaic.lab.plan_rows import PlanningTarget, left_for_gpu
    from moesaic.machines.accelerators import chosen_gpu

    gpu = settings.host.gpu if settings.host is not None else chosen_gpu(settings.accelerator)
    settings, free = usable_memory(settings, elsewhere)
    settings = with_packed_dtype(settings, Path(model or ""))
    memory = available_memory(asked["memory"], elsewhere)
    machine = description(settings, asked["machine"])
    target = PlanningTarget(memory.bytes, free, machine, is_here(asked["machine"]))
    free = left_for_gpu(spec, settings, target)
    settings, decided = plan_or_without_gpu(spec, settings, memory.bytes, free)
    return {
        **describe(decided, settings),
        "gpu_unused": getattr(settings.accelerator, "reason", None) if gpu else None,
        "memory_of": memory.words,
        "longer_sequences": longer_sequences(spec, decided, settings, free),
        "speed": _speed(spec, settings, decided, machine, asked),
    }


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


def _speed(
    spec: ModelSpec,
    settings: EngineSettings,
    plan: MemoryPlan,
    machine: MachineSpec | None,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Predictions, or why there are none: a plan is of use without them."""
    from moesaic.cli.study.plan_target import NOT_MEASURED, is_here

    if machine is None:
        return {"machine": None, "reason": NOT_MEASURED}
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.speed_estimate import estimate_speed

    announce_compilation()
    try:
        found = estimate_speed(
            spec, settings, plan, _linked(machine, asked), is_here(asked["machine"])
        )
    except ImpossibleSetting as error:
        return {"machine": machine.name, "reason": str(error)}
    return {"machine": machine.name} | describe_speed(found)


def describe_speed(found: SpeedEstimate) -> dict[str, Any]:
    runs = {"decode": found.decode, "prefill": found.prefill}
    return {
        phase: {
            "tokens_per_s": run.tokens_per_s,
            "ms_per_step": 1000 * run.mean_s,
            "tokens_per_step": run.settings.tokens_per_step,
            "hit_rate": run.hit_rate,
        }
        for phase, run in runs.items()
    }


def _linked(machine: MachineSpec, asked: dict[str, Any]) -> MachineSpec:
    """The machine with the link that was given, if any was."""
    speed = asked["link_bandwidth"]
    if speed is None:
        return machine
    return replace(machine, pcie=replace(machine.pcie, bandwidth_gb_s=speed))


def download(hub_id: HubId) -> dict[str, Any]:
    """Sizes in bytes, and the same in words; a plan is of use without them."""
    from moesaic.model_info.hub.listing import SPARE, free_bytes, read_listing

    try:
        listing = read_listing(hub_id)
    except CannotFetch as error:
        return {"words": f"What fetching it would take is not known: {error}"}
    free, missing = free_bytes(), listing.missing_bytes
    fits = missing + SPARE <= free
    room = "which is enough" if fits else "which is not enough"
    return {
        "commit": listing.commit,
        "files": len(listing.sizes),
        "bytes": listing.bytes,
        "missing_bytes": missing,
        "free_bytes": free,
        "fits": fits,
        "words": f"To fetch: {listing}; the disk has {free / GB:.1f} GB free, {room}.",
    }
