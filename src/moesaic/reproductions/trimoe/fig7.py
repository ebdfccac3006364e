"""Figure 7: throughput from prompt to last token. Prompts are computed by the GPU in every system:
a layer takes as long as loading all its experts over PCIe or computing them, whichever is longer.
The paper names neither prompt nor output lengths; these are assumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from moesaic.core.offloading import GPU
from moesaic.core.step import Step
from moesaic.hardware.machine_reader import load_machine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import Outcome, Run, Workload
from moesaic.reproductions.trimoe.sources import FIG_3

PROMPT = 512
OUTPUTS = (32, 128, 512)


@dataclass(frozen=True, slots=True)
class Whole:
    """Times of the whole model that do not depend on the system: seconds of the prompts of a
    batch, and of one decode step's head and layers without experts."""

    model: str
    batch: int

    @property
    def group(self) -> object:
        return self

    def execute(self) -> tuple[float, float]:
        model = load_model(self.model)
        physics = Physics(load_machine(paper.MACHINE), model)
        step = Step.of((PROMPT, 0) for _ in range(self.batch))
        tokens = -(-step.tokens * model.top_k // model.num_experts)  # all experts alike
        experts = max(
            model.num_experts * physics.transfer_ns,
            model.num_experts * physics.expert_ns(GPU, tokens),
        )
        around = physics.attention_ns(GPU, step) + physics.shared_ns(GPU, step.tokens)
        dense = model.num_layers - model.num_moe_layers
        prefill = model.num_moe_layers * (experts + around)
        prefill += dense * physics.dense_layer_ns(GPU, step) + physics.head_ns(self.batch)
        decode = Step.decode(self.batch, PROMPT)
        rest = dense * physics.dense_layer_ns(GPU, decode) + physics.head_ns(self.batch)
        return prefill / 1e9, rest / 1e9


def seconds(whole: tuple[float, float], layers: int, found: Outcome, tokens: int) -> float:
    """The time from the prompts to the last of `tokens` tokens of every sequence."""
    step = layers * (found.layer_ms + found.window_ms) / 1e3 + whole[1]
    return whole[0] + tokens * step


def gain(done: Done, cell: Cell, tokens: int) -> float:
    """Throughput over the best baseline's."""
    work = cell.run.work
    whole = done[Whole(work.model, work.batch)]
    layers = load_model(work.model).num_moe_layers
    times = {run: seconds(whole, layers, outcome(done, run), tokens) for run in cell.items}
    return min(times[run] for run in cell.baselines) / times[cell.run]


def wanted() -> Iterator[Claim]:
    for rule, (model, title) in product(paper.RULES, paper.MODELS.items()):
        every = [
            Cell.of(Run(Workload(model, batch, data), paper.OURS, rule))
            for data, batch in product(FIG_3, paper.BATCHES)
        ]
        for tokens in (None, *OUTPUTS):
            yield _row(model, title, rule, every, tokens)


def _row(model: str, title: str, rule: str, cells: list[Cell], tokens: int | None) -> Claim:
    length = "average" if tokens is None else str(tokens)
    name = f"fig7/{model}/{length}@{rule}"
    stated = paper.END_TO_END[model] if tokens is None else None

    def row(done: Done) -> Row:
        lengths = OUTPUTS if tokens is None else (tokens,)
        gains = [gain(done, cell, each) for cell in cells for each in lengths]
        whole, first = done[Whole(model, cells[0].run.work.batch)], outcome(done, cells[0].run)
        layers = load_model(model).num_moe_layers
        decode = 1 - whole[0] / seconds(whole, layers, first, lengths[-1])
        claim = f"TriMoE's throughput over the best baseline's, {title}, {length} output tokens"
        text = (
            f"mean of {len(gains)} from {min(gains):.2f} to {max(gains):.2f}; prompts of {PROMPT}"
        )
        text += f" on the GPU, outputs of {', '.join(map(str, lengths))} (assumed); decode is "
        text += f"{decode:.0%} of the time of the first with {lengths[-1]}; {cells[0].run.words}"
        return Row(name, claim, stated, fmean(gains), "x", text, again(name))

    runs = [run for cell in cells for run in cell.items]
    wholes = [Whole(model, batch) for batch in paper.BATCHES]
    return Claim(name, (*runs, *wholes), row)
