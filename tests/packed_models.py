"""Packed copies of small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.packing import plan_packing, write_packing
from moesaic.models.open_model import open_model


def packed(
    source: Path,
    target: Path,
    expert_dtype: str = "auto",
    advance: Callable[[int], None] = lambda experts: None,
) -> Path:
    settings = EngineSettings(expert_dtype=expert_dtype)
    write_packing(plan_packing(open_model(source), source, target, settings), advance)
    return target
