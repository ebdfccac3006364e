"""The MODEL of commands that need weights: a directory, a GGUF file, or a clear message why it
cannot be run."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.model_info.gguf.files import is_gguf
from moesaic.model_info.hub.hub_id import parse_hub_id
from moesaic.model_info.model_names import instead_of, missing_gguf, needs_owner
from moesaic.models.bundled_model import NAME, model_path

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings

_PACKAGES = ("torch", "tokenizers", "jinja2")  # of the engine extra

_LAYOUT = (
    "a directory with config.json and its safetensors files, as published on Hugging Face, or a "
    "GGUF file"
)


def model_folder(model: str | None, settings: EngineSettings | None = None) -> Path:
    """The folder of the model that was named, or of the bundled one; a GGUF file itself. One named
    by its id on the hub is fetched, if it can be run here with these settings."""
    if not all(find_spec(package) for package in _PACKAGES):
        raise MissingExtra("running a model", "engine")
    path = model_path(model)
    if model is None or path.is_dir() or is_gguf(path):
        return path
    if path.exists():
        instead = instead_of(path)
        hint = "" if instead is None else f"; {instead}"
        raise ImpossibleSetting(f"{model!r} is a file; a model that runs is {_LAYOUT}{hint}")
    if parse_hub_id(model) is not None:
        from moesaic.engine.fetching import local_model

        return local_model(model, settings, lambda line: click.echo(line, err=True))

    from moesaic.model_info.model_zoo import known_models

    if model.lower() in known_models():
        raise ImpossibleSetting(
            f"{model} is known, but running it needs its weights: give {_LAYOUT}. Without weights, "
            f"`moesaic plan {model}` says what it would need, and `moesaic bench --synthetic "
            f"{model}` measures it with random ones"
        )
    missing = missing_gguf(model)
    if missing is not None:
        raise ImpossibleSetting(missing)
    if _reads_like_a_prompt(model):
        raise ImpossibleSetting(
            f"{model!r} stands where the model's directory is named: to ask it, write "
            f"`moesaic run -p {shlex.quote(model)}`"
        )
    owner = needs_owner(model)
    needed = "" if owner is None else f", and {owner}"
    raise ImpossibleSetting(
        f"there is no directory {model!r}{needed}; a model that runs is {_LAYOUT}, its id there "
        f"(as in Qwen/Qwen3-30B-A3B), or {NAME}, which is what runs where none is named"
    )


def _reads_like_a_prompt(model: str) -> bool:
    return len(model.split()) > 1 or model.endswith(("?", "!", "."))
