"""Known systems as combinations of policies: what each does, in this project's words."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.errors import BadPolicy, UnknownName
from moesaic.core.plugins import load_installed
from moesaic.core.registering import registering_now
from moesaic.core.registry import OURS
from moesaic.policies.policy_set import PolicySet


@dataclass(frozen=True, slots=True)
class System:
    """`origin` as in `core.registry.Entry`."""

    summary: str
    policies: PolicySet
    origin: str = OURS


# HybriMoE's cache as the paper describes it: one pool "across layers", and every miss is
# inserted. Its averaging coefficient is not stated; 0.3 comes nearest to its figure 9.
PAPER_MRS = "mrs:alpha=0.3,pool=global,admission=always"
PAPER_IMPACT = "impact:read_ahead=0"  # it leaves the CPU's caches alone

# All systems of TriMoE's comparison predict loads in the same way and exchange hot experts in GPU
# memory by them; only TriMoE's own also change the layout of main memory.
PREFETCHING = "trimoe:relayout=false,rebalance=false"


def _three_devices(schedule: str, layout: str) -> PolicySet:
    """Prompts are computed by the GPU alone, as in the paper."""
    return PolicySet.of(
        schedule=schedule,
        prefill_schedule="gpu-only",
        cache="pinned",
        prefetch="none",
        layout=layout,
    )


SYSTEMS: dict[str, System] = {
    "moesaic": System(
        "Moesaic's own choice: the best split, learned-speed caching, impact-driven prefetching",
        PolicySet(),
    ),
    "hybrimoe": System(
        "HybriMoE: hybrid scheduling, impact-driven prefetching, score-aware caching",
        PolicySet.of(schedule="hybrid", cache=PAPER_MRS, prefetch=PAPER_IMPACT),
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
# For machines whose main memory is DIMMs that compute; they are compared where asked for by name.
NEAR_DATA_SYSTEMS: dict[str, System] = {
    "klotski": System(
        "Klotski: GPU only, hot experts prefetched, cold ones loaded behind their computation",
        _three_devices("klotski", f"{PREFETCHING},devices=gpu"),
    ),
    "enhanced-ktransformers": System(
        "kTransformers with prefetching and on-demand loading of hot experts (TriMoE's baseline)",
        _three_devices("enhanced-ktransformers", f"{PREFETCHING},devices=gpu-cpu"),
    ),
    "monde": System(
        "MoNDE: GPU and near-data units, weights or activations moved",
        _three_devices("monde", f"{PREFETCHING},devices=gpu-ndp"),
    ),
    "monde-localized": System(
        "MoNDE with every expert in one DIMM: without TriMoE's idea of striping some of them",
        _three_devices("monde", f"{PREFETCHING},offline=localized,devices=gpu-ndp"),
    ),
    "trimoe": System(
        "TriMoE: GPU, AMX CPU and near-data units; relayout and rebalancing by predicted load",
        _three_devices("trimoe", "trimoe"),
    ),
    "tri-balanced": System(
        "TriMoE's machine and moves, with a near-exact schedule and a jointly optimised layout",
        _three_devices("tri-balanced", "trimoe:offline=joint,margin=0.25"),
    ),
}
# Further ones for GPU and CPU; they are compared where asked for by name.
MORE_SYSTEMS: dict[str, System] = {
    "moesaic-lru": System(
        "the best split on an LRU cache; nothing is prefetched",
        PolicySet.of(schedule="best-split", cache="lru", prefetch="none"),
    ),
    "on-demand": System(
        "GPU only: missing experts are loaded into an LRU cache when they are needed",
        PolicySet.of(schedule="gpu-only", cache="lru", prefetch="none"),
    ),
    "n-cpu-moe": System(
        "llama.cpp --n-cpu-moe: attention on the GPU; the first layers' experts on the CPU, "
        "brought to the GPU for prompts",
        PolicySet.of(
            schedule="n-cpu-moe",
            prefill_schedule="gpu-only",
            cache="pinned:pool=global",
            prefetch="none",
            fill="last-layers",
        ),
    ),
}
EVERY_SYSTEM = {**SYSTEMS, **MORE_SYSTEMS, **NEAR_DATA_SYSTEMS}


def register_system(name: str, summary: str, policies: PolicySet) -> None:
    """A combination of policies under a name of its own, from a plugin or a script."""
    if name in EVERY_SYSTEM:
        taken = EVERY_SYSTEM[name].origin
        raise BadPolicy(f"system {name!r} is registered already, by {taken}: choose another name")
    by = registering_now()
    EVERY_SYSTEM[name] = System(summary, policies, "a script" if by is None else by.origin)
    if by is not None:
        by.undo.append(lambda: EVERY_SYSTEM.pop(name, None))


def load_system(name: str) -> System:
    """Installed plugins are imported when a name is not known without them."""
    if name not in EVERY_SYSTEM:
        problems = load_installed()
        if name not in EVERY_SYSTEM:
            raise UnknownName("system", name, EVERY_SYSTEM, problems)
    return EVERY_SYSTEM[name]
