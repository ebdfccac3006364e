"""Section 5.5: small batches, what migration costs, and how good the predictor is.

Its accuracy is measured in two ways, since the paper's 78 % is not defined. An expert's class is
hot, warm or cold by its rank among the layer's loads: the first `hot` are hot, the next `warm`
warm. `class_accuracy`: of the experts predicted hot or warm, the share whose class is the predicted
one in the next step (most experts are cold, and counting those would flatter). `decision_accuracy`:
of the predictions that contradict the present layout and so would cause a migration, the share that
the next step confirms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.step import Step
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.what_if import changed
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.tri.predictor import LoadPredictor
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, outcome, over_best, plain
from moesaic.reproductions.trimoe.runs import (
    CACHE_RATIO,
    CONTEXT,
    MAKESPAN,
    Run,
    Workload,
    routed,
)
from moesaic.reproductions.trimoe.simulated import step_of
from moesaic.reproductions.trimoe.sources import loads_of

HOT, WARM, COLD = 0, 1, 2  # classes
WARM_SHARE = 0.25  # of the experts, next in load to the hot ones
ACCURACIES = {
    "class": "of the experts predicted hot or warm (1 in 12 and the next quarter by load), the "
    "share that has that class in the step",
    "decision": "of the predictions that contradict the class an expert had in the profile, the "
    "share that the step confirms",
}
LINKS = (1, 2)


def classes(loads: NDArray[np.number], hot: int, warm: int) -> NDArray[np.int64]:
    """The class of each of one layer's experts, by rank; the lower number first among equals."""
    found = np.full(len(loads), COLD, dtype=np.int64)
    order = np.argsort(-loads, kind="stable")
    found[order[:hot]] = HOT
    found[order[hot : hot + warm]] = WARM
    return found


def class_accuracy(
    predicted: NDArray[np.number], actual: NDArray[np.number], hot: int, warm: int
) -> float:
    said, was = classes(predicted, hot, warm), classes(actual, hot, warm)
    asked = said != COLD
    return float((said == was)[asked].mean()) if asked.any() else 1.0


def decision_accuracy(
    predicted: NDArray[np.number],
    actual: NDArray[np.number],
    layout: NDArray[np.integer],
    hot: int,
    warm: int,
) -> tuple[int, int]:
    """`layout[expert]` is the class whose place an expert has: decisions, and right ones."""
    said, was = classes(predicted, hot, warm), classes(actual, hot, warm)
    changed = said != layout
    return int(changed.sum()), int((said == was)[changed].sum())


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of equation 8's predictor, by definition; its memory is `predictor_kb`."""

    work: Workload
    alpha: float = paper.ALPHA

    @property
    def group(self) -> object:
        return self.work

    def execute(self) -> dict[str, float]:
        profile, played = routed(self.work)
        layers, experts = profile.shape[1:]
        hot, warm = round(CACHE_RATIO * experts), round(WARM_SHARE * experts)
        predictor = LoadPredictor(layers, experts, self.alpha)
        known = profile.mean(axis=0)
        predictor.start(known)
        right, decided, confirmed = [], 0, 0
        for choices in played:
            loads = loads_of(choices, experts)
            for layer, row in enumerate(loads):
                said = predictor.loads[layer]
                right.append(class_accuracy(said, row, hot, warm))
                made = decision_accuracy(said, row, classes(known[layer], hot, warm), hot, warm)
                decided, confirmed = decided + made[0], confirmed + made[1]
                predictor.observe(layer, row)
        return {"class": float(np.mean(right)), "decision": confirmed / max(decided, 1)}


@dataclass(frozen=True, slots=True)
class FourMoves:
    """Milliseconds until four experts of a layer have become localized, each in another DIMM."""

    links: int
    model: str = paper.QWEN

    @property
    def group(self) -> object:
        return self

    def execute(self) -> float:
        work = Workload(self.model, 1)
        spec = changed(load_machine(paper.MACHINE), {"dimm_link.links": self.links})
        machine = SimMachine(Physics(spec, work.spec()), 4)
        machine.fill_main_memory()
        place = machine.topology.placement
        moves = tuple(
            Move(1, expert, destination=place(f"whole@dimm{4 * expert}"), leaves=True)
            for expert in range(4)
        )
        choices = np.zeros((work.layers, 1, 1), dtype=np.int64)
        routing = step_of(choices)
        machine.begin(routing.step, routing.layer)
        machine.route(0)
        start = machine.clock.now
        machine.run(LayerPlan(0, {CPU: (0,)}, (), moves))
        while machine.moves.under_way:
            machine.clock.step()
        return (machine.clock.now - start) / 1e6


