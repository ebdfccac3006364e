"""Known systems as combinations of policies: what each does, in this project's words."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.errors import UnknownName


@dataclass(frozen=True, slots=True)
class System:
    """Policy names; `promote` and `per_layer` as in Brain. `prefill_schedule` where a system
    works differently on prompts."""

    summary: str
    schedule: str
    cache: str
    prefetch: str
    promote: bool = True
    per_layer: bool = True
    prefill_schedule: str | None = None

    def schedule_for(self, phase: str) -> str:
        if phase == "prefill" and self.prefill_schedule is not None:
            return self.prefill_schedule
        return self.schedule


SYSTEMS: dict[str, System] = {
    "moesaic": System(
        "Moesaic's own choice: the best split, scores at two speeds, impact-driven prefetching",
        "best-split",
        "two-speed",
        "impact",
    ),
    "hybrimoe": System(
        "HybriMoE: hybrid scheduling, impact-driven prefetching, score-aware caching",
        "hybrid",
        "mrs",
        "impact",
    ),
    "ktransformers": System(
        "kTransformers: the most used experts stay on the GPU; the rest run on the CPU in decode, "
        "are loaded on demand in prefill (HybriMoE Table I)",
        "static-experts",
        "pinned",
        "none",
        prefill_schedule="gpu-only",
    ),
    "llama.cpp": System(
        "llama.cpp: whole layers on one device", "static-layers", "pinned", "none", per_layer=False
    ),
    "adapmoe": System(
        "AdapMoE: GPU only, prefetching the next layer's experts into an LRU cache",
        "gpu-only",
        "lru",
        "next-layer",
    ),
    "fiddler": System(
        "Fiddler: a static cache; a missing expert runs on the CPU when that is cheaper",
        "threshold",
        "pinned",
        "none",
    ),
}


def load_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownName("system", name, SYSTEMS)
    return SYSTEMS[name]
