"""From notes of a step to facts about its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from moesaic.core.offloading import CPU
from moesaic.core.report import LayerReport
from moesaic.engine.insight.facts import ExpertFacts, LayerFacts, Place, PlannedLanes, Ran
from moesaic.engine.insight.step_log import NotedLayer, NotedStep, Planning
from moesaic.policies.belief import Belief
from moesaic.policies.timelines import ABSENT, NUM_LANES


class LayerWork(Protocol):
    """What a captured layer leaves; see `machines/captured/conductor.py`."""

    @property
    def gpu(self) -> Sequence[int]: ...
    @property
    def gpu_pairs(self) -> Sequence[int]: ...
    @property
    def in_place(self) -> Sequence[int]: ...
    @property
    def cpu(self) -> Sequence[int]: ...
    @property
    def cpu_pairs(self) -> Sequence[int]: ...
    @property
    def there(self) -> int: ...


class LayerStamps(Protocol):
    """Times of its GPU; see `machines/captured/stamps.py`."""

    @property
    def planned(self) -> int: ...
    @property
    def summed(self) -> int: ...


def layer_facts(step: NotedStep, belief: Belief, experts: int) -> list[LayerFacts]:
    """Of a step whose layers were noted, or of one that has left a trace."""
    if not step.layers:
        return list(_traced(step, belief, experts))
    return [
        _planned(note.planning, report)
        if note.planning is not None
        else _on_cpu(note, report, belief)
        for note, report in zip(step.layers, step.report.layers, strict=True)
    ]


def _layer(
    report: LayerReport,
    believed_ns: int | None,
    experts: list[ExpertFacts],
    lanes: PlannedLanes | None,
    measured_ns: int | None = None,
) -> LayerFacts:
    if measured_ns is None:
        measured_ns = report.end_ns - report.start_ns
    return LayerFacts(
        report.layer, measured_ns, believed_ns, report.active, report.hits, report.bytes_moved,
        report.cpu_ns, experts, lanes,
    )  # fmt: skip


def _planned(planning: Planning, report: LayerReport) -> LayerFacts:
    plan, table, lanes, costs = planning
    moved = {move.expert for move in plan.transfers}
    on_cpu = set(plan.queues.get(CPU, ()))
    experts = []
    for expert, load, ready in zip(*table.tolist(), strict=True):
        ran: Ran = "cpu" if expert in on_cpu else "link" if expert in moved else "gpu"
        place: Place = "host" if ready == ABSENT else "coming" if ready else "accelerator"
        gpu_ns, cpu_ns = costs[:, load].tolist()
        experts.append(ExpertFacts(expert, load, ran, place, max(ready, 0), gpu_ns, cpu_ns))
    return _layer(report, plan.believed_ns, experts, PlannedLanes(*lanes[:NUM_LANES]))


def _on_cpu(note: NotedLayer, report: LayerReport, belief: Belief) -> LayerFacts:
    """Nothing was decided. What the CPU takes is believed nevertheless."""
    numbers, loads = np.unique(note.chosen[note.chosen >= 0], return_counts=True)
    tokens = int(loads.max(initial=0))
    table = belief.covering(tokens).tables[1]
    experts = [
        ExpertFacts(expert, load, "cpu", "host", 0, None, int(table[load]))
        for expert, load in zip(numbers.tolist(), loads.tolist(), strict=True)
    ]
    experts.sort(key=lambda each: -each.tokens)
    believed = belief.cpu_first_ns + sum(each.cpu_ns or 0 for each in experts)
    return _layer(report, believed, experts, None)


def _traced(step: NotedStep, belief: Belief, experts: int) -> Iterator[LayerFacts]:
    """Of a captured step, whose brain is asked by native code: which device computed what, and
    which experts came over the link. The plan's own estimate is gone by then. What a layer took is
    the GPU's time: native code waits for it only where the CPU has experts, too."""
    work: Sequence[LayerWork] = getattr(step.trace, "work", ())
    stamps: Sequence[LayerStamps] = getattr(getattr(step.trace, "stamps", None), "layers", ())
    copies = getattr(step.trace, "copies", ())
    demanded = {copy.which for copy in copies if not copy.background}
    most = max([0, *(pairs for layer in work for pairs in (*layer.gpu_pairs, *layer.cpu_pairs))])
    known = belief.covering(most)
    lanes = PlannedLanes(0, 0, 0, known.cpu_first_ns, known.transfer_ns, 0)
    for report, layer, at in zip(step.report.layers, work, stamps, strict=True):
        first = report.layer * experts
        copied = {which - first for which in demanded if first <= which < first + experts}
        over_link = copied | set(layer.in_place)
        facts = [*_on_gpu(layer, over_link, known), *_beside(layer, known)]
        facts.sort(key=lambda each: -each.tokens)
        yield _layer(report, None, facts, lanes, at.summed - at.planned)


def _on_gpu(layer: LayerWork, over_link: set[int], belief: Belief) -> Iterator[ExpertFacts]:
    for at, (expert, tokens) in enumerate(zip(layer.gpu, layer.gpu_pairs, strict=True)):
        ran: Ran = "link" if expert in over_link else "gpu"
        place: Place = "host" if ran == "link" else "accelerator" if at < layer.there else "coming"
        yield ExpertFacts(expert, tokens, ran, place, 0, *_costs(belief, tokens))


def _beside(layer: LayerWork, belief: Belief) -> Iterator[ExpertFacts]:
    for expert, tokens in zip(layer.cpu, layer.cpu_pairs, strict=True):
        yield ExpertFacts(expert, tokens, "cpu", "unknown", 0, *_costs(belief, tokens))


def _costs(belief: Belief, tokens: int) -> tuple[int, int]:
    return int(belief.tables[0, tokens]), int(belief.tables[1, tokens])
