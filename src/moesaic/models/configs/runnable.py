"""Whether a model that can be simulated could be run too, from its shape or its config.json alone.

Needs no torch: `plan` answers without it. Opening the model finds the rest."""

from __future__ import annotations

from pathlib import Path

from moesaic.core.errors import BadConfig
from moesaic.model_info.model_config import open_config
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.configs.families import RUNNABLE


def why_not_run(spec: ModelSpec, model: str) -> str | None:
    """`model` is what the user named: a known name, or the path of a config. None: nothing is
    known that would prevent it."""
    if spec.family not in RUNNABLE:
        can = ", ".join(sorted(RUNNABLE))
        return f"architecture {spec.family!r} can be simulated but not run; can be run: {can}"
    if not Path(model).exists():
        return None
    try:
        read_quantization(open_config(model))
    except BadConfig as error:
        return f"it can be simulated, its weights cannot be read: {error}"
    return None
