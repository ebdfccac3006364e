"""What a gate policy is: asked before a forward pass and after its logits.

A token that is rejected is run again at its position, with another attempt number: its entries
in the KV cache are overwritten, and nothing that was sampled knows of the pass that did not
stand. Other sequences go on meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.policies.gate.reuse import ROUTE_AGAIN

MAX_DISTANCE = 3  # layers ahead that anything is prefetched for tokens that run again


class GateStep(NamedTuple):
    """A forward pass, one entry per sequence."""

    tokens: tuple[int, ...]  # new tokens
    prompt: tuple[bool, ...]  # whether they are a piece of a prompt
    attempts: tuple[int, ...]  # how often the same tokens were run before and rejected

    def sequences(self, which: list[int]) -> GateStep:
        """Some of the sequences."""
        return GateStep(
            tuple(self.tokens[i] for i in which),
            tuple(self.prompt[i] for i in which),
            tuple(self.attempts[i] for i in which),
        )

    @staticmethod
    def decode(sequences: int) -> GateStep:
        """One token of each sequence, for the first time."""
        return GateStep((1,) * sequences, (False,) * sequences, (0,) * sequences)

    @staticmethod
    def of_prompt(tokens: int) -> GateStep:
        return GateStep((tokens,), (True,), (0,))


class Gate(ABC):
    """The gate of one model with `top_k` experts per token. Values in, values out: no torch, no
    clock.

    `reruns`: whether `judge` may reject anything. Where it may not, it is not called, and the
    confidence is not computed.

    `draft`: how many tokens in a row a sequence may write with fewer experts before one pass with
    all of them checks these (attempt 1, several tokens); 0: nothing is drafted. A gate that drafts
    does not judge.

    `reuse`: what a token that runs again takes over from its rejected pass, in every layer. One of
    `gate.REUSES`: nothing, so that the routers choose again; the experts that the rejected pass's
    routers ranked within top-k, weighed by the routers of the new pass; or these experts with the
    rejected pass's own weights, so that no router is asked. KV entries are overwritten anyhow."""

    reruns: bool = False
    draft: int = 0
    reuse: str = ROUTE_AGAIN

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    @abstractmethod
    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        """How many experts each token of the pass uses, 1 to `top_k`: [all tokens], sequence after
        sequence. None: all of top-k, for every token."""

    def judge(self, step: GateStep, confidence: Confidence) -> NDArray[np.bool_]:
        """Which sequences of `step` must run their last token again; `confidence` has one entry
        for each. Asked only of tokens that used fewer than `top_k`, and every attempt at a token
        must use more than the one before."""
        return np.zeros(len(step.tokens), dtype=np.bool_)

    def reuses(self, step: GateStep) -> tuple[str, ...]:
        """`reuse` of every sequence; only those count that run again. Not asked where `reuse` is
        `ROUTE_AGAIN`."""
        return (self.reuse,) * len(step.tokens)

    def prefetch_distance(self, layer_ns: int, transfer_ns: int) -> int:
        """How many layers ahead a pass that runs tokens again prefetches what the rejected pass
        wanted, 1 to MAX_DISTANCE: `layer_ns` is a layer's time without waiting for experts,
        `transfer_ns` that of one expert on the link, both as measured so far."""
        return 1


class Full(Gate):
    """The model as it was trained: all of top-k, and every token stands."""

    def experts_per_token(self, step: GateStep) -> None:
        return None
