"""Prefetching: which experts of later layers to bring while the link is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names and summaries must cost no numpy: `--help` reads them
    from moesaic.policies.prefetch.base import Prefetch

prefetches: Registry[Prefetch] = Registry("prefetch")
_HERE = "moesaic.policies.prefetch"

prefetches.register("none", f"{_HERE}.none:NoPrefetch", "only what a layer demands is moved")
prefetches.register(
    "next-layer",
    f"{_HERE}.next_layer:NextLayer",
    "the predicted experts of the next layer, likeliest first",
)
prefetches.register(
    "impact",
    f"{_HERE}.impact:Impact",
    "HybriMoE: the experts of the next three layers whose presence shortens a layer most",
)
prefetches.register(
    "oracle",
    f"{_HERE}.oracle:OraclePrefetch",
    "impact with perfect foresight: a bound",
)
