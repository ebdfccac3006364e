"""The small synthetic traces that come with the package, for the demo and the tests."""

from __future__ import annotations

from pathlib import Path

_FILES = {"deepseek-v2-lite": "deepseek-v2-lite-synthetic.moet"}


def bundled_trace(model_name: str) -> Path | None:
    """The bundled trace of this model, or None where there is none."""
    name = _FILES.get(model_name.lower().rsplit("/", 1)[-1])
    return None if name is None else Path(__file__).parent / "data" / name
