"""Forecasts that a trace has recorded, into the mailbox of a step that replays it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.machines.captured.conductor import ForecastSource
from moesaic.machines.captured.mailbox import Mailbox


def write_recorded(
    mailbox: Mailbox, routings: Sequence[LayerRouting], depth: int
) -> ForecastSource:
    """Write routings of up to `depth` layers after each; none where the trace has none."""
    depth = min(depth, len(routings[0].forecasts))
    if not depth:
        return ForecastSource()
    ids, scores = (mailbox[f"forecast_{part}"].numpy() for part in ("ids", "scores"))
    for layer, routing in enumerate(routings):
        for d, forecast in enumerate(routing.forecasts[:depth]):
            tokens, ranks = forecast.ranked.shape
            ranks = min(ranks, ids.shape[-1])
            ids[layer, d, :tokens] = UNUSED
            ids[layer, d, :tokens, :ranks] = forecast.ranked[:, :ranks]
            scores[layer, d, :tokens, :ranks] = np.asarray(forecast.scores)[:, :ranks]
    return ForecastSource(depth, recorded=True)
