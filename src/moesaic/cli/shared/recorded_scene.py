"""A film of real decode steps, as pictures and Chrome traces show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.cli.shared.scene import Scene
from moesaic.cli.study.simulate_recording import Recorded, Recording
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.units import NS_PER_S
from moesaic.hardware.host import cpu_name

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.lab.bench.last_steps import Film


def film_recording(film: Film) -> Recording:
    steps = [
        Recorded(number, report.start_ns, report.end_ns)
        for number, report in enumerate(film.reports)
    ]
    return Recording(warmup=0, timeline=film.timeline, steps=steps)


def film_scene(
    film: Film, settings: EngineSettings, plan: MemoryPlan, routing: str, batch: int = 1
) -> Scene:
    """`routing` says whose it was, in two words."""
    alone = not settings.capabilities.moves
    share = f"{plan.cache_ratio:.0%} of the {plan.expert_dtype} experts in the accelerator"
    return Scene(
        kind=f"measured, {routing}",
        model=plan.model,
        machine=cpu_name() or "this machine",
        phase="decode",
        setting="all experts on the CPU" if alone else f"{share}: {settings.policies}",
        latencies_s=[report.latency_ns / NS_PER_S for report in film.reports],
        tokens_per_step=batch,
        lanes=(CPU,) if alone else (GPU, CPU, PCIE),
    )
