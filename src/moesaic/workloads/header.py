"""What a trace says about itself before its first token: the model's shape and where it comes from.

Knows nothing about bytes on disk (see `format`) nor about tokens (see `block`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from moesaic.core.errors import BadTrace
from moesaic.core.parsing import parse_json

REAL, SYNTHETIC, IMPORTED = "real", "synthetic", "imported"
ORIGINS = (REAL, SYNTHETIC, IMPORTED)
ORIGIN = "origin"  # in the metadata, where it is neither synthetic nor this package's recording
MAX_LAYERS = 4096
MAX_EXPERTS = 65536


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The shape every token of the trace has.

    `ranks` experts are stored per layer, best first; the first `top_k` are the chosen ones.
    Ranks beyond top-k are only worth storing with their scores, so `ranks > top_k` needs
    `has_scores`. Without weights, the scores of the chosen experts are their weights; without
    either, each weighs 1/top_k. With `has_counts`, tokens may use fewer than `top_k`: their first
    experts, and the ranks behind those are what the router would have chosen next. With
    `has_confidence`, tokens say how sure the model was of the one after them."""

    model: str
    num_layers: int  # MoE layers, counted from 0 as in `core.model`
    num_experts: int
    top_k: int
    ranks: int
    forecast_depth: int = 0  # how many later layers each layer's forecasts cover
    forecast_ranks: int = 0
    has_weights: bool = False
    has_scores: bool = False
    source: str = ""  # where the routing comes from, in words
    synthetic: bool = False
    seed: int | None = None  # of the generator, for synthetic traces
    metadata: Mapping[str, Any] = field(default_factory=dict)
    has_counts: bool = False
    has_confidence: bool = False

    @property
    def origin(self) -> str:
        """Made by a generator, recorded from a model, or imported from a source whose author does
        not say that it is real."""
        if self.synthetic:
            return SYNTHETIC
        return IMPORTED if self.metadata.get(ORIGIN) == IMPORTED else REAL

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert number on disk and in a block."""
        return 1 if self.num_experts <= 256 else 2

    def check(self, path: object) -> None:
        """Raise `BadTrace` naming the first field that makes no sense."""
        for name, low, high in (
            ("num_layers", 1, MAX_LAYERS),
            ("num_experts", 1, MAX_EXPERTS),
            ("top_k", 1, self.num_experts),
            ("ranks", self.top_k, self.num_experts),
            ("forecast_depth", 0, self.num_layers),
            ("forecast_ranks", int(self.forecast_depth > 0), self.num_experts),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadTrace(path, name, f"must be from {low} to {high}, is {value}")
        if self.ranks > self.top_k and not self.has_scores:
            raise BadTrace(path, "has_scores", f"{self.ranks} ranks beyond top-k need scores")

    def to_json(self) -> str:
        """The same text for the same header, always."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes, path: object, version: int) -> TraceHeader:
        values = parse_json(text, BadTrace, path, "header", finite=True)
        if not isinstance(values, dict):
            raise BadTrace(path, "header", "must be a JSON object")
        header = TraceHeader(**_known_fields(values, path, version))
        header.check(path)
        return header


_SINCE = {"has_counts": 2, "has_confidence": 2}  # fields that earlier versions have not got


def _known_fields(values: dict[str, Any], path: object, version: int) -> dict[str, Any]:
    """Exactly the header fields of the version, each of its type."""
    there = [f for f in fields(TraceHeader) if _SINCE.get(f.name, 1) <= version]
    known = {f.name: str(f.type) for f in there}
    for name in values.keys() - known.keys():
        raise BadTrace(path, f"header field {name!r}", f"is unknown; known: {', '.join(known)}")
    for name, wanted in known.items():
        if name not in values:
            raise BadTrace(path, f"header field {name!r}", "is missing")
        if not _is_a(values[name], wanted):
            raise BadTrace(path, f"header field {name!r}", f"must be {wanted.split('[')[0]}")
    return values


def _is_a(value: object, wanted: str) -> bool:
    if wanted.startswith("Mapping"):
        return isinstance(value, dict)
    if value is None:
        return "None" in wanted
    plain = {"str": str, "int": int, "bool": bool}[wanted.split(" ", maxsplit=1)[0]]
    return type(value) is plain
