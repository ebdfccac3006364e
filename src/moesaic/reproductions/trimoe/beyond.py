"""Past the paper: layouts optimised with the schedule, striped copies, experts split over units,
and a near-exact schedule, by the makespan model with static layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moesaic.policies.tri.costs import TriCosts
from moesaic.policies.tri.exact import free_layout_bound
from moesaic.policies.tri.fast import KICKS, ROUNDS, balanced
from moesaic.policies.tri.joint import joint_layout, with_copies, with_splits
from moesaic.policies.tri.layer import Places, makespan, options_of
from moesaic.policies.tri.layout import offline_layout
from moesaic.policies.tri.refine import REFINE, trimoe
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, plain
from moesaic.reproductions.trimoe.replayed import costs_of
from moesaic.reproductions.trimoe.runs import CACHE_RATIO, Run, Workload, routed
from moesaic.reproductions.trimoe.sources import Ints, loads_of

LAYERS, STEPS = 2, 6
EVERY = 1 << 30
WRONG = 0.22
SCHEDULES = ("trimoe", "tri-balanced")
LAYOUTS = {
    "offline": "the paper's cut by expected load",
    "joint": "improved together with the schedule",
    "copies-16": "joint, the 16 most used localized experts also striped",
    "copies-all": "joint, all localized experts also striped",
    "split-16-over-2": "joint, the 16 most used localized experts over 2 units each",
    "split-all-over-16": "joint, all localized experts over all units",
}
GATHER_BYTES = 4  # inputs there and partial results back, 2 bytes each per hidden value


@dataclass(frozen=True, slots=True)
class Layouts:
    """Milliseconds per layer by (layout, schedule), and "bound": no layout without splits is
    faster. `wrong`: this share of the experts lies in each other's places."""

    work: Workload
    rule: str
    wrong: float

    @property
    def group(self) -> object:
        return self.work

    def execute(self) -> dict[tuple[str, str], float]:
        costs, _ = costs_of(Run(self.work, paper.OURS, self.rule))
        spec = self.work.spec()
        host_gb_s = spec.expert_bytes("bf16") / costs.localized_ns
        costs = costs._replace(gather_ns=GATHER_BYTES * spec.hidden_size / host_gb_s)
        profile, played = routed(self.work)
        steps = [loads_of(choices, spec.num_experts) for choices in played[:STEPS]]
        found: dict[tuple[str, str], list[float]] = {}
        for layer in range(LAYERS):
            made = variants(costs, np.ascontiguousarray(profile[:, layer]), spec.num_experts)
            for name, layout in made.items():
                used = shuffled(layout, self.wrong, layer) if self.wrong else layout
                for step in steps:
                    for schedule, ns in _scheduled(costs, used, step[layer]).items():
                        found.setdefault((name, schedule), []).append(ns)
            slots = round(CACHE_RATIO * spec.num_experts)
            for step in steps:
                active = step[layer][step[layer] > 0]
                bound = free_layout_bound(costs, active, slots)
                found.setdefault(("bound", "bound"), []).append(bound)
        return {key: float(np.mean(values)) / 1e6 for key, values in found.items()}


def variants(costs: TriCosts, loads: Ints, experts: int) -> dict[str, Places]:
    slots = round(CACHE_RATIO * experts)
    joint = joint_layout(costs, loads, slots)
    return {
        "offline": offline_layout(costs, loads, slots),
        "joint": joint,
        "copies-16": with_copies(joint, loads, 16),
        "copies-all": with_copies(joint, loads, EVERY),
        "split-16-over-2": with_splits(joint, loads, 16, 2, costs.dimms),
        "split-all-over-16": with_splits(joint, loads, EVERY, costs.dimms, costs.dimms),
    }


def shuffled(layout: Places, share: float, seed: int) -> Places:
    """The same with this share of the experts in each other's places: a layout that is wrong."""
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(layout.dimm))[: round(share * len(layout.dimm))]
    other = rng.permutation(wrong)
    changed = layout.copy()
    for array, kept in zip(changed, layout, strict=True):
        array[wrong] = kept[other]
    return changed


def _scheduled(costs: TriCosts, layout: Places, loads: Ints) -> dict[str, float]:
    options = options_of(costs, layout.active(costs, loads)[1])
    return {
        "trimoe": makespan(options, trimoe(options, REFINE)),
        "tri-balanced": balanced(options, ROUNDS, KICKS)[1],
    }


def wanted() -> Iterator[Claim]:
    for model in paper.MODELS:
        for wrong in (0.0, WRONG):
            yield from _of(Layouts(Workload(model, 512), "own-share", wrong))


def _of(item: Layouts) -> Iterator[Claim]:
    state = "wrong" if item.wrong else "right"
    for layout, words in LAYOUTS.items():
        for schedule in SCHEDULES:

            def value(done: Done, key: tuple[str, str] = (layout, schedule)) -> float:
                return float(done[item][key] / done[item]["bound", "bound"])

            claim = f"MoE layer over the bound of any layout: {words}, {schedule}, layout {state}"
            text = f"makespan model, static layout with {item.wrong:.0%} of experts exchanged, "
            text += f"contention {item.rule}, {LAYERS} layers x {STEPS} steps, batch "
            text += f"{item.work.batch}, {item.work.words}"
            name = f"beyond/{item.work.model}/{state}/{layout}/{schedule}"
            yield plain(name, claim, None, "x", text, (item,), value)
