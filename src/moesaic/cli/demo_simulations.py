"""The demo's simulated runs: every system on the toy's recorded routing, and on a real model's
shape, with pictures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moesaic.cli.common_options import MACHINE, MODEL, build_settings
from moesaic.policies.systems import SYSTEMS

if TYPE_CHECKING:
    from moesaic.cli.comparison import Build, Outcome
    from moesaic.engine.settings import Settings

_SETTING: dict[str, Any] = {"machine": MACHINE, "phase": "decode", "cache_ratio": 0.25}
_BASELINE, _SHOWN = "ktransformers", "hybrimoe"
_BUNDLED = "bundled"
_SHOWN_STEPS = 32  # enough to draw one and to fill a trace
# A recording of the demo is short: 500 tokens.
_TOY_PROFILE, _TOY_WARMUP, _TOY_STEPS = 128, 32, 128


def large_model(tokens: int) -> dict[str, Any]:
    """What is asked of the simulator; refused here where it cannot be."""
    asked = {**_SETTING, "model": MODEL, "tokens": tokens, "expert_dtype": "int4"}
    build_settings({**asked, "system": _SHOWN})
    return asked


def compare_toy(folder: Path, trace: Path, tokens: int) -> None:
    from moesaic.cli.compare_tables import print_comparison

    asked = {**_SETTING, "model": str(folder), "warmup": _TOY_WARMUP}
    asked["tokens"] = min(tokens, _TOY_STEPS)

    def build(options: dict[str, Any]) -> Settings:
        settings = build_settings({**asked, **options})
        named = replace(settings.model, name="the toy")
        return replace(settings, model=named, profile_tokens=_TOY_PROFILE)

    print_comparison(_run(build, str(trace), jobs=1), _BASELINE)


def compare_large(asked: dict[str, Any], picture: Path) -> None:
    from moesaic.cli.compare_picture import draw_comparison
    from moesaic.cli.compare_tables import print_comparison

    cells = _run(
        lambda options: build_settings({**asked, **options}), _BUNDLED, os.cpu_count() or 1
    )
    print_comparison(cells, _BASELINE)
    draw_comparison(str(picture), cells)


def show_large(asked: dict[str, Any], picture: Path, trace: Path) -> None:
    from moesaic.cli.perfetto import write_perfetto
    from moesaic.cli.recording import run_with_progress
    from moesaic.cli.timeline_picture import draw_timeline
    from moesaic.engine.workload import choose_workload

    settings = build_settings({**asked, "system": _SHOWN})
    few = replace(settings, tokens=min(settings.tokens, _SHOWN_STEPS))
    result, recording = run_with_progress(few, choose_workload(_BUNDLED, few).source, record=True)
    assert recording is not None, "the demo records what it draws"
    draw_timeline(str(picture), result, recording)
    write_perfetto(str(trace), result, recording, "moesaic demo")


def _run(build: Build, trace: str, jobs: int) -> list[Outcome]:
    from moesaic.cli.comparison import contenders, plan_grid, run_grid

    entries = contenders(SYSTEMS, (), (), ())
    cells = plan_grid(build, entries, [_SETTING["machine"]], [_SETTING["cache_ratio"]])
    return run_grid(cells, trace, jobs)
