"""Do experts spread over memory nodes stay where their workers are, and add up to the same?"""

from __future__ import annotations

import pytest
import torch

from moesaic.core.numa import Node, experts_of, node_of, parse_cores
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.cores import all_cores
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.node_memory import prefer_node
from moesaic.model_info.expert_shape import ExpertShape

SHAPE, EXPERTS = ExpertShape(96, 48), 7
needs_native = pytest.mark.skipif(choose() == REFERENCE, reason="needs the native kernels")


def random_weights() -> ExpertWeights:
    wide = (SHAPE.intermediate, SHAPE.hidden)
    return ExpertWeights(torch.randn(wide), torch.randn(wide), torch.randn(wide[::-1]))


def test_lists_of_cores() -> None:
    assert parse_cores("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cores("") == ()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("experts", [1, 4, 7, 64])
def test_every_expert_has_one_node(experts: int, nodes: int) -> None:
    spread = [list(experts_of(node, experts, nodes)) for node in range(nodes)]
    assert [expert for mine in spread for expert in mine] == list(range(experts))
    for node, mine in enumerate(spread):
        assert all(node_of(expert, experts, nodes) == node for expert in mine)
        assert len(mine) in (experts // nodes, -(-experts // nodes))


def test_memory_on_a_node_that_is_not_there_is_refused() -> None:
    memory = torch.empty(1 << 20, dtype=torch.uint8)
    assert not prefer_node(memory.data_ptr(), memory.nbytes, 1000)
    assert not prefer_node(memory.data_ptr(), 1, 0), "less than a page"


@needs_native
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_two_nodes_give_what_one_gives(tokens: int) -> None:
    cores = all_cores()
    nodes = (Node(0, (cores[0],)), Node(0, (cores[-1],)))
    kernel = make_kernel(SHAPE, "bf16")
    store = ExpertStore(kernel, 1, EXPERTS, nodes)
    for expert in range(EXPERTS):
        kernel.pack(random_weights(), store.block(0, expert))
    hidden = torch.randn((tokens, SHAPE.hidden)).bfloat16()
    ids = torch.stack([torch.randperm(EXPERTS)[:3] for _ in range(tokens)])
    weights = torch.rand((tokens, 3))
    one, two = torch.empty((2, tokens, SHAPE.hidden))
    queue = range(EXPERTS)
    kernel.executor(2).layer(store.layer(0), queue, hidden, ids, weights, one)
    kernel.executor(2, nodes).layer(store.layer(0), queue, hidden, ids, weights, two)
    assert (one - two).abs().max() < 1e-5 * one.abs().max()
