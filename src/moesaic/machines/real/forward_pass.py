"""One forward pass as one value, from the batcher down to the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import LayerRouting
from moesaic.core.step import Step
from moesaic.models.decoder import Decoder
from moesaic.models.experts.reused_routing import ReusedRouting

Replay = Callable[[int], LayerRouting]  # by layer


class RowSampling(NamedTuple):
    """How a machine may sample the next token of a row itself: temperature, then the filters in
    this order, then a draw with a number in [0, 1), which comes from the request's own generator:
    so a seed leads to the same tokens on every device. What else changes logits, or reads them, is
    not for machines. The defaults are the greedy choice."""

    number: float = 0.0
    temperature: float = 1.0  # above 0
    top_k: int = 1  # 0: all tokens
    top_p: float = 1.0  # 1: all tokens
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.top_k == 1

    def words(self, vocabulary: int) -> tuple[float, ...]:
        """The values as the GPU's kernel reads them (`kernels/gpu/sampling.py`)."""
        filters = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        most = min(self.top_k or vocabulary, vocabulary)
        share = self.top_p if self.top_p < 1.0 else math.inf
        return self.number, self.temperature, most, share, self.min_p, filters


GREEDY = RowSampling()


class Piece(NamedTuple):
    """New tokens of the sequence in one slot of the KV cache. Logits are wanted for the last one,
    or for `all_logits` of them. `prompt`: whether they are a piece of a prompt, by default true of
    several tokens; `attempt`: how often they were run and rejected; `sampling`: logits only serve
    to sample the next token this way; `first`: the position of the first of them, -1: behind the
    tokens that the slot has in the KV cache when the pass begins."""

    slot: int
    tokens: Sequence[int]
    all_logits: bool = False
    prompt: bool | None = None
    attempt: int = 0
    sampling: RowSampling | None = None
    first: int = -1

    @property
    def of_prompt(self) -> bool:
        return len(self.tokens) > 1 if self.prompt is None else self.prompt


class ForwardPass:
    """`replay`: the routing to use instead of the network's own. `counts` [tokens]: how many
    experts each token uses; None: all of top-k. `reused`: what tokens that run again bring along
    instead of being routed. `listener` is called with the routing of every layer. `ahead`: the pass
    is wanted only if it runs without the calling thread. It is never changed. One is made for every
    token, while the GPU waits: making it must not take long."""

    __slots__ = ("_step", "ahead", "counts", "decodes", "listener", "pieces", "replay", "reused")

    def __init__(
        self,
        pieces: Sequence[Piece],
        replay: Replay | None = None,
        counts: NDArray[np.int64] | None = None,
        reused: ReusedRouting | None = None,
        listener: Callable[[LayerRouting], None] | None = None,
        ahead: bool = False,
    ) -> None:
        self.pieces, self.replay, self.counts, self.reused = pieces, replay, counts, reused
        self.listener, self.ahead = listener, ahead
        self.decodes = sum([len(each.tokens) for each in pieces]) == len(pieces)  # a token of each
        self._step: Step | None = None

    def placed(self, length: Callable[[int], int]) -> ForwardPass:
        """The pass with the position of every piece; `length` is that of a slot."""
        if not any(each.first < 0 for each in self.pieces):
            return self
        pieces = [Piece(*each[:-1], length(each.slot)) for each in self.pieces]
        return ForwardPass(pieces, self.replay, self.counts, self.reused, self.listener, self.ahead)

    def only(self, rows: Sequence[int]) -> ForwardPass:
        """The pass with some of its pieces, to look up what they were."""
        return ForwardPass([self.pieces[row] for row in rows])

    def replayed(self, decoder: Decoder) -> Replay | None:
        """What replaces the routers' choice where they do not run; None: nothing."""
        if self.replay is not None or self.reused is None:
            return self.replay
        return self.reused.replay(decoder.architecture.router, decoder.dtype)

    @property
    def step(self) -> Step:
        if self._step is None:
            self._step = Step.of([(len(each.tokens), each.first) for each in self.pieces])
        return self._step

    @property
    def numbers(self) -> list[int]:
        """The ids of all tokens, piece after piece."""
        return [token for each in self.pieces for token in each.tokens]

    @property
    def slots(self) -> list[int]:
        """The slot of every token's sequence."""
        return [each.slot for each in self.pieces for _ in each.tokens]

    @property
    def positions(self) -> list[int]:
        """The position of every token in its sequence."""
        return [each.first + at for each in self.pieces for at in range(len(each.tokens))]

    @property
    def longest(self) -> int:
        """The length of its longest sequence, with the new tokens."""
        return max([each.first + len(each.tokens) for each in self.pieces])

    @property
    def wanted(self) -> list[int]:
        """Rows whose logits are wanted."""
        rows: list[int] = []
        start = 0
        for each in self.pieces:
            end = start + len(each.tokens)
            rows += range(start, end) if each.all_logits else [end - 1]
            start = end
        return rows

    @property
    def sampling(self) -> list[RowSampling] | None:
        """The sampling of each wanted row, where the next tokens will do instead of logits; None:
        they will not."""
        rows = [
            each.sampling
            for each in self.pieces
            if each.sampling is not None and not each.all_logits
        ]
        return rows if len(rows) == len(self.pieces) else None
