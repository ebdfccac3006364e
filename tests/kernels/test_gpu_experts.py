"""Do the GPU's expert kernels compute what the blocks say? In Triton's interpreter where there is
no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from packed_strips import pack_expert
from torch.nn import functional

pytest.importorskip("triton")

from moesaic.kernels.base import ExpertShape
from moesaic.kernels.gpu.experts import GpuExperts
from moesaic.kernels.gpu.layout import BITS, BlockWords
from moesaic.kernels.gpu.table import write_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}
Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def experts_of(
    shape: ExpertShape, count: int, dtype: str
) -> tuple[list[torch.Tensor], list[Matrices]]:
    blocks, meant = [], []
    for _ in range(count):
        sizes = ((shape.intermediate, shape.hidden),) * 2 + ((shape.hidden, shape.intermediate),)
        gate, up, down = (torch.randn(size) / size[1] ** 0.5 for size in sizes)
        block, values = pack_expert(gate, up, down, BITS[dtype])
        assert len(block) == BlockWords(shape, dtype).bytes
        blocks.append(block.to(DEVICE))
        meant.append(values)
    return blocks, meant


def expected(shape: ExpertShape, values: Matrices, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (v.double() for v in values)
    inner = ACTIVATIONS[shape.activation](x.double() @ gate.T) * (x.double() @ up.T)
    return inner @ down.T


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(
    ("hidden", "intermediate", "tokens", "activation"),
    [
        (64, 32, 1, "silu"),
        (320, 72, 1, "gelu"),
        (64, 48, 3, "silu"),
        (136, 40, 18, "gelu_pytorch_tanh"),
    ],
)
def test_every_pair_gets_its_experts_result(
    dtype: str, hidden: int, intermediate: int, tokens: int, activation: str
) -> None:
    torch.manual_seed(hidden + tokens)
    shape, top_k, count = ExpertShape(hidden, intermediate, activation), 2, 5
    blocks, meant = experts_of(shape, count, dtype)
    x = torch.randn(tokens, hidden).to(torch.bfloat16)
    chosen = torch.stack([torch.randperm(count)[:top_k] for _ in range(tokens)])
    kernel = GpuExperts(shape, dtype, tokens, top_k, count, DEVICE)
    table = torch.full((kernel.table_shape.words,), -1, dtype=torch.int64)
    used = [e for e in range(count) if (chosen == e).any() and e != 1]  # 1 is somebody else's
    rows = [(chosen.ravel() == e).nonzero()[:, 0].tolist() for e in used]
    addresses = [blocks[e].data_ptr() for e in used]
    write_table(table.numpy(), kernel.table_shape, addresses, [0] * len(used), rows)
    kernel.parts.fill_(float("nan"))
    kernel.launch(table.to(DEVICE), x.to(DEVICE))
    for expert, pairs in zip(used, rows, strict=True):
        for pair in pairs:
            want = expected(shape, meant[expert], x[pair // top_k])
            error = (kernel.parts[pair].cpu() - want).norm() / want.norm()
            rounded = dtype == "int4" and (tokens > 1 or DEVICE == "cpu")  # weights, to bf16
            assert error < (0.012 if rounded else 0.006), (expert, pair)
    computed = {pair for pairs in rows for pair in pairs}
    for pair in set(range(tokens * top_k)) - computed:
        assert kernel.parts[pair].isnan().all()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_a_slot_is_filled_in_passing(dtype: str) -> None:
    torch.manual_seed(1)
    shape = ExpertShape(96, 40)
    (block,), _ = experts_of(shape, 1, dtype)
    slot = torch.zeros_like(block)
    kernel = GpuExperts(shape, dtype, 1, 1, 1, DEVICE)
    table = torch.zeros(kernel.table_shape.words, dtype=torch.int64)
    write_table(table.numpy(), kernel.table_shape, [block.data_ptr()], [slot.data_ptr()], [[0]])
    kernel.launch(table.to(DEVICE), torch.randn(1, 96).to(torch.bfloat16).to(DEVICE))
    assert np.array_equal(slot.cpu().numpy(), block.cpu().numpy())