def wanted() -> Iterator[Claim]:
    yield from _small_batches()
    yield from _migration()
    yield from _predictor()


def _small_batches() -> Iterator[Claim]:
    for rule, (batch, stated) in product(paper.RULES, paper.SMALL_BATCHES.items()):
        for data in ("chat", "steady"):
            work = Workload(paper.QWEN, batch, data)
            for system in (paper.OURS, paper.BEYOND):
                name = f"sec5.5/batch-{batch}/{data}/{system}@{rule}"
                claim = f"{system} over the best baseline, Qwen3-235B-A22B, batch {batch}"
                known = stated if system == paper.OURS else None
                yield over_best(name, claim, known, [Cell.of(Run(work, system, rule))])


def _migration() -> Iterator[Claim]:
    for links in LINKS:
        item = FourMoves(links)

        def taken(done: Done, item: FourMoves = item) -> float:
            return float(done[item])

        text = f"simulated on {paper.MACHINE}: four striped experts of Qwen3-235B-A22B become "
        text += f"localized in four DIMMs at once, {links} x 25 GB/s per DIMM"
        claim = "time to migrate four experts"
        name = f"sec5.5/four-experts/links={links}"
        yield plain(name, claim, paper.FOUR_EXPERTS_MS, "ms", text, (item,), taken)
    for batch in paper.BATCHES:

        def window(done: Done, batch: int = batch) -> float:
            physics = Physics(load_machine(paper.MACHINE), load_model(paper.QWEN))
            step = Step.decode(batch, CONTEXT)
            return (physics.attention_ns(GPU, step) + physics.shared_ns(GPU, batch)) / 1e6

        text = f"physics of {paper.MACHINE}: attention of Qwen3-235B-A22B, batch {batch}, "
        text += f"context {CONTEXT}, KV cache in GPU memory"
        claim = "window of GPU computation that hides migration"
        yield plain(f"sec5.5/window/{batch}", claim, paper.WINDOW_MS, "ms", text, (), window)
    for rule, model in product(paper.RULES, paper.MODELS):
        run = Run(Workload(model, 512), paper.OURS, rule, MAKESPAN)

        def overhead(done: Done, run: Run = run) -> float:
            return outcome(done, run).overhead

        text = "share of the MoE layers' time that disappears if moves still under way occupy "
        text += f"neither PCIe nor DIMMs; {run.words}"
        claim = "overhead of online migration (the paper: below)"
        name = f"sec5.5/migration-overhead/{model}@{rule}"
        stated = paper.MIGRATION_OVERHEAD
        yield plain(name, claim, stated, "share", text, (run,), overhead)


def _predictor() -> Iterator[Claim]:
    works = [Workload(paper.QWEN, batch) for batch in (*paper.SMALL_BATCHES, *paper.BATCHES)]
    works += [Workload(model, 512, data) for model in paper.MODELS for data in ("code", "steady")]
    for work in works:
        yield from accuracies(work, f"sec5.5/predictor/{work.model}/{work.data}/{work.batch}")

    def kilobytes(done: Done) -> float:
        model = load_model("deepseek-v2")
        return LoadPredictor(model.num_moe_layers, model.num_experts).num_bytes / 1e3

    claim = "memory of the predictor, DeepSeek-V2"
    text = "one 4-byte average for each of 59 x 160 experts"
    yield plain("sec5.5/predictor-kb", claim, paper.PREDICTOR_KB, "kB", text, (), kilobytes)


def accuracies(work: Workload, prefix: str, traces: str | None = None) -> Iterator[Claim]:
    item = Accuracy(work)
    for name, words in ACCURACIES.items():

        def value(done: Done, name: str = name) -> float:
            return float(done[item][name])

        claim = f"predictor accuracy ({name}), {work.model}, batch {work.batch} (the paper: above)"
        text = f"{words}; alpha {item.alpha}, {work.words}"
        stated = paper.PREDICTOR_ACCURACY
        yield plain(f"{prefix}/{name}", claim, stated, "share", text, (item,), value, traces)
