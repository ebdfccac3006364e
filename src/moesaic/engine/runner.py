"""One model on one real machine under one brain: takes new tokens, gives logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moesaic.core.body import Body
from moesaic.core.report import StepReport
from moesaic.core.step import Step
from moesaic.machines.real.machine import NetworkPass, RealMachine, Replay
from moesaic.models.decoder import Decoder, Walk
from moesaic.models.kv_cache import ContiguousCache
from moesaic.models.token_batch import Segment
from moesaic.policies.brain import Brain
from moesaic.policies.schedule.base import Schedule


@dataclass(frozen=True, slots=True)
class Feed:
    """New tokens of the sequence in one slot of the KV cache. Logits are wanted for the last one,
    or for `all_logits` of them."""

    slot: int
    tokens: Sequence[int]
    all_logits: bool = False


class Runner:
    def __init__(
        self,
        decoder: Decoder,
        machine: RealMachine,
        brain: Brain,
        cache: ContiguousCache,
        schedules: dict[str, Schedule],
    ) -> None:
        self.decoder, self.machine, self.brain, self.cache = decoder, machine, brain, cache
        self.body: Body[NetworkPass] = machine  # or something that listens to it
        self._schedules = schedules  # by phase
        self.report: StepReport | None = None  # of the last step

    def step(self, feeds: Sequence[Feed], replay: Replay | None = None) -> torch.Tensor:
        """One pass; returns the wanted logits [rows, vocabulary], in the order of the feeds. A step
        that fails or is interrupted leaves the sequences as they were."""
        described = self.describe(feeds)
        self.brain.schedule = self._schedules[described.phase]
        lengths = [self.cache.length(feed.slot) for feed in feeds]
        try:
            with torch.inference_mode():
                work = NetworkPass(described, self._walk(feeds), replay)
                self.report = self.body.step(work, self.brain)
            return self.machine.output
        except BaseException:
            for feed, length in zip(feeds, lengths, strict=True):
                self.cache.truncate(feed.slot, length)
            raise

    def describe(self, feeds: Sequence[Feed]) -> Step:
        """What a step with these feeds would be, as the sequences stand now."""
        return Step.of((len(feed.tokens), self.cache.length(feed.slot)) for feed in feeds)

    @property
    def bytes_moved(self) -> int:
        """Over the link, since the beginning."""
        return self.machine.bytes_moved

    def forget(self, slot: int) -> None:
        """The sequence in this slot has ended."""
        self.cache.truncate(slot, 0)

    def close(self) -> None:
        self.machine.close()

    def _walk(self, feeds: Sequence[Feed]) -> Walk:
        tokens = torch.tensor([token for feed in feeds for token in feed.tokens])
        segments = [Segment(feed.slot, len(feed.tokens)) for feed in feeds]
        hidden = yield from self.decoder.walk(tokens, segments, self.cache)
        if len(hidden) > len(feeds):
            hidden = hidden[_wanted_rows(feeds)]
        return self.decoder.logits(hidden)


def _wanted_rows(feeds: Sequence[Feed]) -> list[int]:
    rows: list[int] = []
    start = 0
    for feed in feeds:
        end = start + len(feed.tokens)
        rows += range(start, end) if feed.all_logits else [end - 1]
        start = end
    return rows
