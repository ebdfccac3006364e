"""Known systems as combinations of policies: what each does, in this project's words."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.errors import UnknownName
from moesaic.policies.policy_set import PolicySet


@dataclass(frozen=True, slots=True)
class System:
    summary: str
    policies: PolicySet


# HybriMoE's cache as the paper describes it: one pool "across layers", and every miss is
# inserted. Its averaging coefficient is not stated; 0.3 comes nearest to its figure 9.
PAPER_MRS = "mrs:alpha=0.3,pool=global,admission=always"

SYSTEMS: dict[str, System] = {
    "moesaic": System(
        "Moesaic's own choice: the best split, scores at two speeds, impact-driven prefetching",
        PolicySet(),
    ),
    "hybrimoe": System(
        "HybriMoE: hybrid scheduling, impact-driven prefetching, score-aware caching",
        PolicySet.of(schedule="hybrid", cache=PAPER_MRS, prefetch="impact"),
    ),
    "ktransformers": System(
        "kTransformers: the most used experts stay on the GPU; the rest run on the CPU in decode, "
        "are loaded on demand in prefill (HybriMoE Table I)",
        PolicySet.of(
            schedule="static-experts", prefill_schedule="gpu-only", cache="pinned", prefetch="none"
        ),
    ),
    "llama.cpp": System(
        "llama.cpp: whole layers on one device",
        PolicySet.of(schedule="static-layers", cache="pinned:pool=global", prefetch="none"),
    ),
    "adapmoe": System(
        "AdapMoE: GPU only, prefetching the next layer's experts into an LRU cache",
        PolicySet.of(schedule="gpu-only", cache="lru", prefetch="next-layer"),
    ),
    "fiddler": System(
        "Fiddler: a static cache; a missing expert runs on the CPU when that is cheaper",
        PolicySet.of(schedule="threshold", cache="pinned", prefetch="none"),
    ),
}


def load_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownName("system", name, SYSTEMS)
    return SYSTEMS[name]
