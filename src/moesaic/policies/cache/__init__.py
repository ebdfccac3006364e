"""Caches: which experts are kept in GPU memory, and which is evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names, summaries and parameters must cost no numpy: `--help` reads them
    from moesaic.policies.cache.base import Cache

PER_LAYER, GLOBAL = "per-layer", "global"
POOL = Parameter(
    "pool",
    str,
    PER_LAYER,
    "what competes for slots: each layer's experts for its own share of them, or all experts",
    choices=(PER_LAYER, GLOBAL),
)
BYPASS, ALWAYS = "bypass", "always"
ADMISSION = Parameter(
    "admission",
    str,
    BYPASS,
    "a missed expert takes a slot if it is worth more than the victim, or always",
    choices=(BYPASS, ALWAYS),
)
USED, RANKED = "used", "ranked"

_HERE = "moesaic.policies.cache"
caches: Registry[Cache] = Registry(
    "cache",
    shared=(POOL, ADMISSION),
    contract=f"{_HERE}.base:Cache",
    arguments=("layers", "experts", "top_k"),
)

caches.register(
    "lru",
    f"{_HERE}.classic:Lru",
    "evict the least recently used expert",
    (
        Parameter(
            "counts",
            str,
            USED,
            "what counts as used: what tokens used, or also the rest of top-k that a gate left out",
            choices=(USED, RANKED),
        ),
    ),
)
caches.register("lfu", f"{_HERE}.classic:Lfu", "evict the least frequently used expert")
caches.register(
    "mrs",
    f"{_HERE}.mrs:Mrs",
    "HybriMoE: evict the lowest running routing score (equation 3)",
    (
        Parameter(
            "alpha",
            float,
            0.1,
            "weight of the newest scores in the running one",
            above=0,
            maximum=1,
        ),
        Parameter(
            "top_p", int, None, "scores of a token that count; auto: twice its experts", minimum=1
        ),
    ),
)
caches.register(
    "two-speed",
    f"{_HERE}.two_speed:TwoSpeed",
    "running routing scores at a fast and a slow speed, averaged",
    (
        Parameter(
            "fast",
            float,
            0.2,
            "weight of the newest scores in the fast average",
            above=0,
            maximum=1,
        ),
        Parameter(
            "slow",
            float,
            0.01,
            "weight of the newest scores in the slow average",
            above=0,
            maximum=1,
        ),
    ),
)
caches.register(
    "learned-speed",
    f"{_HERE}.learned_speed:LearnedSpeed",
    "averages of routing at five speeds, weighed by how well each has forecast what was used",
    (
        Parameter(
            "lag",
            int,
            None,
            "steps for which a forecast is judged; auto: 8 where moves cost something, else 1",
            minimum=1,
            maximum=1000,
        ),
        Parameter(
            "followers",
            bool,
            False,
            "also forecast the experts that followed those of the last token so far",
        ),
    ),
)
caches.register(
    "learned-mixture",
    f"{_HERE}.learned_mixture:LearnedMixture",
    "averages at five speeds and what followed the last experts, mixed by what each has forecast",
    (
        Parameter(
            "lag",
            int,
            None,
            "steps for which a forecast is judged; auto: 8 where moves cost something, else 2",
            minimum=1,
            maximum=1000,
        ),
    ),
)
caches.register(
    "belady",
    f"{_HERE}.classic:Belady",
    "oracle bound: evict the expert whose next use is furthest away",
)
caches.register(
    "pinned",
    f"{_HERE}.classic:Pinned",
    "keep the initial placement for ever (kTransformers, llama.cpp)",
)
