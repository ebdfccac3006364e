"""Does every token reach its experts and come back, in both directions?"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from training.products import grouped, looped
from training.routing import BLOCK, Combine, Dispatch, Layout, lay_out

EXPERTS = 8


def choose(tokens: int, k: int, crowd: int = EXPERTS) -> torch.Tensor:
    """k different experts each, of the first `crowd` only."""
    random = torch.Generator().manual_seed(tokens)
    return torch.stack([torch.randperm(crowd, generator=random)[:k] for _ in range(tokens)])


@pytest.mark.parametrize(
    ("tokens", "k", "crowd"), [(1, 1, 8), (50, 2, 8), (50, 2, 3), (64, 8, 8), (100, 1, 1)]
)
def test_a_layout_gives_every_pair_a_slot_of_its_expert(tokens: int, k: int, crowd: int) -> None:
    chosen = choose(tokens, k, crowd)
    layout = lay_out(chosen, EXPERTS)
    ends = layout.ends.tolist()
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert all(size >= BLOCK and size % BLOCK == 0 for size in sizes)
    assert ends[-1] == len(layout.token_of)
    assert len(set(layout.slots.flatten().tolist())) == tokens * k
    expert_of_slot = torch.repeat_interleave(torch.arange(EXPERTS), torch.tensor(sizes))
    assert torch.equal(expert_of_slot[layout.slots], chosen)
    assert torch.equal(layout.token_of[layout.slots][:, 0], torch.arange(tokens))
    assert int(layout.spare.sum()) == len(layout.token_of) - tokens * k
    assert not layout.spare[layout.slots].any()


def _plain(
    hidden: torch.Tensor, matrices: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    computed = torch.einsum("th,tkoh->tko", hidden, matrices[chosen])
    return (computed * weights.unsqueeze(-1)).sum(dim=1)


def _through_slots(
    hidden: torch.Tensor, matrices: torch.Tensor, weights: torch.Tensor, layout: Layout
) -> torch.Tensor:
    slots = Dispatch.apply(hidden, layout.token_of, layout.slots)
    return Combine.apply(looped(slots, matrices, layout.ends), weights, *layout[:4])


def test_results_and_gradients_are_those_of_the_plain_formula() -> None:
    torch.manual_seed(0)
    chosen = choose(40, 3, crowd=6)  # two experts get nothing
    inputs = [torch.randn(40, 16), torch.randn(EXPERTS, 24, 16), torch.rand(40, 3)]
    towards = torch.randn(40, 24)
    gradients = []
    for through_slots in (False, True):
        leaves = [tensor.double().requires_grad_() for tensor in inputs]
        hidden, matrices, weights = leaves
        if through_slots:
            result = _through_slots(hidden, matrices, weights, lay_out(chosen, EXPERTS))
        else:
            result = _plain(hidden, matrices, weights, chosen)
        (result * towards).sum().backward()
        gradients.append([result.detach(), *(leaf.grad for leaf in leaves)])
    for plain, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain)


def test_torch_groups_as_the_loop_does() -> None:
    if not hasattr(functional, "grouped_mm") and not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")
    torch.manual_seed(0)
    layout = lay_out(choose(40, 3), EXPERTS)
    slots = torch.randn(len(layout.token_of), 16)
    matrices = torch.randn(EXPERTS, 24, 16)
    torch.testing.assert_close(
        grouped(slots, matrices, layout.ends), looped(slots, matrices, layout.ends)
    )
