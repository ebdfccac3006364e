"""What `run` and `chat` mean, where nothing else is said, when the bundled model answers.

It was taught to answer questions, and is so small that a sampled token easily spoils a
calculation: a prompt is put to it as a question, and the likeliest tokens are taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moesaic.models.bundled_model import is_bundled

_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")  # any of these asks for sampling


def with_bundled_defaults(asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options, completed where `folder` is the bundled model's."""
    whole = dict(asked)
    if not is_bundled(folder):
        return whole
    if whole.get("chat") is None:
        whole["chat"] = whole.get("prompt_ids") is None
    if all(whole[name] is None for name in _DRAWING):
        whole["temperature"] = 0.0
    return whole
