"""One model on one real machine under one brain: takes new tokens, gives logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.body import Decider
from moesaic.core.confidence import Confidence
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.report import StepReport
from moesaic.core.routing import cut
from moesaic.engine.gating import confidence_of, expert_counts, gate_step, rejected
from moesaic.engine.kv.kv_blocks import LEAST_SHARED, KVBlocks
from moesaic.machines.real.forward_pass import ForwardPass, Piece, Replay
from moesaic.machines.real.host_blocks import HostBlocks
from moesaic.machines.real.machine import Machine
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.reused_routing import ReusedRouting
from moesaic.policies.brain import Brain
from moesaic.policies.fallback_prefetch import FallbackPrefetch, RankedExperts
from moesaic.policies.gate import FULL
from moesaic.policies.gate.base import Full, Gate, GateStep
from moesaic.policies.gate.reuse import REUSE_ROUTING, ROUTE_AGAIN
from moesaic.policies.schedule.base import Schedule


class Runner:
    def __init__(
        self,
        decoder: Decoder,
        machine: Machine,
        brain: Brain,
        cache: BlockCache,
        schedules: dict[str, Schedule],
        gate: Gate | None = None,
        gate_name: str = FULL,
        checkpoint_bytes: int = 0,
        copies: HostBlocks | None = None,
    ) -> None:
        """`checkpoint_bytes`, `copies`: see `KVBlocks`."""
        self.decoder, self.machine, self.brain, self.cache = decoder, machine, brain, cache
        self._copies = copies
        self.kv = KVBlocks(
            cache, cache.blocks, LEAST_SHARED, checkpoint_bytes,
            copies, 0 if copies is None else copies.blocks,
        )  # fmt: skip
        self._schedules = schedules  # by phase
        self.gate = Full(decoder.architecture.spec.top_k) if gate is None else gate
        self.gate_name = gate_name
        # By slot, what the routers said of its last token when that was rejected, all layers.
        self._evicted: dict[int, RankedExperts] = {}
        self._rank_for_reuse()
        self.fallback: FallbackPrefetch | None = None  # made when the gate first needs it
        # By slot, where its latest tokens were computed with fewer experts: pass and row.
        self._sources: dict[int, list[tuple[int, int]]] = {}
        self._passes = 0
        self._counts: NDArray[np.int64] | None = None  # experts per token of the last step
        self._submitted: ForwardPass | None = None

    def step(self, work: ForwardPass) -> torch.Tensor:
        """One pass; returns the wanted logits [rows, vocabulary], in the order of the pieces; or,
        where no more is asked for and the machine has found them, the next tokens (see
        `Sampler.sample`). A step that fails or is interrupted leaves the sequences as they
        were."""
        whole = isinstance(self.gate, Full)  # which is not asked: switched off, it costs nothing
        self._counts = None if whole else expert_counts(self.gate, gate_step(work))
        sources = dict(self._sources)
        work = self.placed(work)
        self._grow(work)
        try:
            with torch.inference_mode():
                return self.machine.run(self._prepared(work), self._decider(work))
        except BaseException:
            self._truncate(work)
            self._sources = sources
            raise

    def refuses(self, work: ForwardPass) -> str | None:
        """Why a pass that is wanted `ahead` cannot be submitted; None: it can."""
        if not isinstance(self.gate, Full):
            return "the gate sees logits before the next token is chosen"
        return self.machine.refuses(self.placed(work), self.brain)

    def submit(self, work: ForwardPass) -> None:
        """Begin a pass that is not refused and that runs without this thread: `collect` brings what
        `step` would have returned, and no other pass runs before."""
        self._counts = None
        self._submitted = work = self.placed(work)
        self._grow(work)
        with torch.inference_mode():
            self.machine.submit(self._prepared(work), self.brain)

    def collect(self) -> torch.Tensor:
        """Wait until the submitted pass has ended."""
        work, self._submitted = self._submitted, None
        assert work is not None, "a pass was submitted"
        try:
            with torch.inference_mode():
                return self.machine.collect()
        except BaseException:
            self._truncate(work)
            raise

    def abandon(self) -> None:
        """Wait for a pass that may have been submitted, and leave the sequences as they were before
        it."""
        try:
            with torch.inference_mode():
                self.machine.abandon()
        finally:
            work, self._submitted = self._submitted, None
            if work is not None:
                self._truncate(work)

    @property
    def report(self) -> StepReport | None:
        """The report of the last step that has ended, also while one is under way; None: there was
        none."""
        return None if self.machine.last is None else self.machine.report()

    def placed(self, work: ForwardPass) -> ForwardPass:
        """The pass with the positions of its tokens, as the sequences stand now."""
        return work.placed(self.cache.length)

    def _prepared(self, work: ForwardPass) -> ForwardPass:
        """The pass with the numbers of experts that the gate chooses, and the routing to reuse."""
        self.brain.schedule = self._schedules[work.step.phase]
        replayed = work.replay is not None
        replay, reused = self._gated(work.replay), None if replayed else self._reused(work)
        if replay is work.replay and self._counts is None and reused is None:
            return work
        return ForwardPass(work.pieces, replay, self._counts, reused, work.listener, work.ahead)

    def _reused(self, work: ForwardPass) -> ReusedRouting | None:
        """The routing to reuse, where a token runs again whose rejected pass is known."""
        if self.gate.reuse == ROUTE_AGAIN or not any(each.attempt for each in work.pieces):
            return None
        known = [self._evicted.get(each.slot) if each.attempt else None for each in work.pieces]
        step = gate_step(work)
        return reused_routing(step, known, self.gate.reuses(step))

    def _truncate(self, work: ForwardPass) -> None:
        for each in work.pieces:
            self.cache.truncate(each.slot, each.first)

    def use_gate(self, gate: Gate, name: str) -> None:
        """Another gate from now on, for measurements; no token may be about to run again."""
        self.gate, self.gate_name, self.fallback = gate, name, None
        self._sources, self._counts, self._evicted = {}, None, {}
        self._rank_for_reuse()

    def _rank_for_reuse(self) -> None:
        if self.gate.reuse != ROUTE_AGAIN:
            self.machine.rank_experts(self.gate.top_k)

    def roll_back(self, work: ForwardPass, which: list[int], confidence: Confidence) -> list[int]:
        """Which of the sequences `which` of the last step must run their last token again, by the
        gate; `confidence` is of all. Those tokens are removed from the KV cache."""
        if not self.gate.reruns or self._counts is None:
            return []
        asked = self._little(work, which)
        step = gate_step(work).sequences(asked)
        judged = rejected(self.gate, step, confidence.rows(asked))
        return self._evict(work, [i for i, no in zip(asked, judged, strict=True) if no])

    def take_back(self, work: ForwardPass, which: list[int]) -> list[int]:
        """The same without asking the gate, for measurements: those of `which` whose last token
        used fewer than top-k run it again."""
        return self._evict(work, self._little(work, which))

    def _little(self, work: ForwardPass, which: list[int]) -> list[int]:
        """The rows of `which` that use fewer than all experts: with all of them a token stands."""
        if self._counts is None:
            return []
        last = self._counts[np.cumsum([len(each.tokens) for each in work.pieces]) - 1]
        return [i for i in which if last[i] < self.gate.top_k]

    def _evict(self, work: ForwardPass, which: list[int]) -> list[int]:
        last = np.cumsum([len(each.tokens) for each in work.pieces]) - 1
        for number in which:
            self.evict(work.pieces[number].slot, int(last[number]))
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

    def settled_step(self, piece: Piece) -> torch.Tensor:
        """One decoded token of one sequence, run again until the gate accepts it: its logits,
        [1, vocabulary]."""
        while True:
            work = ForwardPass([piece])
            logits = self.step(work)
            if not self.gate.reruns:
                return logits
            if not self.roll_back(work, [0], confidence_of(logits)):
                return logits
            piece = piece._replace(attempt=piece.attempt + 1)

    @property
    def reads_of_a_token(self) -> int:
        """Experts that a token uses in all layers together, with all of top-k."""
        spec = self.decoder.architecture.spec
        return spec.top_k * spec.num_moe_layers

    @property
    def prefetch_accuracy(self) -> float | None:
        """The accuracy of what is prefetched for tokens that run again; None: nothing was
        prefetched."""
        if self.fallback is None or not self.machine.residency.slots:
            return None
        return self.fallback.accuracy

    @property
    def bytes_moved(self) -> int:
        """The bytes moved over the link since the beginning."""
        return self.machine.bytes_moved

    @property
    def writes_as_it_reads(self) -> bool:
        """Whether a generated token has the entries in the KV cache that it would have as part of
        a prompt: with all experts it has, and drafts were checked with all."""
        return isinstance(self.gate, Full) or self.gate.draft > 0

    def free_slot(self, slot: int) -> None:
        """The sequence in this slot has ended."""
        self.kv.drop(slot)
        self.cache.truncate(slot, 0)
        self._evicted.pop(slot, None)

    def copy_slot(self, source: int, slot: int) -> None:
        """An empty slot gets all that another one holds."""
        self._grow_slot(slot, self.cache.length(source))
        with torch.inference_mode():
            self.cache.copy(source, slot)

    def _grow(self, work: ForwardPass) -> None:
        for each in work.pieces:
            self._grow_slot(each.slot, each.first + len(each.tokens))

    def _grow_slot(self, slot: int, length: int) -> None:
        """Blocks for a sequence of this length. One that is too long is refused by the cache."""
        if length <= self.cache.max_length and not self.kv.grow(slot, length):
            raise ImpossibleSetting(
                f"the KV cache has no block left for a sequence of {length} tokens: all "
                f"{self.cache.blocks} blocks of {KV_BLOCK} tokens are used by others. Run fewer "
                "at once (--max-sequences), or allow more tokens (--kv-tokens)"
            )

    def close(self) -> None:
        self.machine.close()
        if self._copies is not None:
            self._copies.close()

    def _decider(self, work: ForwardPass) -> Decider:
        """The brain, where nothing runs again, or nothing moves and nothing is reused."""
        moves = (self.gate.reruns or self.gate.draft) and self.machine.residency.slots
        if not moves and self.gate.reuse == ROUTE_AGAIN:
            return self.brain
        if self.fallback is None:
            self.fallback = FallbackPrefetch(self.brain, self.gate)
        self._passes += 1
        rows: list[int] = []
        ages: list[int] = []
        for sequence in work.pieces:
            known = self._sources.get(sequence.slot, []) if sequence.attempt else []
            start = len(rows)
            rows += [-1] * len(sequence.tokens)
            ages += [1] * len(sequence.tokens)
            for at, (number, row) in enumerate(known[: len(sequence.tokens)], start):
                rows[at], ages[at] = row, self._passes - number
            self._note(sequence, len(rows) - 1)
        self.fallback.begin(rows, ages)
        return self.fallback

    def _note(self, sequence: Piece, row: int) -> None:
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


# What tokens that run again take over from their rejected pass, as one pass' worth of arrays.


def reused_routing(
    step: GateStep, known: Sequence[RankedExperts | None], reuses: Sequence[str]
) -> ReusedRouting | None:
    """Per sequence: what the routers of all layers said of its last token, [layers, top-k], or
    None, and how much of it is reused. None: every token is routed."""
    rows = np.cumsum(step.tokens) - 1
    given = [
        (row, wanted, reuse)
        for row, wanted, reuse in zip(rows.tolist(), known, reuses, strict=True)
        if wanted is not None and reuse != ROUTE_AGAIN
    ]
    if not given:
        return None
    tokens, (layers, top_k) = sum(step.tokens), given[0][1].ranked.shape
    experts = np.zeros((layers, tokens, top_k), dtype=np.int64)
    scores = np.zeros((layers, tokens, top_k), dtype=np.float32)
    is_given, weighed = np.zeros((2, tokens), dtype=np.bool_)
    for row, wanted, reuse in given:
        experts[:, row], scores[:, row] = wanted
        is_given[row], weighed[row] = True, reuse == REUSE_ROUTING
    return ReusedRouting(*map(torch.from_numpy, (experts, scores, is_given, weighed)))
