"""Where a model is on this machine: the one place where a name becomes a directory. What is named
by its id on the hub is fetched, unless its config shows that it could not be run here."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from moesaic.core.errors import BadConfig, CannotFetch, ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gpu_memory import usable_machine
from moesaic.engine.memory.memory_plan import plan_or_without_gpu
from moesaic.hardware.host import memory
from moesaic.model_info.hub.fetch import Report, fetch_model
from moesaic.model_info.hub.hub_id import parse_hub_id
from moesaic.model_info.model_names import missing_gguf, needs_owner
from moesaic.models.bundled_model import model_path
from moesaic.models.configs.network_reader import read_architecture

_log: Report = logging.getLogger("moesaic").info


def local_model(
    model: str | os.PathLike[str] | None,
    settings: EngineSettings | None = None,
    report: Report = _log,
) -> Path:
    """None is the bundled model. `settings` are those it must fit this machine with."""
    hub_id = parse_hub_id(model)
    if hub_id is None:
        path = model_path(model)
        if isinstance(model, str) and not path.exists():
            _refuse_missing(model, path)
        return path

    def check(folder: Path) -> None:
        spec = read_architecture(folder).spec
        _, available = memory()
        if settings is None or available is None:
            return
        try:
            usable, free = usable_machine(settings)
            plan = plan_or_without_gpu(spec, usable, available, free).plan
        except ImpossibleSetting as error:
            raise CannotFetch(f"not fetched: {error}") from None
        there = f"of {available / 1e9:.1f} GB available"
        report(f"{hub_id}: runs here in {plan.main_bytes / 1e9:.1f} GB of memory, {there}")

    return fetch_model(hub_id, check, report)


def _refuse_missing(model: str, path: Path) -> None:
    missing = missing_gguf(model)
    if missing is not None:
        raise ImpossibleSetting(missing)
    owner = needs_owner(model)
    if owner is not None:
        raise BadConfig(path, "folder", f"there is none here, and {owner}; or give another folder")
