"""`moesaic demo`: known systems on one machine, a table, two pictures and a trace to open."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.common_options import MACHINE, MODEL, build_settings
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.settings import Settings

_BEFORE = """\
DeepSeek-V2-Lite decodes on a simulated RTX A6000 with ten Xeon cores; a quarter of its experts
fit into the GPU. Known ways to live with that replay the same routing trace:
"""
_AFTER = """\
Look at {out}/compare.png and {out}/timeline.png; open {out}/trace.json in ui.perfetto.dev.
Then try:
  moesaic compare --cache-ratios 0.25,0.5,0.75 --phase prefill --tokens 128 --plot prefill.png
  moesaic simulate --model qwen3-30b-a3b --machine h200-emr16 --timeline qwen3.png
  moesaic policies"""
_TRACE = "bundled"
_SHOWN = "hybrimoe"


@click.command()
@click.option("--out", default="demo-out", show_default=True, metavar="DIR", help="For the files.")
@click.option("--tokens", type=int, default=256, show_default=True, help="Decode steps.")
def demo(out: str, tokens: int) -> None:
    """A short tour: compare offloading systems on a simulated machine."""
    asked = {
        "model": MODEL,
        "machine": MACHINE,
        "phase": "decode",
        "tokens": tokens,
        "expert_dtype": "int4",
        "cache_ratio": 0.25,
    }
    folder = _folder(out)
    click.echo(_BEFORE)
    _compare(asked, folder)
    _show(build_settings({**asked, "system": _SHOWN}), folder)
    click.echo(_AFTER.format(out=out))


def _folder(out: str) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ImpossibleSetting(f"--out {out!r} is a file: give the name of a directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compare(asked: dict[str, Any], folder: Path) -> None:
    from moesaic.cli.compare_picture import draw_comparison
    from moesaic.cli.compare_tables import print_comparison
    from moesaic.cli.comparison import contenders, plan_grid, run_grid
    from moesaic.cli.recording import announce_compilation
    from moesaic.policies.systems import SYSTEMS

    announce_compilation()
    cells = plan_grid(
        lambda options: build_settings({**asked, **options}),
        contenders(SYSTEMS, (), (), ()),
        [asked["machine"]],
        [asked["cache_ratio"]],
    )
    cells = run_grid(cells, _TRACE, os.cpu_count() or 1)
    print_comparison(cells, "ktransformers")
    draw_comparison(str(folder / "compare.png"), cells)


def _show(settings: Settings, folder: Path) -> None:
    """A few steps are enough to draw one and to fill a trace."""
    from moesaic.cli.perfetto import write_perfetto
    from moesaic.cli.recording import run_with_progress
    from moesaic.cli.timeline_picture import draw_timeline
    from moesaic.engine.workload import choose_workload

    few = replace(settings, tokens=min(settings.tokens, 32))
    result, recording = run_with_progress(few, choose_workload(_TRACE, few).source, record=True)
    assert recording is not None, "the demo records what it draws"
    draw_timeline(str(folder / "timeline.png"), result, recording)
    write_perfetto(str(folder / "trace.json"), result, recording, "moesaic demo")
