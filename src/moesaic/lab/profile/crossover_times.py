"""From how many tokens on matrix tiles are faster than vectors, by precision."""

from __future__ import annotations

from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import choose
from moesaic.lab.profile.expert_times import LARGE, experts_us
from moesaic.machines.real.lane import Lane

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_DTYPES = ("bf16", "int8", "int4")
_NEVER, _ALWAYS = 0, 1


def measure_crossovers(lane: Lane, threads: int) -> dict[str, int]:
    """Nothing where the CPU has no tiles."""
    if choose() != "amx":
        return {}
    found = {}
    for dtype in _DTYPES:
        vectors, tiles = (make_kernel(LARGE, dtype, "amx", mode) for mode in (_NEVER, _ALWAYS))
        taken = {
            tokens: [experts_us(lane, threads, kernel, tokens) for kernel in (vectors, tiles)]
            for tokens in TOKENS
        }
        found[dtype] = first_better(taken)
    return found


def first_better(taken: dict[int, list[float]]) -> int:
    """The smallest count from which tiles (second) never lose again; one more than measured where
    they always do."""
    crossover = max(taken) + 1
    for tokens in sorted(taken, reverse=True):
        vectors, tiles = taken[tokens]
        if tiles > vectors:
            break
        crossover = tokens
    return crossover
