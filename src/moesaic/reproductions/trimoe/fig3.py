"""Figure 3: which share of the tokens hot, warm and cold experts get.

By rank among a layer's loads in a step: the least used 70 % of the experts are cold, as many of the
most used as GPU memory holds (1 in 12) are hot, those between are warm. The paper gives no rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, plain
from moesaic.reproductions.trimoe.runs import CACHE_RATIO, Workload, routed
from moesaic.reproductions.trimoe.sources import FIG_3, REAL_SKEW, loads_of

CLASSES = ("hot", "warm", "cold")
DEFINITION = "cold: the least used 70% of a layer's experts in a step; hot: the most used 1 in 12"


@dataclass(frozen=True, slots=True)
class Shares:
    """Mean token shares by class over all steps and layers of a workload."""

    work: Workload

    @property
    def group(self) -> object:
        return self.work

    def execute(self) -> dict[str, float]:
        profile, played = routed(self.work)
        experts = profile.shape[2]
        loads = np.stack([loads_of(choices, experts) for choices in played])
        return token_shares(np.concatenate([profile, loads]))


def token_shares(loads: NDArray[np.integer]) -> dict[str, float]:
    """The shares of all tokens together, from loads [..., experts]."""
    ordered = np.sort(loads, axis=-1)
    experts = loads.shape[-1]
    cold, hot = round(paper.COLD_EXPERTS * experts), round(CACHE_RATIO * experts)
    total = ordered.sum()
    found = {"hot": ordered[..., experts - hot :].sum() / total if hot else 0.0}
    found["cold"] = ordered[..., :cold].sum() / total
    return {**{k: float(v) for k, v in found.items()}, "warm": float(1 - sum(found.values()))}


def wanted() -> Iterator[Claim]:
    works = [Workload(*each) for each in product(paper.MODELS, paper.BATCHES, FIG_3)]
    stated = {"cold": paper.COLD_TOKENS, "warm": paper.WARM_TOKENS, "hot": None}
    items = tuple(Shares(work) for work in works)
    for name in CLASSES:

        def mean(done: Done, name: str = name) -> float:
            return fmean(done[item][name] for item in items)

        text = f"mean of {len(items)}: 3 models, 2 synthetic data sets, 3 batches; {DEFINITION}"
        claim = f"share of tokens that {name} experts get"
        if name == "warm":
            claim += " (the paper: up to)"
        yield plain(f"fig3/average/{name}", claim, stated[name], "share", text, items, mean)
    others = product(paper.MODELS, (512,), (REAL_SKEW, "three-classes"))
    for work in (*works, *(Workload(*each) for each in others)):
        yield from shares_of(work, f"fig3/{work.model}/{work.data}/{work.batch}")


def shares_of(work: Workload, prefix: str, traces: str | None = None) -> Iterator[Claim]:
    item = Shares(work)
    for name in CLASSES:

        def value(done: Done, name: str = name) -> float:
            return float(done[item][name])

        text = f"{work.words}; {DEFINITION}"
        claim = f"share of tokens that {name} experts get, {work.model}, batch {work.batch}"
        yield plain(f"{prefix}/{name}", claim, None, "share", text, (item,), value, traces)
