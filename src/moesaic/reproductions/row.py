"""One line of a reproduction."""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """`paper` is None where the paper shows a bar without a number; `ratio` is ours over the
    paper's, where that is not 0."""

    id: str
    claim: str
    paper: float | None
    ours: float
    unit: str
    conditions: str
    command: str

    @property
    def ratio(self) -> float | None:
        return self.ours / self.paper if self.paper else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "claim": self.claim,
            "paper": self.paper,
            "ours": self.ours,
            "unit": self.unit,
            "ratio": self.ratio,
            "conditions": self.conditions,
            "command": self.command,
        }
