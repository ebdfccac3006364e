"""From how many tokens on products for many are faster than those for few, by precision: matrix
tiles than vectors or, where there are none, bytes than 16-bit codes beside int4 weights."""

from __future__ import annotations

from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.lab.profile.expert_times import LARGE, experts_us
from moesaic.machines.real.lane import Lane

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_IN_TILES = ("bf16", "int8", "int4")
_IN_VECTORS = ("int4",)
_NEVER, _ALWAYS = 0, 1


def measure_crossovers(lane: Lane, threads: int) -> dict[str, int]:
    """Nothing without native kernels."""
    name = choose()
    if name == REFERENCE:
        return {}
    found = {}
    for dtype in _IN_TILES if name == "amx" else _IN_VECTORS:
        few, many = (make_kernel(LARGE, dtype, name, mode) for mode in (_NEVER, _ALWAYS))
        taken = {
            tokens: [experts_us(lane, threads, kernel, tokens) for kernel in (few, many)]
            for tokens in TOKENS
        }
        found[dtype] = first_better(taken)
    return found


def first_better(taken: dict[int, list[float]]) -> int:
    """The smallest count from which products for many (second) never lose again; one more than
    measured where they always do."""
    crossover = max(taken) + 1
    for tokens in sorted(taken, reverse=True):
        few, many = taken[tokens]
        if many > few:
            break
        crossover = tokens
    return crossover
