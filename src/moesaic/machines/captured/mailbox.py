"""Memory that GPU and conductor share: flags, hidden states and routing one way, the table and the
CPU's sum the other; what later layers would choose has a place for every layer. Pinned, so that
the GPU addresses it directly; every part in cache lines of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from moesaic.kernels.gpu.table import FLAG, TableShape

_LINE = 256  # bytes: what belongs to different writers stays apart
_FLAGS = ("start", "routed", "hidden_ready", "planned", "summed", "forecast_ready", "arrived")


@dataclass(frozen=True, slots=True)
class MailboxShape:
    """The shape for the largest batch. `layers` and `forecasts`: of how many layers there are, how
    many later ones are forecast, in steps of up to so many rows."""

    tokens: int
    hidden: int
    top_k: int
    experts: int
    ranks: int
    layers: int = 0
    forecasts: int = 0
    most_forecast_rows: int = 1 << 30

    @property
    def forecast_rows(self) -> int:
        return min(self.tokens, self.most_forecast_rows)

    @property
    def table(self) -> TableShape:
        return TableShape.of(self.tokens, self.top_k, self.experts)


class Mailbox:
    """Flags count layers from 1 (native/conductor/conductor.h); `start` lets a launch begin,
    `arrived` has the ticket of the last background copy that has ended."""

    def __init__(self, shape: MailboxShape, pinned: bool = True) -> None:
        self.shape = shape
        ahead = (shape.layers, shape.forecasts, shape.forecast_rows, shape.top_k)
        parts: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            **dict.fromkeys(_FLAGS, (torch.int32, (1,))),
            "hidden": (torch.bfloat16, (shape.tokens, shape.hidden)),
            "ids": (torch.int64, (shape.tokens, shape.top_k)),
            "weights": (torch.float32, (shape.tokens, shape.top_k)),
            "ranked": (torch.int64, (shape.tokens, shape.ranks)),
            "scores": (torch.float32, (shape.tokens, shape.ranks)),
            "table": (torch.int64, (shape.table.words,)),
            "sum": (torch.float32, (shape.tokens, shape.hidden)),
            "forecast_ids": (torch.int64, ahead),
            "forecast_scores": (torch.float32, ahead),
        }
        sizes = {name: _lines(prod(dims) * dtype.itemsize) for name, (dtype, dims) in parts.items()}
        self._memory = torch.zeros(sum(sizes.values()), dtype=torch.uint8, pin_memory=pinned)
        self._views: dict[str, torch.Tensor] = {}
        start = 0
        for name, (dtype, dims) in parts.items():
            used = self._memory[start : start + prod(dims) * dtype.itemsize]
            self._views[name] = used.view(dtype).view(dims)
            start += sizes[name]
        self["table"][FLAG] = self["arrived"].data_ptr()

    def __getitem__(self, part: str) -> torch.Tensor:
        return self._views[part]

    def addresses(self) -> dict[str, int]:
        return {name: view.data_ptr() for name, view in self._views.items()}


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
