"""Which expert computes which token, laid out for grouped products.

Every (token, chosen expert) pair gets a slot; an expert's slots stand together, and their number
is padded to whole blocks, at least one: grouped products want aligned groups, and an empty one
has been seen to hang their backward pass. Nothing here asks the device for a number, so that the
host can run ahead. Spare slots compute token 0 once more; the result is not used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BLOCK = 16  # slots


class Layout(NamedTuple):
    slots: torch.Tensor  # [tokens, k]: where each pair is computed
    token_of: torch.Tensor  # [slots]: which token a slot computes, 0 for a spare one
    pair_of: torch.Tensor  # [slots]: which pair (token * k + place), 0 for a spare one
    spare: torch.Tensor  # [slots]: this slot has no token
    ends: torch.Tensor  # [experts], int32: where each expert's slots end


def lay_out(chosen: torch.Tensor, experts: int) -> Layout:
    """`chosen` [tokens, k] are expert numbers."""
    k, device = chosen.shape[1], chosen.device
    sorted_numbers, order = torch.sort(chosen.flatten().to(torch.int16), stable=True)  # quicker
    by_expert, pairs = sorted_numbers.long(), chosen.numel()
    numbers = torch.arange(experts, device=device)
    ends = torch.searchsorted(by_expert, numbers, right=True)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    blocks = torch.clamp((counts + BLOCK - 1) // BLOCK, min=1)
    padded_ends = torch.cumsum(blocks * BLOCK, 0)
    shift = padded_ends - blocks * BLOCK - (ends - counts)
    slot_of_sorted = torch.arange(pairs, device=device) + shift[by_expert]

    total = -(-pairs // BLOCK) * BLOCK + experts * BLOCK
    slots = torch.empty_like(order)
    slots[order] = slot_of_sorted
    pair_of = order.new_full((total,), pairs)
    pair_of[slot_of_sorted] = order
    spare = pair_of == pairs
    pair_of = pair_of.masked_fill(spare, 0)
    # The last expert takes what is left over, so that every slot has an expert.
    padded_ends = torch.where(numbers == experts - 1, total, padded_ends)
    return Layout(slots.view(-1, k), pair_of // k, pair_of, spare, padded_ends.to(torch.int32))


class Dispatch(torch.autograd.Function):
    """Token rows to slots. Both directions only gather: no atomics, the same bits every time."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: torch.Tensor,
        token_of: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(slots)
        return hidden[token_of]

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return gradients[0][slots].sum(dim=1), None, None


class Combine(torch.autograd.Function):
    """Slot rows back to tokens, weighted and added."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        computed: torch.Tensor,
        weights: torch.Tensor,
        slots: torch.Tensor,
        token_of: torch.Tensor,
        pair_of: torch.Tensor,
        spare: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(computed, weights, slots, token_of, pair_of, spare)
        return (computed[slots] * weights.unsqueeze(-1)).sum(dim=1)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        computed, weights, slots, token_of, pair_of, spare = ctx.saved_tensors
        gradient = gradients[0]
        share = weights.flatten()[pair_of].masked_fill(spare, 0)
        to_slots = gradient[token_of] * share.unsqueeze(-1)
        to_weights = (computed[slots] * gradient.unsqueeze(1)).sum(dim=-1)
        return to_slots, to_weights, None, None, None, None
