"""The initial placement: which experts are in GPU memory before the first step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import UnknownName
from moesaic.core.routing import ExpertId
from moesaic.policies.policy_set import AUTO_FILL, FILLS


def initial_placement(
    fill: str, counts: NDArray[np.int64], slots: int, per_layer: bool
) -> list[ExpertId]:
    """`counts[l, e]` are the uses in the profile."""
    layers, experts = counts.shape
    if fill == "empty":
        return []
    if fill == "layers":
        whole = slots // experts
        return [ExpertId(layer, e) for layer in range(whole) for e in range(experts)]
    if fill == "last-layers":
        first = layers - slots // experts
        return [ExpertId(layer, e) for layer in range(first, layers) for e in range(experts)]
    if fill != "popular":
        raise UnknownName("fill", fill, FILLS.keys() - {AUTO_FILL})
    if not per_layer:
        order = np.argsort(-counts.ravel(), kind="stable")[:slots]
        return [ExpertId(*divmod(int(i), experts)) for i in order]
    placed = []
    for layer in range(layers):
        quota = slots // layers + (layer < slots % layers)
        order = np.argsort(-counts[layer], kind="stable")[:quota]
        placed += [ExpertId(layer, int(e)) for e in order]
    return placed
