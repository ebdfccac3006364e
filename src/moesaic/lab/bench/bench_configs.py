"""Memory plans for the tests of a bench, made or refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gpu_memory import accelerator_free
from moesaic.engine.learned_placement import profiled_model
from moesaic.engine.memory.memory_plan import MemoryPlan, plan_memory
from moesaic.engine.packed_store import check_packed, packed_settings
from moesaic.hardware.host import memory
from moesaic.lab.bench.bench_model import BenchModel
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case, largest_batch, longest
from moesaic.lab.bench.replayed_routing import BenchRouting
from moesaic.lab.fallback_script import check_ratio
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.expert_profile import read_profile
from moesaic.policies.policy_checks import check_gate

_UNKNOWN_MEMORY = 1 << 62  # where the system does not say, nothing is refused


def plan_configs(
    spec: ModelSpec, settings: Sequence[tuple[str, EngineSettings]], cases: Sequence[Case]
) -> list[BenchConfig]:
    """Systems by name, each with the capacity for the tests; or ImpossibleSetting."""
    max_context = spec.max_context
    if max_context and longest(cases) > max_context:
        raise ImpossibleSetting(
            f"a test of {longest(cases)} tokens was asked for; {spec.name} can run at most "
            f"{max_context} (its context length): use shorter tests"
        )
    found = []
    for system, asked in settings:
        draft = check_gate(asked.policies, spec.top_k).draft
        sized = _sized_for(asked, cases, 1 + draft)
        starting_counts(spec, sized, None)  # refused before anything is loaded
        where = f"{system}: " if len(settings) > 1 else ""
        found.append(BenchConfig(spec, system, sized, _planned(spec, sized, where)))
    return found


def starting_counts(
    spec: ModelSpec, settings: EngineSettings, counts: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """What a run starts from: the file that was asked for, or else the routing's own profile. A
    bench adds nothing to the file, so that its repetitions start alike."""
    if settings.placement is None:
        return counts
    return read_profile(settings.placement, profiled_model(spec)).counts


def packed_configs(
    model: BenchModel, settings: Sequence[tuple[str, EngineSettings]]
) -> list[tuple[str, EngineSettings]]:
    """The same with the precision of a packed model's experts."""
    if model.opened is not None:
        return [(system, packed_settings(model.opened, asked)) for system, asked in settings]
    if settings[0][1].mmap is not None:
        raise ImpossibleSetting("--mmap is about packed models, and --synthetic is not: leave it")
    return list(settings)


def check_layouts(model: BenchModel, configs: Sequence[BenchConfig]) -> None:
    """That the kernels read a packed model's blocks, before anything is loaded."""
    for config in configs:
        if model.opened is not None:
            check_packed(model.opened, config.settings, config.plan.dtype)


def check_fallbacks(
    configs: Sequence[BenchConfig], routing: BenchRouting, fallback_ratio: float | None
) -> None:
    """A gate that judges logits needs some that mean something, or the share of tokens to run
    again."""
    chosen = [config.settings.policies for config in configs]
    top_k = configs[0].spec.top_k
    made = [(each.gate.name, check_gate(each, top_k)) for each in chosen]
    reruns = [name for name, gate in made if gate.reruns or gate.draft]
    check_ratio(fallback_ratio, [name for name, _ in made], bool(reruns))
    if reruns and fallback_ratio is None and routing.sources:
        raise ImpossibleSetting(
            f"gate {reruns[0]!r} judges by the model's logits, and with the routing of a trace "
            "they mean nothing: give --fallback-ratio, the share of tokens to run again, or "
            "measure a model under its own routers (--trace none)"
        )


def _sized_for(settings: EngineSettings, cases: Sequence[Case], tokens: int) -> EngineSettings:
    """Settings for just these tests, or for longer sequences where they were asked for. `tokens`:
    that one sequence may decode in a step."""
    batch, length = largest_batch(cases), longest(cases)
    if settings.max_model_len is not None and settings.max_model_len < length:
        raise ImpossibleSetting(
            f"a test of {length} tokens was asked for, but --max-model-len is "
            f"{settings.max_model_len}: leave it out, or use shorter tests"
        )
    prompt = max((case.tokens for case in cases if case.phase == "prefill"), default=1)
    length = settings.max_model_len or length
    return replace(
        settings,
        max_sequences=batch,
        max_model_len=length,
        kv_tokens=batch * KV_BLOCK * blocks_of(length),  # all of them are as long
        max_step_tokens=max(min(settings.step_tokens, prompt), batch * tokens),
    )


def _planned(spec: ModelSpec, settings: EngineSettings, where: str) -> MemoryPlan:
    _, available = memory()
    try:
        there = _UNKNOWN_MEMORY if available is None else available
        return plan_memory(spec, settings, there, accelerator_free(settings))
    except ImpossibleSetting as error:
        words = str(error).replace("--max-sequences", "--batch")  # here that says how many
        raise ImpossibleSetting(f"{where}{words}") from None
