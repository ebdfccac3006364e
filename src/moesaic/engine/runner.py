"""One model on one real machine under one brain: takes new tokens, gives logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.body import Body, Decider
from moesaic.core.confidence import Confidence
from moesaic.core.report import StepReport
from moesaic.core.routing import cut
from moesaic.core.step import Step
from moesaic.engine.gating import confidence_of, expert_counts, rejected
from moesaic.engine.rerun_routing import reused_routing
from moesaic.machines.real.real_machine import (
    DecodedTokens,
    ForwardPass,
    PromptTokens,
    RealMachine,
    Replay,
)
from moesaic.machines.real.row_sampling import RowSampling
from moesaic.models.decoder import Decoder, ForwardGenerator
from moesaic.models.kv_cache import ContiguousCache
from moesaic.models.reused_routing import ReusedRouting
from moesaic.models.token_batch import Segment
from moesaic.policies.brain import Brain
from moesaic.policies.fallback_prefetch import FallbackPrefetch, Wanted
from moesaic.policies.gate import FULL
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.policies.gate.full import Full
from moesaic.policies.gate.reuse import ROUTE_AGAIN
from moesaic.policies.schedule.base import Schedule


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """New tokens of the sequence in one slot of the KV cache. Logits are wanted for the last one,
    or for `all_logits` of them. `prompt`: whether they are a piece of a prompt, by default
    true of several tokens; `attempt`: how often they were run and rejected; `sampling`:
    logits only serve to sample the next token this way."""

    slot: int
    tokens: Sequence[int]
    all_logits: bool = False
    prompt: bool | None = None
    attempt: int = 0
    sampling: RowSampling | None = None

    @property
    def of_prompt(self) -> bool:
        return len(self.tokens) > 1 if self.prompt is None else self.prompt


class Runner:
    def __init__(
        self,
        decoder: Decoder,
        machine: RealMachine,
        brain: Brain,
        cache: ContiguousCache,
        schedules: dict[str, Schedule],
        gate: Gate | None = None,
        gate_name: str = FULL,
    ) -> None:
        self.decoder, self.machine, self.brain, self.cache = decoder, machine, brain, cache
        self.body: Body[ForwardPass] = machine  # or a wrapper that records it
        self._schedules = schedules  # by phase
        self.gate = Full(decoder.architecture.spec.top_k) if gate is None else gate
        self.gate_name = gate_name
        # By slot, what the routers said of its last token when that was rejected, all layers.
        self._evicted: dict[int, Wanted] = {}
        self._rank_for_reuse()
        self.fallback: FallbackPrefetch | None = None  # made when the gate first needs it
        # By slot, where its latest tokens were computed with fewer experts: pass and row.
        self._sources: dict[int, list[tuple[int, int]]] = {}
        self._passes = 0
        self._counts: NDArray[np.int64] | None = None  # experts per token of the last step
        self._report: StepReport | None = None
        self._collected = False  # the last step; its report is made when it is asked for
        self._lengths: list[tuple[int, int]] = []  # of the submitted step's slots, before it

    def step(self, inputs: Sequence[SequenceInput], replay: Replay | None = None) -> torch.Tensor:
        """One pass; returns the wanted logits [rows, vocabulary], in the order of the inputs; or,
        where no more is asked for and the machine has found them, the next tokens (see
        `Sampler.sample`). A step that fails or is interrupted leaves the sequences as they
        were."""
        whole = isinstance(self.gate, Full)  # which is not asked: switched off, it costs nothing
        self._counts = None if whole else expert_counts(self.gate, _gate_step(inputs))
        lengths = [self.cache.length(sequence.slot) for sequence in inputs]
        sources = dict(self._sources)
        try:
            with torch.inference_mode():
                work = self._work(inputs, lengths, replay)
                self._report = self.body.step(work, self._decider(inputs))
            self._collected = False
            return self.machine.output
        except BaseException:
            self._truncate(zip((each.slot for each in inputs), lengths, strict=True))
            self._sources = sources
            raise

    def submit(self, inputs: Sequence[SequenceInput]) -> bool:
        """Begin a step that then runs without this thread, on a machine that can: `collect` brings
        what `step` would have returned, and no other step runs before. False: nothing was begun."""
        if self.body is not self.machine or not isinstance(self.gate, Full):
            return False
        self._counts = None
        lengths = [self.cache.length(sequence.slot) for sequence in inputs]
        self._lengths = list(zip((each.slot for each in inputs), lengths, strict=True))
        with torch.inference_mode():
            return self.machine.submit(self._work(inputs, lengths), self.brain)

    def collect(self) -> torch.Tensor:
        """Until the submitted step has ended."""
        try:
            with torch.inference_mode():
                output = self.machine.collect()
        except BaseException:
            self._truncate(self._lengths)
            raise
        self._report, self._collected = None, True
        return output

    def discard_submitted(self) -> None:
        """Wait for a step that may have been submitted, and leave the sequences as they were before
        it."""
        try:
            self.collect()
        finally:
            self._truncate(self._lengths)

    @property
    def report(self) -> StepReport | None:
        """Of the last step that has ended, also while one is under way; None: there was none."""
        if self._report is None and self._collected:
            self._report = self.machine.collected_report()
        return self._report

    def _work(
        self,
        inputs: Sequence[SequenceInput],
        lengths: Sequence[int],
        replay: Replay | None = None,
    ) -> ForwardPass:
        described = self.describe(inputs)
        self.brain.schedule = self._schedules[described.phase]
        reused = self._reused(inputs) if replay is None else None
        return ForwardPass(
            described,
            self._forward(inputs, self._counts, reused),
            self._gated(replay),
            self._decoded(inputs, lengths),
            self._prompt(inputs, lengths),
            self._counts,
            _sampling(inputs),
            reused,
        )

    def _reused(self, inputs: Sequence[SequenceInput]) -> ReusedRouting | None:
        """Where a token runs again whose rejected pass is known."""
        if self.gate.reuse == ROUTE_AGAIN or not any(each.attempt for each in inputs):
            return None
        known = [self._evicted.get(each.slot) if each.attempt else None for each in inputs]
        step = _gate_step(inputs)
        return reused_routing(step, known, self.gate.reuses(step))

    def _truncate(self, lengths: Iterable[tuple[int, int]]) -> None:
        for slot, length in lengths:
            self.cache.truncate(slot, length)

    def use_gate(self, gate: Gate, name: str) -> None:
        """Another gate from now on, for measurements; no token may be about to run again."""
        self.gate, self.gate_name, self.fallback = gate, name, None
        self._sources, self._counts, self._evicted = {}, None, {}
        self._rank_for_reuse()

    def _rank_for_reuse(self) -> None:
        if self.gate.reuse != ROUTE_AGAIN:
            self.machine.rank_experts(self.gate.top_k)

    def _decoded(
        self, inputs: Sequence[SequenceInput], lengths: Sequence[int]
    ) -> DecodedTokens | None:
        if any(len(sequence.tokens) > 1 for sequence in inputs):
            return None
        numbers = tuple(sequence.tokens[0] for sequence in inputs)
        return DecodedTokens(numbers, tuple(each.slot for each in inputs), tuple(lengths))

    def _prompt(
        self, inputs: Sequence[SequenceInput], lengths: Sequence[int]
    ) -> PromptTokens | None:
        if all(len(sequence.tokens) == 1 for sequence in inputs):
            return None
        numbers = tuple(token for sequence in inputs for token in sequence.tokens)
        starts = zip(inputs, lengths, strict=True)
        segments = tuple((each.slot, start, len(each.tokens)) for each, start in starts)
        return PromptTokens(numbers, segments, tuple(_wanted_rows(inputs)))

    def describe(self, inputs: Sequence[SequenceInput]) -> Step:
        """What a step with these inputs would be, as the sequences stand now."""
        return Step.of(
            (len(sequence.tokens), self.cache.length(sequence.slot)) for sequence in inputs
        )

    def roll_back(
        self, inputs: Sequence[SequenceInput], which: list[int], confidence: Confidence
    ) -> list[int]:
        """Which of the sequences `which` of the last step must run their last token again, by the
        gate; `confidence` is of all. Those tokens are removed from the KV cache."""
        if not self.gate.reruns or self._counts is None:
            return []
        asked = self._little(inputs, which)
        step = _gate_step(inputs).sequences(asked)
        judged = rejected(self.gate, step, confidence.rows(asked))
        return self._evict(inputs, [i for i, no in zip(asked, judged, strict=True) if no])

    def take_back(self, inputs: Sequence[SequenceInput], which: list[int]) -> list[int]:
        """The same without asking the gate, for measurements: those of `which` whose last token
        used fewer than top-k run it again."""
        return self._evict(inputs, self._little(inputs, which))

    def _little(self, inputs: Sequence[SequenceInput], which: list[int]) -> list[int]:
        """With all experts a token stands."""
        if self._counts is None:
            return []
        last = self._counts[np.cumsum([len(sequence.tokens) for sequence in inputs]) - 1]
        return [i for i in which if last[i] < self.gate.top_k]

    def _evict(self, inputs: Sequence[SequenceInput], which: list[int]) -> list[int]:
        last = np.cumsum([len(sequence.tokens) for sequence in inputs]) - 1
        for number in which:
            self.evict(inputs[number].slot, int(last[number]))
        return which

    def evict(self, slot: int, row: int) -> None:
        """Remove the sequence's last token, of which this row of the last pass did not stand. What
        the gate lets it take over is kept until the token was run again."""
        self.cache.truncate(slot, self.cache.length(slot) - 1)
        wanted = None
        if self.gate.reuse != ROUTE_AGAIN and self.fallback is not None:
            wanted = self.fallback.latest(row)
        if wanted is None:
            self._evicted.pop(slot, None)
        else:
            self._evicted[slot] = wanted

    def settled_step(self, sequence: SequenceInput) -> torch.Tensor:
        """One decoded token of one sequence, run again until the gate accepts it: its logits,
        [1, vocabulary]."""
        while True:
            logits = self.step([sequence])
            if not self.gate.reruns:
                return logits
            if not self.roll_back([sequence], [0], confidence_of(logits)):
                return logits
            sequence = replace(sequence, attempt=sequence.attempt + 1)

    @property
    def reads_of_a_token(self) -> int:
        """Experts that a token uses in all layers together, with all of top-k."""
        spec = self.decoder.architecture.spec
        return spec.top_k * spec.num_moe_layers

    @property
    def prefetch_accuracy(self) -> float | None:
        """Of what is prefetched for tokens that run again; None: nothing has been."""
        if self.fallback is None or not self.machine.residency.slots:
            return None
        return self.fallback.accuracy

    @property
    def bytes_moved(self) -> int:
        """Over the link, since the beginning."""
        return self.machine.bytes_moved

    @property
    def writes_as_it_reads(self) -> bool:
        """Whether a generated token has the entries in the KV cache that it would have as part of
        a prompt: with all experts it has, and drafts were checked with all."""
        return isinstance(self.gate, Full) or self.gate.draft > 0

    def free_slot(self, slot: int) -> None:
        """The sequence in this slot has ended."""
        self.cache.truncate(slot, 0)
        self._evicted.pop(slot, None)

    def copy_prefix(self, source: int, slot: int, length: int) -> None:
        """The sequence in this slot begins with the first tokens of another one."""
        self.cache.truncate(slot, 0)
        with torch.inference_mode():
            self.cache.copy(source, slot, length)

    def close(self) -> None:
        self.machine.close()

    def _decider(self, inputs: Sequence[SequenceInput]) -> Decider:
        """The brain, where nothing runs again, or nothing moves and nothing is reused."""
        moves = (self.gate.reruns or self.gate.draft) and self.machine.residency.slots
        if not moves and self.gate.reuse == ROUTE_AGAIN:
            return self.brain
        if self.fallback is None:
            self.fallback = FallbackPrefetch(self.brain, self.gate)
        self._passes += 1
        rows: list[int] = []
        ages: list[int] = []
        for sequence in inputs:
            known = self._sources.get(sequence.slot, []) if sequence.attempt else []
            start = len(rows)
            rows += [-1] * len(sequence.tokens)
            ages += [1] * len(sequence.tokens)
            for at, (number, row) in enumerate(known[: len(sequence.tokens)], start):
                rows[at], ages[at] = row, self._passes - number
            self._note(sequence, len(rows) - 1)
        self.fallback.begin(rows, ages)
        return self.fallback

    def _note(self, sequence: SequenceInput, row: int) -> None:
        """The sequence's last token is in this row of the pass: all drafts since the last check
        are remembered, or else the last pass."""
        drafted = self._sources.get(sequence.slot, []) if self.gate.draft else []
        if self.gate.draft and (sequence.attempt or sequence.of_prompt):
            self._sources[sequence.slot] = []
            return
        self._sources[sequence.slot] = [*drafted, (self._passes, row)]

    def _gated(self, replay: Replay | None) -> Replay | None:
        """A replayed routing has as many experts per token as the gate allows."""
        counts = self._counts
        if replay is None or counts is None:
            return replay
        return lambda layer: cut(replay(layer), counts)

    def _forward(
        self,
        inputs: Sequence[SequenceInput],
        counts: NDArray[np.int64] | None,
        reused: ReusedRouting | None,
    ) -> ForwardGenerator:
        device = self.decoder.device
        numbers = [token for sequence in inputs for token in sequence.tokens]
        tokens = torch.tensor(numbers, device=device)
        segments = [Segment(sequence.slot, len(sequence.tokens)) for sequence in inputs]
        used = None if counts is None else torch.from_numpy(counts).to(device)
        reused = None if reused is None else reused.to(device)
        network = self.decoder.forward_by_layer(tokens, segments, self.cache, used, reused)
        hidden = yield from network
        if len(hidden) > len(inputs):
            hidden = hidden[_wanted_rows(inputs)]
        return self.decoder.logits(hidden).cpu()  # samplers and gates are there


def _gate_step(inputs: Sequence[SequenceInput]) -> GateStep:
    return GateStep(
        tuple(len(sequence.tokens) for sequence in inputs),
        tuple(sequence.of_prompt for sequence in inputs),
        tuple(sequence.attempt for sequence in inputs),
    )


def _sampling(inputs: Sequence[SequenceInput]) -> tuple[RowSampling, ...] | None:
    """Of all rows, unless logits are needed."""
    rows = tuple(
        each.sampling for each in inputs if each.sampling is not None and not each.all_logits
    )
    return rows if len(rows) == len(inputs) else None


def _wanted_rows(inputs: Sequence[SequenceInput]) -> list[int]:
    rows: list[int] = []
    start = 0
    for sequence in inputs:
        end = start + len(sequence.tokens)
        rows += range(start, end) if sequence.all_logits else [end - 1]
        start = end
    return rows
