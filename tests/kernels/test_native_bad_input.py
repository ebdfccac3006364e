"""Is every mistake of a caller refused in words, before anything is read or written?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from native_experts import WAYS, bytes_at, normal, packed, random_expert

from moesaic.kernels import _native
from moesaic.kernels.base import Blocks, ExpertWeights
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
SHAPE = ExpertShape(24, 16)


@dataclass(frozen=True)
class Call:
    """What `NativeExecutor.layer` takes; right as it stands."""

    kernel: NativeKernel
    blocks: list[torch.Tensor]
    experts: tuple[int, ...]
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor

    def run(self, executor: NativeExecutor) -> None:
        blocks = Blocks(self.blocks)
        executor.layer(blocks, self.experts, self.hidden, self.ids, self.weights, self.out)


@pytest.fixture
def good() -> Call:
    kernel = WAYS[0].kernel(SHAPE, "int8")
    blocks = [packed(kernel, random_expert(SHAPE, e)) for e in range(3)]
    ids = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]])
    hidden, weights = normal(4, 24), torch.ones(4, 2)
    return Call(kernel, blocks, (0, 1, 2), hidden, ids, weights, torch.full((4, 24), 5.0))


def with_value(tensor: torch.Tensor, at: tuple[int, int], value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[at] = value
    return changed


def block(call: Call, **how: int) -> torch.Tensor:
    return bytes_at(call.kernel.block_bytes, **how)


MISTAKES: dict[str, tuple[str, Callable[[Call], Call]]] = {
    "id beyond": (
        "token 1 asks for expert 3",
        lambda c: replace(c, ids=with_value(c.ids, (1, 0), 3)),
    ),
    "id negative": ("asks for expert -1", lambda c: replace(c, ids=with_value(c.ids, (3, 1), -1))),
    "id huge": ("asks for expert", lambda c: replace(c, ids=with_value(c.ids, (3, 1), 2**40))),
    "nan weight": (
        "token 2 has a routing weight that is not a number",
        lambda c: replace(c, weights=with_value(c.weights, (2, 1), torch.nan)),
    ),
    "infinite weight": (
        "token 0 has a routing weight",
        lambda c: replace(c, weights=with_value(c.weights, (0, 0), -torch.inf)),
    ),
    "listed twice": ("expert 1 is listed twice", lambda c: replace(c, experts=(1, 0, 1))),
    "listed beyond": (
        "expert 3 is to be computed, but there are 3",
        lambda c: replace(c, experts=(3,)),
    ),
    "listed negative": ("expert -1 is to be computed", lambda c: replace(c, experts=(-1,))),
    "short block": (
        "a block has .* bytes, this one",
        lambda c: replace(c, blocks=[c.blocks[0], c.blocks[1], c.blocks[2][:-64]]),
    ),
    "crooked block": (
        "a multiple of 64 bytes",
        lambda c: replace(c, blocks=[c.blocks[0], block(c, misaligned=8), c.blocks[2]]),
    ),
    "block of numbers": (
        "one row of bytes",
        lambda c: replace(c, blocks=[b.view(torch.int8) for b in c.blocks]),
    ),
    "block with gaps": (
        "one row of bytes",
        lambda c: replace(c, blocks=[b.repeat_interleave(2)[::2] for b in c.blocks]),
    ),
    "wide hidden": (r"hidden states are \(4, 25\)", lambda c: replace(c, hidden=normal(4, 25))),
    "flat hidden": (r"hidden states are \(24,\)", lambda c: replace(c, hidden=normal(24))),
    "hidden of no kind": ("float64", lambda c: replace(c, hidden=c.hidden.double())),
    "hidden transposed": ("side by side", lambda c: replace(c, hidden=normal(24, 4).T)),
    "hidden expanded": (
        "0 values apart, but have 24",
        lambda c: replace(c, hidden=normal(1, 24).expand(4, 24)),
    ),
    "ids of another type": ("int64", lambda c: replace(c, ids=c.ids.int())),
    "fewer ids": (
        "as many expert numbers",
        lambda c: replace(c, ids=c.ids[:3], weights=c.weights[:3]),
    ),
    "fewer weights": ("as many expert numbers", lambda c: replace(c, weights=c.weights[:, :1])),
    "flat ids": ("as many", lambda c: replace(c, ids=c.ids[:, 0], weights=c.weights[:, 0])),
    "ids with gaps": ("row after row", lambda c: replace(c, ids=c.ids.T.contiguous().T)),
    "result transposed": ("row after row", lambda c: replace(c, out=torch.ones(24, 4).T)),
    "result too small": ("shape of the hidden", lambda c: replace(c, out=torch.ones(3, 24))),
    "result of integers": (
        "shape of the hidden",
        lambda c: replace(c, out=torch.ones(4, 24).int()),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_with_a_message(mistake: str, good: Call) -> None:
    words, change = MISTAKES[mistake]
    executor, bad = NativeExecutor(good.kernel, 2), change(good)
    before = bad.out.clone()
    with pytest.raises(ValueError, match=words):
        bad.run(executor)
    assert torch.equal(bad.out, before), "a refused layer wrote its result"
    good.run(executor)
    assert bool(good.out.isfinite().all()), "the executor works on"


def test_only_fp32_can_be_added_to(good: Call) -> None:
    kernel = good.kernel
    out = torch.zeros(4, 24, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="only an fp32 result can be added to"):
        kernel.compute(good.blocks[0], good.hidden, None, 1.0, out)


def test_one_expert_checks_its_block_and_weights(good: Call) -> None:
    kernel, out = good.kernel, torch.zeros(4, 24)
    for wrong, words in (
        (good.blocks[0][:-1], "this one"),
        (block(good, misaligned=32), "multiple of 64"),
        (good.blocks[0].view(1, -1), "one row of bytes"),
    ):
        with pytest.raises(ValueError, match=words):
            kernel.compute(wrong, good.hidden, None, 1.0, out)
        with pytest.raises(ValueError, match=words):
            kernel.pack(random_expert(SHAPE), wrong)
        with pytest.raises(ValueError, match=words):
            kernel.unpack(wrong)
    with pytest.raises(ValueError, match="as many expert numbers"):
        kernel.compute(good.blocks[0], good.hidden, None, torch.ones(3, 1), out)
    assert not out.any()
    kernel.compute(good.blocks[0], good.hidden, None, torch.full((4, 1), 0.5).bfloat16(), out)
    half = out.clone()
    kernel.compute(good.blocks[0], good.hidden, None, 0.5, out.zero_())
    assert torch.equal(out, half), "weights of another precision are the same weights"


@pytest.mark.parametrize("name", ["gate", "up", "down"])
def test_matrices_of_the_wrong_shape_are_refused(name: str, good: Call) -> None:
    weights = random_expert(SHAPE)
    parts = {each: getattr(weights, each) for each in ("gate", "up", "down")}
    parts[name] = parts[name].T
    with pytest.raises(ValueError, match=f"{name} is .* it must be"):
        good.kernel.pack(ExpertWeights(**parts), good.blocks[0])


# Are impossible native calls refused at the door, and do many threads share one executor?

DOOR_SHAPE = ExpertShape(48, 32)


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
    kernel = WAYS[0].kernel(DOOR_SHAPE, dtype)
    executor = NativeExecutor(kernel, 2)
    blocks = Blocks([packed(kernel, random_expert(DOOR_SHAPE, e)) for e in range(3)])

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
