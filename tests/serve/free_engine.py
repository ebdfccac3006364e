"""A scripted engine that writes its script as far as the answer's grammar allows it, and then what
chance says among the tokens that the grammar allows: a model that would rather not call."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from scripted import InstantEngine

from moesaic.engine.batcher_thread import Callback
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampled import Sampled

# What ends what chance would go on with for ever.
_CLOSERS = ('"', "}", "]", "\n</parameter>\n", "</think>", "<|end|>", "1")
_CLOSES, _ENDS = 0.4, 0.7  # how often


class FreeEngine(InstantEngine):
    def _begin(self, end: str) -> None:
        super()._begin(end)
        self.chance = Random(0)

    def _run(self, request: Request, callback: Callback, answer: Sequence[int]) -> None:
        """All tokens at once. Without a grammar, the script alone."""
        left, constraint = [*answer], request.sampling.constraint
        while True:
            token = left.pop(0) if constraint is None else self._next(request, left)
            chunk = request.accept(Sampled(token, -0.5, ()))
            callback(chunk)
            if chunk.finish_reason is not None:
                return

    def _next(self, request: Request, left: list[int]) -> int:
        tokenizer, constraint = self.input_processor.tokenizer, request.sampling.constraint
        assert constraint is not None, "a call is demanded"
        forbidden = constraint.forbidden(tokenizer.vocabulary)
        if left and not forbidden[left[0]]:
            return left.pop(0)
        left.clear()
        ends = [each for each in tokenizer.eos_ids if not forbidden[each]]
        if ends and self.chance.random() < _ENDS:
            return ends[0]
        if self.chance.random() < _CLOSES:
            closer = tokenizer.encode(self.chance.choice(_CLOSERS), special=False)
            if not forbidden[closer[0]]:
                left.extend(closer[1:])
                return closer[0]
        allowed = (~forbidden).nonzero().flatten().tolist()
        return int(self.chance.choice([each for each in allowed if each not in ends] or ends))
