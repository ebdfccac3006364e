"""The residual stream of a captured step: norms in front of what reads it and additions behind,
each fused with the product beside it where a kernel does both."""

from __future__ import annotations

import torch

from moesaic.machines.captured.step_parts import THREADS, WARPS, StepParts
from moesaic.models.linear import Linear


class ResidualStream:
    """`stream` is what a layer adds to, `x` the same after the last norm [tokens, hidden]. What was
    added with `add` is a part of the stream after the next norm."""

    def __init__(self, parts: StepParts, tokens: int) -> None:
        self._parts, self._kernels, self._tokens = parts, parts.kernels, tokens
        hidden = parts.decoder.architecture.spec.hidden_size
        self.stream = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device="cuda")
        self.x = torch.zeros_like(self.stream)
        self._pending: torch.Tensor | None = None

    def begin(self, numbers: torch.Tensor) -> None:
        """Begin the stream with the embeddings of these tokens."""
        torch.index_select(self._parts.decoder.embedding, 0, numbers, out=self.stream)
        self._pending = None

    @property
    def is_complete(self) -> bool:
        """Whether no addition is left to the next norm."""
        return self._pending is None

    def add(self, addend: torch.Tensor) -> None:
        """Together with the next norm."""
        assert self._pending is None, "a norm comes between two additions"
        self._pending = addend

    def add_product(self, linear: Linear, attended: torch.Tensor) -> None:
        """The same with an output projection."""
        if self._tokens > 1 or not self._adds(linear):
            self.add(linear(attended))
        elif linear.packed is not None:
            self._parts.dense.add(self.stream, attended, linear)
        else:
            weight, bias = linear.weight, 0 if linear.bias is None else linear.bias
            grid = (-(-len(weight) // WARPS),)
            self._parts.add_product[attended.shape[1]](
                grid, THREADS, attended, weight, bias, self.stream, early=True
            )  # fmt: skip

    def _adds(self, linear: Linear) -> bool:
        """Whether one kernel multiplies and adds."""
        if linear.packed is not None:
            return self._parts.dense.adds(linear)
        return linear.weight.shape[1] in self._parts.add_product

    def normed(self, weight: torch.Tensor) -> torch.Tensor:
        addend: torch.Tensor | int = 0 if self._pending is None else self._pending
        grid = (self._tokens,)
        self._kernels["add_norm"](grid, THREADS, self.stream, addend, weight, self.x)
        self._pending = None
        return self.x

    def normed_product(
        self, norm: torch.Tensor, linear: Linear, each: int = 1, head: bool = False
    ) -> torch.Tensor:
        """norm(stream) @ weight.T + bias; of one token, `each` outputs are computed by a warp,
        where they are not packed."""
        if self._tokens > 1 or self._pending is not None:
            return linear(self.normed(norm))
        if linear.packed is not None:
            return self._parts.dense.normed(self.stream, norm, linear, head)
        weight, bias = linear.weight, 0 if linear.bias is None else linear.bias
        out = torch.empty(1, len(weight), dtype=weight.dtype, device="cuda")
        grid = (-(-len(weight) // (WARPS * each)),)
        self._kernels["normed_product"](
            grid, THREADS, self.stream, norm, weight, bias, out, len(weight), each, early=True
        )  # fmt: skip
        return out
