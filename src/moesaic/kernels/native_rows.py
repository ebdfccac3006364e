"""What the layers of a prompt compute between their matrix products, natively and on the same
workers: norms, rotation of queries and keys, routing. As PyTorch operations each of them wakes as
many threads as there are cores, and waits for them.

Rounded where PyTorch rounds, as in the native decode step; a row's bits do not depend on others.
"""

from __future__ import annotations

import torch

from moesaic.kernels import _native
from moesaic.kernels.native_format import FLOAT_TYPES
from moesaic.kernels.rotated_heads import Angles, HeadNorms

MIN_ROWS = 16  # tokens; fewer are left to PyTorch


class NativeRows:
    """On one pool of workers, for one instruction set."""

    def __init__(self, pool: _native.Pool, isa: int) -> None:
        self.runner = _native.RowRunner(pool, isa)

    def takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether there are enough tokens [tokens, ..., width], rows equally far apart, in the
        weight's dtype."""
        return (
            x.dim() > 1
            and len(x) >= MIN_ROWS
            and x.numel() > 0
            and x.device.type == "cpu"
            and x.dtype in FLOAT_TYPES
            and (x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1 <= x.stride(0)))
            and weight.dtype == x.dtype
            and weight.is_contiguous()
        )

    def takes_sum(self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor) -> bool:
        return (
            self.takes(x, weight)
            and x.dtype == added.dtype == torch.bfloat16
            and x.shape == added.shape
            and added.is_contiguous()
        )

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Of what it `takes`."""
        out = torch.empty(x.shape, dtype=x.dtype)
        self.runner.norm(_norm_call(x, weight, eps, out))
        return out

    def add_and_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + added, and the norm of that; of what it `takes_sum`."""
        total, out = (torch.empty(x.shape, dtype=x.dtype) for _ in range(2))
        call = _norm_call(x, weight, eps, out)
        call.added, call.sum = added.data_ptr(), total.data_ptr()
        self.runner.norm(call)
        return total, out

    def heads(
        self, query: torch.Tensor, key: torch.Tensor, norms: HeadNorms | None, angles: Angles
    ) -> torch.Tensor:
        """Normalises and turns queries and keys [tokens, heads, head] in place: bf16, contiguous.
        Returns the sums of every token's keys: not finite where a value is not."""
        call = _native.HeadsCall()
        call.tokens, call.rope_dim = len(query), angles.dim
        call.interleaved = angles.interleaved
        cos, sin = angles.cos.contiguous(), angles.sin.contiguous()
        call.cos, call.sin = cos.data_ptr(), sin.data_ptr()
        for part, x in ((call.queries, query), (call.keys, key)):
            if x.dtype != torch.bfloat16 or not x.is_contiguous():
                raise ValueError("heads are turned in place: bf16, row after row")
            part.x, part.heads, part.width = x.data_ptr(), x.shape[1], x.shape[2]
        if norms is not None:
            call.eps = norms.eps
            call.queries.norm, call.keys.norm = norms.query.data_ptr(), norms.key.data_ptr()
            call.queries.whole = call.keys.whole = norms.whole
        sums = torch.empty(len(key))
        call.keys.sums = sums.data_ptr()
        self.runner.heads(call)
        return sums


def _norm_call(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> _native.NormCall:
    width = x.shape[-1]
    if weight.shape != (width,):
        raise ValueError("a norm has one weight for every value of a row")
    call = _native.NormCall()
    call.x, call.weight, call.out = x.data_ptr(), weight.data_ptr(), out.data_ptr()
    call.type, call.eps = FLOAT_TYPES[x.dtype], eps
    call.rows, call.width = x.numel() // width, width
    call.stride = x.stride(0) if x.dim() == 2 else width
    return call
