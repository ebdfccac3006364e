"""The last decode steps of a bench as a picture and as a Chrome trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from moesaic.cli.bench_runs import Done
from moesaic.cli.recording import Recorded, Recording
from moesaic.cli.scene import Scene
from moesaic.core.units import NS_PER_S
from moesaic.core.view import CPU, GPU, PCIE
from moesaic.hardware.host import cpu_name

if TYPE_CHECKING:
    from moesaic.engine.bench.film import Film
    from moesaic.engine.bench.replayed_routing import Routing
    from moesaic.engine.bench.row import Row


def write_pictures(
    timeline: str | None, perfetto: str | None, done: Done, routing: Routing, command: str
) -> None:
    assert done.film is not None, "it was asked for"
    row = next(row for row in reversed(done.rows) if row.case.phase == "decode")
    scene, recording = _scene(row, done.film, routing), _recording(done.film)
    if timeline is not None:
        from moesaic.cli.timeline_picture import draw_timeline

        draw_timeline(timeline, scene, recording)
        click.echo(f"wrote {timeline}: {row.case.name}, {row.contender.system}", err=True)
    if perfetto is not None:
        from moesaic.cli.perfetto import write_perfetto

        write_perfetto(perfetto, scene, recording, command)
        click.echo(f"wrote {perfetto}: the last {len(recording.steps)} decode steps", err=True)


def _recording(film: Film) -> Recording:
    steps = [
        Recorded(number, report.start_ns, report.end_ns)
        for number, report in enumerate(film.reports)
    ]
    return Recording(warmup=0, timeline=film.timeline, steps=steps)


def _scene(row: Row, film: Film, routing: Routing) -> Scene:
    contender, settings, plan = row.contender, row.contender.settings, row.contender.plan
    alone = settings.accelerator == "none"
    policies = " + ".join((settings.schedule, settings.cache, settings.prefetch))
    share = f"{plan.cache_ratio:.0%} of the {plan.expert_dtype} experts in the accelerator"
    return Scene(
        kind=f"measured, {routing.kind}",
        model=contender.spec.name,
        machine=cpu_name() or "this machine",
        phase=row.case.phase,
        setting="all experts on the CPU" if alone else f"{share}: {policies}",
        latencies_s=[report.latency_ns / NS_PER_S for report in film.reports],
        tokens_per_step=row.case.batch,
        lanes=(CPU,) if alone else (GPU, CPU, PCIE),
    )
