"""A run's state in one file, written whole: what it takes to go on as if nothing had happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import whole_file
from training.batches import DataPosition
from training.recipe import Recipe, recipe_of
from training.shards import Position

FILE = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Training itself draws nothing, so that the data's position is all there is of chance."""

    recipe: Recipe
    weights: dict[str, torch.Tensor]
    optimisers: list[Any] | None = None  # carried between machines, a run leaves them behind
    step: int = 0
    seconds: float = 0.0  # of training, evaluations and pauses not counted
    position: DataPosition = field(default_factory=DataPosition)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "recipe": self.recipe.as_dict(),
            "weights": self.weights,
            "optimisers": self.optimisers,
            **self.place(),
        }
        with whole_file(folder / FILE) as stream:
            torch.save(content, stream)

    def place(self) -> dict[str, Any]:
        """Where the run is, as JSON takes it."""
        return {"step": self.step, "seconds": self.seconds, "position": asdict(self.position)}


def position_of(fields: dict[str, Any]) -> DataPosition:
    return DataPosition(fields["prose_row"], Position(**fields["problems"]))


def has_checkpoint(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read_checkpoint(folder: Path) -> Checkpoint:
    path = folder / FILE
    if not path.is_file():
        raise BadCheckpoint(path, "file", "is not there: train first, or name another folder")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Checkpoint(
            recipe_of(content["recipe"]),
            content["weights"],
            content["optimisers"],
            content["step"],
            content["seconds"],
            position_of(content["position"]),
        )
    except (OSError, RuntimeError, UnpicklingError, EOFError, LookupError, TypeError) as error:
        what = str(error).split("\n")[0]
        raise BadCheckpoint(path, "file", f"cannot be read: {what}") from None
