"""`moesaic models --local`: what the cache of the hub holds, and what of it this machine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.core.errors import ImpossibleSetting, MissingExtra, MoesaicError
from moesaic.core.units import GB

if TYPE_CHECKING:
    from moesaic.model_info.hub.cached import CachedModel
    from moesaic.model_info.model_spec import ModelSpec

_DTYPES = ("auto", "int8", "int4")


def list_local(as_json: bool) -> None:
    from moesaic.model_info.hub.listing import cache_folder

    try:
        from moesaic.model_info.hub.cached import cached_models

        found, folder = [_described(each) for each in cached_models()], cache_folder()
    except ImportError:
        raise MissingExtra("listing fetched models", "engine") from None
    if as_json:
        print_json({"cache": str(folder), "models": found})
    elif not found:
        click.echo(f"{folder} holds no models: `moesaic run OWNER/NAME` fetches one")
    else:
        columns = ("model", "GB on disk", "runs", "fits here")
        rows = [
            (each["id"], round(each["bytes"] / GB, 2), each["runs"], each["fits"] or "")
            for each in found
        ]
        print_table(f"Models in {folder}", columns, rows)


def _described(cached: CachedModel) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": str(cached.hub_id),
        "commit": cached.commit,
        "folder": str(cached.folder),
        "bytes": cached.bytes,
        "missing": list(cached.missing),
    }
    from moesaic.model_info.model_config import read_model_config
    from moesaic.models.runnable import why_not_run

    try:
        spec = read_model_config(cached.folder)
    except MoesaicError as error:
        said = "no: it is no mixture of experts that is known here"
        return known | {"runs": said, "reason": str(error), "fits": None}
    reason = why_not_run(spec, str(cached.folder))
    return known | {"runs": _runs(cached, reason), "reason": reason, "fits": _fits(spec)}


def _runs(cached: CachedModel, reason: str | None) -> str:
    if reason is not None:
        return "no: it can only be simulated"
    if cached.missing:
        return f"once {len(cached.missing)} more files are fetched"
    return "yes"


def _fits(spec: ModelSpec) -> str:
    """With which experts it would, without an accelerator and one sequence at a time."""
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import plan_memory
    from moesaic.hardware.host import memory

    _, available = memory()
    if available is None:
        return "unknown: the system does not say how much memory is available"
    for dtype in _DTYPES:
        settings = EngineSettings(expert_dtype=dtype, max_sequences=1, accelerator="none")
        try:
            plan = plan_memory(spec, settings, available)
        except ImpossibleSetting:
            continue
        how = "as published" if dtype == "auto" else f"with --expert-dtype {dtype}"
        return f"{how}, in {plan.main_bytes / GB:.1f} GB"
    return f"no, not even with int4 experts in {available / GB:.1f} GB"
