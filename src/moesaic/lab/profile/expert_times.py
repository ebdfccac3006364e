"""How long one expert takes on a lane, by precision and token count."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moesaic.core.units import GB, NS_PER_S
from moesaic.hardware.caches import stream_bytes
from moesaic.kernels.base import Blocks, ExpertKernel, LayerExecutor
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.dtypes import TORCH_DTYPES
from moesaic.lab.profile.timing import line_through, min_ns, on_lane
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import Job, Lane
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.models.synthetic_model import random_expert

DTYPES = ("bf16", "fp32", "int8", "int4")
TOKENS = (1, 2, 4, 16, 64, 256)
LARGE = ExpertShape(2048, 1024)  # OLMoE's; the small one separates fixed cost from bytes
SMALL = ExpertShape(2048, 256)
_BLOCKS = 24  # at least


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """Microseconds per expert on one lane; `first_us` is what a layer's first expert adds."""

    by_tokens: dict[str, dict[int, float]]  # dtype -> tokens -> us, the large shape
    overhead_us: float
    bandwidth_gb_s: float
    first_us: float
    tflops: dict[str, float]


def measure_experts(lane: Lane, threads: int) -> ExpertTimes:
    large = {dtype: _blocks(make_kernel(LARGE, dtype)) for dtype in DTYPES}
    small = _blocks(make_kernel(SMALL, "bf16"))
    by_tokens = {
        dtype: {tokens: _expert_us(lane, threads, store, tokens) for tokens in TOKENS}
        for dtype, store in large.items()
    }
    one = by_tokens["bf16"][1]
    sizes = [store.kernel.block_bytes for store in (small, large["bf16"])]
    points = [(sizes[0], _expert_us(lane, threads, small, 1)), (sizes[1], one)]
    overhead, us_per_byte = line_through(points)
    alone = _lane_us(lane, large["bf16"].kernel.executor(threads), large["bf16"], 1, 1)
    flops = 2.0 * LARGE.values * TOKENS[-1]
    return ExpertTimes(
        by_tokens,
        overhead_us=overhead,
        bandwidth_gb_s=1e6 / us_per_byte / GB,
        first_us=max(alone - one, 0.0),
        tflops={dtype: flops / row[TOKENS[-1]] / 1e6 for dtype, row in by_tokens.items()},
    )


def experts_us(lane: Lane, threads: int, kernel: ExpertKernel, tokens: int) -> float:
    """Four experts of so many tokens each, together."""
    return _lane_us(lane, kernel.executor(threads), _blocks(kernel), tokens, 4)


def _blocks(kernel: ExpertKernel) -> ExpertStore:
    """Enough of them that no cache holds them."""
    store = ExpertStore(kernel, 1, max(_BLOCKS, -(-stream_bytes() // kernel.block_bytes)))
    kernel.pack(random_expert(kernel.shape), store.block(0, 0))
    for number in range(1, store.experts):
        store.block(0, number).copy_(store.block(0, 0))
    return store


def _expert_us(lane: Lane, threads: int, store: ExpertStore, tokens: int) -> float:
    """One expert more: between one and five in a row, so that the hand-over drops out; where
    other programs disturbed that beyond belief, the plain average."""
    executor = store.kernel.executor(threads)
    one, five = (
        _lane_us(lane, executor, store, tokens, 1),
        _lane_us(lane, executor, store, tokens, 5),
    )
    following = (five - one) / 4
    return following if five / 10 < following <= five / 4 else five / 5


def _lane_us(
    lane: Lane, executor: LayerExecutor, store: ExpertStore, tokens: int, experts: int
) -> float:
    shape = store.kernel.shape
    floating = TORCH_DTYPES.get(store.kernel.dtype, torch.bfloat16)
    hidden = torch.randn((tokens, shape.hidden)).to(floating)
    ids = torch.arange(experts).repeat(tokens, 1)
    weights, out = torch.ones(tokens, experts), torch.zeros((tokens, shape.hidden))

    def make(attempt: int) -> Job:
        first = attempt * experts
        chosen = Blocks([store.block(0, (first + i) % store.experts) for i in range(experts)])

        def compute() -> None:
            with torch.inference_mode():
                executor.layer(chosen, range(experts), hidden, ids, weights, out)

        return compute

    return min_ns(on_lane(lane, make)) / NS_PER_S * 1e6
