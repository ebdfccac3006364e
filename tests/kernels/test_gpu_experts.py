"""Do the GPU's expert kernels compute what the blocks say?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from packed_strips import pack_expert
from torch.nn import functional

from moesaic.kernels.gpu.experts import BITS, BlockWords, GpuExperts
from moesaic.kernels.gpu.table import write_table
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda"
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
        (64, 14336, 1, "silu"),  # more than a block keeps of one token
        (64, 48, 3, "silu"),
        (136, 40, 18, "gelu_pytorch_tanh"),
        (272, 104, 40, "silu"),  # rows of several tiles
        (576, 200, 130, "silu"),  # and of several blocks
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
    kernel = GpuExperts(shape, dtype, tokens, top_k, count)
    table = torch.full((kernel.table_shape.words,), -1, dtype=torch.int64)
    used = [e for e in range(count) if (chosen == e).any() and e != 1]  # 1 is another device's
    rows = [(chosen.ravel() == e).nonzero()[:, 0].tolist() for e in used]
    addresses = [blocks[e].data_ptr() for e in used]
    write_table(table.numpy(), kernel.table_shape, addresses, [0] * len(used), rows)
    kernel.parts.fill_(float("nan"))
    kernel.launch(table.to(DEVICE), x.to(DEVICE))
    for expert, pairs in zip(used, rows, strict=True):
        for pair in pairs:
            want = expected(shape, meant[expert], x[pair // top_k])
            error = (kernel.parts[pair].cpu() - want).norm() / want.norm()
            rounded = dtype != "bf16" and tokens > 1  # scaled weights, to bf16
            assert error < (0.012 if rounded else 0.006), (expert, pair)
    computed = {pair for pairs in rows for pair in pairs}
    for pair in set(range(tokens * top_k)) - computed:
        assert kernel.parts[pair].isnan().all()


@pytest.mark.parametrize("max_rows", [17, 30, 64, 130])
def test_a_bound_on_the_rows_changes_nothing_but_how_the_work_is_cut(max_rows: int) -> None:
    torch.manual_seed(max_rows)
    shape, tokens = ExpertShape(128, 64), 130
    blocks, meant = experts_of(shape, 2, "bf16")
    x = torch.randn(tokens, 128).to(torch.bfloat16)
    rows = [list(range(max_rows)), list(range(max_rows, tokens))]
    if max_rows < tokens / 2:
        rows[1] = rows[1][:max_rows]
    kernel = GpuExperts(shape, "bf16", tokens, 1, 2)
    table = torch.zeros(kernel.table_shape.words, dtype=torch.int64)
    used = [e for e in (0, 1) if rows[e]]
    addresses = [blocks[e].data_ptr() for e in used]
    write_table(
        table.numpy(), kernel.table_shape, addresses, [0] * len(used), [rows[e] for e in used]
    )
    kernel.launch(table.to(DEVICE), x.to(DEVICE), max_rows)
    for expert in used:
        want = expected(shape, meant[expert], x[rows[expert]])
        error = (kernel.parts[rows[expert]].cpu() - want).norm() / want.norm()
        assert error < 0.006, expert


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_a_slot_is_filled_in_passing(dtype: str, tokens: int) -> None:
    torch.manual_seed(1)
    shape = ExpertShape(96, 40)
    (block,), _ = experts_of(shape, 1, dtype)
    slot = torch.zeros_like(block)
    kernel = GpuExperts(shape, dtype, tokens, 1, 1)
    table = torch.zeros(kernel.table_shape.words, dtype=torch.int64)
    rows = [list(range(tokens))]
    write_table(table.numpy(), kernel.table_shape, [block.data_ptr()], [slot.data_ptr()], rows)
    kernel.launch(table.to(DEVICE), torch.randn(tokens, 96).to(torch.bfloat16).to(DEVICE))
    assert np.array_equal(slot.cpu().numpy(), block.cpu().numpy())
