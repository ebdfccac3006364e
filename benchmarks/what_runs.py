"""The README's tables of what runs, from the registries: `python -m benchmarks.what_runs`.

A family that is added, or a format, is in them after the next call; a test holds them together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.marked_page import put, table
from moesaic.core.files import whole_file
from moesaic.model_info.gguf.families import GGUF_FAMILIES
from moesaic.model_info.gguf.tensor_types import TYPES
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.model_info.quantization.read import METHODS
from moesaic.model_info.text_config import TEXT_MODELS
from moesaic.models.checkpoints.shard import DTYPES
from moesaic.models.configs.families import RUNNABLE

README = Path(__file__).parents[1] / "README.md"
ARCHITECTURES, FORMATS = "architectures", "formats"  # marks in the page


def updated(page: str) -> str:
    """The page with both tables as they should be."""
    return put(put(page, ARCHITECTURES, architectures()), FORMATS, weight_formats())


def architectures() -> str:
    """Those that run first; the others can be simulated."""
    known: dict[str, list[str]] = {}
    for name in known_models():
        known.setdefault(load_model(name).family, []).append(name)
    rows = [
        [
            _listed(f"`{name}`" for name in _model_types(family)),
            "yes" if family in RUNNABLE else "simulated only",
            _listed(f"`{name}`" for name in _in_gguf(family)),
            _listed(known.get(family, [])),
        ]
        for family in sorted(FAMILIES, key=lambda family: (family not in RUNNABLE, family))
    ]
    return table(["`model_type`", "runs", "in GGUF as", "known by name"], rows)


def weight_formats() -> str:
    rows = [
        ["safetensors", ", ".join(DTYPES)],
        *([f"safetensors, `{name}`", method.stored_as] for name, method in METHODS.items()),
        ["GGUF, one file or split", ", ".join(kind.name for kind in TYPES.values())],
    ]
    return table(["weights in", "stored as"], rows)


def _model_types(family: str) -> list[str]:
    """What config.json may say: of models that also see images, the name of the whole first."""
    whole = [name for name, text in TEXT_MODELS.items() if text == family]
    return [*whole, family]


def _in_gguf(family: str) -> list[str]:
    if family not in RUNNABLE:
        return []
    found = GGUF_FAMILIES.items()
    return [name for name, row in found if family in (row.model_type, *row.also)]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "–"


def main() -> int:
    page = README.read_text(encoding="utf-8")
    with whole_file(README, "w") as file:
        file.write(updated(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
