"""What `run` and `chat` mean, where nothing else is said, when the bundled model answers.

It was taught to answer questions, and is so small that a sampled token easily spoils a
calculation: a prompt is put to it as a question, and the likeliest tokens are taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from moesaic.models.bundled_model import NAME, is_bundled

_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")  # any of these asks for sampling


def announce_bundled(folder: Path) -> None:
    """Say what the bundled model can and cannot do, where `folder` is its directory."""
    if is_bundled(folder):
        click.echo(
            f"{NAME} is a very small demonstration model: it solves grade-school word problems "
            "like those it was trained on, and hardly anything else; it has no general knowledge, "
            "does no bare arithmetic and mostly ignores earlier turns. For a real conversation "
            "name a model: moesaic chat MODEL",
            err=True,
        )


def with_bundled_defaults(asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options, completed where `folder` is the bundled model's."""
    whole = dict(asked)
    if not is_bundled(folder):
        return whole
    if whole.get("chat") is None:
        whole["chat"] = not whole.get("prompt_ids")
    if all(whole[name] is None for name in _DRAWING):
        whole["temperature"] = 0.0
    return whole
