"""What a gate's passes have cost: how many tokens fell back, and the paper's speedup equation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moesaic.core.units import NS_PER_S
from moesaic.policies.gate import FULL

if TYPE_CHECKING:  # the simulator counts with this, and has no torch
    from moesaic.machines.real.forward_pass import ForwardPass

BIG_PASSES = "big passes"  # where the time of the full model comes from, if it was not measured


@dataclass(frozen=True, slots=True)
class GateStats:
    """Statistics of decoded tokens; prompts, and passes with a piece of one, are left out of times
    and reads. None where there is nothing to say, as mostly of the gate `full`."""

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
    acceptance: float | None = None  # share of drafts that the full model would have written
    tokens_per_check: float | None = None  # that stood, the check's own token included
    reads_per_token: float | None = None  # experts used in a pass, each counted once, all layers
    reads_saved: float | None = None  # over top-k in every layer, which is what a text alone takes
    # with gate full; None: several texts at once, which share reads with any gate


NO_GATE = GateStats(FULL)


def predicted_speedup(full_s: float, little_s: float, big_s: float, ratio: float) -> float:
    """MoBiLE, equation 1, with the times of one token."""
    return full_s / (little_s + ratio * big_s)


class GateCounter:
    """Adds up passes. `top_reads`: experts that a token uses in all layers together."""

    def __init__(self, name: str = FULL, top_reads: int | None = None) -> None:
        self.name, self._top_reads = name, top_reads
        self.first = self.again = 0  # tokens
        self._timed = [0, 0]  # of those, in passes without prompts
        self._ns = [0.0, 0.0]
        self._drafted = self._stood = self._checks = self._reads = 0
        self._alone = True  # one sequence at a time

    def add(
        self, first: int, again: int, prompt: int, taken_ns: int, reads: int = 0, alone: bool = True
    ) -> None:
        """A pass with so many first attempts at tokens, tokens that ran again, and tokens of
        prompts; `reads`: experts that it used, in all layers together."""
        self.first += first
        self.again += again
        if prompt or not first + again:
            return
        self._reads += reads
        self._alone &= alone
        for number, tokens in enumerate((first, again)):
            self._timed[number] += tokens
            self._ns[number] += taken_ns * tokens / (first + again)

    def add_pass(self, work: ForwardPass, taken_ns: int, reads: int = 0) -> int:
        """A pass of the engine; returns how many new tokens of prompts it has."""
        pieces = work.pieces
        prompt = sum(len(each.tokens) for each in pieces if each.of_prompt and not each.attempt)
        again = sum(len(each.tokens) for each in pieces if each.attempt)
        first = sum(not each.of_prompt and not each.attempt for each in pieces)
        self.add(first, again, prompt, taken_ns, reads, len(pieces) == 1)
        return prompt

    def add_check(self, drafted: int, stood: int) -> None:
        """So many drafts were checked; so many tokens stood, the check's own included."""
        self._drafted += drafted
        self._stood += stood
        self._checks += 1

    def stats(self, accuracy: float | None = None, full_s: float | None = None) -> GateStats:
        """`full_s`: what a token takes without a gate, where that was measured."""
        if not self.first + self.again:
            return GateStats(self.name)
        reads = self._read_stats()
        if self.name == FULL:
            return replace(GateStats(FULL), **reads)
        little, big = (
            ns / NS_PER_S / tokens if tokens else None
            for ns, tokens in zip(self._ns, self._timed, strict=True)
        )
        source = None if full_s is None else "a run with gate full"
        if full_s is None and big is not None and not self._checks:
            full_s, source = big, BIG_PASSES
        found = GateStats(
            self.name, None, accuracy, self._ns[0] / NS_PER_S, self._ns[1] / NS_PER_S,
            None, full_s, source,
        )  # fmt: skip
        found = replace(found, **reads)
        if self._checks:
            return self._of_checks(found)
        ratio = self.again / self.first
        speedup = None
        if full_s is not None and little is not None:
            speedup = predicted_speedup(full_s, little, big or 0.0, ratio)
        return replace(found, fallback_ratio=ratio, predicted_speedup=speedup)

    def _of_checks(self, found: GateStats) -> GateStats:
        acceptance = (self._stood - self._checks) / self._drafted if self._drafted else None
        return replace(found, acceptance=acceptance, tokens_per_check=self._stood / self._checks)

    def _read_stats(self) -> dict[str, Any]:
        tokens = self._stood or self._timed[0]
        if not self._reads or not tokens:
            return {}
        per_token = self._reads / tokens
        saved = None
        if self._alone and self._top_reads:
            saved = 1.0 - per_token / self._top_reads
        return {"reads_per_token": per_token, "reads_saved": saved}
