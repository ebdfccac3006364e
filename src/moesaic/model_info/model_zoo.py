"""Models known by name, and loading a user's model by name or path.

The shapes are data (`model_zoo.toml`); reading a user's own config.json is `model_config`.
"""

from __future__ import annotations

import os
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadConfig, CannotFetch, ImpossibleSetting
from moesaic.model_info.hub.fetch import fetch_config
from moesaic.model_info.hub.hub_id import HubId, parse_hub_id
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.model_config import read_model_config
from moesaic.model_info.model_names import UnknownModel, missing_gguf
from moesaic.model_info.model_spec import LatentAttentionSizes, ModelSpec


def known_models() -> tuple[str, ...]:
    """The models that come with the package, in the order of their families."""
    return tuple(_zoo())


def load_model(name_or_path: str) -> ModelSpec:
    """A known model by name (in any case), the one a config.json or its directory describes, or the
    one with this id on the hub, of which the config is fetched.

    A name wins over a file of the same name; write ./NAME for the file."""
    zoo = _zoo()
    if name_or_path.lower() in zoo:
        return zoo[name_or_path.lower()]
    path = Path(name_or_path)
    if path.exists():
        return read_model_config(path)
    hub_id = parse_hub_id(name_or_path)
    if hub_id is not None:
        return _by_id(hub_id)
    missing = missing_gguf(name_or_path)
    if missing is not None:
        raise ImpossibleSetting(missing)
    if path.suffix == ".json" or os.sep in name_or_path:
        known = ", ".join(zoo)
        raise BadConfig(
            path, "file", f"there is none here; expected a config.json, or one of: {known}"
        )
    raise UnknownModel(name_or_path, zoo)


def _by_id(hub_id: HubId) -> ModelSpec:
    """The model from its config alone, which is fetched. Where it cannot be, an id whose shape is
    known by the name alone says so."""
    try:
        return read_model_config(fetch_config(hub_id))
    except CannotFetch as error:
        name = hub_id.name.lower()
        known = f"; its shape is known without: {name}" if name in _zoo() else ""
        raise CannotFetch(f"{error}{known}") from None


@lru_cache(maxsize=1)
def _zoo() -> dict[str, ModelSpec]:
    text = (files("moesaic.model_info") / "model_zoo.toml").read_text(encoding="utf-8")
    return {name: _spec(name, table) for name, table in tomllib.loads(text).items()}


def _spec(name: str, table: dict[str, Any]) -> ModelSpec:
    fields = dict(table)
    dense = set(fields.pop("dense_layers"))
    moe_layers = tuple(i for i in range(fields["num_layers"]) if i not in dense)
    latent = fields.pop("latent_attention", None)
    if latent is not None:  # TOML has no null: an absent q_lora_rank means direct queries
        latent = LatentAttentionSizes(**{"q_lora_rank": None, **latent})
    linear = fields.pop("linear_attention", None)
    if linear is not None:
        linear = LinearAttentionSizes(**linear)
    windows = tuple(fields.pop("window_layers", ()))
    linear_layers = tuple(fields.pop("linear_layers", ()))
    return ModelSpec(
        name=name,
        moe_layers=moe_layers,
        latent_attention=latent,
        linear_attention=linear,
        linear_layers=linear_layers,
        window_layers=windows,
        **fields,
    )
