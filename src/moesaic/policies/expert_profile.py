"""What is known of a model's routing before a run: how often each expert was used, in a file that
runs leave to later ones.

The initial placement and the first values of caches are made of it, for systems with static and
with dynamic placement alike. A file has JSON with `format`, the model's `name`, `layers`,
`experts` and `top_k`, how many `tokens` were counted, and `counts`, one list of experts per
layer."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadPlacement, ImpossibleSetting
from moesaic.core.files import has_regular_file, whole_file
from moesaic.core.parsing import read_json
from moesaic.policies.shape import Shape

FORMAT = "moesaic-placement-1"
KEPT_TOKENS = 1 << 16  # a file is worth: what more tokens have shown is scaled down to so many
_HEADER = ("model", "layers", "experts", "top_k", "tokens")
_MOST = 1 << 40  # of any count in a file; more is damage


class ProfiledModel(NamedTuple):
    """The model whose experts were counted. One that routes to fewer experts per token is
    another."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True, eq=False)
class ExpertProfile:
    model: ProfiledModel
    tokens: int
    counts: NDArray[np.int64]  # uses, [layer, expert]

    def followed_by(self, later: ExpertProfile) -> ExpertProfile:
        """Both, the later one in full; where both have more than `KEPT_TOKENS`, the earlier one
        fades to what is left, so that a file follows a use that changes."""
        left = max(KEPT_TOKENS - later.tokens, 0)
        earlier = self._scaled(min(left / self.tokens, 1.0) if self.tokens else 0.0)
        tokens, counts = earlier.tokens + later.tokens, earlier.counts + later.counts
        both = ExpertProfile(self.model, tokens, counts)
        return both if tokens <= KEPT_TOKENS else both._scaled(KEPT_TOKENS / tokens)

    def _scaled(self, by: float) -> ExpertProfile:
        counts = np.rint(self.counts * by).astype(np.int64)
        return ExpertProfile(self.model, round(self.tokens * by), counts)

    def write(self, path: str | os.PathLike[str]) -> None:
        """The whole file or nothing: an interruption leaves the old one."""
        name, shape = self.model
        fields = {"format": FORMAT, "model": name, **shape._asdict(), "tokens": self.tokens}
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.counts.tolist())
        lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in fields.items()]
        with whole_file(path, "w") as stream:
            stream.write("\n".join(["{", *lines, ' "counts": [', f"{rows}]", "}", ""]))


def read_profile(path: str | os.PathLike[str], model: ProfiledModel) -> ExpertProfile:
    """Read this model's profile, or refuse in one line."""
    target = Path(path)
    if not has_regular_file(target, BadPlacement):
        raise ImpossibleSetting(
            f"placement {str(path)!r}: there is no such file; `moesaic run --placement FILE` "
            "writes one"
        )
    found = read_json(target, BadPlacement)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadPlacement(target, "format", f"expected {FORMAT!r}, as `--placement` writes it")
    _check_header(target, found, model)
    return ExpertProfile(model, found["tokens"], _counts(target, found.get("counts"), model.shape))


def read_if_there(path: str | os.PathLike[str], model: ProfiledModel) -> ExpertProfile | None:
    return read_profile(path, model) if has_regular_file(Path(path), BadPlacement) else None


def add_to_file(path: str | os.PathLike[str], learned: ExpertProfile) -> None:
    """Add to the file's present content: another run may have written it since this one began."""
    before = read_if_there(path, learned.model) or nothing_known(learned.model)
    before.followed_by(learned).write(path)


def nothing_known(model: ProfiledModel) -> ExpertProfile:
    shape = model.shape
    return ExpertProfile(model, 0, np.zeros((shape.layers, shape.experts), dtype=np.int64))


def _check_header(path: Path, found: dict[str, Any], model: ProfiledModel) -> None:
    missing = [name for name in _HEADER if name not in found]
    if missing:
        raise BadPlacement(path, missing[0], "this field is missing: the file is damaged")
    tokens = found["tokens"]
    if not _is_count(tokens):
        raise BadPlacement(path, "tokens", f"expected a number of tokens, found {tokens!r}")
    own = {"model": model.name, **model.shape._asdict()}
    theirs = {name: found[name] for name in own}
    if theirs != own:
        raise BadPlacement(
            path,
            "model",
            f"it is of {_words(theirs)}, and this is {_words(own)}: give each model a file of its "
            "own",
        )


def _words(model: dict[str, Any]) -> str:
    layers, experts, top_k = model["layers"], model["experts"], model["top_k"]
    return f"{model['model']} ({layers} MoE layers, {experts} experts, top-{top_k})"


def _counts(path: Path, rows: Any, shape: Shape) -> NDArray[np.int64]:
    whole = isinstance(rows, list) and len(rows) == shape.layers
    for row in rows if whole else ():
        whole &= isinstance(row, list) and len(row) == shape.experts and all(map(_is_count, row))
    if not whole:
        raise BadPlacement(
            path,
            "counts",
            f"expected {shape.layers} lists of {shape.experts} whole numbers: the file is damaged; "
            "remove it, and the next run begins a new one",
        )
    return np.array(rows, dtype=np.int64)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
