"""The demo's model: a toy that learns a page of text by heart, unless an earlier demo made it."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from moesaic.models.toy import Toy

_PAGE = "quality_text.txt"  # plain English of several kinds; `moesaic quality` reads it, too
_WORDS = """\
A model: {millions:.1f} million weights in {layers} layers of {experts} experts, {top_k} of them \
per token.
It is a toy: {origin}.
What it says means nothing. It is kept in {folder}.
"""


def new_toy(steps: int) -> Toy:
    from moesaic.models.toy import Toy

    return Toy((files("moesaic.cli") / "data" / _PAGE).read_text(encoding="utf-8"), steps)


def put_toy(toy: Toy, folder: Path) -> None:
    """Say what it is, and make it unless it is there already."""
    lesson = f"a page of {toy.page.words} words by heart"
    if toy.is_in(folder):
        _announce(toy, folder, f"an earlier demo taught it {lesson}")
        return
    _announce(toy, folder, f"it is made here and now, and learns {lesson} in half a minute or so")

    from moesaic.cli.output import progress

    with progress("training", toy.steps, quiet=not sys.stderr.isatty()) as advance:
        toy.make(folder, advance)


def _announce(toy: Toy, folder: Path, origin: str) -> None:
    spec = toy.spec
    click.echo(
        _WORDS.format(
            millions=spec.total_params / 1e6,
            layers=spec.num_layers,
            experts=spec.num_experts,
            top_k=spec.top_k,
            origin=origin,
            folder=folder,
        )
    )
