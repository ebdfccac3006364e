"""The last decode steps of a bench as a picture and as a Chrome trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.recorded_timeline import recorded_info, recording_of
from moesaic.cli.study.bench_runs import Done

if TYPE_CHECKING:
    from moesaic.lab.bench.replayed_routing import BenchRouting


def write_pictures(
    timeline: str | None, perfetto: str | None, done: Done, routing: BenchRouting, command: str
) -> None:
    assert done.recorder is not None, "it was asked for"
    row = next(row for row in reversed(done.rows) if row.case.phase == "decode")
    config, recording = row.config, recording_of(done.recorder)
    info = recorded_info(done.recorder, config.settings, config.plan, routing.kind, row.case.batch)
    if timeline is not None:
        from moesaic.cli.shared.timeline_picture import draw_timeline

        draw_timeline(timeline, info, recording)
        click.echo(f"wrote {timeline}: {row.case.name}, {config.system}", err=True)
    if perfetto is not None:
        from moesaic.cli.shared.perfetto import write_perfetto

        write_perfetto(perfetto, info, recording, command)
        click.echo(f"wrote {perfetto}: the last {len(recording.steps)} decode steps", err=True)
