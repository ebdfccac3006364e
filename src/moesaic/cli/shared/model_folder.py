"""The MODEL of commands that need weights: a directory, or a clear message why it cannot be run."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.model_info.model_names import instead_of, refuse_hub_id
from moesaic.models.bundled_model import NAME, model_path

_PACKAGES = ("torch", "tokenizers", "jinja2")  # of the engine extra

_LAYOUT = "a directory with config.json and its safetensors files, as published on Hugging Face"


def model_folder(model: str | None) -> Path:
    """Of the model that was named, or of the bundled one."""
    if not all(find_spec(package) for package in _PACKAGES):
        raise MissingExtra("running a model", "engine")
    path = model_path(model)
    if model is None or path.is_dir():
        return path
    if path.exists():
        instead = instead_of(path)
        hint = "" if instead is None else f"; {instead}"
        raise ImpossibleSetting(f"{model!r} is a file; a model that runs is {_LAYOUT}{hint}")
    refuse_hub_id(model)

    from moesaic.model_info.model_zoo import known_models

    if model.lower() in known_models():
        raise ImpossibleSetting(
            f"{model} is known, but running it needs its weights: give {_LAYOUT}. Without weights, "
            f"`moesaic plan {model}` says what it would need, and `moesaic bench --synthetic "
            f"{model}` measures it with random ones"
        )
    if _reads_like_a_prompt(model):
        raise ImpossibleSetting(
            f"{model!r} stands where the model's directory is named: to ask it, write "
            f"`moesaic run -p {shlex.quote(model)}`"
        )
    raise ImpossibleSetting(
        f"there is no directory {model!r}; a model that runs is {_LAYOUT}, or {NAME}, which is "
        "what runs where none is named"
    )


def _reads_like_a_prompt(model: str) -> bool:
    return len(model.split()) > 1 or model.endswith(("?", "!", "."))
