"""Which of the quick ways work on this machine: each is tried on something small and held against
the plain way, before a run relies on it. A way that fails is not taken, and the run says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from training.attention import Look, Masked, Packed
from training.batches import boundaries
from training.products import Product, grouped, looped
from training.routing import lay_out

_CLOSE = 0.05  # of the largest value: bf16 rounds, a wrong result is wrong by far more


@dataclass(frozen=True, slots=True)
class Paths:
    product: Product
    packed: bool  # FlashAttention over documents laid end to end
    notes: tuple[str, ...]  # what was found, for the log


def find_paths(device: torch.device, dtype: torch.dtype) -> Paths:
    groups = _trouble(lambda: _try_grouped(device, dtype))
    packed = _trouble(lambda: _try_packed(device, dtype))
    return Paths(
        looped if groups else grouped,
        not packed,
        (f"grouped products: {groups or 'yes'}", f"packed attention: {packed or 'yes'}"),
    )


def _trouble(trial: Callable[[], None]) -> str | None:
    """Anything may go wrong in a path that this machine lacks."""
    try:
        trial()
    except Exception as error:
        return f"no ({type(error).__name__}: {str(error)[:160]})"
    return None


def _try_grouped(device: torch.device, dtype: torch.dtype) -> None:
    """With an expert that no token chose: its group is all spare slots."""
    random = torch.Generator().manual_seed(0)
    chosen = torch.randint(1, 8, (200, 2), generator=random).to(device)
    layout = lay_out(chosen, 8)
    slots = torch.randn(len(layout.token_of), 64, generator=random).to(device, dtype)
    weights = torch.randn(8, 128, 64, generator=random).to(device, dtype)
    wanted = _with_gradients(lambda a, b: looped(a, b, layout.ends), slots, weights)
    found = _with_gradients(lambda a, b: grouped(a, b, layout.ends), slots, weights)
    _same(found, wanted)


def _try_packed(device: torch.device, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    starts = np.zeros((2, 128), np.bool_)
    starts[:, [0, 5, 77]] = True
    bounds = torch.from_numpy(boundaries(starts, 4)).to(device)
    inputs = [torch.randn(2, 128, 4, 64, generator=random).to(device, dtype) for _ in range(3)]
    ways: list[Look] = [
        Masked.inside(torch.from_numpy(starts).to(device)),
        Packed(bounds, 128),
    ]
    wanted, found = (_with_gradients(way.attend, *inputs) for way in ways)
    _same(found, wanted)


def _with_gradients(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> list[torch.Tensor]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    result = function(*leaves)
    # A gradient with a shape of its own: one that is all ones has no strides.
    torch.autograd.backward(result, torch.cos(result.detach()))
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def _same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        error = (one.float() - other.float()).abs().max() / other.float().abs().max()
        if not error < _CLOSE:
            raise ArithmeticError(f"differs from the plain way by {float(error):.1%}")
