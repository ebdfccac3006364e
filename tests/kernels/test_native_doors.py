"""Are impossible native calls refused at the door, and do many threads share one executor?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from native_experts import WAYS, normal, packed, random_expert

from moesaic.kernels import _native
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
SHAPE = ExpertShape(48, 32)


def runner(*codes: int) -> _native.Runner:
    return _native.Runner(_native.Pool([], 0.0), *codes)


def with_type(kind: str, field: str, code: int) -> None:
    setattr(getattr(_native, kind)(), field, code)


DOORS: dict[str, Callable[[], object]] = {
    "precision": lambda: runner(3, 8, 8, 0, 0, 0),
    "activation": lambda: runner(0, 8, 8, 3, 0, 0),
    "instruction set": lambda: runner(0, 8, 8, 0, 99, 0),
    "cannot be computed": lambda: runner(0, 0, 8, 0, 0, 0),
    "precision: -1": lambda: _native.block_bytes(-1, 8, 8),
    "0 x 8": lambda: _native.block_bytes(0, 0, 8),
    "precision: 7": lambda: _native.unpack(7, 8, 8, 64, 64, 64, 64),
    "missing": lambda: _native.unpack(0, 8, 8, 0, 0, 0, 0),
    "matrix or a block is missing": lambda: runner(0, 8, 8, 0, 0, 0).pack(0, 0, 0, 0, 8, 8, 0),
    "floating-point type: 3": lambda: with_type("LayerCall", "hidden_type", 3),
    "floating-point type: -1": lambda: with_type("LayerCall", "out_type", -1),
    "floating-point type: 9": lambda: with_type("RouterCall", "type", 9),
    "0 us to a day": lambda: _native.Pool([], float("nan")),
    "at least one item": lambda: _native.Pool([], 0.0).peak_seconds("fp32-avx2", 0),
    "no unit bf16-abacus": lambda: _native.Pool([], 0.0).peak_seconds("bf16-abacus", 1),
    "no memory to read": lambda: _native.Pool([], 0.0).stream_seconds(0, 64, False),
    "so many tokens": lambda: runner(0, 8, 8, 0, 0, 0).workspace_bytes(-1, 1),
}


@pytest.mark.parametrize("words", DOORS)
def test_what_cannot_be_is_refused_at_the_door(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DOORS[words]()


def test_a_layer_without_a_table_of_blocks() -> None:
    call = _native.LayerCall()
    call.experts, call.experts_total = [0], 1
    with pytest.raises(ValueError, match="table of blocks is missing"):
        runner(0, 8, 8, 0, 0, 0).run(call)


def test_a_router_without_weights() -> None:
    config = _native.RouterConfig()
    config.experts, config.top_k = 4, 2
    call = _native.RouterCall()
    call.tokens, call.hidden = 1, 8
    with pytest.raises(ValueError, match="inputs or results are missing"):
        _native.Router(0, config).route(call)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_eight_threads_share_one_executor(dtype: str) -> None:
    """Each gets its own result, whatever the others compute meanwhile."""
    kernel = WAYS[0].kernel(SHAPE, dtype)
    executor = NativeExecutor(kernel, 2)
    blocks = Blocks([packed(kernel, random_expert(SHAPE, e)) for e in range(3)])

    def result(number: int) -> torch.Tensor:
        tokens = 1 + 5 * (number % 4)
        hidden, weights = normal(tokens, 48, seed=number), torch.ones(tokens, 2).bfloat16()
        ids = torch.tensor([[number % 3, (number + 1) % 3]]).repeat(tokens, 1)
        out = torch.empty(tokens, 48)
        executor.layer(blocks, (0, 1, 2), hidden, ids, weights, out)
        return out

    alone = [result(number) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            for one, other in zip(alone, threads.map(result, range(40)), strict=True):
                assert torch.equal(one, other)
