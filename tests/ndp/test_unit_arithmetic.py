"""Does the emulated unit compute what its multipliers, adder tree and activation units would?"""

from __future__ import annotations

import pytest
import torch
from near_data_arithmetic import NearDataArithmetic, silu, tree_sum

from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.reference import ReferenceKernel
from moesaic.model_info.expert_shape import ExpertShape

SHAPE = ExpertShape(48, 24)


def packed(dtype: str, seed: int = 0) -> tuple[ReferenceKernel, torch.Tensor]:
    kernel = ReferenceKernel(SHAPE, dtype)
    generator = torch.Generator().manual_seed(seed)
    gate, up = (torch.randn(24, 48, generator=generator) / 7 for _ in range(2))
    down = torch.randn(48, 24, generator=generator) / 5
    block = torch.zeros(kernel.block_bytes, dtype=torch.uint8)
    kernel.pack(ExpertWeights(gate, up, down), block)
    return kernel, block


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_unit_rounds_but_does_not_stray(dtype: str) -> None:
    """Against fp64 with the same weights: a few roundings to 11 bits."""
    kernel, block = packed(dtype)
    gate_up, down = kernel.values(block)[: 48 * 48].view(48, 48), kernel.values(block)[48 * 48 :]
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(3)).half()
    gate, up = (x.double() @ gate_up.double().T).chunk(2, dim=1)
    exact = (gate * torch.sigmoid(gate) * up) @ down[: 48 * 24].view(48, 24).double().T
    found = NearDataArithmetic(kernel, width=16).expert(block, x)
    assert found.dtype == torch.float16
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert 0 < error < 2**-9


def bit_serial(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A multiplier's product of two 16-bit numbers: for every bit of b's significand that is set,
    a's significand shifted to that bit is added; exponents are added once."""
    (ma, ea), (mb, eb) = torch.frexp(a.double()), torch.frexp(b.double())
    whole_a, whole_b = (ma * 2**11).long(), (mb * 2**11).long()
    total, sign = torch.zeros_like(whole_a), whole_b.sign()
    for bit in range(11 + 1):
        total += ((whole_b.abs() >> bit) & 1) * (whole_a << bit)
    return torch.ldexp((total * sign).double(), ea + eb - 22)


@pytest.mark.parametrize("weights", [torch.float16, torch.bfloat16])
def test_bit_serial_products_are_what_fp32_computes(weights: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(4096, generator=generator).to(weights)
    x = torch.randn(4096, generator=generator).half()
    assert torch.equal(bit_serial(w, x).float(), w.float() * x.float())
    assert torch.equal(bit_serial(w, x), w.double() * x.double()), "and exactly"


def test_the_adder_tree_adds_neighbours_first() -> None:
    """2^24 + 1 is lost in fp32, 2^24 + (1 + 1) is not."""
    assert tree_sum(torch.tensor([[2.0**24, 1.0, 1.0, 0.0]])).item() == 2**24, "each 1 by itself"
    assert tree_sum(torch.tensor([[2.0**24, 0.0, 1.0, 1.0]])).item() == 2**24 + 2


def test_silu_is_rounded_at_every_step_and_survives_overflow() -> None:
    x = torch.tensor([-20.0, -1.0, 0.0, 1.0, 12.0]).half()
    found = silu(x)
    assert found.dtype == torch.float16
    assert found[0] == 0, "exp(20) is infinite in FP16"
    assert found[1:].double().tolist() == pytest.approx(
        [-0.26894, 0.0, 0.73106, 11.99993], rel=2e-3
    )
