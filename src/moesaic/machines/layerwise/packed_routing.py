"""Routing from the device to the host in one copy: experts, weights, ranks and scores as fp32 in
one array, which numbers of experts fit exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.routing import LayerRouting
from moesaic.machines.real.routing_adapter import RoutingAdapter, ranked_experts
from moesaic.machines.real.streams import Mark, Streams
from moesaic.models.experts.expert_service import RoutedTokens
from moesaic.models.experts.gate_bank import GateBank


class _Download(NamedTuple):
    layer: int
    top_k: int
    ranks: int
    values: torch.Tensor  # [tokens, 2 * top_k + 2 * ranks]
    arrived: Mark


class PackedRoutingAdapter(RoutingAdapter):
    """`send` submits the copy, so that other work can follow it on the device; `routing` waits for
    it. Weights are always there: the CPU's experts need them."""

    def __init__(self, ranks: int, streams: Streams, gates: GateBank | None = None) -> None:
        super().__init__(ranks, gates)
        self._streams = streams
        self._sent: _Download | None = None

    def send(self, routed: RoutedTokens) -> None:
        choice = routed.choice
        parts = [choice.experts, choice.weights]
        if self._ranks:
            parts += ranked_experts(choice, self._ranks)
        packed = torch.cat([part.to(torch.float32) for part in parts], dim=1)
        top_k = choice.experts.shape[1]
        self._sent = _Download(routed.layer, top_k, self._ranks, *self._streams.download(packed))

    def routing(self, routed: RoutedTokens, step: int = 0) -> LayerRouting:
        sent = self._sent
        assert sent is not None, "send it first"
        assert sent.layer == routed.layer, "another layer was sent"
        self._sent = None
        sent.arrived.wait()
        values: NDArray[np.float32] = sent.values.numpy()
        ends = np.cumsum((sent.top_k, sent.top_k, sent.ranks))
        experts, weights, ranked, scores = (
            np.ascontiguousarray(part) for part in np.split(values, ends, axis=1)
        )
        chosen = experts.astype(np.int64)
        if not sent.ranks:
            ranked, scores = experts, weights
        counts = None
        if routed.choice.counts is not None:
            counts = (chosen >= 0).sum(axis=1)
        return LayerRouting(
            sent.layer, chosen, weights, ranked.astype(np.int64), scores, (), counts, step
        )
