"""The demo's simulated runs: the routing just recorded under the known systems on a simulated GPU,
with experts as large as a real model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moesaic.cli.shared.simulation_options import MACHINE, build_settings
from moesaic.model_info.model_zoo import load_model
from moesaic.models.bundled_model import NAME
from moesaic.policies.systems import SYSTEMS

if TYPE_CHECKING:
    from moesaic.cli.study.comparison import ComparisonCell, Configuration
    from moesaic.lab.simulate.settings import Settings
    from moesaic.model_info.model_spec import ModelSpec

LARGE = "gpt-oss-20b"
RATIOS = (0.25, 0.5, 0.75)  # drawn
_BASELINE, _RATIO = "ktransformers", 0.25
# A recording of the demo is short: some hundred tokens.
_PROFILE, _WARMUP = 128, 32


def check(tokens: int) -> None:
    """So many steps can be simulated, or the error says why not before anything runs."""
    _settings(load_model(NAME), "bf16", tokens, {"cache_ratio": _RATIO})


def compare_large(trace: Path, tokens: int, picture: Path) -> None:
    """The systems, as if every expert had the size of LARGE's; drawn for more caches."""
    from moesaic.cli.study.compare_picture import draw_comparison
    from moesaic.cli.study.compare_tables import print_comparison
    from moesaic.cli.study.comparison import configurations

    entries = configurations(SYSTEMS)
    cells = _run(_enlarged(), "int4", trace, tokens, entries, RATIOS)
    print_comparison([cell for cell in cells if cell.cache_ratio == _RATIO], _BASELINE)
    draw_comparison(str(picture), cells)


def _enlarged() -> ModelSpec:
    """A model with as many layers and experts as were recorded, as wide as LARGE's."""
    own, large = load_model(NAME), load_model(LARGE)
    return replace(
        large,
        name=f"{NAME} enlarged",
        num_layers=own.num_layers,
        moe_layers=own.moe_layers,
        num_experts=own.num_experts,
        top_k=own.top_k,
    )


def _run(
    spec: ModelSpec,
    dtype: str,
    trace: Path,
    tokens: int,
    entries: Sequence[Configuration],
    ratios: Sequence[float],
) -> list[ComparisonCell]:
    from moesaic.cli.study.comparison import plan_grid, run_grid
    from moesaic.lab.simulate.workload import shortened

    def build(options: dict[str, Any]) -> Settings:
        return shortened(str(trace), _settings(spec, dtype, tokens, options))

    return run_grid(plan_grid(build, entries, [MACHINE], ratios), str(trace), jobs=1)


def _settings(spec: ModelSpec, dtype: str, tokens: int, options: dict[str, Any]) -> Settings:
    asked = {"machine": MACHINE, "phase": "decode", "model": NAME, "expert_dtype": dtype}
    steps = {"tokens": tokens, "warmup": min(tokens, _WARMUP)}
    settings = build_settings({**asked, **steps, **options})
    return replace(settings, model=spec, profile_tokens=_PROFILE)
