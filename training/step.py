"""One step of training, on whatever device the network is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from training.attention import Attention, Masked, Packed
from training.batches import boundaries
from training.losses import Losses, losses, surprise
from training.network import Network
from training.optimiser import Optimisers
from training.packing import PERCENT, Rows
from training.recipe import Recipe


class Batch(NamedTuple):
    tokens: torch.Tensor  # [rows, length]
    counts: torch.Tensor  # [rows, length], 0 to 1
    attention: Attention


def to_device(rows: Rows, device: torch.device, packed: bool, per_row: int) -> Batch:
    def move(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        here = torch.from_numpy(array)
        # Pinned, or the copy waits for all that the device has been given to do.
        here = here.pin_memory() if device.type == "cuda" else here
        return here.to(device, non_blocking=True)

    tokens = move(rows.tokens.astype(np.int64))
    counts = move(rows.percent.astype(np.float32) / PERCENT)
    if packed:
        bounds = move(boundaries(rows.starts, per_row))
        return Batch(tokens, counts, Packed(bounds, rows.tokens.shape[1]))
    return Batch(tokens, counts, Masked.inside(move(rows.starts)))


class Trainer:
    def __init__(self, network: Network, optimisers: Optimisers, recipe: Recipe) -> None:
        self.network, self._optimisers, self._learning = network, optimisers, recipe.learning
        self._head = _head_loss

    def compile(self, batch: Batch) -> str:
        """Compile and compare with the plain way on a batch; says what came of it."""
        plain = self._try(batch)
        try:
            self.network.compile_layers(True)
            self._head = torch.compile(_head_loss, dynamic=False)
            compiled = self._try(batch)
            if abs(compiled - plain) > 0.01 * abs(plain):
                raise ArithmeticError(f"loss {compiled:.4f} instead of {plain:.4f}")
        except Exception as error:
            self.network.compile_layers(False)
            self._head = _head_loss
            return f"compiled: no ({type(error).__name__}: {str(error)[:300]})"
        return "compiled: yes"

    def _try(self, batch: Batch) -> float:
        loss = self._losses(batch).total
        loss.backward()
        self.network.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _losses(self, batch: Batch) -> Losses:
        hidden, routings = self.network(batch.tokens, batch.attention)
        text = self._head(self.network, hidden, batch.tokens, batch.counts)
        return losses(text, routings, self._learning)

    def step(self, batch: Batch, rate_factor: float) -> Losses:
        """The losses stay on the device: reading one waits for the step."""
        found = self._losses(batch)
        found.total.backward()
        tame([weight.grad for weight in self.network.parameters()], self._learning.largest_gradient)
        self._optimisers.step(rate_factor)
        return Losses(*(value.detach() for value in found))


def _head_loss(
    network: Network, hidden: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    return surprise(network.logits(hidden), tokens, counts)


def tame(gradients: list[torch.Tensor], largest: float) -> torch.Tensor:
    """Scale them down to a norm; all to zero where one is not finite, so that a bad batch costs
    one step and not the run. The norm before, on the device."""
    norm = torch.nn.utils.get_total_norm(gradients)
    finite = torch.isfinite(norm)
    factor = torch.where(finite, (largest / (norm + 1e-6)).clamp(max=1.0), 0.0)
    for gradient in gradients:
        gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(factor)
    return norm
