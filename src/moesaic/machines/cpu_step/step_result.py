"""What a native decode step returns: logits, routing, times."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.machines.real.routing_adapter import ranked_experts
from moesaic.models.decoder import Decoder
from moesaic.models.experts.router import Choice

if TYPE_CHECKING:
    from moesaic.kernels import _native

_NO_SCORES = np.empty((0, 0), dtype=np.float32)
_ALIGNMENT = 64


class LayerTimes(NamedTuple):
    """When a routed layer's router began, and its experts began and ended, in ns."""

    routing: int
    computing: int
    ended: int


class ArrayPlace(NamedTuple):
    """One array of a result."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        size: int = self.dtype.itemsize
        return prod(self.shape) * size


class ResultLayout:
    """The layout of a result's arrays in one block of memory, without the logits, which are large.
    Between two steps nothing is in a cache: making a tensor of each took longer than some of the
    layers' phases."""

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        spec, self.bytes = decoder.architecture.spec, 0
        rows = (spec.num_moe_layers, tokens)
        self.logits, self.dtype = (tokens, spec.vocab_size), decoder.dtype
        self.ids = self._add((*rows, spec.top_k), torch.int64)
        self.weights = self._add((*rows, spec.top_k), torch.float32)
        self.scores = self._add((*rows, spec.num_experts), torch.float32)
        self.preference = self._add((*rows, spec.num_experts), torch.float32)
        self.times = self._add((spec.num_moe_layers, 3), torch.int64)

    def _add(self, shape: tuple[int, ...], dtype: torch.dtype) -> ArrayPlace:
        part = ArrayPlace(self.bytes, shape, dtype)
        self.bytes += -(-part.bytes // _ALIGNMENT) * _ALIGNMENT
        return part


class StepResult:
    """Arrays of one step; results of the next step are others. Those in the block become tensors
    when they are asked for."""

    def __init__(self, layout: ResultLayout) -> None:
        self._layout = layout
        self.logits = torch.empty(layout.logits, dtype=layout.dtype)
        self._memory = torch.empty(layout.bytes, dtype=torch.uint8)
        self.phase_times: torch.Tensor | None = None  # [phases, 2] ns, where they were asked for
        self.counts: torch.Tensor | None = None

    def write_addresses(self, call: _native.StepCall) -> None:
        at, layout = self._memory.data_ptr(), self._layout
        call.logits, call.ids = self.logits.data_ptr(), at + layout.ids.offset
        call.weights, call.times = at + layout.weights.offset, at + layout.times.offset
        call.scores = at + layout.scores.offset
        call.selection_scores = at + layout.preference.offset

    def _tensor(self, part: ArrayPlace) -> torch.Tensor:
        memory = self._memory[part.offset : part.offset + part.bytes]
        return memory.view(part.dtype).view(part.shape)

    @cached_property
    def ids(self) -> torch.Tensor:
        return self._tensor(self._layout.ids)

    @cached_property
    def weights(self) -> torch.Tensor:
        return self._tensor(self._layout.weights)

    @cached_property
    def scores(self) -> torch.Tensor:
        return self._tensor(self._layout.scores)

    @cached_property
    def preference(self) -> torch.Tensor:
        return self._tensor(self._layout.preference)

    @property
    def times(self) -> list[LayerTimes]:
        return [LayerTimes(*row) for row in self._tensor(self._layout.times).tolist()]

    def active(self) -> list[int]:
        """Experts with tokens, of every routed layer."""
        return [len(set(layer) - {UNUSED}) for layer in self.ids.flatten(1).tolist()]

    def routing(self, layer: int, ranks: int, step: int) -> LayerRouting:
        """The routing as the routing adapter makes it of a router's output."""
        experts, weights = self.ids[layer].numpy(), self.weights[layer].numpy()
        counts = None if self.counts is None else self.counts.numpy()
        if ranks == 0:
            return LayerRouting(layer, experts, _NO_SCORES, experts, _NO_SCORES, (), counts, step)
        choice = Choice(
            self.ids[layer], self.weights[layer], self.scores[layer], self.preference[layer],
            self.counts,
        )  # fmt: skip
        ranked, scores = ranked_experts(choice, ranks)
        return LayerRouting(
            layer, experts, weights, ranked.numpy(), scores.numpy(), (), counts, step
        )
