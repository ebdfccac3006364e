"""Layers of the three models of TriMoE's Table 2 for the benchmarks of three-device scheduling.

Loads are synthetic, with the skew of TriMoE's Fig. 3 and a popularity that drifts. A layout is made
from the steps before; a wrong one has 22 % of its experts in each other's places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moesaic.policies.tri.costs import TriCosts
from moesaic.policies.tri.layer import Ints
from moesaic.policies.tri.layout import Layout, offline_layout, shuffled
from moesaic.policies.tri.rooflines import TABLE_1, ExpertSize, costs_from_rates
from moesaic.workloads.synthetic.expert_loads import LoadProcess

BATCHES = (32, 64, 128, 256, 512, 768)
WRONG = (0.0, 0.22)
PROFILE_STEPS = 32
RESIDENT = 1 / 12  # of the experts are in GPU memory: 35 GB of DeepSeek-V2 or Qwen3-235B


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    layers: int  # MoE layers
    experts: int
    top_k: int
    size: ExpertSize

    @property
    def slots(self) -> int:
        """Per layer."""
        return round(RESIDENT * self.experts)


MODELS = (
    Model("DeepSeek-V2", 59, 160, 6, ExpertSize(5120, 1536)),
    Model("Qwen3-235B-A22B", 94, 128, 8, ExpertSize(4096, 1536)),
    Model("GLM-4.5-Air", 45, 128, 8, ExpertSize(4096, 1408)),
)


@dataclass(frozen=True, slots=True)
class Case:
    model: Model
    batch: int
    wrong: float
    costs: TriCosts
    layout: Layout
    loads: Ints  # of the step to schedule


def cases(
    layers: int, contention: str = "own-share", shared: bool = True, seed: int = 0
) -> Iterator[Case]:
    for model in MODELS:
        for batch in BATCHES:
            costs = costs_from_rates(
                TABLE_1, model.size, batch, contention=contention, shared=shared
            )
            process = LoadProcess(layers, model.experts, model.top_k, batch, seed=seed + batch)
            loads = np.stack(list(process.steps(PROFILE_STEPS + 1)))
            for layer in range(layers):
                right = offline_layout(costs, loads[:-1, layer], model.slots)
                for wrong in WRONG:
                    layout = shuffled(right, wrong, seed + layer) if wrong else right
                    yield Case(model, batch, wrong, costs, layout, loads[-1, layer])
