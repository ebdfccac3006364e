"""The last decode steps of a bench as pictures and as Chrome traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.timeline_info import recorded_info, recording_of
from moesaic.cli.study.bench_runs import Done

if TYPE_CHECKING:
    from moesaic.lab.bench.bench_row import BenchConfig, BenchRow
    from moesaic.lab.bench.replayed_routing import BenchRouting


def write_pictures(
    timeline: str | None, perfetto: str | None, done: Done, routing: BenchRouting, command: str
) -> None:
    """Draw every configuration; where there are several, each in a file with its name."""
    rows = _last_decode_rows(done.rows)
    labels = _labels([row.config for row in rows])
    for row, recorder, label in zip(rows, done.recorders, labels, strict=True):
        settings, plan, recording = row.config.settings, row.config.plan, recording_of(recorder)
        info = recorded_info(recorder, settings, plan, routing.kind, row.case.batch)
        if timeline is not None:
            from moesaic.cli.shared.timeline_picture import draw_timeline

            file = _named(timeline, label)
            draw_timeline(file, info, recording)
            click.echo(f"wrote {file}: {row.case.name}, {row.config.system}", err=True)
        if perfetto is not None:
            from moesaic.cli.shared.perfetto import write_perfetto

            file = _named(perfetto, label)
            write_perfetto(file, info, recording, command)
            click.echo(f"wrote {file}: the last {len(recording.steps)} decode steps", err=True)


def _last_decode_rows(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The row that was recorded, of every configuration in turn."""
    found: dict[int, BenchRow] = {}
    for row in rows:
        if row.case.phase == "decode":
            found[id(row.config)] = row
    return list(found.values())


def _labels(configs: Sequence[BenchConfig]) -> list[str]:
    """What distinguishes each, fit for a file's name; nothing where there is only one."""
    if len(configs) == 1:
        return [""]
    ratios = len({config.plan.cache_ratio for config in configs}) > 1
    words = [
        f"{config.system}-{config.plan.cache_ratio:g}" if ratios else config.system
        for config in configs
    ]
    plain = [re.sub(r"[^\w.]+", "-", word) for word in words]
    return [
        f"{word}-{number}" if plain.count(word) > 1 else word for number, word in enumerate(plain)
    ]


def _named(file: str, label: str) -> str:
    path = Path(file)
    return str(path.with_name(f"{path.stem}-{label}{path.suffix}")) if label else file
