"""The last decode steps of a bench as a picture and as a Chrome trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.recorded_scene import film_recording, film_scene
from moesaic.cli.study.bench_runs import Done

if TYPE_CHECKING:
    from moesaic.lab.bench.replayed_routing import Routing


def write_pictures(
    timeline: str | None, perfetto: str | None, done: Done, routing: Routing, command: str
) -> None:
    assert done.film is not None, "it was asked for"
    row = next(row for row in reversed(done.rows) if row.case.phase == "decode")
    contender, recording = row.contender, film_recording(done.film)
    scene = film_scene(done.film, contender.settings, contender.plan, routing.kind, row.case.batch)
    if timeline is not None:
        from moesaic.cli.shared.timeline_picture import draw_timeline

        draw_timeline(timeline, scene, recording)
        click.echo(f"wrote {timeline}: {row.case.name}, {contender.system}", err=True)
    if perfetto is not None:
        from moesaic.cli.shared.perfetto import write_perfetto

        write_perfetto(perfetto, scene, recording, command)
        click.echo(f"wrote {perfetto}: the last {len(recording.steps)} decode steps", err=True)
