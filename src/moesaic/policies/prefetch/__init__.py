"""Prefetching: which experts of later layers to bring while the link is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names, summaries and parameters must cost no numpy: `--help` reads them
    from moesaic.policies.prefetch.base import Prefetch

_HERE = "moesaic.policies.prefetch"
prefetches: Registry[Prefetch] = Registry("prefetch", contract=f"{_HERE}.base:Prefetch")
_LOOKAHEAD = Parameter("lookahead", int, 3, "how many layers ahead experts are valued", minimum=1)

_READ_AHEAD = Parameter(
    "read_ahead", int, 4, "experts of the next layer that idle CPU workers read into their caches",
    minimum=0, maximum=8,
)  # fmt: skip

prefetches.register("none", f"{_HERE}.next_layer:NoPrefetch", "only what a layer demands is moved")
prefetches.register(
    "next-layer",
    f"{_HERE}.next_layer:NextLayer",
    "the predicted experts of the next layer, likeliest first",
)
prefetches.register(
    "pre-gated",
    f"{_HERE}.next_layer:PreGated",
    "Pre-gated MoE: the next layer's experts, chosen one layer early by retrained gates",
)
prefetches.register(
    "impact",
    f"{_HERE}.impact:Impact",
    "HybriMoE: the experts of the next layers whose presence shortens a layer most",
    (_LOOKAHEAD, _READ_AHEAD),
)
prefetches.register(
    "oracle",
    f"{_HERE}.impact:OraclePrefetch",
    "impact with perfect foresight: a bound",
    (_LOOKAHEAD,),
)
