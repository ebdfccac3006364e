"""The small traces that come with the package, and which model is studied where none is named."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "bundled"  # the word by which users ask for one
DEFAULT_MODEL = "moesaic-20m"

_RECORDED = {DEFAULT_MODEL: "moesaic-20m.moet"}  # made by benchmarks/record_routing.py
_SYNTHETIC = {"deepseek-v2-lite": "deepseek-v2-lite-synthetic.moet"}
_FOLDER = Path(__file__).parent / "data"


def bundled_trace(model_name: str) -> Path | None:
    """The bundled trace of this model, or None where there is none."""
    return _found({**_RECORDED, **_SYNTHETIC}, model_name)


def recorded_trace(model_name: str) -> Path | None:
    """The same, if it was recorded from the model itself: the default routing of its runs."""
    return _found(_RECORDED, model_name)


def _found(files: dict[str, str], model_name: str) -> Path | None:
    name = files.get(model_name.lower().rsplit("/", 1)[-1])
    path = None if name is None else _FOLDER / name
    return path if path is not None and path.is_file() else None  # some installations are stripped
