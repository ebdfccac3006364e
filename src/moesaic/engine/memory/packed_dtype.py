"""The precision of a packed model's experts, which its file decides. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.model_info.packed.header import is_packed, read_header


def with_packed_dtype(settings: EngineSettings, folder: Path) -> EngineSettings:
    """Settings for a model directory, packed or not; a precision it has not got is refused."""
    if not is_packed(folder):
        return settings
    dtype = read_header(folder).dtype
    if settings.expert_dtype not in ("auto", dtype):
        raise ImpossibleSetting(
            f"experts in {settings.expert_dtype} were asked for, but {str(folder)!r} is packed "
            f"with {dtype} ones: leave --expert-dtype out, or pack the original model with "
            f"--expert-dtype {settings.expert_dtype}"
        )
    return replace(settings, expert_dtype=dtype)
