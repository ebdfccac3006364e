"""A row to be: the runs it needs, and how it follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, pstdev
from typing import NamedTuple

from moesaic.reproductions.hybrimoe.runs import WINDOW, Outcome, Run, again
from moesaic.reproductions.row import Row

MACHINE = "a6000-xeon5220r"
IMPLIED = "a6000-xeon5220r-implied"
# Where a machine's CPU speed comes from: every gain depends on its ratio to the link's.
CPU_SPEED = {
    MACHINE: "CPU at 72 GB/s, a datasheet number times an efficiency measured on another processor",
    IMPLIED: "CPU at 10 GB/s, derived from the paper's Table III",
}

Outcomes = Mapping[Run, Outcome]


class Claim(NamedTuple):
    id: str
    runs: tuple[Run, ...]
    row: Callable[[Outcomes], Row]


def latency(name: str, claim: str, paper_s: float | None, run: Run) -> Claim:
    def row(outcomes: Outcomes) -> Row:
        outcome = outcomes[run]
        text = conditions(run, outcome) + spread(outcome.windows_s, "s")
        return Row(name, claim, paper_s, outcome.latency_s, "s", text, run.command())

    return Claim(name, (run,), row)


def speedup(name: str, claim: str, paper: float, run: Run, base: Run) -> Claim:
    def row(outcomes: Outcomes) -> Row:
        gain = outcomes[base].latency_s / outcomes[run].latency_s
        gains = window_gains(outcomes, run, base)
        text = conditions(run, outcomes[run]) + spread(gains, "x")
        return Row(name, claim, paper, gain, "x", text, again(name, [run.trace]))

    return Claim(name, (run, base), row)


def average(
    name: str, claim: str, paper: float | None, setting: str, pairs: list[tuple[Run, Run]]
) -> Claim:
    """The mean speedup of the first of each pair over the second."""

    def row(outcomes: Outcomes) -> Row:
        gains = [outcomes[b].latency_s / outcomes[a].latency_s for a, b in pairs]
        by_window = zip(*(window_gains(outcomes, a, b) for a, b in pairs), strict=True)
        text = f"mean of {len(gains)} speedups from {min(gains):.2f} to {max(gains):.2f}: {setting}"
        return Row(
            name, claim, paper, fmean(gains), "x",
            f"{text}, {routing_of(pairs)}{spread([fmean(each) for each in by_window], 'x')}",
            again(name, [run.trace for pair in pairs for run in pair]),
        )  # fmt: skip

    return Claim(name, tuple(run for pair in pairs for run in pair), row)


def window_gains(outcomes: Outcomes, run: Run, base: Run) -> list[float]:
    each = zip(outcomes[base].windows_s, outcomes[run].windows_s, strict=True)
    return [theirs / ours for theirs, ours in each]


def spread(values: list[float] | tuple[float, ...], unit: str) -> str:
    """What the figure would have been on any one window of the measured tokens."""
    if len(values) < 2:
        return ""
    return (
        f"; by window of {WINDOW} tokens {min(values):.3g} to {max(values):.3g} {unit}, standard "
        f"deviation {pstdev(values):.2g} over {len(values)} windows"
    )


def routing_of(pairs: list[tuple[Run, Run]]) -> str:
    real = sorted({a.model for a, _ in pairs if a.trace is not None})
    return "synthetic routing" + (f" but real for {', '.join(real)}" if real else "")


def conditions(run: Run, outcome: Outcome) -> str:
    where = "real routing" if run.trace is not None else "synthetic routing"
    measured = f"{run.steps} {'tokens' if run.phase == 'decode' else 'prompts'}"
    text = f"machine {run.machine} ({CPU_SPEED[run.machine]}), 4-bit, {measured} of {where}, "
    text += f"hit rate {outcome.hit_rate:.3f}"
    if outcome.prediction_accuracy:
        text += f", next layer predicted {outcome.prediction_accuracy[0]:.2f}"
    return text
