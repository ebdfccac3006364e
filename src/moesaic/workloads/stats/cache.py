"""What per-layer LRU caches of any size would hit. Loads a compiler on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from moesaic.compiling.code_cache import code_cache
from moesaic.compiling.kept_code import kept
from moesaic.workloads.stats.sample import Sample

F = TypeVar("F", bound=Callable[..., object])


def _compiled(function: F) -> F:
    return kept(function, code_cache(Path(__file__).parent, "compiled-stats"))


def lru_curve(sample: Sample, fractions: tuple[float, ...], cold: bool) -> list[float]:
    """Hit rate of one LRU cache per layer holding this fraction of its experts, mean over layers.

    A token asks for its experts one after another, best first. `cold`: the cache is emptied at
    the beginning of every document; otherwise it lives through the whole trace. A fraction that
    is no whole number of experts is rounded down."""
    starts = sample.starts[:-1] if cold else sample.starts[:1]
    depths = _stack_depths(np.ascontiguousarray(sample.chosen), sample.num_experts, starts)
    hits = np.cumsum(depths, axis=1) / depths.sum(axis=1, keepdims=True)
    sizes = [int(f * sample.num_experts + 1e-9) for f in fractions]
    return [float(hits[:, size - 1].mean()) if size else 0.0 for size in sizes]


@_compiled
def _stack_depths(
    chosen: NDArray[np.uint8], experts: int, starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Per layer, how often an access found its expert at each depth of the LRU stack; the last
    column counts those that found it nowhere. An access hits every cache larger than its depth,
    so one pass serves all sizes."""
    tokens, layers, top_k = chosen.shape
    found = np.zeros((layers, experts + 1), np.int64)
    stack = np.zeros(experts, np.int64)
    for layer in range(layers):
        height, document = 0, 0
        for token in range(tokens):
            if document < len(starts) and token == starts[document]:
                height, document = 0, document + 1
            for rank in range(top_k):
                expert = np.int64(chosen[token, layer, rank])
                if expert < 0:  # padding: the token uses fewer
                    continue
                depth = 0
                while depth < height and stack[depth] != expert:
                    depth += 1
                if depth == height:
                    found[layer, experts] += 1
                    height += 1
                else:
                    found[layer, depth] += 1
                for place in range(depth, 0, -1):
                    stack[place] = stack[place - 1]
                stack[0] = expert
    return found
