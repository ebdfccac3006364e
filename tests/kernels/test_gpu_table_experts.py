"""A layer's experts through tables, launch by launch: does every token get the weighted sum of the
experts that were launched, and exactly nothing of the others? Where there is no GPU, a stand-in for
the kernels reads the tables."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from packed_strips import pack_expert
from torch.nn import functional

from moesaic.kernels.gpu import experts as gpu_experts
from moesaic.kernels.gpu.experts import BITS
from moesaic.kernels.gpu.table import COUNT, TableShape, write_rows, write_table
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.layerwise.table_experts import TableExperts
from moesaic.machines.real.cuda_streams import make_streams
from moesaic.model_info.expert_shape import ExpertShape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE, TOP_K, EXPERTS = ExpertShape(64, 48), 3, 6
Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class TableReader:
    """`GpuExperts` on the CPU: finds experts by the addresses of their blocks."""

    known: ClassVar[dict[int, Matrices]] = {}

    def __init__(
        self, shape: ExpertShape, dtype: str, tokens: int, top_k: int, experts: int,
        buffers: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.table_shape, self._tokens = TableShape.of(tokens, top_k, experts), tokens
        pairs = tokens * top_k
        fresh = torch.zeros(pairs, shape.intermediate), torch.zeros(pairs, shape.hidden)
        self.inner, self.parts = (part[:pairs] for part in buffers or fresh)

    def launch(self, table: torch.Tensor, x: torch.Tensor, max_rows: int | None = None) -> None:
        words, at = table.tolist(), self.table_shape
        for i in range(words[COUNT]):
            first, end = words[at.firsts_at + i], words[at.firsts_at + i + 1]
            assert max_rows is None or end - first <= max_rows
            for pair in words[at.rows_at + first : at.rows_at + end]:
                block = self.known[words[at.blocks_at + i]]
                self.parts[pair] = result(block, x[pair // TOP_K]).float()


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(gpu_experts, "GpuExperts", TableReader)


def result(matrices: Matrices, row: torch.Tensor) -> torch.Tensor:
    gate, up, down = (part.double() for part in matrices)
    return (functional.silu(row.double() @ gate.T) * (row.double() @ up.T)) @ down.T


def packed(dtype: str) -> tuple[list[torch.Tensor], list[Matrices]]:
    torch.manual_seed(4)
    blocks, meant = [], []
    for _ in range(EXPERTS):
        sizes = ((48, 64), (48, 64), (64, 48))
        gate, up, down = (torch.randn(size) / size[1] ** 0.5 for size in sizes)
        block, values = pack_expert(gate, up, down, BITS[dtype])
        blocks.append(block.to(DEVICE))
        meant.append(values)
        TableReader.known[blocks[-1].data_ptr()] = values
    return blocks, meant


def routing(tokens: int, ragged: bool) -> Pairs:
    rng = np.random.default_rng(tokens)
    experts = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)])
    weights = rng.random((tokens, TOP_K), dtype=np.float32) + 0.1
    if ragged:
        experts[::2, 2:], weights[::2, 2:] = -1, 0
    return Pairs(experts, weights)


def wanted(pairs: Pairs, meant: list[Matrices], x: torch.Tensor, used: set[int]) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for expert in used:
        for pair in pairs.of(expert).tolist():
            part = result(meant[expert], x[pair // TOP_K])
            out[pair // TOP_K] += float(pairs.weights.ravel()[pair]) * part
    return out


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(("tokens", "ragged"), [(1, False), (5, False), (5, True), (20, True)])
def test_launches_add_up_and_others_add_nothing(dtype: str, tokens: int, ragged: bool) -> None:
    """Expert 4 is computed elsewhere; the parts hold NaN when the layer begins."""
    (blocks, meant), pairs = packed(dtype), routing(tokens, ragged)
    experts = TableExperts(SHAPE, dtype, 20, TOP_K, EXPERTS, make_streams(DEVICE))
    x = torch.randn(tokens, 64).to(torch.bfloat16)
    used = {e for e in range(EXPERTS) if pairs.load(e)} - {4}
    for _ in range(2):  # another layer finds what this one left
        experts._by_tokens[20].parts.fill_(float("nan"))
        experts.begin(x.to(DEVICE), pairs)
        for group in ({0, 2, 5}, {3}, {1}):
            now = sorted(group & used)
            if now:
                experts.launch(now, [blocks[e] for e in now])
        got = experts.total().cpu()
    want = wanted(pairs, meant, x, used)
    assert got.dtype == torch.float32
    assert got.isfinite().all()
    assert (got - want).norm() / want.norm() < (0.012 if dtype == "int4" else 0.006)


def test_a_token_whose_experts_are_all_elsewhere_gets_nothing() -> None:
    blocks, _ = packed("bf16")
    experts = TableExperts(SHAPE, "bf16", 20, TOP_K, EXPERTS, make_streams(DEVICE))
    chosen = np.array([[0, 1, 2], [3, 4, 5]])
    experts._by_tokens[20].parts.fill_(float("nan"))
    experts.begin(torch.randn(2, 64).to(DEVICE), Pairs(chosen, np.ones((2, 3), np.float32)))
    experts.launch([0, 1, 2], blocks[:3])
    got = experts.total().cpu()
    assert (got[1] == 0).all()
    assert (got[0] != 0).all()


def test_every_size_of_step_has_kernels_and_all_share_buffers() -> None:
    experts = TableExperts(SHAPE, "bf16", 200, TOP_K, EXPERTS, make_streams(DEVICE))
    sizes = {tokens: experts._for(tokens)._tokens for tokens in (1, 2, 16, 17, 64, 65, 200)}
    assert sizes == {1: 1, 2: 16, 16: 16, 17: 64, 64: 64, 65: 200, 200: 200}
    assert len({each.parts.data_ptr() for each in experts._by_tokens.values()}) == 1
    with pytest.raises(AssertionError, match="201 tokens"):
        experts._for(201)


def test_pairs_are_grouped_by_expert_without_the_unused() -> None:
    chosen = np.array([[2, 0, -1], [0, 5, 2], [2, -1, -1]])
    pairs = Pairs(chosen, np.zeros((3, 3), np.float32))
    found = {e: pairs.of(e).tolist() for e in range(8)}
    assert found == {0: [1, 3], 1: [], 2: [0, 5, 6], 3: [], 4: [], 5: [4], 6: [], 7: []}
    assert [pairs.load(e) for e in range(7)] == [2, 0, 3, 0, 0, 1, 0]


def test_rows_in_one_array_make_the_same_table() -> None:
    shape = TableShape.of(3, 3, 6)
    one, other = (np.zeros(shape.words, dtype=np.int64) for _ in range(2))
    write_table(one, shape, [10, 20], [0, 7], [[1, 3], [0, 5, 6]])
    write_rows(other, shape, [10, 20], [0, 7], np.array([0, 2, 5]), np.array([1, 3, 0, 5, 6]))
    assert one.tolist() == other.tolist()
    assert one[shape.firsts_at : shape.firsts_at + 3].tolist() == [0, 2, 5]
