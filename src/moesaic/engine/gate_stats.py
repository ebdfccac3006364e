"""What a gate's passes have cost: how many tokens fell back, and the paper's speedup equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moesaic.core.units import NS_PER_S
from moesaic.policies.gate import FULL

if TYPE_CHECKING:  # the simulator counts with this, and has no torch
    from moesaic.engine.runner import SequenceInput

BIG_PASSES = "big passes"  # where the time of the full model comes from, if it was not measured


@dataclass(frozen=True, slots=True)
class GateStats:
    """Of decoded tokens; prompts, and passes with a piece of one, are left out of the times. None
    where there is nothing to say, as of the gate `full`."""

    name: str
    fallback_ratio: float | None = None  # share of tokens that ran again
    prefetch_accuracy: float | None = None  # share of experts used by tokens that ran again which
    # the evicted pass had wanted; None: nothing can be prefetched, or nothing ran again
    little_s: float | None = None  # in passes of first attempts; of mixed ones, by tokens
    big_s: float | None = None  # in passes of tokens that ran again, likewise
    predicted_speedup: float | None = None  # by MoBiLE's equation 1
    full_s: float | None = None  # per token of the full model, as the equation takes it
    full_from: str | None = None  # how that is known
    measured_speedup: float | None = None  # over the full model, where that ran as well


NO_GATE = GateStats(FULL)


def predicted_speedup(full_s: float, little_s: float, big_s: float, ratio: float) -> float:
    """MoBiLE, equation 1, with the times of one token."""
    return full_s / (little_s + ratio * big_s)


class GateCounter:
    """Adds up passes."""

    def __init__(self, name: str = FULL) -> None:
        self.name = name
        self.first = self.again = 0  # tokens
        self._timed = [0, 0]  # of those, in passes without prompts
        self._ns = [0.0, 0.0]

    def add(self, first: int, again: int, prompt: int, taken_ns: int) -> None:
        """A pass with so many first attempts at tokens, tokens that ran again, and tokens of
        prompts."""
        self.first += first
        self.again += again
        if prompt or not first + again:
            return
        for number, tokens in enumerate((first, again)):
            self._timed[number] += tokens
            self._ns[number] += taken_ns * tokens / (first + again)

    def add_inputs(self, inputs: Sequence[SequenceInput], taken_ns: int) -> int:
        """A pass of the engine; returns how many new tokens of prompts it has."""
        new_prompts = (each for each in inputs if each.of_prompt and not each.attempt)
        prompt = sum(len(each.tokens) for each in new_prompts)
        again = sum(each.attempt > 0 for each in inputs)
        first = sum(not each.of_prompt and not each.attempt for each in inputs)
        self.add(first, again, prompt, taken_ns)
        return prompt

    def stats(self, accuracy: float | None = None, full_s: float | None = None) -> GateStats:
        """`full_s`: what a token takes without a gate, where that was measured."""
        if self.name == FULL or not self.first:
            return GateStats(self.name)
        ratio = self.again / self.first
        little, big = (
            ns / NS_PER_S / tokens if tokens else None
            for ns, tokens in zip(self._ns, self._timed, strict=True)
        )
        source = None if full_s is None else "a run with gate full"
        if full_s is None and big is not None:
            full_s, source = big, BIG_PASSES
        speedup = None
        if full_s is not None and little is not None:
            speedup = predicted_speedup(full_s, little, big or 0.0, ratio)
        return GateStats(
            self.name, ratio, accuracy, self._ns[0] / NS_PER_S, self._ns[1] / NS_PER_S,
            speedup, full_s, source,
        )  # fmt: skip
